"""The time axis of the GPU view, and what happened along it: one letter for each cell.

Owns: which letter stands for what, where the legend finds room. Refuses: which events there are (series.py).

Two rows: what held the clocks down, and, when the window has any, what the driver told. A legend explains the letters
that are there: in the widest gap of its row, or else on the axis, where the least of them may be cut. Letters differ,
so that colour is never needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.model import ClocksEvent, EventKind, EventOrigin, EventRecord
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.series import Past
from gpuwatch.tui.text import Row, Span, fit

AXIS = 5
"""Cells to the left of a chart."""
_SECOND = 1_000_000_000
_MARKS: tuple[tuple[ClocksEvent, str, str], ...] = (
    (ClocksEvent.HW_SLOWDOWN | ClocksEvent.HW_POWER_BRAKE, "H", "hardware"),
    (ClocksEvent.HW_THERMAL | ClocksEvent.SW_THERMAL, "T", "too hot"),
    (ClocksEvent.SW_POWER_CAP, "p", "power cap"),
)
"""Worst first: one letter stands for a cell."""
_WORST_EVENT = "XEDx"
_MEMORY = frozenset(
    {
        EventKind.ECC_UNCORRECTED, EventKind.ECC_STORM, EventKind.DRAM_RETIREMENT, EventKind.DRAM_RETIREMENT_FAILURE,
        EventKind.POISON, EventKind.FATAL_POISON,
    }
)  # fmt: skip


def rows(past: Past, options: ViewOptions, width: int, *, known: bool, across: int = 1) -> list[tuple[Row, ...]]:
    """The rows of letters and the time axis under them, for ``across`` charts side by side. ``known``: the clocks'
    reasons could be read."""
    cells = width - AXIS
    out: list[tuple[Row, ...]] = []
    legends: list[str] = []
    held = _held(past, options, cells, known=known)
    for label, (row, legend) in (("held", held), ("drv", _told(past, options, cells))):
        if row.strip():
            text = _with_legend(row, legend)
            legends += [legend] if text is None else []
            role = "crit" if label == "drv" and set(row) & set("XED") else "warn"
            drawn = fit(((f"{label:>{AXIS - 1}} ", "dim"), (text or row, role)), width, options.glyphs)
            out.append((drawn,) * across)
        elif label == "held":
            out.append((((" " * AXIS + legend, "dim"),),) * across)
    if across > 1 and len(legends) > 1:
        # Every column has the same letters: each explains a part of them.
        return [*out, tuple(_axis(options, width, legends[min(place, 1)]) for place in range(across))]
    return [*out, (_axis(options, width, "  ".join(legends)),) * across]


def window_text(window_s: int) -> str:
    """ "10 min", "1 h", "24 h"."""
    return f"{window_s // 3600} h" if window_s >= 3600 else f"{window_s // 60} min"


def _held(past: Past, options: ViewOptions, cells: int, *, known: bool) -> tuple[str, str]:
    """The letters of what held the clocks down, and their legend or what to say instead."""
    step_ns = max(1, options.window_s * _SECOND // cells)
    bits = [0] * cells
    last = past.end_ns // step_ns
    for time_ns, reasons in past.reasons:
        place = cells - 1 - (last - time_ns // step_ns)
        # A reading stands for the time since the one before it.
        for covered in range(place - past.step_ns // step_ns, place + 1):
            if 0 <= covered < cells:
                bits[covered] |= reasons
    row = "".join(next((letter for reason, letter, _ in _MARKS if here & reason), " ") for here in bits)
    if not row.strip():
        return row, "nothing held the clocks down" if known else "what held the clocks down is not known"
    return row, "  ".join(f"{letter} {text}" for _, letter, text in reversed(_MARKS) if letter in row)


def _told(past: Past, options: ViewOptions, cells: int) -> tuple[str, str]:
    """The letters of what the driver told, and their legend with the numbers of the XIDs."""
    step_ns = max(1, options.window_s * _SECOND // cells)
    row = [" "] * cells
    shown: list[EventRecord] = []
    for event in past.events:
        # What came after the newest reading is at the end; only a moment can lie between.
        place = cells - 1 - max(0, past.end_ns // step_ns - event.mono_ns // step_ns)
        if place >= 0:
            shown.append(event)
            row[place] = min(row[place], letter_of(event), key=f"{_WORST_EVENT} ".index)
    return "".join(row), "  ".join(_meaning(letter, shown) for letter in _WORST_EVENT if letter in row)


def letter_of(event: EventRecord) -> str:
    """x: the job's own XID, X: one of the GPU or driver, E: its memory, D: anything else of the driver."""
    if event.kind is EventKind.XID:
        return "x" if event.origin is EventOrigin.APPLICATION else "X"
    return "E" if event.kind in _MEMORY else "D"


def _meaning(letter: str, events: Sequence[EventRecord]) -> str:
    """ "x job XID 31": of XIDs each number once, the newest first. The events view has all that is known of them."""
    if letter not in "xX":
        return f"{letter} memory" if letter == "E" else f"{letter} driver"
    numbers = " ".join(dict.fromkeys(str(event.xid) for event in events if letter_of(event) == letter))
    return f"{letter} {'job ' if letter == 'x' else ''}XID {numbers}"


def _with_legend(row: str, legend: str) -> str | None:
    """The row with its legend in the widest gap, two cells from the letters; None when there is no gap for it."""
    start = end = at = 0
    while at < len(row):
        stop = at
        while stop < len(row) and row[stop] == " ":
            stop += 1
        # Of gaps that are equally wide the last: it follows the letters that it explains.
        if stop - at >= end - start:
            start, end = at, stop
        at = stop + 1
    begin = start + (2 if start else 0)
    if begin + len(legend) + (2 if end < len(row) else 0) > end:
        return None
    return row[:begin] + legend + row[begin + len(legend) :]


def _axis(options: ViewOptions, width: int, legend: str) -> Row:
    """From the window's begin to now; a legend takes the place of the middle."""
    window, cells = options.window_s, width - AXIS
    left = f"-{window_text(window)}"
    middle = f"-{window_text(window // 2)}" if window >= 3600 else f"-{window / 120:g} min"
    text = left + middle.rjust(cells // 2 - len(left) + len(middle) // 2)
    if not legend:
        return ((" " * AXIS + text + "now".rjust(max(4, cells - len(text))), "dim"),)
    told: Row = fit(((f" {legend}", "warn"),), cells - len(left) - 5, options.glyphs)
    spans: list[Span] = [(" " * AXIS + left, "dim"), *told, ("  now", "dim")]
    return tuple(spans)
