"""The Textual screen that paints the views and turns keys into options and requests.

Owns: bindings (made from help.KEYS), the options, holding a paused state. Refuses: what a view draws, the feed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen

from gpuwatch.client.state import NodeState
from gpuwatch.tui import view
from gpuwatch.tui.help import KEYS
from gpuwatch.tui.processes import read_rates
from gpuwatch.tui.selection import ViewOptions, diagnosing, diagnosis_of, move, next_job, selected_job, start_request
from gpuwatch.tui.widgets import Lines
from gpuwatch.wire import StartDiagnosis

NOTICE_NS = 8_000_000_000
"""How long the answer to a request stays on screen."""


class Asked(Message):
    """The person asked the daemon for something."""

    def __init__(self, request: StartDiagnosis) -> None:
        super().__init__()
        self.request = request


class QuitAsked(Message):
    """The person wants to quit."""


class WatchScreen(Screen[None]):
    """All views of one node; which one is drawn is an option."""

    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.footer or key.help, show=bool(key.footer), tooltip=key.help) for key in KEYS
    ]

    def __init__(self, state: NodeState, options: ViewOptions, clock: Callable[[], int]) -> None:
        super().__init__()
        self.options = options
        self._clock = clock
        self._latest = state
        self._held: NodeState | None = None
        self._rates: dict[int, float] = {}
        self._requests = 0
        self._notice_since_ns = 0
        self.lines = Lines()

    @property
    def state(self) -> NodeState:
        """What is drawn: the latest state, or the one that was there when the person paused."""
        return self._held if self._held is not None else self._latest

    def compose(self) -> ComposeResult:
        """One widget for everything."""
        yield self.lines

    def take(self, state: NodeState) -> None:
        """Remember a new state; ``paint`` draws it."""
        if state.tick_mono_ns != self._latest.tick_mono_ns:
            self._rates = read_rates(self._latest, state)
        if state.notice != self._latest.notice:
            self._notice_since_ns = self._clock()
        self._latest = state

    def paint(self) -> None:
        """Draw the state as of now."""
        width, height = self.lines.size
        if not width or not height:
            return
        now_ns = self._clock()
        hide = now_ns - self._notice_since_ns > NOTICE_NS
        self.options = replace(self.options, hide_notice=hide)
        self.options = view.clamp_scroll(self.state, self.options, width, height, now_ns)
        self.lines.show(view.screen(self.state, self.options, width, height, now_ns=now_ns, read_rates=self._rates))

    def on_resize(self, event: Resize) -> None:
        """A new size is a new screen, at once."""
        self.call_after_refresh(self.paint)

    def action_view(self, name: str) -> None:
        """Show a view."""
        self._set(replace(self.options, view=name, scroll=0))

    def action_next_view(self, step: int) -> None:
        """Show the next or the previous view."""
        self.action_view(view.view_after(self.options.view, step))

    def action_move(self, step: int) -> None:
        """Move the selection or the text."""
        self._set(move(self.state, self.options, step))

    def action_job(self, step: int) -> None:
        """Select another job."""
        self._set(next_job(self.state, self.options, step))

    def action_pause(self) -> None:
        """Hold the screen, or let it go on."""
        self._held = self._latest if self._held is None else None
        self._set(replace(self.options, paused=self._held is not None))

    def action_open(self) -> None:
        """Show the selected job's diagnosis; start one when there is none and none is under way."""
        job = selected_job(self.state, self.options)
        if job is None or diagnosis_of(self.state, job) is not None or diagnosing(self.state, job):
            self.action_view("diagnosis")
        else:
            self.action_diagnose()

    def action_diagnose(self) -> None:
        """Start a diagnosis of the selection and show how it goes."""
        self._requests += 1
        request = start_request(self.state, self.options, self._requests)
        if request is not None:
            self._notice_since_ns = self._clock()
            self.post_message(Asked(request))
        self.action_view("diagnosis")

    def action_leave(self) -> None:
        """Quit."""
        self.post_message(QuitAsked())

    def _set(self, options: ViewOptions) -> None:
        self.options = options
        self.paint()
