"""sd_notify by datagram, and when the watchdog is fed.

Owns: the protocol of systemd's notification socket. Refuses: threads. A watchdog fed by a thread of its own would
hide the hung driver call that it exists for, so ``feed`` is called from the service's loop and asks for progress.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

SLACK_NS = 2_000_000_000
"""On top of three periods: a full garbage collection or a slow NVML tier is not a hang."""


class Notifier:
    """Speaks to ``$NOTIFY_SOCKET``; without one every call does nothing."""

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        pid: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        env = os.environ if env is None else env
        self._clock = clock
        self._address = _address(env.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self.watchdog_ns = _watchdog_ns(env, os.getpid() if pid is None else pid) if self._address else 0
        """Half of WATCHDOG_USEC: how often to feed; 0 when nobody watches."""
        self._fed_ns = 0
        self._status = ""

    def ready(self, status: str) -> None:
        """Sockets are bound and the first inventory is there."""
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """What ``systemctl status`` shows; sent when it changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """Before a reload; ``ready`` follows. MONOTONIC_USEC lets a drop-in switch to Type=notify-reload."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """A clean stop has begun."""
        self._send("STOPPING=1")

    def feed(self, progress_ns: int, period_s: float) -> bool:
        """Feed the watchdog if it is time and a reading was completed within three periods and two seconds."""
        now = self._clock()
        if not self.watchdog_ns or now - self._fed_ns < self.watchdog_ns:
            return False
        if now - progress_ns > 3 * period_s * 1e9 + SLACK_NS:
            return False
        self._fed_ns = now
        self._send("WATCHDOG=1")
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            # The manager is restarting or its queue is full; a lost line must not cost the readings.
            return


def _address(text: str) -> str:
    """A path, or an abstract name: ``@`` stands for the leading NUL."""
    return "\0" + text[1:] if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_ns(env: Mapping[str, str], pid: int) -> int:
    usec = env.get("WATCHDOG_USEC", "")
    watched = env.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (watched and watched != str(pid)):
        return 0
    return int(usec) * 1000 // 2
