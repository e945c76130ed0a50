"""Streams, events, a spin kernel and a clock that may fall, all in virtual milliseconds.

Enqueueing costs the CPU a little, the work runs later, an idle device starts late: what makes GPUs hard to time.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

ENQUEUE_MS = 0.01
LAUNCH_DELAY_MS = 0.4
CYCLES_PER_MS = 1_980_000.0


class SimulatedGpu:
    """``torch`` is what a CudaClock asks for; ``work`` is a kernel of ``kernel_ms``."""

    def __init__(self, kernel_ms: float = 1.0, spin: bool = True, other_stream: bool = False) -> None:
        self.kernel_ms = kernel_ms
        self.slower_each_call = 1.0
        self.cpu_ms = 0.0
        self.free_at_ms = 0.0
        self.most_queued_ms = 0.0
        self.streams: list[object] = []
        self.spins_ms: list[float] = []
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = math.nan

            def record(self, stream: object) -> None:
                outer.streams.append(stream)
                # Another stream is idle: its events happen at once, whatever the work's stream does.
                self.at_ms = outer.cpu_ms if other_stream else max(outer.free_at_ms, outer.cpu_ms)

            def synchronize(self) -> None:
                outer.cpu_ms = max(outer.cpu_ms, self.at_ms)

            def elapsed_time(self, later: Event) -> float:
                assert outer.cpu_ms >= later.at_ms, "asked before the event has happened"
                return later.at_ms - self.at_ms

        cuda: dict[str, Any] = {"Event": Event, "current_stream": lambda _d: "current", "synchronize": self.synchronize}
        if spin:
            cuda["_sleep"] = self._sleep
        self.torch = SimpleNamespace(cuda=SimpleNamespace(**cuda))

    def work(self) -> None:
        """Enqueue one kernel."""
        self._enqueue(self.kernel_ms)
        self.kernel_ms *= self.slower_each_call

    def _sleep(self, cycles: int) -> None:
        self.spins_ms.append(cycles / CYCLES_PER_MS)
        self._enqueue(cycles / CYCLES_PER_MS)

    def _enqueue(self, duration_ms: float) -> None:
        self.cpu_ms += ENQUEUE_MS
        idle = self.free_at_ms < self.cpu_ms
        start = self.cpu_ms + LAUNCH_DELAY_MS if idle else self.free_at_ms
        self.free_at_ms = start + duration_ms
        self.most_queued_ms = max(self.most_queued_ms, self.free_at_ms - self.cpu_ms)

    def synchronize(self, _device: object = None) -> None:
        """Wait for everything."""
        self.cpu_ms = max(self.cpu_ms, self.free_at_ms)
