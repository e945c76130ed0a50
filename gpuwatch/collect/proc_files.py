"""Reading the kernel's small files: bytes or the reason why not.

Owns: open, read, the table of kept descriptors, OSError → Absent. Refuses: what the bytes mean (proc_parse).

A read through a kept descriptor costs 3 µs where open, read and close cost 6.5 (measured for /proc/PID/stat), and
it can never meet another process under a reused pid: the kernel answers ESRCH.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpuwatch.model import Absent, Reason

T = TypeVar("T")

READ_BYTES = 4096
"""Enough for every file that is read by one call here; a command line is cut there."""
_CHUNK_BYTES = 65536
KEPT_MAX = 4096
"""Descriptors to keep: four for each of 1024 processes; never more than half of what we may open (often 1024)."""


def read_all(path: str | Path) -> bytes:
    """The whole of a file that may be long: the kernel gives a page or so per read. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, _CHUNK_BYTES)]
        while parts[-1]:
            parts.append(os.read(fd, _CHUNK_BYTES))
    finally:
        os.close(fd)
    return b"".join(parts)


def read_small(path: str) -> bytes:
    """A file of one record below READ_BYTES, such as the stat of a thread, in one read. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, READ_BYTES)
    finally:
        os.close(fd)


def absent(error: OSError | ValueError, missing: Reason = Reason.NOT_FOUND) -> Absent:
    """The reason behind an error. ``missing`` is what a file that does not exist means."""
    if isinstance(error, ValueError):
        return Absent(Reason.ERROR, str(error))
    if isinstance(error, PermissionError):
        return Absent(Reason.NO_PERMISSION)
    if isinstance(error, FileNotFoundError):
        return Absent(missing)
    if isinstance(error, ProcessLookupError):
        return Absent(Reason.NOT_FOUND)
    if error.errno == errno.EOPNOTSUPP:
        # What the pressure files answer under the boot parameter psi=0.
        return Absent(Reason.NOT_SUPPORTED)
    return Absent(Reason.ERROR, errno.errorcode.get(error.errno or 0, str(error)))


def reading(path: str | Path, parse: Callable[[bytes], T], missing: Reason = Reason.NOT_FOUND) -> T | Absent:
    """A parsed file, or why there is none."""
    try:
        return parse(read_all(path))
    except (OSError, ValueError) as error:
        return absent(error, missing)


class KeptFiles:
    """Descriptors of small files that are read each tick, shared by all processes and limited in number."""

    def __init__(self, limit: int | None = None) -> None:
        if limit is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = KEPT_MAX if soft == resource.RLIM_INFINITY else min(KEPT_MAX, soft // 2)
        self._limit = limit
        self._fds: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self._fds)

    def read(self, pid: int, name: str, path: str) -> bytes:
        """At most READ_BYTES of ``path``, which is file ``name`` of ``pid``. Raises OSError."""
        key = (pid, name)
        fd = self._fds.get(key)
        if fd is None:
            if len(self._fds) >= self._limit:
                return read_small(path)
            fd = self._fds[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, READ_BYTES, 0)

    def drop(self, pid: int, names: tuple[str, ...]) -> None:
        """Close what is kept of a process."""
        for name in names:
            fd = self._fds.pop((pid, name), None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Close all."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
