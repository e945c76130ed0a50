"""Folders for a probe's own files, which are gone afterwards however the probe ends.

Owns: making them, telling one that is in use from what a killed probe has left, removing that; a file without a name.
Refuses: what is in them.

A folder in use holds a file that is locked: the lock ends with its process, and with those forked from it, whatever
killed them, and another container that shares the folder sees it too, which a process number would not tell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("storage", "compile", "ranks")
MARK = "in-use"
OLD_S = 86400.0
"""A folder without a mark may be one that is just being made, or one on a file system without locks."""


@contextlib.contextmanager
def folder(kind: str, base: str = "") -> Iterator[Path]:
    """A new folder in ``base``, else in the temporary folder; removed afterwards."""
    where = Path(base or tempfile.gettempdir())
    sweep(where)
    made = Path(tempfile.mkdtemp(prefix=_prefix(kind), dir=where))
    mark = -1
    try:
        mark = _mark(made)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if mark >= 0:
            os.close(mark)


def sweep(where: Path) -> None:
    """Remove what killed probes of this user have left in ``where``."""
    found: list[Path] = []
    with contextlib.suppress(OSError):  # a file system that is gone: the probe itself will say so
        found += [left for kind in KINDS for left in where.glob(_prefix(kind) + "*")]
    for left in found:
        with contextlib.suppress(OSError):
            about = left.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and _abandoned(left, about.st_mtime):
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def nameless(path: Path) -> Iterator[Path]:
    """A path for a new file whose name is gone already, so that its space comes back whatever ends the process.

    Where the file system does not open such a file again, it is ``path`` itself.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()
        again = Path(f"/proc/self/fd/{descriptor}")
        try:
            os.close(os.open(again, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            again = path
        yield again
    finally:
        os.close(descriptor)


def _prefix(kind: str) -> str:
    return f"gpuwatch-{kind}-"


def _mark(made: Path) -> int:
    """Lock the folder's mark and give its descriptor; -1 where nothing can be locked. It gets its name when it is
    locked, for a mark that can be locked means that nobody is there."""
    try:
        mark = os.open(made / f"{MARK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (made / f"{MARK}.new").rename(made / MARK)
    return mark


def _abandoned(left: Path, changed_s: float) -> bool:
    """Whether nobody uses the folder. Raises OSError where that cannot be told."""
    try:
        mark = os.open(left / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - changed_s > OLD_S
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(mark)
    return True
