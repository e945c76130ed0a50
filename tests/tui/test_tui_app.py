"""Keys, selection, resize, pause and errors, with a scripted feed and a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.worker import WorkerFailed
from tui_feed import ScriptedFeed
from tui_states import MAIN, NOW_NS, SECOND, STATES, live

from gpuwatch.client.state import NodeState
from gpuwatch.errors import UnavailableError
from gpuwatch.tui.app import StateChanged, WatchApp
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import plain
from gpuwatch.tui.themes import Palette, palette


@pytest.fixture(autouse=True)
def terminal_with_256_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)


def application(*script: NodeState | Exception) -> tuple[WatchApp, ScriptedFeed]:
    feed = ScriptedFeed(*script)
    app = WatchApp(feed.open, ViewOptions(zone=UTC), "ipc:///run/gpuwatch", clock=lambda: NOW_NS)
    return app, feed


def text_of(app: WatchApp) -> str:
    """What the widget would draw, line by line."""
    lines = app.watch_screen.lines
    return "\n".join(lines.render_line(y).text.rstrip() for y in range(lines.size.height))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"not seen; the screen is\n{text_of(pilot.app)}")  # type: ignore[arg-type]


def test_first_frame_does_not_wait_for_the_daemon() -> None:
    async def scenario() -> None:
        opening = asyncio.Event()
        loop = asyncio.get_running_loop()
        feed = ScriptedFeed(live(1))

        def slow_open() -> ScriptedFeed:
            asyncio.run_coroutine_threadsafe(opening.wait(), loop).result()
            return feed

        app = WatchApp(slow_open, ViewOptions(zone=UTC), "ipc:///run/gpuwatch", clock=lambda: NOW_NS)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Connecting to ipc:///run/gpuwatch" in text_of(app))
            assert feed.steps == 0
            opening.set()
            await until(pilot, lambda: "num_workers" in text_of(app))

    asyncio.run(scenario())


def test_number_keys_and_tab_reach_every_view() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            for key, words in (
                ("2", "COMMAND"),
                ("3", "What to change"),
                ("4", "What the columns mean"),
                ("1", "Verdict"),
                ("tab", "COMMAND"),
                ("shift+tab", "Verdict"),
                ("question_mark", "What the columns mean"),
                ("escape", "Verdict"),
            ):
                await pilot.press(key)
                assert words in text_of(app), key

    asyncio.run(scenario())


def test_d_asks_for_a_diagnosis_of_the_selected_gpus_job() -> None:
    async def scenario() -> None:
        app, feed = application(live(8))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("down", "j", "up", "d")
            await until(pilot, lambda: bool(feed.requests))
            assert (feed.requests[0].pid, feed.requests[0].device_index) == (MAIN + 1000, 1)
            assert app.watch_screen.options.view == "diagnosis"

    asyncio.run(scenario())


def test_d_on_a_gpu_without_process_asks_for_the_gpu() -> None:
    async def scenario() -> None:
        app, feed = application(STATES["no_processes"])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("d")
            await until(pilot, lambda: bool(feed.requests))
            assert (feed.requests[0].pid, feed.requests[0].device_index) == (0, 0)

    asyncio.run(scenario())


def test_enter_opens_a_diagnosis_that_is_there_and_starts_none() -> None:
    async def scenario() -> None:
        app, feed = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            steps = feed.steps
            await pilot.press("enter")
            assert "What to change" in text_of(app)
            await until(pilot, lambda: feed.steps > steps + 2)
            assert feed.requests == []

    asyncio.run(scenario())


def test_answer_of_the_daemon_is_on_screen() -> None:
    async def scenario() -> None:
        app, _ = application(live(1), replace(live(1), notice="refused: another diagnosis is under way"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "refused: another diagnosis" in text_of(app))

    asyncio.run(scenario())


def test_pause_holds_the_screen_and_says_so() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("space")
            assert "PAUSED" in text_of(app)
            later = replace(live(1), tick_wall_ns=live(1).tick_wall_ns + 9 * SECOND)
            app.watch_screen.take(later)
            app.watch_screen.paint()
            assert "17:20:31" in text_of(app)
            await pilot.press("space")
            assert "PAUSED" not in text_of(app)

    asyncio.run(scenario())


def test_resizing_never_breaks_the_screen() -> None:
    async def scenario() -> None:
        app, _ = application(live(8))
        async with app.run_test(size=(60, 16)) as pilot:
            await until(pilot, lambda: "BUSY" in text_of(app))
            for size in ((160, 50), (40, 10), (300, 80), (61, 15), (80, 24)):
                await pilot.resize_terminal(*size)
                await until(pilot, lambda size=size: app.watch_screen.lines.size == size)  # type: ignore[misc]
                await until(pilot, lambda size=size: len(app.watch_screen.lines._strips) == size[1])  # type: ignore[misc]
                wanted = "gpuwatch needs 60x15" if size == (40, 10) else "BUSY"
                await until(pilot, lambda wanted=wanted: wanted in text_of(app).replace("\n", " "))  # type: ignore[misc]

    asyncio.run(scenario())


def test_no_color_does_not_crash_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            for key in ("2", "3", "4", "1"):
                await pilot.press(key)
            assert app.native_ansi_color

    asyncio.run(scenario())


def test_scrolling_stops_at_the_end_and_comes_back_at_once() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("3", *["pagedown"] * 9)
            end = text_of(app)
            assert "What would have made this surer" in end
            await pilot.press("up")
            assert text_of(app) != end

    asyncio.run(scenario())


def test_a_bug_in_the_feed_ends_the_app_with_an_exit_code() -> None:
    async def scenario() -> WatchApp:
        app, feed = application(live(1), RuntimeError("bug"))
        with pytest.raises(WorkerFailed):
            async with app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: app.return_code is not None)
        assert feed.closed
        return app

    assert asyncio.run(scenario()).return_code == 1


def test_an_expected_error_is_kept_for_one_line_after_the_screen() -> None:
    async def scenario() -> WatchApp:
        app, feed = application(live(1), UnavailableError("the daemon ended"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.failure is not None and feed.closed)
        return app

    app = asyncio.run(scenario())
    assert (str(app.failure), app.return_code) == ("the daemon ended", 69)


def test_queued_states_collapse_to_the_newest() -> None:
    assert StateChanged(live(1)).can_replace(StateChanged(live(2)))


def test_the_widget_sends_only_the_changed_cells_of_changed_rows() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            lines = app.watch_screen.lines
            before = [lines.render_line(y) for y in range(24)]
            app.watch_screen.take(replace(live(1), tick_wall_ns=live(1).tick_wall_ns + SECOND))
            app.watch_screen.paint()
            changed = [y for y in range(24) if lines.render_line(y) is not before[y]]
            assert changed == [0]
            assert "17:20:32" in plain([lines._rows[0]])

    asyncio.run(scenario())


def test_changing_the_theme_repaints_in_its_colours() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            before = app.watch_screen.lines.render_line(1)
            app.theme = "textual-light"
            await until(pilot, lambda: list(app.watch_screen.lines.render_line(1)) != list(before))
            assert text_of(app).splitlines()[1].strip() == before.text.strip()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, Palette.FULL),
        ({"TERM": "tmux-256color", "NO_COLOR": "1"}, Palette.MONO),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, Palette.FULL),
        ({"TERM": "xterm-16color"}, Palette.ANSI),
        ({"TERM": "screen"}, Palette.ANSI),
        ({"TERM": "linux"}, Palette.ANSI),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, Palette.FULL),
        ({"TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "standard"}, Palette.ANSI),
        ({"TERM": "xterm", "TEXTUAL_COLOR_SYSTEM": "256"}, Palette.FULL),
    ],
)
def test_palette_is_what_the_terminal_can_do(environ: dict[str, str], expected: Palette) -> None:
    assert palette(environ) is expected
