"""Calls that may block for as long as somebody else likes, on threads of their own, with a deadline.

Owns: the threads, and how long one tick waits for them. Refuses: what is called. A call that hangs is not made again:
its answer is taken when it comes. In Linux no read can be given up from outside, so a thread that hangs stays.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 0.2
"""For all calls of one tick together. One takes 0.05 ms when nothing is wrong."""
THREADS: Final = 16
"""At most so many hang at a time; further calls wait in line."""


class Asked(Generic[T]):
    """A question, with its answer when it has come."""

    def __init__(self, call: Callable[[], T], otherwise: T) -> None:
        self._call = call
        self.done = threading.Event()
        self.value = otherwise
        """The answer, or ``otherwise`` before it is there."""
        self.failed: Exception | None = None

    def answer(self) -> None:
        """Make the call. On the thread that may hang."""
        try:
            self.value = self._call()
        except Exception as exc:
            self.failed = exc


class SlowCalls:
    """Makes calls on other threads. ``ask`` and ``tick`` are for one thread."""

    def __init__(self, name: str, patience_s: float = PATIENCE_S, threads: int = THREADS) -> None:
        self._name = name
        self._patience_s = self._left_s = patience_s
        self._most = threads
        self._line: queue.SimpleQueue[Asked[Any] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def tick(self) -> None:
        """Another round: patience is whole again."""
        self._left_s = self._patience_s

    def ask(self, call: Callable[[], T], otherwise: T) -> Asked[T]:
        """Make the call and wait for its answer as long as patience lasts. Raises what a call that is done raised."""
        asked = Asked(call, otherwise)
        self._line.put(asked)
        if not self._idle.acquire(blocking=False) and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        began_s = time.monotonic()
        asked.done.wait(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))
        if asked.failed is not None:
            raise asked.failed
        return asked

    def close(self) -> None:
        """End the threads that do not hang."""
        for _ in range(self._threads):
            self._line.put(None)

    def _work(self) -> None:
        while (asked := self._line.get()) is not None:
            asked.answer()
            # Before the asker goes on: its next question must find this thread, not start another.
            self._idle.release()
            asked.done.set()
