"""A job of ``bench/jobs`` under measurement: a child that writes JSON lines to a pipe.

Owns: the child, the thread that reads its lines. Refuses: what they mean.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.children import end

JOBS = Path(__file__).resolve().parent / "jobs"


class Job:
    """Started on entry, ended on exit."""

    def __init__(self, script: str, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._argv = [sys.executable, str(JOBS / script), *arguments]
        self._env = dict(os.environ if env is None else env)
        self._log = log
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def __enter__(self) -> Job:
        with self._log.open("wb") as errors:
            self.child = subprocess.Popen(
                self._argv, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        threading.Thread(target=self._read, name="job", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.child)

    def line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None when the job has ended. Raises RuntimeError when none comes in time."""
        try:
            return self._lines.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise RuntimeError(f"{Path(self._argv[1]).name} says nothing for {timeout_s:.0f} s{self.said()}") from None

    def until(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next line that has this key. Raises RuntimeError."""
        ends = time.monotonic() + timeout_s
        while True:
            line = self.line(ends - time.monotonic())
            if line is None:
                raise RuntimeError(f"{Path(self._argv[1]).name} ended with code {self.child.wait(5)}{self.said()}")
            if key in line:
                return line

    def waiting(self) -> list[dict[str, Any]]:
        """The lines that have come and nobody has taken. Raises RuntimeError when the job has ended."""
        found = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                raise RuntimeError(f"{Path(self._argv[1]).name} ended with code {self.child.wait(5)}{self.said()}")
            found.append(line)
        return found

    def said(self) -> str:
        """The last line on its stderr, to put behind a message."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _read(self) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as pipe:
            for line in pipe:
                try:
                    self._lines.put(json.loads(line))
                except ValueError:
                    continue  # A library that prints; it is no line of ours.
        self._lines.put(None)
