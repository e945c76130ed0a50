"""Where the wall time went: the bar of one diagnosis, and the bars of the last ones side by side.

Owns: pattern and role of each activity, the time axis below the bars. Refuses: judging, textual.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from gpuwatch.model import AccountShare
from gpuwatch.tui import chart
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Glyphs, Row, Span, clean, cut_left, fit, pad, rule
from gpuwatch.wire import AccountPoint

_ACTIVITIES = (
    ("computing", "sm"),
    ("waiting_for_data", "crit"),
    ("preparing_data", "warn"),
    ("copying", "dram"),
    ("synchronising", "tensor"),
    ("launching", "busy"),
    ("checkpointing", "accent"),
    ("compiling", "key"),
    ("other_host_work", "text"),
    ("idle", "dim"),
    ("unattributed", "dim"),
    ("communicating", "tensor"),
    ("allocating", "accent"),
)
"""Activity and role, in the order of the pattern characters of ``Glyphs.account``; over time from the floor up."""
_NAMES = tuple(name for name, _ in _ACTIVITIES)
_UNKNOWN = _NAMES.index("unattributed")
_SCALE = 6
"""Cells of the scale on the left: "100 % "."""
_WIDE = 130
"""From here on a diagnosis is two cells wide: sixty of them fit."""
_LABEL = 5
"""Cells of a clock time."""


def rows(account: Sequence[AccountShare], width: int, glyphs: Glyphs) -> list[Row]:
    """The account as one bar and its legend; the percentages are rounded so that they sum to 100."""
    parts = [part for part in account if part.share > 0]
    percents = chart.shares_in_cells([part.share for part in parts], 100)
    bar_parts, legend = [], []
    for part, percent in zip(parts, percents, strict=True):
        char, role = _look(part.activity, glyphs)
        bar_parts.append((part.share, char, role))
        text = f"{percent} %" if percent else "<1 %"
        legend.append((f"{char} {_words(part.activity)} {text}", role))
    return [((" ", "text"), *chart.stacked(bar_parts, width - 2)), *_legend(legend, width)]


def over_time(points: Sequence[AccountPoint], options: ViewOptions, width: int, room: int) -> list[Row]:
    """One column for each of the last diagnoses, the newest on the right; then the time axis and the verdicts.

    Nothing when there are fewer than two. Six lines high, ten where ``room`` is 45 or more."""
    if len(points) < 2:
        return []
    glyphs = options.glyphs
    each = 2 if width >= _WIDE else 1
    shown = list(points[-max(2, (width - _SCALE - 1) // each) :])
    height = 10 if room >= 45 else 6
    columns = [_column(point, height) for point in shown]
    title = f"The last {len(shown)} diagnoses"
    out: list[Row] = [(), rule(title, [("newest on the right", "dim")], width, glyphs)]
    for level in range(height - 1, -1, -1):
        scale = "100 %" if level == height - 1 else "0 %" if level == 0 else ""
        spans: list[Span] = [(pad(scale, _SCALE - 1, right=True) + " ", "dim")]
        for place, run in groupby(column[level] for column in columns):
            char, role = _look(_NAMES[place], glyphs)
            spans.append((char * each * len(list(run)), role))
        out.append(tuple(spans))
    seen = {name for point in shown for name, share in point.permille.items() if share}
    legend = [(f"{_look(name, glyphs)[0]} {_words(name)}", _look(name, glyphs)[1]) for name in sorted(seen, key=_place)]
    return [*out, _axis(shown, options, each, width), *_legend(legend, width), _verdicts(shown, options, width)]


def _column(point: AccountPoint, height: int) -> list[int]:
    """Which activity each cell of a column shows, from the floor up."""
    named = [(_place(name), share) for name, share in point.permille.items() if share > 0]
    named.sort()
    cells = chart.shares_in_cells([share for _, share in named], height)
    out = [place for (place, _), count in zip(named, cells, strict=True) for _ in range(count)]
    return out or [_UNKNOWN] * height


def _axis(shown: Sequence[AccountPoint], options: ViewOptions, each: int, width: int) -> Row:
    """Clock times below the columns that they belong to: the first and the last, between them what has room."""
    cells = min(width - _SCALE, max(len(shown) * each, 2 * _LABEL + 1))
    line = [" "] * cells
    last = len(shown) - 1
    line[max(0, last * each + each - _LABEL) :] = _clock(shown[last], options).rjust(_LABEL)
    end = max(0, last * each + each - _LABEL)
    free = 0
    for place, point in enumerate(shown[:last]):
        start = place * each
        if start >= free and start + _LABEL < end:
            line[start : start + _LABEL] = _clock(point, options)
            free = start + _LABEL + 7
    return ((" " * _SCALE, "text"), ("".join(line), "dim"))


def _verdicts(shown: Sequence[AccountPoint], options: ViewOptions, width: int) -> Row:
    """The verdicts in their order, each with its time and how often in a row; the newest are kept."""
    runs = [list(run) for _, run in groupby(shown, key=lambda point: point.cause)]
    said = f" {options.glyphs.arrow} ".join(
        f"{_clock(run[0], options)} {clean(run[0].cause)}" + (f" {options.glyphs.times}{len(run)}" if run[1:] else "")
        for run in runs
    )
    return fit(((" ", "text"), (cut_left(said, width - 2, options.glyphs.ellipsis), "text")), width, options.glyphs)


def _clock(point: AccountPoint, options: ViewOptions) -> str:
    return datetime.fromtimestamp(point.wall_ns / 1e9, tz=options.zone).strftime("%H:%M")


def _place(activity: str) -> int:
    return _NAMES.index(activity) if activity in _NAMES else _UNKNOWN


def _look(activity: str, glyphs: Glyphs) -> tuple[str, str]:
    place = _place(activity)
    return glyphs.account[place], _ACTIVITIES[place][1]


def _words(activity: str) -> str:
    return clean(activity).replace("_", " ")


def _legend(legend: Sequence[Span], width: int) -> list[Row]:
    out: list[Row] = []
    line: list[Span] = [(" ", "text")]
    used = 1
    for text, role in legend:
        if used > 1 and used + len(text) + 2 > width:
            out.append(tuple(line))
            line, used = [(" ", "text")], 1
        line += [(text, role), ("  ", "text")]
        used += len(text) + 2
    return [*out, tuple(line)]
