"""The Textual application: one feed thread, one paint timer, one screen.

Owns: starting and ending the feed, the theme, the exit code. Refuses: sockets (the feed's), drawing (the screen's).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App
from textual.events import AppBlur, AppFocus
from textual.message import Message
from textual.worker import get_current_worker

from gpuwatch.client.state import NodeState, connecting
from gpuwatch.errors import GpuwatchError
from gpuwatch.tui.feed import OpenFeed
from gpuwatch.tui.screens import Asked, QuitAsked, WatchScreen
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.themes import ANSI_THEME, GPUWATCH_DARK, Palette, palette
from gpuwatch.wire import StartDiagnosis

PAINT_PERIOD_S = 0.5
"""Twice the daemon's default rate: a reading is on screen half a second after it came, and keys paint at once."""
STEP_S = 0.25
"""How long the feed may wait for news: bounds the delay of a request and of quitting."""
BLURRED_PERIODS = 6
"""Paint periods between paints while the terminal says that nobody looks."""


class StateChanged(Message):
    """The feed has a newer state. Queued ones collapse: a slow terminal sees the latest, not all."""

    def __init__(self, state: NodeState) -> None:
        super().__init__()
        self.state = state

    def can_replace(self, message: Message) -> bool:
        """Only the newest matters."""
        return isinstance(message, StateChanged)


class WatchApp(App[None]):
    """Watches one node through a feed."""

    CSS_PATH = "watch.tcss"
    TITLE = "gpuwatch"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = True

    def __init__(
        self,
        open_feed: OpenFeed,
        options: ViewOptions | None = None,
        endpoint: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._palette = palette(os.environ)
        # NO_COLOR's filter is chosen in the constructor, and only native ANSI colours become none at all.
        super().__init__(ansi_color=None if self._palette is Palette.FULL else True)
        self.register_theme(GPUWATCH_DARK)
        self.theme = GPUWATCH_DARK.name if self._palette is Palette.FULL else ANSI_THEME
        self._open_feed = open_feed
        self._requests: queue.SimpleQueue[StartDiagnosis] = queue.SimpleQueue()
        self.watch_screen = WatchScreen(connecting(endpoint), options or ViewOptions(), clock)
        self._blurred = False
        self._paints = 0
        self.failure: GpuwatchError | None = None
        """An expected error of the feed, to be told in one line when the terminal is restored."""

    def get_default_screen(self) -> WatchScreen:
        """The only screen of ours."""
        return self.watch_screen

    def on_mount(self) -> None:
        """The first frame says "connecting"; the feed opens in its own thread."""
        self.set_interval(PAINT_PERIOD_S, self._tick)
        self.run_worker(self._follow, thread=True, exclusive=True, exit_on_error=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Not in the main thread (tests): then the signals are somebody else's.
            with contextlib.suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().add_signal_handler(number, self._terminated, number)

    def on_state_changed(self, message: StateChanged) -> None:
        """Remember; the timer paints. The first real state is painted at once."""
        first = self.watch_screen.state.inventory is None
        self.watch_screen.take(message.state)
        if first:
            self.watch_screen.paint()

    def on_asked(self, message: Asked) -> None:
        """Hand a request to the feed's thread."""
        self._requests.put(message.request)

    def on_quit_asked(self, message: QuitAsked) -> None:
        """Quit with success."""
        self.exit()

    def on_app_blur(self, event: AppBlur) -> None:
        """Nobody looks: paint less."""
        self._blurred = True

    def on_app_focus(self, event: AppFocus) -> None:
        """Somebody looks: paint now."""
        self._blurred = False
        self.watch_screen.paint()

    def _tick(self) -> None:
        self._paints += 1
        if not self._blurred or self._paints % BLURRED_PERIODS == 0:
            self.watch_screen.paint()

    def _follow(self) -> None:
        """The feed's thread: ends with the worker, or by an error, which ends the application."""
        worker = get_current_worker()
        try:
            feed = self._open_feed()
            try:
                while not worker.is_cancelled:
                    while not self._requests.empty():
                        feed.request(self._requests.get())
                    self.post_message(StateChanged(feed.step(STEP_S)))
            finally:
                feed.close()
        except GpuwatchError as exc:
            self.failure = exc
            if not worker.is_cancelled:
                self.call_from_thread(self.exit, return_code=exc.exit_code)

    def _terminated(self, number: int) -> None:
        self.exit(return_code=128 + number)
