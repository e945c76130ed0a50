"""Which selection a click means.

Owns: finding the way from the selected row to the one that was clicked. Refuses: textual, knowing what the rows are.

Rows are told apart by what they say: whatever a view lists, its selected row begins with the cursor, and the arrow keys
lead from one row to the next. A click on anything that they do not lead to changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Row, plain

SCROLLED_LINES = 3
"""Of a text, for each step of the wheel."""


def clicked(
    options: ViewOptions,
    y: int,
    move: Callable[[ViewOptions, int], ViewOptions],
    draw: Callable[[ViewOptions], Sequence[Row]],
) -> ViewOptions:
    """The options with the row at line ``y`` selected, or as they were if that is none of a list."""
    lines = plain(draw(options)).split("\n")
    here = _selected(lines, options)
    if here is None or not 0 <= y < len(lines) or not lines[y].strip():
        return options
    wanted, tried = lines[y][1:], options
    for _ in range(abs(y - here)):
        after = move(tried, 1 if y > here else -1)
        if after == tried:
            break
        tried = after
        shown = plain(draw(tried)).split("\n")
        place = _selected(shown, tried)
        if place is not None and shown[place][1:] == wanted:
            return tried
    return options


def _selected(lines: Sequence[str], options: ViewOptions) -> int | None:
    return next((y for y, line in enumerate(lines) if line.startswith(options.glyphs.cursor)), None)
