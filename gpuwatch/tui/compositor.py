"""Sends exactly the cells that changed.

Owns: one correction to Textual's compositor. Refuses: what is drawn.

Textual 8.2.8 sends a changed region from the left edge of its widget, not from where the region begins, so one digit at
the right end of a line costs the whole line. The version of Textual is pinned, and a test counts the bytes.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor


class ExactUpdate(ChopsUpdate):
    """Changed spans, cut at both ends."""

    def render_segments(self, console: Console) -> str:
        """Cursor moves and styled text for the terminal."""
        out: list[str] = []
        for y, first, last in self.spans:
            for end, (start, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                left, right = max(start, first), min(end, last)
                if strip is None or left >= right:
                    continue
                out.append(Control.move_to(left, y).segment.text)
                out.append(strip.crop(left - start, right - start).render(console))
        return "".join(out)


class ExactCompositor(Compositor):
    """Textual's, with exact partial updates."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What has changed since the last update, or None."""
        update = super().render_partial_update()
        return None if update is None else ExactUpdate(update.chops, update.spans, update.chop_ends)
