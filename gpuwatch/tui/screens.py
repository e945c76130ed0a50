"""The Textual screen that paints the views and turns keys into options and requests.

Owns: bindings (made from help.KEYS), the options, holding a paused state. Refuses: what a view draws, the feeds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.screen import Screen

from gpuwatch.client.feed import Asked as Request
from gpuwatch.client.state import Link, NodeState
from gpuwatch.tui import events, exports, probes, series, signals, view
from gpuwatch.tui import hosts as host_list
from gpuwatch.tui.compositor import ExactCompositor
from gpuwatch.tui.help import KEYS
from gpuwatch.tui.mouse import SCROLLED_LINES, clicked
from gpuwatch.tui.selection import (
    SORTS,
    TEXTS,
    ViewOptions,
    diagnosing,
    diagnosis_of,
    move,
    next_job,
    process_order,
    selected_device,
    selected_job,
    start_request,
)
from gpuwatch.tui.text import Row, plain
from gpuwatch.tui.widgets import Lines
from gpuwatch.wire import ReplayControl

NOTICE_NS = 8_000_000_000
"""How long the answer to a request stays on screen."""
ASK_AGAIN_NS = 2_000_000_000
"""Between two questions for the history of one GPU."""
READ_ONLY = "read only: started with --readonly"


class Asked(Message):
    """The person asked the daemon of one host for something."""

    def __init__(self, request: Request, host: int = 0) -> None:
        super().__init__()
        self.request = request
        self.host = host


class QuitAsked(Message):
    """The person wants to quit."""


class WatchScreen(Screen[None]):
    """All views of all nodes; which one is drawn is an option."""

    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.footer or key.help, show=bool(key.footer), tooltip=key.help) for key in KEYS
    ]

    def __init__(self, states: tuple[NodeState, ...], options: ViewOptions, clock: Callable[[], int]) -> None:
        super().__init__()
        self._compositor = ExactCompositor()
        self.options = replace(options, host_count=len(states))
        self._clock = clock
        self._latest = states
        self._held: tuple[NodeState, ...] | None = None
        self._requests = 0
        self._notice_since_ns = 0
        self._past_asked: tuple[object, int] = (None, 0)
        self._replay_asked: set[tuple[int, int]] = set()
        self._asked_speed = 0.0
        """Speed of a replay that was asked for and is not confirmed yet."""
        self._agreed: Callable[[], None] | None = None
        """What a yes to the question does."""
        self.lines = Lines(self.drawn)

    @property
    def states(self) -> tuple[NodeState, ...]:
        """What is drawn: the latest states, or those that were there when the person paused."""
        return self._held if self._held is not None else self._latest

    @property
    def state(self) -> NodeState:
        """That of the host that is looked at."""
        return self.states[self.options.host]

    def compose(self) -> ComposeResult:
        """One widget for everything."""
        yield self.lines

    def take(self, *states: NodeState) -> None:
        """Remember new states; ``paint`` draws them."""
        before, after = self._latest[self.options.host], states[self.options.host]
        if after.notice != before.notice:
            self._notice_since_ns = self._clock()
            self.options = replace(self.options, said="")
        elif after.diagnoses is not before.diagnoses and not self.options.said:
            # What a daemon answers is that a diagnosis begins; here it is.
            self._notice_since_ns = self._clock() - NOTICE_NS - 1
        if after.replay is not before.replay:
            self._asked_speed = 0.0
        self._latest = states
        self._ask_replay(after)

    def paint(self) -> None:
        """Draw the state as of now."""
        width, height = self.lines.size
        if not width or not height:
            return
        self._ask_past()
        self.lines.show(self.drawn(width, height))

    def drawn(self, width: int, height: int) -> list[Row]:
        """The rows of the screen in this size."""
        now_ns = self._clock()
        hide = now_ns - self._notice_since_ns > NOTICE_NS
        self.options = replace(self.options, hide_notice=hide)
        self.options = view.clamp_scroll(self.state, self.options, width, height, now_ns)
        return self._drawn(self.options, width, height)

    def _drawn(self, options: ViewOptions, width: int, height: int) -> list[Row]:
        state, now_ns = self.states[options.host], self._clock()
        return view.screen(state, options, width, height, now_ns=now_ns, hosts=self.states)

    def on_resize(self, event: Resize) -> None:
        """A new size is a new screen, at once."""
        self.call_after_refresh(self.paint)

    def on_key(self, event: Key) -> None:
        """While words are typed, or a question waits, keys are letters and answers."""
        if self.options.question:
            agreed, self._agreed = self._agreed, None
            self._set(replace(self.options, question=""))
            if event.key == "y" and agreed is not None:
                agreed()
        elif self.options.typing and event.key != "ctrl+c":
            self._type(event)
        else:
            return
        event.stop()
        event.prevent_default()

    def _type(self, event: Key) -> None:
        find = self.options.find
        if event.key == "enter":
            self._set(replace(self.options, typing=False))
        elif event.key == "escape":
            self._set(replace(self.options, typing=False, find=""))
        elif event.key == "backspace":
            self._set(replace(self.options, find=find[:-1]))
        elif event.is_printable and event.character:
            self._set(replace(self.options, find=find + event.character, scroll=0))

    # ------------------------------------------------------------------ moving about

    def action_view(self, name: str) -> None:
        """Show a view."""
        self._set(replace(self.options, view=name, scroll=0))

    def action_back(self) -> None:
        """Show everything again, then the overview."""
        if self.options.find:
            self._set(replace(self.options, find=""))
        else:
            self.action_view("overview")

    def action_next_view(self, step: int) -> None:
        """Show the next or the previous view."""
        self.action_view(view.view_after(self.options.view, step))

    def action_move(self, step: int) -> None:
        """Move the selection or the text."""
        self._set(self._moved(self.options, step))

    def _moved(self, options: ViewOptions, step: int) -> ViewOptions:
        if options.view == "hosts":
            order = host_list.order(self.states, options)
            here = order.index(options.host) if options.host in order else 0
            return replace(options, host=order[min(max(here + step, 0), len(order) - 1)]) if order else options
        if options.view == "probes":
            return replace(options, row=min(max(options.row + step, 0), probes.count() - 1))
        return move(self.states[options.host], options, step)

    def on_click(self, event: Click) -> None:
        """With --mouse: select the row."""
        width, height = self.lines.size
        self._set(clicked(self.options, event.screen_y, self._moved, lambda o: self._drawn(o, width, height)))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """With --mouse: on, like the arrow keys."""
        self.action_move(SCROLLED_LINES if self.options.view in TEXTS else 1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """With --mouse: back, like the arrow keys."""
        self.action_move(-SCROLLED_LINES if self.options.view in TEXTS else -1)

    def action_job(self, step: int) -> None:
        """Select another job, or another GPU where GPUs are looked at."""
        self._set(next_job(self.state, self.options, step))

    def action_host(self, step: int) -> None:
        """Look at another host."""
        place = (self.options.host + step) % len(self.states)
        self._set(replace(self.options, host=place, device=-1, pid=0, scroll=0))

    def action_window(self, step: int) -> None:
        """Longer or shorter charts."""
        windows = series.WINDOWS_S
        here = windows.index(self.options.window_s) if self.options.window_s in windows else 2
        self._set(replace(self.options, window_s=windows[min(max(here + step, 0), len(windows) - 1)]))

    def action_sort(self) -> None:
        """The process list by the next reading."""
        names = list(SORTS)
        self._set(replace(self.options, sort=names[(names.index(self.options.sort) + 1) % len(names)]))

    def action_kind(self) -> None:
        """The next kind of events only."""
        kinds = events.KINDS
        self._set(replace(self.options, kind=kinds[(kinds.index(self.options.kind) + 1) % len(kinds)], scroll=0))

    def action_find(self) -> None:
        """Type words to look for."""
        self._set(replace(self.options, typing=True))

    def action_follow(self) -> None:
        """Stay with the selected process, or not any more."""
        job = selected_job(self.state, self.options)
        pid = self.options.pid or (job.pid if job is not None else 0)
        self._set(replace(self.options, follow=not self.options.follow and bool(pid), pid=pid))

    def action_pause(self) -> None:
        """Hold a recording, or else the screen; or let it go on."""
        replay = self.state.replay
        if self._held is None and self.state.recorded and replay is not None:
            self.action_replay("resume" if replay.paused else "pause", 0)
            return
        self._held = self._latest if self._held is None else None
        self._set(replace(self.options, paused=self._held is not None))

    def action_leave(self) -> None:
        """Quit."""
        self.post_message(QuitAsked())

    def action_palette(self) -> None:
        """Everything by name."""
        self.app.action_command_palette()

    # ------------------------------------------------------------------ asking the daemon

    def action_open(self) -> None:
        """Open the selected host; else show the selected job's diagnosis, and start one when there is none."""
        if self.options.view == "hosts":
            self._set(replace(self.options, view="overview", device=-1, pid=0, scroll=0))
            return
        job = selected_job(self.state, self.options)
        if job is None or diagnosis_of(self.state, job) is not None or diagnosing(self.state, job):
            self.action_view("diagnosis")
        else:
            self.action_diagnose()

    def action_diagnose(self) -> None:
        """Start a diagnosis of the selection and show how it goes."""
        self._requests += 1
        request = start_request(self.state, self.options, self._requests)
        if self.options.readonly:
            self._say(READ_ONLY)
        elif request is not None:
            self._ask(request)
        self.action_view("diagnosis")

    def action_probe(self) -> None:
        """Run the selected probe on the selected GPU."""
        request = probes.start_request(self.state, self.options)
        if self.options.view != "probes":
            self.action_view("probes")
        elif self.options.readonly:
            self._say(READ_ONLY)
        elif request is not None:
            self._ask(request)

    def action_replay(self, action: str, value: float) -> None:
        """Play a recording otherwise. ``seek`` is relative, ``speed`` a factor."""
        state, replay = self.state, self.state.replay
        if not state.recorded or replay is None:
            self._say("only a recording can be moved")
            return
        if action == "seek":
            at_s = (state.tick_mono_ns - replay.start_mono_ns) / 1e9
            value = max(0.0, at_s + value)
        elif action == "speed":
            # Keys come faster than answers: the second press doubles what the first one asked for.
            value = min(max((self._asked_speed or replay.speed or 1.0) * value, 1 / 16), 64.0)
            self._asked_speed = value
        self._ask(ReplayControl(0, action, value))

    def _ask(self, request: Request) -> None:
        self._notice_since_ns = self._clock()
        self.options = replace(self.options, said="")
        self.post_message(Asked(request, self.options.host))

    def _ask_replay(self, state: NodeState) -> None:
        """How a recording is being played comes only when somebody asks."""
        key = (self.options.host, state.epoch)
        if state.recorded and state.replay is None and state.link is Link.LIVE and key not in self._replay_asked:
            self._replay_asked.add(key)
            self.post_message(Asked(ReplayControl(0, "status"), self.options.host))

    def _ask_past(self) -> None:
        """The daemon's history, when the GPU view needs more than we have seen."""
        index = selected_device(self.state, self.options)
        if self.options.view != "gpu" or index is None:
            return
        request = series.request_for(self.state, index, self.options.window_s)
        about = (self.options.host, index, self.options.window_s)
        now_ns = self._clock()
        if request is None or (self._past_asked[0] == about and now_ns - self._past_asked[1] < ASK_AGAIN_NS):
            return
        self._past_asked = (about, now_ns)
        self.post_message(Asked(request, self.options.host))

    # ------------------------------------------------------------------ signals, files

    def action_signal(self, name: str) -> None:
        """Ask, then end the selected process."""
        state = self.state
        order = process_order(state, self.options)
        job = selected_job(state, self.options)
        pid = self.options.pid if self.options.pid in order else (job.pid if job is not None else 0)
        if self.options.view != "processes" or not pid:
            self._say("signals are sent from the process list")
            return
        reason = signals.obstacle(state, pid, readonly=self.options.readonly)
        if reason:
            self._say(reason)
            return
        info = state.infos[pid]
        number = signal.Signals[f"SIG{name}"]

        def agreed() -> None:
            self._say(signals.send(pid, info.start_ticks, number))

        self._agreed = agreed
        self._set(replace(self.options, question=f"send {number.name} to {pid} {info.command}?"))

    def action_export(self, suffix: str) -> None:
        """Write the view to a file."""
        name = self.options.view
        if suffix == "json":
            text = exports.as_json(self.state, name)
        elif suffix == "svg":
            text = exports.as_svg(self.app.export_screenshot(title=f"gpuwatch {name}"))
        else:
            text = plain(self.drawn(*self.lines.size))
        self._say(exports.write(Path.cwd(), name, suffix, text, datetime.now(tz=self.options.zone)))

    def action_copy(self) -> None:
        """Hand the view to the terminal's clipboard."""
        self.app.copy_to_clipboard(plain(self.drawn(*self.lines.size)))
        self._say("copied, if this terminal takes OSC 52")

    def _say(self, text: str) -> None:
        self._notice_since_ns = self._clock()
        self._set(replace(self.options, said=text, hide_notice=False))

    def _set(self, options: ViewOptions) -> None:
        self.options = options
        self.paint()
