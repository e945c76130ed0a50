"""Screens as text: what a person reads in every state, at three sizes.

``GPUWATCH_UPDATE_GOLDEN=1 pytest tests/tui`` writes the files anew; review them as screens.
"""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path

import pytest
from tui_states import NOW_NS, STATES

from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import plain, row_width
from gpuwatch.tui.view import VIEWS, screen

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 35), (160, 50))
SCREENS = [
    *(("overview", name) for name in STATES),
    *(("processes", name) for name in ("live1", "live8", "strange_names", "no_processes", "absent", "no_gpus")),
    *(("diagnosis", name) for name in ("live1", "undiagnosed", "diagnosing", "no_processes", "no_gpus", "recorded")),
    ("help", "live1"),
]


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


@pytest.mark.parametrize("view", ["overview", "processes", "diagnosis"])
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
