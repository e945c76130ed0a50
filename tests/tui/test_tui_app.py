"""Keys, selection, resize, pause and errors, with a scripted feed and a fake clock."""

from __future__ import annotations

import asyncio
import html
import json
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.command import SearchIcon
from textual.pilot import Pilot
from textual.strip import Strip
from textual.worker import WorkerFailed
from tui_feed import ScriptedFeed
from tui_states import MAIN, NOW_NS, SECOND, STATES, fleet, live, node

from gpuwatch.client.rates import IoRate
from gpuwatch.client.state import NodeState
from gpuwatch.errors import UnavailableError
from gpuwatch.tui.app import StateChanged, WatchApp
from gpuwatch.tui.compositor import ExactUpdate
from gpuwatch.tui.exports import write
from gpuwatch.tui.help import KEYS
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.terminal import StandardOutput
from gpuwatch.tui.text import plain
from gpuwatch.tui.themes import Palette, palette
from gpuwatch.verdict.probe_run import PROBES
from gpuwatch.wire import GetHistory, ReplayControl, StartDiagnosis, StartProbe


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


def test_the_first_readings_are_painted_when_they_come_and_not_half_a_second_later() -> None:
    waiting = STATES["waiting"]

    async def scenario() -> None:
        app, _ = application(waiting)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "waiting" in text_of(app))
            app.on_state_changed(StateChanged(live(2)))
            assert "178/700" in text_of(app)

    asyncio.run(scenario())


def test_number_keys_and_tab_reach_every_view() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            for key, words in (
                ("2", "5 min"),
                ("3", "COMMAND"),
                ("4", "What to change"),
                ("5", "Probes on GPU 0"),
                ("6", "Events"),
                ("7", "1 host"),
                ("8", "What the columns mean"),
                ("1", "Verdict"),
                ("tab", "5 min"),
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
            assert feed.requests == [StartDiagnosis(1, MAIN + 1000, 1)]
            assert app.watch_screen.options.view == "diagnosis"

    asyncio.run(scenario())


def test_d_on_a_gpu_without_process_asks_for_the_gpu() -> None:
    async def scenario() -> None:
        app, feed = application(STATES["no_processes"])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("d")
            await until(pilot, lambda: bool(feed.requests))
            assert feed.requests == [StartDiagnosis(1, 0, 0)]

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


class Stalled(StandardOutput):
    """A terminal to which the last frame is still on its way."""

    behind = True

    def gone(self) -> bool:
        return False


def test_a_link_that_stalls_gets_the_newest_screen_and_not_all_that_it_missed() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            driver, app._driver = app._driver, Stalled.__new__(Stalled)
            app.watch_screen.take(replace(live(1), tick_wall_ns=live(1).tick_wall_ns + SECOND))
            app._tick()
            app._driver = driver
            assert "17:20:31" in text_of(app)
            app._tick()
            assert "17:20:32" in text_of(app)

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
            for key in ("2", "3", "4", "5", "6", "7", "8", "1"):
                await pilot.press(key)
            assert app.native_ansi_color

    asyncio.run(scenario())


def test_scrolling_stops_at_the_end_and_comes_back_at_once() -> None:
    async def scenario() -> None:
        app, _ = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("4", *["pagedown"] * 9)
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


# --------------------------------------------------------------------------- what the other views do


def watching(*states: NodeState, **options: object) -> tuple[WatchApp, list[ScriptedFeed]]:
    feeds = [ScriptedFeed(state) for state in states]
    first, *more = [(f"h{place}", feed.open) for place, feed in enumerate(feeds)]
    chosen = replace(ViewOptions(zone=UTC), **options)
    return WatchApp(first[1], chosen, first[0], clock=lambda: NOW_NS, more=more), feeds


def seen_after(app: WatchApp, keys: list[str], words: str, size: tuple[int, int] = (80, 24)) -> str:
    """The screen once ``words`` are on it, after the keys; the first state has come before them."""
    shown: list[str] = []

    async def scenario() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: all(s.inventory is not None for s in app.watch_screen.states))
            await pilot.press(*keys)
            await until(pilot, lambda: words in text_of(app))
            shown.append(text_of(app))

    asyncio.run(scenario())
    return shown[0]


def test_words_that_are_typed_filter_the_list_and_keys_are_letters_meanwhile() -> None:
    app, feeds = watching(live(8))
    text = seen_after(app, ["3", "slash", *"5242q", "enter"], "find: 5242q")
    assert "no process with" in text
    app, feeds = watching(live(8))
    text = seen_after(app, ["3", "slash", *"5242x", "backspace", "enter"], "1-1 of 1")
    assert "5242 ada" in text
    assert "4242 ada" not in text
    assert feeds[0].requests == []
    app, _ = watching(live(8))
    assert "find:" not in seen_after(app, ["3", "slash", *"5242", "escape"], "4242 ada")


def test_the_process_list_is_sorted_by_what_the_person_wants() -> None:
    app, _ = watching(live(8))
    text = seen_after(app, ["3", "s", "s"], "by GPU memory")
    order = [line.split()[0].lstrip("▸") or line.split()[1] for line in text.splitlines() if " main " in line]
    assert order[0].endswith("11242"), "the job with most GPU memory first"


def test_the_answer_to_one_key_does_not_stay_beside_that_to_the_next() -> None:
    async def scenario() -> None:
        app, feed = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.watch_screen.state.inventory is not None)
            feed.script = [replace(live(1), notice="diagnosing pid 4242")]
            feed.steps = 0
            await until(pilot, lambda: "→ diagnosing pid 4242" in text_of(app))
            await pilot.press("T")
            assert "→ signals are sent from the process list" in text_of(app)
            assert "→ diagnosing pid 4242" not in text_of(app)
            feed.script = [replace(live(1), notice="busy: a diagnosis is under way")]
            feed.steps = 0
            await until(pilot, lambda: "→ busy" in text_of(app))
            assert "→ signals are sent" not in text_of(app)

    asyncio.run(scenario())


def test_that_a_diagnosis_begins_is_not_told_any_longer_when_it_is_there() -> None:
    begun = replace(live(1), notice="diagnosing pid 4242", diagnoses=())

    async def scenario() -> None:
        app, feed = application(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.watch_screen.state.inventory is not None)
            feed.script = [begun]
            feed.steps = 0
            await until(pilot, lambda: "→ diagnosing pid 4242" in text_of(app))
            feed.script = [replace(begun, diagnoses=live(1).diagnoses)]
            feed.steps = 0
            await until(pilot, lambda: "→ diagnosing" not in text_of(app))

    asyncio.run(scenario())


def test_a_held_list_keeps_its_order_while_others_begin_to_read() -> None:
    held = replace(live(1), io_rates={MAIN: IoRate(2_000.0, 0.0), MAIN + 1: IoRate(1_000.0, 0.0)})
    later = replace(held, io_rates={MAIN + 1: IoRate(9_000.0, 0.0)}, tick_mono_ns=NOW_NS + SECOND)

    async def scenario() -> None:
        app, _ = application(held)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.watch_screen.state.inventory is not None)
            await pilot.press("3", "s", "s", "s", "s", "space")
            assert "by read rate" in text_of(app)
            app.watch_screen.take(later)
            app.watch_screen.paint()
            assert text_of(app).index(f"{MAIN} ada") < text_of(app).index(f"{MAIN + 1} ada")

    asyncio.run(scenario())


def test_a_followed_process_stays_selected_when_the_order_changes() -> None:
    app, _ = watching(live(8))
    seen_after(app, ["3", "j", "f", "s"], "following")
    assert app.watch_screen.options.pid == MAIN + 1


def test_a_process_is_ended_only_after_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int, signal.Signals]] = []

    def send(pid: int, start_ticks: int, number: signal.Signals) -> str:
        sent.append((pid, start_ticks, number))
        return f"sent {number.name} to {pid}"

    monkeypatch.setattr("gpuwatch.tui.signals.obstacle", lambda *_, readonly: "")
    monkeypatch.setattr("gpuwatch.tui.signals.send", send)
    for answer in ("n", "q", "escape", "enter"):
        app, _ = watching(live(1))
        text = seen_after(app, ["3", "T", answer], "COMMAND")
        assert "y / n" not in text
        assert sent == []
    app, _ = watching(live(1))
    seen_after(app, ["3", "T"], "send SIGTERM to 4242 python train.py")
    assert sent == []
    app, _ = watching(live(1))
    seen_after(app, ["3", "K", "y"], "sent SIGKILL to 4242")
    assert sent == [(MAIN, 100, signal.SIGKILL)]


def test_nobody_can_end_what_is_not_theirs() -> None:
    for key in ("T", "K"):
        app, _ = watching(live(1))
        assert "y / n" not in seen_after(app, ["3", key], "is on another machine")


def test_read_only_changes_nothing_anywhere() -> None:
    for keys in (["d"], ["5", "r"], ["3", "T"]):
        app, feeds = watching(live(1), readonly=True)
        seen_after(app, keys, "started with --readonly")
        assert feeds[0].requests == []


def test_a_probe_is_asked_for_on_the_selected_gpu() -> None:
    async def scenario() -> None:
        app, feeds = watching(live(2))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("5", "right", "down", "r")
            await until(pilot, lambda: bool(feeds[0].requests))
            assert feeds[0].requests == [StartProbe(0, PROBES[1].name, 1)]

    asyncio.run(scenario())


def test_a_longer_window_asks_the_daemon_once() -> None:
    async def scenario() -> None:
        app, feeds = watching(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("2", "plus")
            assert feeds[0].requests == []
            await pilot.press("plus", "j", "k")
            await until(pilot, lambda: bool(feeds[0].requests))
            app.watch_screen.paint()
            assert feeds[0].requests == [GetHistory(0, 0, 3600.0, 300)]
            assert "asking the daemon for its history" in text_of(app)

    asyncio.run(scenario())


def test_a_recording_is_moved_by_keys_relative_to_what_is_shown() -> None:
    async def scenario() -> None:
        app, feeds = watching(STATES["replayed"])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "0:23/0:40" in text_of(app))
            keys = ("space", "right_square_bracket", "left_square_bracket", "full_stop")
            await pilot.press(*keys, "greater_than_sign", "greater_than_sign")
            await until(pilot, lambda: len(feeds[0].requests) == 6)
            asked = [(r.action, r.value) for r in feeds[0].requests if isinstance(r, ReplayControl)]
            assert asked == [("resume", 0), ("seek", 33), ("seek", 13), ("step", 1), ("speed", 4), ("speed", 8)]

    asyncio.run(scenario())


def test_how_a_recording_is_played_is_asked_for_once() -> None:
    async def scenario() -> None:
        app, feeds = watching(STATES["recorded"])
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: bool(feeds[0].requests))
            app.watch_screen.take(replace(STATES["recorded"], tick_mono_ns=NOW_NS + SECOND))
            await pilot.pause(0.1)
            assert feeds[0].requests == [ReplayControl(0, "status")]

    asyncio.run(scenario())


def test_the_view_is_written_to_a_file_that_overwrites_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app, _ = watching(live(8))
    seen_after(app, ["x", "X", "2", "x"], "written: ")
    texts = {path.name.split("-")[1] + path.suffix: path.read_text() for path in tmp_path.iterdir()}
    assert set(texts) == {"overview.txt", "overview.json", "gpu.txt"}
    assert "Verdict" in texts["overview.txt"]
    document = json.loads(texts["overview.json"])
    assert document["schema"] == "gpuwatch.view/1"
    assert len(document["devices"]) == 8


def test_an_unwritable_directory_is_one_line(tmp_path: Path) -> None:
    said = write(tmp_path / "nowhere", "overview", "txt", "x", datetime.now(tz=UTC))
    assert said.startswith("not written: ")
    assert [write(tmp_path, "v", "txt", "x", datetime(2026, 1, 1, tzinfo=UTC)) for _ in range(2)] == [
        f"written: {tmp_path}/gpuwatch-v-20260101-000000.txt",
        f"written: {tmp_path}/gpuwatch-v-20260101-000000-2.txt",
    ]


def test_the_svg_is_of_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        app, _ = watching(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            app.watch_screen.action_export("svg")
            await pilot.pause(0.05)

    asyncio.run(scenario())
    (path,) = tmp_path.iterdir()
    assert "num_workers" in path.read_text()
    assert 'url("http' not in path.read_text(), "a viewer would fetch it from the net"


def test_every_key_has_a_name_in_the_palette() -> None:
    async def scenario() -> None:
        app, _ = watching(live(1))
        async with app.run_test(size=(80, 24)):
            names = {command.title for command in app.get_system_commands(app.watch_screen)}
            missing = [key.help for key in KEYS if key.help not in names and key.action not in ("leave", "palette")]
            assert missing == []

    asyncio.run(scenario())


def test_the_palette_shows_no_sign_that_a_plain_terminal_lacks() -> None:
    async def scenario() -> None:
        app, _ = watching(live(1))
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("ctrl+p")
            await pilot.pause()
            assert not app.screen.query_one(SearchIcon).display

    asyncio.run(scenario())


def test_in_ascii_the_palette_is_ascii_too() -> None:
    async def scenario() -> None:
        app, _ = watching(live(1), ascii_only=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Verdict" in text_of(app))
            await pilot.press("ctrl+p")
            await until(pilot, lambda: "key 4" in drawn(app))
            assert [sign for sign in drawn(app) if not sign.isascii()] == []

    def drawn(app: WatchApp) -> str:
        picture = app.export_screenshot()
        return html.unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))).replace("\xa0", " ")

    asyncio.run(scenario())


def test_the_worst_host_is_on_top_and_enter_opens_it() -> None:
    async def scenario() -> None:
        hosts = fleet()
        app, feeds = watching(*hosts, view="hosts")
        async with app.run_test(size=(120, 35)) as pilot:
            await until(pilot, lambda: "gpu-starved" in text_of(app))
            lines = text_of(app).splitlines()
            names = [line.split()[0] for line in lines[3:11]]
            assert names[0] == "gpu-lost"
            while "gpu-starved" not in next(line for line in text_of(app).splitlines() if line.startswith("▸")):
                await pilot.press("up")
            await pilot.press("enter", "d")
            await until(pilot, lambda: bool(feeds[1].requests))
            assert all(not feed.requests for feed in feeds if feed is not feeds[1])
            await pilot.press("n")
            assert app.watch_screen.options.host == 2

    asyncio.run(scenario())


def test_sixty_four_hosts_are_one_list() -> None:
    hosts = [
        replace(live(8, seconds=2), inventory=replace(node(8), node=replace(node(8).node, hostname=f"gpu{place:02d}")))
        for place in range(64)
    ]
    app, _ = watching(*hosts, view="hosts")
    text = seen_after(app, ["pagedown"] * 7, "gpu63")
    assert "▸ gpu63" in text


def test_a_far_digit_costs_a_few_bytes_and_not_its_line() -> None:
    strip = Strip([Segment("x" * 100, Style(bold=True)), Segment("17:20:32", Style()), Segment("y" * 52, Style())])
    update = ExactUpdate([{0: strip}], [(0, 107, 108)], [[160]])
    sent = update.render_segments(Console(force_terminal=True, width=160))
    assert sent.startswith("\x1b[1;108H")
    assert re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", sent) == "2"
