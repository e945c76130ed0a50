"""A child process under measurement: CPU to the nanosecond, memory, what it writes to a terminal.

Owns: starting, measuring and ending children. Refuses: knowing what they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a child used while it was watched."""

    seconds: float
    cpu_pct: float
    """Of one core, all threads, without its children."""
    rss_bytes: int
    """Resident at the end."""
    output_bytes: int = 0
    """Written to its terminal."""


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all threads, in nanoseconds: its POSIX CPU clock (man 3 clock_getcpuclockid)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


@contextlib.contextmanager
def started(argv: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child in the background, its output in ``log``; ended with SIGTERM, then SIGKILL after 5 s."""
    with log.open("wb") as out:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield child
    finally:
        end(child)


def wait_until(ready: Callable[[], bool], child: subprocess.Popen[bytes], log: Path, timeout_s: float = 20.0) -> None:
    """Wait for a child to be ready. Raises RuntimeError with its last line when it ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if child.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RuntimeError(f"process {child.pid}: {said[-1] if said else 'not ready'}")
        time.sleep(0.05)


class Terminal:
    """A child in a pseudo-terminal of a given size."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.name = " ".join(argv)
        self.started_s = time.monotonic()
        self.child = subprocess.Popen(
            argv, env=dict(env), stdin=slave, stdout=slave, stderr=slave, start_new_session=True, close_fds=True
        )
        os.close(slave)

    def read_until(self, needle: re.Pattern[bytes], timeout_s: float = 20.0) -> float:
        """Seconds from the start until ``needle`` was written. Raises RuntimeError when it does not come."""
        seen = b""
        deadline = self.started_s + timeout_s
        while not needle.search(seen):
            chunk = self._read(deadline - time.monotonic())
            if not chunk:
                raise RuntimeError(
                    f"{self.name}: no {needle.pattern!r} within {timeout_s:.0f} s; it wrote {seen[-200:]!r}"
                )
            seen += chunk
        return time.monotonic() - self.started_s

    def watch(self, seconds: float) -> Usage:
        """Read what the child writes for so long, and what it uses."""
        start, before = time.monotonic(), cpu_ns(self.child.pid)
        written = 0
        while (left := start + seconds - time.monotonic()) > 0:
            written += len(self._read(left))
        took = time.monotonic() - start
        cpu_pct = (cpu_ns(self.child.pid) - before) / 1e7 / took
        return Usage(took, cpu_pct, rss_bytes(self.child.pid), written)

    def close(self) -> None:
        """End the child."""
        end(self.child)
        os.close(self._master)

    def _read(self, timeout_s: float) -> bytes:
        readable, _, _ = select.select([self._master], [], [], max(0.0, timeout_s))
        if not readable:
            return b""
        try:
            return os.read(self._master, 65536)
        except OSError:  # EIO: the child has closed its end.
            raise RuntimeError(f"{self.name}: ended with code {self.child.wait(5)}") from None


def end(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL after 5 s. One that is stopped is continued first, or it would not hear the former."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
