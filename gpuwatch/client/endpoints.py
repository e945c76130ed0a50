"""Where a daemon may be, and whether one is there.

Owns: the search order of a client. Refuses: connecting.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping

from gpuwatch.config import LOCK_FILE, STREAM_SOCKET, SYSTEM_RUNTIME_DIR, runtime_directory


def candidates(flag: str | None = None, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Endpoints to try, best first. A flag or $GPUWATCH_ENDPOINT stands alone: whoever names a daemon must not be
    shown another one. Raises UsageError."""
    env = os.environ if env is None else env
    named = flag or env.get("GPUWATCH_ENDPOINT", "")
    if named:
        return (normal(named),)
    user = env.get("XDG_RUNTIME_DIR", "")
    return (*((normal(f"{user}/gpuwatch"),) if user else ()), normal(SYSTEM_RUNTIME_DIR))


def find(flag: str | None = None, env: Mapping[str, str] | None = None) -> str | None:
    """The first candidate with a running daemon, or None. Raises UsageError."""
    return next((endpoint for endpoint in candidates(flag, env) if serving(endpoint)), None)


def normal(endpoint: str) -> str:
    """``ipc://`` and an absolute directory. Raises UsageError."""
    return f"ipc://{runtime_directory(endpoint)}"


def serving(endpoint: str) -> bool:
    """A stream socket is there and its daemon holds the lock, or there is no lock to ask: sockets that ssh forwards
    from another host have none."""
    try:
        there = (runtime_directory(endpoint) / STREAM_SOCKET).is_socket()
    except PermissionError:
        return False
    return there and not abandoned(endpoint)


def abandoned(endpoint: str) -> bool:
    """The lock is there and nobody holds it: the daemon has gone. False when that cannot be told."""
    try:
        fd = os.open(runtime_directory(endpoint) / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock: two clients that look at the same moment must not take each other for a daemon.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def absence(endpoint: str) -> str:
    """Why nobody answers there: one line with the remedy."""
    path = runtime_directory(endpoint)
    try:
        if (path / STREAM_SOCKET).is_socket():
            if not os.access(path / STREAM_SOCKET, os.W_OK):
                return f"{path}: not allowed to connect; ask to be put into the group of that directory"
            return f"{path}: a daemon's socket is there, nobody answers yet"
    except PermissionError:
        return f"{path}: not allowed to look inside; ask to be put into the group of that directory"
    return f"no daemon at {path}; start one with: gpuwatch daemon"
