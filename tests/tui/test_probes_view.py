"""The Probes view: a probe under way, verdicts against a baseline, a baseline that is of no use."""

from __future__ import annotations

from datetime import UTC

import pytest
from msgspec.structs import replace
from test_screens_as_text import SIZES, check
from tui_states import NOW_NS, SECOND, WALL_NS, live, probed

from gpuwatch.client.state import NodeState
from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.tui import probe_figures
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import plain, row_width
from gpuwatch.tui.view import screen
from gpuwatch.wire import ProbeProgress, ProbeVerdict, ValueVerdict

BASE = "/etc/gpuwatch/base.json"
COPIES_ROW, MATMUL_ROW = 4, 0
SIZES_OF_MATMUL = (256, 2048, 4096, 8192, 16384)


def matmul() -> ProbeResult:
    """As an H200 has them."""
    figures = zip(SIZES_OF_MATMUL, (9.18, 662.0, 632.0, 676.0, 688.0), strict=True)
    values = [ProbeValue(f"bf16_{n}_sustained", "TFLOP/s", v, v * 0.99, v * 1.01, 30) for n, v in figures]
    values += [ProbeValue("bf16_8192_first_call_ms", "ms", 14.6, 14.6, 14.6, 1, higher_is_better=False)]
    return ProbeResult(
        *("matmul", ProbeStatus.OK, "cuda:0", tuple(values), "GPU-00000000", "NVIDIA H200"), WALL_NS - 60 * SECOND, 88.0
    )


def judged() -> NodeState:
    """Copies as they should be but for one; matmul under another torch."""
    state = probed()
    copies = next(r for r in state.probes if r.probe == "copies")
    values = (
        ValueVerdict("h2d_pageable_256MiB", "SLOWER", "critical", "GB/s", 12.1, 9.4, -0.2231, -0.241, -0.2049,
                     "the SM clock was 20.1% lower (1402 MHz): power or heat, not the code"),
        ValueVerdict("d2h_pinned_256MiB", "AMBIGUOUS", "warn", "GB/s", 55.3, 53.1, -0.0398, -0.097, 0.0211,
                     "3 runs would tell a change of 2.0%"),
        ValueVerdict("h2d_pinned_256MiB", "SAME", "ok", "GB/s", 55.3, 54.9, -0.0072, -0.0121, -0.0024),
    )  # fmt: skip
    other = ValueVerdict(
        "", "NOT_COMPARABLE", "unknown", reason="measured under other conditions: torch 2.10.0 → 2.11.0"
    )
    return replace(
        state,
        probes=(matmul(), *(r for r in state.probes if r.probe != "matmul")),
        baseline=BASE,
        verdicts=(
            ProbeVerdict("copies", "GPU-00000000", copies.started_wall_ns, "critical", values),
            ProbeVerdict("matmul", "GPU-00000000", WALL_NS - 60 * SECOND, "unknown", (other,)),
        ),
    )


def running() -> NodeState:
    """Matmul for the second time, memory of another GPU."""
    progress = ProbeProgress(1, 2, "matmul", 0, "bf16_8192: measuring", 31.4, 90.0)
    elsewhere = ProbeProgress(1, 3, "memory", 1, "triad: measuring", 3.0, 0.0)
    return replace(judged(), probing={0: progress, 1: elsewhere})


SCREENS = {
    "judged": (judged(), COPIES_ROW),
    "not_comparable": (judged(), MATMUL_ROW),
    "running": (running(), MATMUL_ROW),
    "first_run": (
        replace(live(1), probing={0: ProbeProgress(1, 2, "copies", 0, "starting", 0.0, 0.0)}),
        COPIES_ROW,
    ),
    "broken_baseline": (
        replace(judged(), verdicts=(), baseline_note=f"{BASE}: not a result of gpuwatch probe: JSON is malformed"),
        COPIES_ROW,
    ),
}


def draw(name: str, width: int, height: int, *, ascii_only: bool = False) -> str:
    state, row = SCREENS[name]
    options = ViewOptions(view="probes", row=row, zone=UTC, ascii_only=ascii_only)
    return plain(screen(state, options, width, height, now_ns=NOW_NS))


@pytest.mark.parametrize("name", SCREENS)
def test_screen_reads_as_reviewed(name: str) -> None:
    parts = [f"=== {width}x{height}\n{draw(name, width, height)}\n" for width, height in SIZES]
    check(f"probes-{name}", "".join(parts))


def test_verdicts_are_told_without_colour_and_without_unicode() -> None:
    text = draw("judged", 80, 24, ascii_only=True)
    assert text.isascii()
    assert "X SLOWER" in text
    assert "! AMBIGUOUS" in text
    assert "* SAME" in text


@pytest.mark.parametrize("name", SCREENS)
def test_every_row_is_exactly_as_wide_as_the_terminal(name: str) -> None:
    state, row = SCREENS[name]
    for width, height in ((60, 15), (79, 24), (99, 30), (100, 30), (133, 41), (300, 80)):
        for ascii_only in (False, True):
            options = ViewOptions(view="probes", row=row, zone=UTC, ascii_only=ascii_only)
            rows = screen(state, options, width, height, now_ns=NOW_NS)
            assert len(rows) == height
            assert {row_width(line) for line in rows} == {width}


def test_a_new_result_does_not_wear_the_verdict_of_the_old_one() -> None:
    state = judged()
    again = tuple(replace(r, started_wall_ns=WALL_NS) if r.probe == "copies" else r for r in state.probes)
    options = ViewOptions(view="probes", row=COPIES_ROW, zone=UTC)
    text = plain(screen(replace(state, probes=again), options, 80, 24, now_ns=NOW_NS))
    assert "SLOWER" not in text
    assert "54.9 GB/s" in text


def test_a_published_figure_of_large_products_is_not_held_against_small_ones() -> None:
    state = replace(probed(), probes=(matmul(),))
    (published,) = [
        "".join(text for text, _ in row)
        for row in probe_figures.rows(state, matmul(), None, 200, 40, ViewOptions().glyphs)
        if "794.5" in "".join(text for text, _ in row)
    ]
    assert "bf16_8192_sustained 85 %" in published
    assert "bf16_4096_sustained 80 %" in published
    assert "256" not in published.replace("16384", "")
    assert "2048" not in published
