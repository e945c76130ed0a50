"""Looking every few seconds whether GPUs or MIG instances have come or gone.

Owns: when to look, the thread that does, what a look that does not return means. Refuses: which calls are made.

A GPU that begins to hang may do so in the look itself, some seconds before its sampler counts as stuck. On the driver's
own thread that was the end of every later opening: a GPU that hung in nvmlDeviceGetMigMode hid the MIG instances that
were made on another one and a reload of the driver under the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from gpuwatch.collect.sampler import Failures

_ANSWER_S: Final = 0.2
"""Two calls, and some more for each GPU that may have MIG: a millisecond. A longer look is heard of later."""
PART: Final = "GPUs and MIG instances that come or go"

Changed = Callable[[frozenset[int]], bool]
"""``Driver.changed``: it leaves out what an earlier look hangs in, so that each of them holds one thread."""


class Survey:
    """Of one opening of the driver; its answers are of no use after the next."""

    def __init__(
        self,
        changed: Changed,
        period_ns: int,
        clock: Callable[[], int],
        launch: Callable[[threading.Thread], None],
    ) -> None:
        """``launch`` starts a thread."""
        self._changed = changed
        self._period_ns = period_ns
        self._clock = clock
        self._launch = launch
        self._looked_ns = clock()
        self._found = threading.Event()
        self.failures = Failures()

    def found(self, skip: Callable[[], frozenset[int]]) -> bool:
        """Something has come or gone; no answer yet means no. To be asked regularly: it looks when it is time to.
        ``skip``: GPUs that hang."""
        if not self._found.is_set() and self._clock() - self._looked_ns >= self._period_ns:
            self._looked_ns = self._clock()
            done = threading.Event()
            arguments = (skip(), done)
            self._launch(threading.Thread(target=self._look, args=arguments, name="survey", daemon=True))
            done.wait(_ANSWER_S)
        return self._found.is_set()

    def _look(self, skip: frozenset[int], done: threading.Event) -> None:
        """Thread body."""
        try:
            if self._changed(skip):
                self._found.set()
        except Exception as exc:
            self.failures.failed(PART, exc)
        else:
            self.failures.worked(PART)
        done.set()
