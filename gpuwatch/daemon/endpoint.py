"""The runtime directory of one daemon: its sockets and a lock.

Owns: who may bind there, the directory's mode, stale sockets. Refuses: speaking ZeroMQ.

A second ``bind`` on an ipc path succeeds silently and steals the endpoint (libzmq unlinks the file first), so
whoever wants to bind takes ``lock`` with flock before. The kernel releases it when the holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuwatch.config import (
    LOCK_FILE,
    REQUEST_SOCKET,
    STEP_SOCKET,
    STREAM_SOCKET,
    SYSTEM_RUNTIME_DIR,
    runtime_directory,
)
from gpuwatch.errors import CannotCreateError, EndpointInUseError, PermissionDeniedError

UMASK = 0o007
"""Sockets become 0770: the group of the directory may connect, others may not."""
DIRECTORY_MODE = 0o750
LOCK_ATTEMPTS = 6


def choose_directory(flag: str | None, configured: str, env: Mapping[str, str], uid: int) -> Path:
    """Where this daemon serves: flag, configuration (with $GPUWATCH_ENDPOINT), what systemd made for us, then the
    place that a client of this user looks at. Raises UsageError."""
    if flag or configured:
        return runtime_directory(flag or configured)
    if env.get("RUNTIME_DIRECTORY"):
        return Path(env["RUNTIME_DIRECTORY"].split(":")[0])
    if uid != 0 and env.get("XDG_RUNTIME_DIR"):
        return Path(env["XDG_RUNTIME_DIR"]) / "gpuwatch"
    return Path(SYSTEM_RUNTIME_DIR)


class RuntimeDirectory:
    """The directory, locked while this object is open. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = runtime_directory(str(path))
        self._lock_fd = -1

    @property
    def stream(self) -> str:
        """ZeroMQ address of the stream socket."""
        return f"ipc://{self.path / STREAM_SOCKET}"

    @property
    def requests(self) -> str:
        """ZeroMQ address of the request socket."""
        return f"ipc://{self.path / REQUEST_SOCKET}"

    def open(self) -> None:
        """Make the directory, take the lock, remove what a killed daemon left. Raises EndpointInUseError,
        PermissionDeniedError, CannotCreateError."""
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, mode=DIRECTORY_MODE)
            with umask(UMASK):
                fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        except PermissionError as exc:
            raise PermissionDeniedError(
                f"{self.path}: cannot serve here: {exc.strerror}; choose another with --runtime-dir"
            ) from None
        except OSError as exc:
            raise CannotCreateError(f"{self.path}: cannot serve here: {exc.strerror}") from None
        if not _locked(fd):
            holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise EndpointInUseError(
                f"{self.path}: served by another daemon, pid {holder}; stop it or choose another --runtime-dir"
            )
        self._lock_fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        self._unlink_sockets()

    def close(self) -> None:
        """Remove the sockets and release the lock. The lock file stays: unlinking it would let two daemons hold
        two different files of the same name."""
        if self._lock_fd < 0:
            return
        self._unlink_sockets()
        os.ftruncate(self._lock_fd, 0)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def __enter__(self) -> RuntimeDirectory:
        """Open."""
        self.open()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self.close()

    def _unlink_sockets(self) -> None:
        for name in (STREAM_SOCKET, REQUEST_SOCKET, STEP_SOCKET):
            with suppress(FileNotFoundError):
                (self.path / name).unlink()


def _locked(fd: int) -> bool:
    """Take the lock. A client that asks whether we are there holds it for a moment: try again for 100 ms."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt < LOCK_ATTEMPTS - 1:
                time.sleep(0.02)
            continue
        return True
    return False


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """With another umask: mode by umask at creation has no moment in which the file is open to all; chmod has."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
