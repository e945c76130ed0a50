"""One lock per GPU, so that only one probe measures there, whoever started it.

Owns: where the locks lie, taking one or several at once. Refuses: waiting for one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

MODE = 0o644
"""Of a lock: everybody may read it, which is all that locking needs."""


def lock_folder(env: Mapping[str, str]) -> Path:
    """Where GPU locks lie: /run/lock where everybody may write (daemon and users must meet), else the user's runtime
    directory, else the temporary one."""
    for path in ("/run/lock", env.get("XDG_RUNTIME_DIR", "")):
        if path and Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    return Path(tempfile.gettempdir())


def lock_gpu(uuid: str, folder: Path) -> int:
    """A descriptor that holds the GPU's lock until it is closed, or -1 when another probe holds it. Raises OSError."""
    fd = _opened(folder / f"gpuwatch-probe-{uuid.replace('/', '_')}.lock")  # old MIG names have slashes
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


def _opened(path: Path) -> int:
    """The lock's file, made if it is not there. Raises OSError.

    It lies where everybody may write. It is opened for reading, which is enough to lock it and which another user's
    file allows; kernels refuse to "create" an existing file of others in a sticky directory. A link that somebody has
    put there is not followed, and a pipe is not waited for.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, MODE)
        except FileExistsError:  # another probe was faster
            fd = os.open(path, flags)
    except PermissionError as exc:
        text = f"{exc.strerror}: another user's gpuwatch made it for itself; remove it"
        raise PermissionError(exc.errno, text, str(path)) from None
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file: remove it", str(path))
    # Ours, made just now or by an older version: the umask (of a service, or of a careful user) has taken the others'
    # right to read it, and with it their way to see that the GPU is taken. Never a file that has another name too.
    own = about.st_uid == os.geteuid() and about.st_nlink == 1 and about.st_size == 0
    if own and stat.S_IMODE(about.st_mode) != MODE:
        os.fchmod(fd, MODE)
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
