"""The text of the lines that a job's stacks stand on.

Owns: reading them, once each, under the job's own rights. Refuses: whole files, and lines of torch and of libraries
that only compute: theirs need no text to be told apart.

The path comes out of another process's memory, so it is not trusted: a line is read only from a regular file that the
job's user owns or that everybody may read. A daemon with more rights than the job must not be talked into publishing
a line of a file that the job's user could not open.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from gpuwatch.collect.source import Emit
from gpuwatch.model import Frame, Observation, SourceLine, StackSample

MAX_FILE_BYTES = 2 * 2**20
MAX_TEXT = 160
MAX_LINES = 200
"""Per job: a loop has a handful of lines, a recursive monster must not fill the recording."""
_TOLD_BY_NAME = re.compile(r"(?:site|dist)-packages/(torch|triton|jax|jaxlib|numpy|PIL|cv2|pandas|scipy)/")
_INSTALLED = ("site-packages", "dist-packages", "/lib/python3", "<")


class SourceLines:
    """Wraps ``emit``: after a stack sample it emits the text of each line that it has not told yet."""

    def __init__(self, emit: Emit, root: Path = Path("/proc")) -> None:
        self._emit = emit
        self._root = root
        self.texts: dict[tuple[str, int], str] = {}
        """What it has told, by file and line."""
        self._told: set[tuple[int, str, int]] = set()
        self._files: dict[tuple[int, str], list[str]] = {}

    def emit(self, observation: Observation) -> None:
        """Pass on, then add what lines it makes known. Native stacks stand on lines that plain ones have told."""
        self._emit(observation)
        if isinstance(observation, StackSample) and not observation.native:
            for thread in observation.threads:
                for frame in {f for f in (_users(thread.frames), _leaf(thread.frames)) if f is not None}:
                    self._tell(observation, frame)

    def _tell(self, stack: StackSample, frame: Frame) -> None:
        key = (stack.root_pid, frame.file, frame.line)
        if key in self._told or len(self._told) >= MAX_LINES:
            return
        self._told.add(key)
        lines = self._lines(stack.pid, frame.file)
        if 0 < frame.line <= len(lines):
            text = lines[frame.line - 1].strip()[:MAX_TEXT]
            self.texts[frame.file, frame.line] = text
            self._emit(SourceLine(stack.root_pid, stack.mono_ns, frame.file, frame.line, text))

    def _lines(self, pid: int, file: str) -> list[str]:
        key = (pid, file)
        if key not in self._files:
            self._files[key] = _read(self._root / str(pid), file)
        return self._files[key]


def _users(frames: Sequence[Frame]) -> Frame | None:
    return next((f for f in frames if _is_users(f)), None)


def _leaf(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame where it is a line of an installed library that may do anything, as a user's own may."""
    leaf = frames[0] if frames else None
    if leaf is None or leaf.line <= 0 or "-packages/" not in leaf.file or _TOLD_BY_NAME.search(leaf.file):
        return None
    return leaf


def _is_users(frame: Frame) -> bool:
    return frame.line > 0 and bool(frame.file) and not any(mark in frame.file for mark in _INSTALLED)


def _read(process: Path, file: str) -> list[str]:
    """The file as the process sees it (its mount namespace, its working directory); [] when it may not be read."""
    inside = process / "root" / file.lstrip("/") if file.startswith("/") else process / "cwd" / file
    try:
        uid = process.stat().st_uid
        fd = os.open(inside, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        facts = os.fstat(fd)
        readable = facts.st_uid == uid or bool(facts.st_mode & stat.S_IROTH) or uid == 0
        if not stat.S_ISREG(facts.st_mode) or not readable or facts.st_size > MAX_FILE_BYTES:
            return []
        return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    finally:
        os.close(fd)
