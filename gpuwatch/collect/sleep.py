"""Letting a laptop's GPU sleep: when NVML is given back, and when it must not be opened.

Owns: what sysfs says of the power state of the GPUs, how long a GPU must have been idle. Refuses: NVML.

A GPU with runtime power management stays awake while any process holds NVML open, and a single call wakes one that
sleeps (nvtop#267, beszel#1522). So the state is read from sysfs, which asks no driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

IDLE_S: Final = 60.0
"""Without a process on any GPU and without a client, before NVML is given back."""
SETTLE_S: Final = 30.0
"""A GPU suspends some seconds after its last user; one that has not by then has another user."""
PAUSE_S: Final = 600.0
"""Before another try, where somebody else keeps a GPU awake: opening NVML again is not free."""
LOOK_S: Final = 2.0
HINT: Final = (
    "the GPUs are asleep, and reading them would wake them: they are watched again as soon as a program uses one "
    "(let_gpus_sleep in the configuration)"
)
_SYSFS: Final = Path("/sys/bus/pci/devices")
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


class Sleep:
    """Of all NVIDIA GPUs of this machine. One thread owns it."""

    def __init__(
        self,
        sysfs: Path = _SYSFS,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        idle_s: float = IDLE_S,
        settle_s: float = SETTLE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._sysfs = sysfs
        self._clock = clock
        self._idle_ns = int(idle_s * 1e9)
        self._settle_ns = int(settle_s * 1e9)
        self._look_s = look_s
        self._idle_since_ns: int | None = None
        self._not_before_ns = clock()

    def asleep(self) -> bool:
        """Every GPU is suspended. False where there is none, or the kernel does not say."""
        states = [self._text(gpu / "power/runtime_status") for gpu in self._gpus()]
        return bool(states) and all(state == "suspended" for state in states)

    def due(self, *, idle: bool) -> bool:
        """It is time to give NVML back. To be asked regularly while it is open; ``idle``: nobody uses or watches."""
        now_ns = self._clock()
        if not idle:
            self._idle_since_ns = None
            return False
        if self._idle_since_ns is None:
            self._idle_since_ns = now_ns
        if now_ns - self._idle_since_ns < self._idle_ns or now_ns < self._not_before_ns:
            return False
        # "on" forbids suspending: giving NVML back would gain nothing.
        return any(self._text(gpu / "power/control") == "auto" for gpu in self._gpus())

    def wait(self, stop: threading.Event, wanted: Callable[[], bool]) -> None:
        """Return when NVML may be opened: a GPU has woken, has not gone to sleep, or is ``wanted`` while awake."""
        self._idle_since_ns = None
        ends_ns = self._clock() + self._settle_ns
        slept = False
        while True:
            asleep = self.asleep()
            if not asleep and (slept or wanted()):
                return
            if not asleep and self._clock() >= ends_ns:
                self._not_before_ns = self._clock() + int(PAUSE_S * 1e9)
                return
            slept = slept or asleep
            if stop.wait(self._look_s):
                return

    def _gpus(self) -> list[Path]:
        try:
            found = list(self._sysfs.iterdir())
        except OSError:
            return []
        return [
            device
            for device in found
            if self._text(device / "vendor") == _NVIDIA and self._text(device / "class").startswith(_DISPLAY_CLASS)
        ]

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""
