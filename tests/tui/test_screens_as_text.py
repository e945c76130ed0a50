"""Screens as text: what a person reads in every state, at three sizes.

``GPUWATCH_UPDATE_GOLDEN=1 pytest tests/tui`` writes the files anew; review them as screens.
"""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path

import pytest
from msgspec.structs import replace
from tui_states import MAIN, NOW_NS, STATES, fleet, live

from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import plain, row_width
from gpuwatch.tui.view import VIEWS, screen
from gpuwatch.wire import DiagnosisProgress

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 35), (160, 50))
LISTED = (
    "connecting", "live1", "stale", "lost", "recorded", "no_driver", "no_gpus", "no_processes", "live16", "mig",
    "mig_tree", "absent", "ten_findings",
)  # fmt: skip
"""Every view in every one of these."""
SCREENS = [
    *(("overview", name) for name in STATES if name not in ("course", "remembered", "writing", "hooked")),
    *((view, name) for view in VIEWS if view not in ("overview", "help") for name in LISTED),
    *(("processes", name) for name in ("live8", "strange_names", "bursty", "writing", "ranks")),
    *(("diagnosis", name) for name in ("undiagnosed", "diagnosing", "waiting", "course", "hooked", "ranks")),
    *(("gpu", name) for name in ("without_gpm", "hung", "waiting", "probed", "replayed", "bursty", "faulty")),
    *((view, "incompatible") for view in ("processes", "hosts")),
    ("probes", "probed"),
    ("events", "eventful"),
    ("events", "remembered"),
    # What stands there has nothing to do with the state: only that it is there before anything else is.
    *(("help", name) for name in ("connecting", "live1", "lost")),
]
OPTIONS: dict[str, dict[str, object]] = {
    "gpu-past": {"view": "gpu", "window_s": 3600},
    "gpu-faulty_minute": {"view": "gpu", "window_s": 60},
    "gpu-no_past": {"view": "gpu", "window_s": 86_400},
    "events-throttles": {"view": "events", "kind": "throttle"},
    "events-found": {"view": "events", "find": "loader"},
    "probes-copies": {"view": "probes", "row": 4},
    "processes-by_cpu": {"view": "processes", "sort": "cpu"},
    "processes-found": {"view": "processes", "find": "no such", "typing": True},
    "processes-ended": {"view": "processes", "follow": True, "pid": 999},
    "processes-question": {"view": "processes", "question": "send SIGTERM to 4242 python train.py?"},
    "overview-elsewhere": {"view": "overview", "device": 1},
    "overview-mig_part": {"view": "overview", "device": 101},
    "diagnosis-waiting_rank": {"view": "diagnosis", "device": 1},
}
"""Screens that take more than a view: a name, and what the person has chosen."""
OF_STATE = {
    "gpu-past": "past", "gpu-no_past": "live1", "events-throttles": "eventful", "events-found": "eventful",
    "probes-copies": "probed", "processes-by_cpu": "live8", "processes-found": "live8", "processes-ended": "live1",
    "gpu-faulty_minute": "faulty", "overview-mig_part": "mig_tree",
    "diagnosis-waiting_rank": "ranks",
    "processes-question": "live1", "overview-elsewhere": "elsewhere",
}  # fmt: skip


def draw(view: str, state: str, width: int, height: int, *, ascii_only: bool = False) -> str:
    options = ViewOptions(view=view, zone=UTC, ascii_only=ascii_only)
    return plain(screen(STATES[state], options, width, height, now_ns=NOW_NS))


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GPUWATCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path.name} differs; see this module's docstring"


@pytest.mark.parametrize(("view", "state"), SCREENS)
def test_screen_reads_as_reviewed(view: str, state: str) -> None:
    parts = [f"=== {width}x{height}\n{draw(view, state, width, height)}\n" for width, height in SIZES]
    check(f"{view}-{state}", "".join(parts))


@pytest.mark.parametrize("name", OPTIONS)
def test_choices_read_as_reviewed(name: str) -> None:
    state = STATES.get(OF_STATE[name]) or replace(live(2), progress=DiagnosisProgress(1, 2, MAIN, (0,), 8.0, 20.0))
    options = replace(ViewOptions(zone=UTC), **OPTIONS[name])
    parts = [
        f"=== {width}x{height}\n{plain(screen(state, options, width, height, now_ns=NOW_NS))}\n"
        for width, height in SIZES
    ]
    check(name, "".join(parts))


def test_hosts_read_as_reviewed() -> None:
    hosts = fleet()
    options = ViewOptions(view="hosts", zone=UTC, host_count=len(hosts))
    parts = [
        f"=== {width}x{height}\n{plain(screen(hosts[0], options, width, height, now_ns=NOW_NS, hosts=hosts))}\n"
        for width, height in SIZES
    ]
    check("hosts-fleet", "".join(parts))


@pytest.mark.parametrize("view", ["overview", "gpu", "processes", "diagnosis", "events", "hosts"])
def test_ascii_screen_reads_as_reviewed(view: str) -> None:
    text = draw(view, "live8", 80, 24, ascii_only=True)
    assert text.isascii()
    check(f"{view}-ascii", text + "\n")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_row_is_exactly_as_wide_as_the_terminal(view: str, state: str) -> None:
    for width, height in ((60, 15), (60, 16), (79, 24), (100, 30), (133, 41), (300, 80)):
        for ascii_only in (False, True):
            options = ViewOptions(view=view, zone=UTC, ascii_only=ascii_only)
            rows = screen(STATES[state], options, width, height, now_ns=NOW_NS)
            assert len(rows) == height
            assert {row_width(row) for row in rows} == {width}


@pytest.mark.parametrize("size", [(59, 24), (80, 14), (40, 10), (20, 3), (1, 1)])
def test_too_small_a_terminal_is_told_what_is_needed(size: tuple[int, int]) -> None:
    rows = screen(STATES["live8"], ViewOptions(), *size, now_ns=NOW_NS)
    assert len(rows) == size[1]
    assert {row_width(row) for row in rows} == {size[0]}
    if size[0] * size[1] > 60:
        assert "60x15" in plain(rows).replace("\n", "")
