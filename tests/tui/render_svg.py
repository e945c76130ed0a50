"""Render a screen as SVG for the documentation.

    python tests/tui/render_svg.py STATE VIEW WIDTHxHEIGHT FILE.svg

STATE is a name in tui_states.STATES, VIEW one of gpuwatch.tui.view.VIEWS. Colours are those of a 256-colour terminal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC
from pathlib import Path


async def render(state_name: str, view_name: str, size: tuple[int, int]) -> str:
    """The SVG of one screen."""
    os.environ |= {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_COLOR_SYSTEM": os.environ.get("TEXTUAL_COLOR_SYSTEM", "256")}
    sys.path.insert(0, str(Path(__file__).parent))
    from tui_feed import ScriptedFeed
    from tui_states import NOW_NS, STATES

    from gpuwatch.tui.app import WatchApp
    from gpuwatch.tui.exports import as_svg
    from gpuwatch.tui.selection import ViewOptions

    feed = ScriptedFeed(STATES[state_name])
    app = WatchApp(feed.open, ViewOptions(view=view_name, zone=UTC), clock=lambda: NOW_NS)
    async with app.run_test(size=size) as pilot:
        while app.watch_screen.state is not STATES[state_name]:
            await pilot.pause(0.02)
        app.watch_screen.paint()
        await pilot.pause(0.1)
        return as_svg(app.export_screenshot(title="gpuwatch"))


def main() -> int:
    """Command line."""
    state_name, view_name, size, target = sys.argv[1:]
    width, height = (int(part) for part in size.split("x"))
    Path(target).write_text(asyncio.run(render(state_name, view_name, (width, height))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
