"""The two clocks: perf_counter for a CPU, events for a GPU; and the test that events see the work.

Owns: marks, the time between them, waiting, the spin kernel. Refuses: deciding what to time and how often.
"""

from __future__ import annotations

import time
from typing import Any

SPIN_CYCLES = 2_000_000
"""About a millisecond: long enough for events, short enough to leave no trace."""


class CpuClock:
    """perf_counter around the calls."""

    name = "perf_counter"
    depth = 0

    def mark(self) -> Any:
        """Now."""
        return time.perf_counter_ns()

    def ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks."""
        return float(end - start) / 1e6

    def drain(self) -> None:
        """Nothing is ever queued."""

    def hold(self, ms: float) -> bool:
        """There is nothing to hold: calls run when they are made."""
        return False

    def sm_mhz(self) -> float:
        """A CPU's clock is not read here."""
        return 0.0


class CudaClock:
    """Events on the current stream, the one that the work runs on (helion PR#2994: another stream read 5 for 250 µs).

    ``device`` must be the current device.
    """

    name = "cuda_events"
    depth = 1

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._cycles_per_ms = 0.0

    def mark(self) -> Any:
        """An event behind everything enqueued so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two events; waits for the later one."""
        end.synchronize()
        return float(start.elapsed_time(end))

    def drain(self) -> None:
        """Wait until the device is idle."""
        self._torch.cuda.synchronize(self._device)

    def hold(self, ms: float) -> bool:
        """Keep the stream waiting for about ``ms``; False where this torch has no spin kernel."""
        spin = getattr(self._torch.cuda, "_sleep", None)
        if spin is None:
            return False
        if not self._cycles_per_ms:
            self.sm_mhz()
        spin(int(ms * self._cycles_per_ms))
        return True

    def sm_mhz(self) -> float:
        """The clock at which the SMs run now: a spin of known cycles, timed. 0.0 where this torch has none."""
        spin = getattr(self._torch.cuda, "_sleep", None)
        if spin is None:
            return 0.0
        # The first one takes the launch delay of an idle stream upon itself.
        spin(SPIN_CYCLES)
        start = self.mark()
        spin(SPIN_CYCLES)
        elapsed = self.ms(start, self.mark())
        mhz = SPIN_CYCLES / (elapsed * 1000.0) if elapsed > 0 else 0.0
        # The fastest clock seen: a spin that was counted at an idle clock would end too early at a fast one.
        self._cycles_per_ms = max(self._cycles_per_ms, mhz * 1000.0)
        return mhz


def self_test(clock: Any) -> str:
    """Whether the events see the work: a spin must read about the same by events and by the wall. "" when they do.

    Events on another stream read 5 for 250 µs (helion PR#2994); a missing synchronise reads the launch.
    """
    if not clock.hold(1.0):
        return ""
    clock.drain()
    began = time.perf_counter()
    start = clock.mark()
    clock.hold(10.0)
    by_events = clock.ms(start, clock.mark())
    clock.drain()
    by_wall = (time.perf_counter() - began) * 1000.0
    if by_events >= 0.5 * by_wall:
        return ""
    return f"the events read {by_events:.2f} ms of {by_wall:.2f} ms of work: they are not on the stream that works"
