"""The mouse, where somebody asked for it: a click selects, the wheel scrolls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC

import pytest
from msgspec.structs import replace
from textual.events import MouseScrollDown
from textual.pilot import Pilot
from tui_feed import ScriptedFeed
from tui_states import MAIN, NOW_NS, STATES, live

from gpuwatch.client.state import NodeState
from gpuwatch.tui.app import WatchApp
from gpuwatch.tui.mouse import SCROLLED_LINES, clicked
from gpuwatch.tui.selection import ViewOptions, move
from gpuwatch.tui.text import Row, plain
from gpuwatch.tui.view import screen

SIZE = (80, 24)


def click(state: NodeState, options: ViewOptions, y: int) -> ViewOptions:
    def draw(tried: ViewOptions) -> list[Row]:
        return screen(state, tried, *SIZE, now_ns=NOW_NS)

    return clicked(options, y, lambda tried, step: move(state, tried, step), draw)


def line_of(state: NodeState, options: ViewOptions, words: str) -> int:
    lines = plain(screen(state, options, *SIZE, now_ns=NOW_NS)).split("\n")
    return next(y for y, line in enumerate(lines) if words in line)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_click_on_a_gpu_selects_it(ascii_only: bool) -> None:
    state, options = live(8), ViewOptions(zone=UTC, ascii_only=ascii_only)
    assert click(state, options, line_of(state, options, " 5 H200")).device == 5
    there = replace(options, device=7)
    assert click(state, there, line_of(state, there, " 2 H200")).device == 2


def test_a_click_on_a_process_selects_it_although_the_list_scrolls_under_it() -> None:
    state, options = live(8), ViewOptions(view="processes", zone=UTC, pid=MAIN + 4002)
    chosen = click(state, options, line_of(state, options, str(MAIN + 5001)))
    assert (chosen.pid, chosen.device) == (MAIN + 5001, 5)


@pytest.mark.parametrize("view", ["overview", "processes", "diagnosis", "events", "help"])
def test_a_click_beside_every_list_changes_nothing(view: str) -> None:
    options = ViewOptions(view=view, zone=UTC)
    for y in (0, 1, SIZE[1] - 2, SIZE[1] - 1, SIZE[1]):
        assert click(STATES["live1"], options, y) == options


def test_the_application_takes_clicks_and_the_wheel() -> None:
    async def scenario() -> None:
        feed = ScriptedFeed(live(8))
        app = WatchApp(feed.open, ViewOptions(zone=UTC), "ipc:///run/gpuwatch", clock=lambda: NOW_NS)
        async with app.run_test(size=SIZE) as pilot:
            await _until(pilot, lambda: app.watch_screen.state.inventory is not None)
            assert await pilot.click(offset=(5, line_of(live(8), ViewOptions(zone=UTC), " 3 H200")))
            assert app.watch_screen.options.device == 3
            await pilot.press("8")
            # As a terminal's driver does it; an event that is given to a widget comes twice.
            app.post_message(MouseScrollDown(None, 5, 5, 0, 1, 0, shift=False, meta=False, ctrl=False))
            await _until(pilot, lambda: app.watch_screen.options.scroll == SCROLLED_LINES)

    asyncio.run(scenario())


async def _until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("never came")
