"""Which cells of a row must be sent again.

Owns: the difference of two rows in terminal cells, and where a gap is cheaper to send than to skip.
Refuses: widgets, styles.

Bytes on a slow link follow cursor moves and style changes more than letters. A new region costs a cursor move and a
style (about 8 and 24 bytes at 256 colours); what lies between two changes costs its own bytes and one style for each
change of role in it.
"""

from __future__ import annotations

from gpuwatch.tui.text import Row, width_of

Cells = tuple[int, int]
"""First and last-plus-one cell."""

MOVE_BYTES = 8
STYLE_BYTES = 24


def changed_cells(old: Row, new: Row) -> list[Cells]:
    """Ranges of cells in which two rows differ, left to right; rows of different widths differ everywhere."""
    if old == new:
        return []
    before, after = _cells(old), _cells(new)
    if len(before) != len(after):
        return [(0, max(len(before), len(after)))]
    out: list[Cells] = []
    for start, end in _different(before, after):
        if out and _gap_bytes(after, out[-1][1], start) <= MOVE_BYTES + STYLE_BYTES:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def _different(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[Cells]:
    out: list[Cells] = []
    x, width = 0, len(after)
    while x < width:
        if before[x] == after[x]:
            x += 1
            continue
        start = x
        # The right half of a wide character has no text of its own: it goes with its left half.
        while start > 0 and not (before[start][0] and after[start][0]):
            start -= 1
        while x < width and (before[x] != after[x] or not (before[x][0] and after[x][0])):
            x += 1
        out.append((start, x))
    return out


def _gap_bytes(cells: list[tuple[str, str]], start: int, end: int) -> int:
    """What it costs to send the unchanged cells between two changes."""
    letters = sum(len(text.encode()) for text, _ in cells[start:end])
    styles = sum(cells[x - 1][1] != cells[x][1] for x in range(start, end + 1))
    return letters + STYLE_BYTES * styles


def _cells(row: Row) -> list[tuple[str, str]]:
    """One (text, role) a cell; the second cell of a wide character is empty, combining marks go with their base."""
    out: list[tuple[str, str]] = []
    for text, role in row:
        if text.isascii():
            out.extend((char, role) for char in text)
            continue
        for char in text:
            cells = width_of(char)
            if not cells and out:
                out[-1] = (out[-1][0] + char, out[-1][1])
            else:
                out.extend([(char, role), *[("", role)] * (cells - 1)])
    return out
