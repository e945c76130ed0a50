"""The terminal that is drawn on.

Owns: one correction to Textual's driver. Refuses: what is drawn, reading keys.
"""

from __future__ import annotations

import sys
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class StandardOutput(LinuxDriver):
    """Draws on standard output, which ``gpuwatch tui`` has checked to be a terminal.

    Textual's own draws on standard error, so that ``2>log`` gave an empty terminal and the screen in the log."""

    def __init__(self, app: App[Any], *, debug: bool, mouse: bool, size: tuple[int, int] | None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = sys.__stdout__
