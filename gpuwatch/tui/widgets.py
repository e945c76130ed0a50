"""The one widget: lines of spans, repainted only where they changed.

Owns: roles to styles, the strips, the difference to the last paint. Refuses: what the lines say.

Textual has no cell difference of its own: ``refresh()`` sends the whole widget, ``refresh(Region…)`` those regions
(and no more than those with our compositor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.tui.diff import changed_cells
from gpuwatch.tui.text import SELECTED, Row, width_of

ROLES = (
    "text", "title", "dim", "rule", "ok", "warn", "crit", "accent", "key", "code", "busy", "sm", "tensor", "dram",
    "brand", "badge", "head", "foot", "foot-key", "tab",
)  # fmt: skip


class Lines(Widget):
    """A screenful of rows."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"role--{role}" for role in (*ROLES, "selected")}
    can_focus = False

    def __init__(self, draw: Callable[[int, int], Sequence[Row]]) -> None:
        """``draw``: the rows for a width and a height."""
        super().__init__()
        self._draw = draw
        self._drawn_size = Size(0, 0)
        self._rows: list[Row] = []
        self._strips: list[Strip | None] = []
        """None: to be built when it is drawn."""
        self._styles: dict[str, Style] = {}

    def show(self, rows: Sequence[Row]) -> None:
        """Draw these rows; only the changed cells of a changed row are sent to the terminal."""
        if self._drawn_size != self.size:
            self._drawn_size, self._strips = self.size, []
        regions: list[Region] = []
        strips = self._strips[: len(rows)]
        for y, row in enumerate(rows):
            if y < len(strips):
                changed = changed_cells(self._rows[y], row)
                if not changed:
                    continue
                strips[y] = None
                regions.extend(Region(start, y, end - start, 1) for start, end in changed)
            else:
                strips.append(None)
                regions.append(Region(0, y, self.size.width, 1))
        self._rows, self._strips = list(rows), strips
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        """One line of the last ``show``; in a new size the screen is drawn at once, so no frame is blank or stale."""
        if self._drawn_size != self.size:
            self._drawn_size = self.size
            self._rows = list(self._draw(*self.size))
            self._strips = [None] * len(self._rows)
        if y >= len(self._strips):
            return Strip.blank(self.size.width, self._style("text"))
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = self._strip(self._rows[y])
        return strip

    def notify_style_update(self) -> None:
        """Textual's call when styles change. Component styles follow after it, so strips are built when drawn."""
        super().notify_style_update()
        self._styles = {}
        self._strips = [None] * len(self._rows)

    def _strip(self, row: Row) -> Strip:
        segments = [Segment(text, self._style(role)) for text, role in row]
        return Strip(segments, sum(width_of(text) for text, _ in row))

    def _style(self, role: str) -> Style:
        """Always a real Style: Textual's NO_COLOR filter crashes on a Segment without one."""
        style = self._styles.get(role)
        if style is None:
            base = role.removesuffix(SELECTED)
            style = self.get_component_rich_style(f"role--{base}")
            if base != role:
                chosen = self.get_component_rich_style("role--selected")
                style += Style(bgcolor=chosen.bgcolor, bold=True if chosen.bold else None)
            self._styles[role] = style
        return style
