"""The Textual application: a thread for each host, one paint timer, one screen.

Owns: starting and ending the feeds, the theme, the exit code. Refuses: sockets (the feed's), drawing (the screen's).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.command import CommandPalette
from textual.events import AppBlur, AppFocus
from textual.message import Message
from textual.screen import Screen
from textual.theme import ThemeProvider
from textual.worker import get_current_worker

from gpuwatch.client.feed import OpenFeed
from gpuwatch.client.hosts import STEP_S, Hosts
from gpuwatch.client.state import NodeState, connecting
from gpuwatch.errors import GpuwatchError
from gpuwatch.tui.help import KEYS
from gpuwatch.tui.screens import Asked, QuitAsked, WatchScreen
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.terminal import StandardOutput
from gpuwatch.tui.themes import ANSI_THEME, GPUWATCH_DARK, Palette, palette

PAINT_PERIOD_S = 0.5
"""Twice the daemon's default rate: a reading is on screen half a second after it came, and keys paint at once."""
BLURRED_PERIODS = 6
"""Paint periods between paints while the terminal says that nobody looks."""


class StateChanged(Message):
    """The feed has a newer state. Queued ones collapse: a slow terminal sees the latest, not all."""

    def __init__(self, *states: NodeState) -> None:
        super().__init__()
        self.states = states

    def can_replace(self, message: Message) -> bool:
        """Only the newest matters."""
        return isinstance(message, StateChanged)


class WatchApp(App[None]):
    """Watches nodes through feeds."""

    CSS_PATH = "watch.tcss"
    TITLE = "gpuwatch"
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = True

    def __init__(
        self,
        open_feed: OpenFeed,
        options: ViewOptions | None = None,
        endpoint: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        more: Sequence[tuple[str, OpenFeed]] = (),
    ) -> None:
        """``more``: further hosts, by name."""
        self._palette = palette(os.environ)
        # NO_COLOR's filter is chosen in the constructor, and only native ANSI colours become none at all.
        super().__init__(StandardOutput, ansi_color=None if self._palette is Palette.FULL else True)
        self.register_theme(GPUWATCH_DARK)
        self.theme = GPUWATCH_DARK.name if self._palette is Palette.FULL else ANSI_THEME
        sources = ((endpoint, open_feed), *more)
        self._hosts = Hosts(sources)
        states = tuple(connecting(name) for name, _ in sources)
        self.watch_screen = WatchScreen(states, options or ViewOptions(), clock)
        self.set_class(self.watch_screen.options.glyphs.ascii_only, "-ascii-only")
        self._blurred = False
        self._paints = 0
        self.failure: GpuwatchError | None = None
        """An expected error of the feed, to be told in one line when the terminal is restored."""

    def get_default_screen(self) -> WatchScreen:
        """The only screen of ours."""
        return self.watch_screen

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every key by name, and what has no key."""
        watch = self.watch_screen
        for key in KEYS:
            if key.action not in ("palette", "leave"):
                yield SystemCommand(key.help, f"key {key.shown}", partial(watch.run_action, key.action))
        yield SystemCommand("write this view to an SVG file", "in colour", partial(watch.action_export, "svg"))
        yield SystemCommand("theme", "other colours", self.action_change_theme)
        yield SystemCommand("quit", "key q", watch.action_leave)

    def action_command_palette(self) -> None:
        """Textual's, without its ellipsis, which ASCII lacks."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="Search for commands", id="--command-palette"))

    def search_themes(self) -> None:
        """Likewise."""
        self.push_screen(CommandPalette(providers=[ThemeProvider], placeholder="Search for themes"))

    def on_mount(self) -> None:
        """The first frame says "connecting"; the feed opens in its own thread."""
        self.set_interval(PAINT_PERIOD_S, self._tick)
        self.run_worker(self._follow, thread=True, exclusive=True, exit_on_error=True)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            # Not in the main thread (tests): then the signals are somebody else's.
            with contextlib.suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().add_signal_handler(number, self._terminated, number)

    def on_state_changed(self, message: StateChanged) -> None:
        """Remember; the timer paints. The first that is known of a host is painted at once, and its first readings."""
        before = self.watch_screen.state
        self.watch_screen.take(*message.states)
        if before.inventory is None or (self.watch_screen.state.devices and not before.devices):
            self.watch_screen.paint()

    def on_asked(self, message: Asked) -> None:
        """Hand a request to the feed's thread."""
        self._hosts.request(message.host, message.request)

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
        driver = self._driver
        if isinstance(driver, StandardOutput):
            if driver.gone():
                self._terminated(signal.SIGHUP)
                return
            if driver.behind:
                # A link that stalls gets the newest screen when it is back, not all that it missed.
                return
        self._paints += 1
        if not self._blurred or self._paints % BLURRED_PERIODS == 0:
            self.watch_screen.paint()

    def _follow(self) -> None:
        """A thread that hears of all feeds: ends with the worker, or by an error, which ends the application."""
        worker = get_current_worker()
        try:
            self._hosts.start()
            try:
                while not worker.is_cancelled:
                    self.post_message(StateChanged(*self._hosts.step(STEP_S)))
            finally:
                self._hosts.close()
        except GpuwatchError as exc:
            self.failure = exc
            if not worker.is_cancelled:
                self.call_from_thread(self.exit, return_code=exc.exit_code)

    def _terminated(self, number: int) -> None:
        self.exit(return_code=128 + number)
