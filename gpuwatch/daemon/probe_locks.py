"""One lock per GPU, so that only one probe measures there, whoever started it.

Owns: where the locks lie, taking one or several at once. Refuses: waiting for one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def lock_folder(env: Mapping[str, str]) -> Path:
    """Where GPU locks lie: /run/lock where everybody may write (daemon and users must meet), else the user's runtime
    directory, else the temporary one."""
    for path in ("/run/lock", env.get("XDG_RUNTIME_DIR", "")):
        if path and Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    return Path(tempfile.gettempdir())


def lock_gpu(uuid: str, folder: Path) -> int:
    """A descriptor that holds the GPU's lock until it is closed, or -1 when another probe holds it. Raises OSError.

    The file is opened for reading and created only if it is not there: another user's file can be locked too, and
    kernels refuse to "create" an existing file of others in a sticky directory.
    """
    path = folder / f"gpuwatch-probe-{uuid.replace('/', '_')}.lock"  # old MIG names have slashes
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


def lock_all(uuids: Iterable[str], folder: Path) -> tuple[int, ...]:
    """A descriptor for each, or none at all: () when another probe holds one of them. Raises OSError."""
    held: list[int] = []
    try:
        for uuid in uuids:
            fd = lock_gpu(uuid, folder)
            if fd < 0:
                break
            held.append(fd)
        else:
            return tuple(held)
    except OSError:
        unlock(held)
        raise
    unlock(held)
    return ()


def unlock(held: Iterable[int]) -> None:
    """Give them back."""
    for fd in held:
        os.close(fd)
