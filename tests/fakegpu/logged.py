"""Events that write down when they are recorded and waited for, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def event_class(log: list[str], now_ms: Callable[[], float], name: Callable[[], str] = lambda: "event") -> type:
    """What ``torch.cuda.Event`` is for a test: ``log`` gets ``name()`` for each record and "wait" for each wait."""

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ms = 0.0

        def record(self) -> None:
            log.append(name())
            self.at_ms = now_ms()

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, later: Any) -> float:
            return float(later.at_ms - self.at_ms)

    return Event
