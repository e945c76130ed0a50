"""The terminal that is drawn on, and its end.

Owns: corrections to Textual's driver. Refuses: what is drawn, reading keys.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class Output:
    """Writes to a terminal and never fails: what it cannot show is a question mark, and what comes after it has gone is
    dropped.

    Textual writes from a thread. An error ends that thread, then thirty writes later the application waits for it for
    ever, while its reader, whose every read returns at once, takes a whole core."""

    def __init__(self, fd: int, encoding: str) -> None:
        """``encoding``: of the terminal."""
        self._fd = fd
        self._encoding = encoding

    def write(self, text: str) -> None:
        """All of it, however slow the link."""
        left = memoryview(text.encode(self._encoding, "replace"))
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # Whoever shares the terminal with us, such as an ssh, may have made it non-blocking.
                select.select([], [self._fd], [])
            except OSError:
                return

    def flush(self) -> None:
        """Nothing is held back."""

    def fileno(self) -> int:
        """The file descriptor."""
        return self._fd


class StandardOutput(LinuxDriver):
    """Draws on standard output, which ``gpuwatch tui`` has checked to be a terminal.

    Textual's own draws on standard error, so that ``2>log`` gave an empty terminal and the screen in the log."""

    def __init__(self, app: App[Any], *, debug: bool, mouse: bool, size: tuple[int, int] | None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        stdout = sys.__stdout__
        assert stdout is not None
        # All that Textual's writer asks of a file.
        self._file = Output(stdout.fileno(), stdout.encoding)  # type: ignore[assignment]

    @property
    def behind(self) -> bool:
        """What was to be shown before is not on its way yet."""
        return self._writer_thread is not None and self._writer_thread._queue.qsize() > 0

    def gone(self) -> bool:
        """The terminal has hung up. SIGHUP says so only to those whose controlling terminal it is."""
        poll = select.poll()
        poll.register(self.fileno, 0)  # Hang-up and error are told without being asked for.
        return bool(poll.poll(0))
