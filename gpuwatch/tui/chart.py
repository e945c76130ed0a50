"""Numbers to rows of braille, blocks or ASCII.

Owns: resampling a series to the columns of a chart, an area with a line over it and dotted levels, bars, the stacked
bar.
Refuses: knowing what is plotted. Bytes on an SSH link follow the number of style changes, so runs of cells share a
role, and time buckets are aligned to the clock, not to "now": the chart moves once a bucket, not once a tick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwatch.tui.text import UNICODE, Glyphs, Row, Span

_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_BRAILLE = 0x2800
DOTS_PER_ROW = 4
DOTS_PER_COLUMN = 2
NANOSECOND = 1_000_000_000

Point = tuple[int, float]
"""Time in nanoseconds, value in percent."""


def bucket_ns(window_s: float, columns: int, period_s: float) -> int:
    """Length of one dot column: the window over the columns, and never shorter than half a sample period."""
    return max(int(window_s * NANOSECOND / max(1, columns)), int(period_s * NANOSECOND / 2), 1)


def resample(
    points: Sequence[Point], end_ns: int, step_ns: int, columns: int, hold_ns: int, until_ns: int | None = None
) -> list[float | None]:
    """Mean of the points in each of ``columns`` buckets, oldest first; the last cell of two buckets holds ``end_ns``.

    An empty bucket repeats the value before it while that is younger than ``hold_ns``; older than that is a gap, and
    so is what lies behind the present, ``until_ns`` (``end_ns`` when it is not told). The whole moves by cells: in
    between only the last one has to be sent.
    """
    last = end_ns // step_ns | 1
    until_ns = end_ns if until_ns is None else until_ns
    first = last - columns + 1
    sums = [0.0] * columns
    counts = [0] * columns
    held: Point | None = None
    for time_ns, value in points:
        place = time_ns // step_ns - first
        if place < 0:
            held = (time_ns, value)
        elif place < columns:
            sums[place] += value
            counts[place] += 1
    out: list[float | None] = []
    for place in range(columns):
        bucket_start = (first + place) * step_ns
        if counts[place]:
            mean = sums[place] / counts[place]
            held = (bucket_start, mean)
            out.append(mean)
        elif held is not None and bucket_start - held[0] <= hold_ns and bucket_start <= until_ns:
            out.append(held[1])
        else:
            out.append(None)
    return out


def area_and_line(
    area: Sequence[float | None],
    line: Sequence[float | None],
    height: int,
    *,
    area_role: str = "sm",
    line_role: str = "busy",
    glyphs: Glyphs = UNICODE,
    top: float = 100.0,
    levels: Sequence[float] = (),
) -> list[Row]:
    """``height`` rows, top first, with ``area`` filled from the floor and ``line`` drawn over it; across all of it a
    dotted line at each of ``levels``, such as a limit.

    Both series have one value for each dot column (two a cell) and the scale is fixed, 0..``top``: a chart that
    scales itself makes 3 % look like work.
    """
    dots = height * DOTS_PER_ROW
    filled = [_level(value, dots, top) for value in area]
    drawn = [_level(value, dots, top) for value in line]
    cells = max(len(filled), len(drawn)) // DOTS_PER_COLUMN
    roles = (area_role, line_role, "dim")
    at = {_level(value, dots, top) - 1 for value in levels}
    out = []
    for floor in range(dots - DOTS_PER_ROW, -1, -DOTS_PER_ROW):
        level_bits = sum(_LEFT_DOTS[dot - floor] for dot in at if floor <= dot < floor + DOTS_PER_ROW)
        out.append(_chart_row(filled, drawn, cells, floor, level_bits=level_bits, roles=roles, glyphs=glyphs))
    return out


def bar(value: float, cells: int, glyphs: Glyphs = UNICODE) -> str:
    """A bar of ``value`` percent in exactly ``cells`` cells; more than nothing shows at least the thinnest step."""
    steps = len(glyphs.bar) - 1
    units = round(min(max(value, 0.0), 100.0) / 100 * cells * steps)
    if value > 0:
        units = max(1, units)
    whole, part = divmod(units, steps)
    text = glyphs.bar[-1] * whole + (glyphs.bar[part] if part else "")
    return text[:cells].ljust(cells)


def shares_in_cells(shares: Sequence[float], cells: int) -> list[int]:
    """``cells`` handed out in proportion to ``shares``, by largest remainder, so that they sum exactly."""
    total = sum(shares)
    if total <= 0 or cells <= 0:
        return [0] * len(shares)
    exact = [share / total * cells for share in shares]
    out = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (out[i] - exact[i], i))
    for i in by_remainder[: cells - sum(out)]:
        out[i] += 1
    return out


def stacked(parts: Sequence[tuple[float, str, str]], cells: int) -> Row:
    """Parts (share, character, role) as one bar of exactly ``cells`` cells."""
    lengths = shares_in_cells([share for share, _, _ in parts], cells)
    return tuple((char * length, role) for (_, char, role), length in zip(parts, lengths, strict=True) if length)


def _level(value: float | None, dots: int, top: float) -> int:
    """Dots from the floor; -1 is a gap. A value above zero is at least one dot high."""
    if value is None or math.isnan(value):
        return -1
    level = round(min(max(value, 0.0), top) / top * dots)
    return max(1, level) if value > 0 else level


def _chart_row(
    filled: list[int],
    drawn: list[int],
    cells: int,
    floor: int,
    *,
    level_bits: int,
    roles: tuple[str, str, str],
    glyphs: Glyphs,
) -> Row:
    spans: list[Span] = []
    run, run_role = "", roles[1]
    for cell in range(cells):
        area_bits, line_bits = _bits(filled, drawn, cell * DOTS_PER_COLUMN, floor)
        char, role = _chart_cell(area_bits, line_bits, level_bits, roles=roles, glyphs=glyphs)
        if role and role != run_role and run.strip(" "):
            spans.append((run, run_role))
            run = ""
        run_role = role or run_role
        run += char
    spans.append((run, run_role))
    return tuple(spans)


def _bits(filled: list[int], drawn: list[int], column: int, floor: int) -> tuple[int, int]:
    """The braille dots of the area and of the line in one cell."""
    area_bits = line_bits = 0
    for side, dots in enumerate((_LEFT_DOTS, _RIGHT_DOTS)):
        fill = _at(filled, column + side) - floor
        for dot in range(min(max(fill, 0), DOTS_PER_ROW)):
            area_bits |= dots[dot]
        top = _at(drawn, column + side) - 1 - floor
        if 0 <= top < DOTS_PER_ROW:
            line_bits |= dots[top]
    return area_bits, line_bits


def _chart_cell(
    area_bits: int, line_bits: int, level_bits: int, *, roles: tuple[str, str, str], glyphs: Glyphs
) -> tuple[str, str]:
    """The character of one cell and its role; an empty cell has no role and joins its neighbours' run.

    A level is left out of an area that reaches beyond it, so that it can be seen there too.
    """
    if not area_bits and not line_bits:
        if not level_bits:
            return " ", ""
        return ("=" if glyphs.ascii_only else chr(_BRAILLE | level_bits)), roles[2]
    # A cell has one colour: where both are in it, that of the one with more dots.
    line_only = line_bits & ~area_bits
    role = roles[1] if line_only and line_only.bit_count() >= area_bits.bit_count() else roles[0]
    if not glyphs.ascii_only:
        return chr(_BRAILLE | (area_bits ^ level_bits) | line_bits), role
    if line_bits and role == roles[1]:
        return "-", role
    return ("#" if area_bits.bit_count() > DOTS_PER_ROW else "."), role


def _at(levels: list[int], column: int) -> int:
    return levels[column] if column < len(levels) else -1
