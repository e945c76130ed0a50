"""Timing one workload: clock, calibration, warm-up until stationary, samples.

Owns: how long to run and what counts as a sample. Refuses: knowing the workload, statistics across runs.

On a GPU a sample is the time between two events on the current stream with several calls between them, and the next
sample is enqueued before the last one is read: the GPU never waits for Python inside a series, and never has more
than two samples (10 ms) queued, so that leaving is quick. The first sample of a series includes the launch delay of
an idle stream and is dropped.

A kernel that is shorter than its launch would be timed as Python's speed. Such a series is "held": the stream first
waits in a spin kernel while all calls of the sample are enqueued, and the events stand around the calls alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import stats
from .report import Report

SAMPLE_MS = 5.0
"""Calls are grouped until a sample lasts this long: events resolve about 0.5 µs, perf_counter far less."""
LEAST_SAMPLE_MS = 0.5
BURST_S = 0.5
BURST_WINDOW_MS = 50.0
BURST_LEAST = 5
BATCH_S = 0.1
LEAST_N = 30
FEW = 10
MOST_N = 500
LEAST_S = 0.5
HALFWIDTH = 0.0025
MAX_INNER = 10_000
HELD_INNER = 400
"""Calls behind a spin kernel: the driver's queue blocks at about a thousand."""
HELD_MS = 2.5
LAUNCH_MS = 1.0
LAUNCH_BOUND = 0.8
"""Enqueueing takes this share of the measured time or more: the device waited for Python."""
DRIFT_LIMIT = 0.02

if TYPE_CHECKING:  # subscripting it at run time needs Python 3.9
    Work = Callable[[], object]


class Budget(NamedTuple):
    """Seconds that one case may take."""

    measure_s: float
    warm_floor_s: float
    warm_cap_s: float

    @staticmethod
    def of(seconds: float, intensive: bool) -> Budget:
        """Warm-up of 0.5 s (light) or 3 s (power-limited compute) at least, 10 or 30 s at most; short runs less."""
        floor, cap = (3.0, 30.0) if intensive else (0.5, 10.0)
        return Budget(seconds, min(floor, seconds), min(cap, 3 * seconds))


class Timing(NamedTuple):
    """What was seen of one case; all times in milliseconds per call."""

    first_call_ms: float
    burst_ms: list[float]
    """The fastest 50 ms of the first half second: before power and heat limit the clocks."""
    sustained_ms: list[float]
    stationary: bool
    warm_s: float
    inner: int
    held: bool = False
    """Samples were enqueued behind a spin kernel, because a launch takes longer than the work."""

    @property
    def drift(self) -> float:
        """Change of the time per call over the measured part, as a share: positive when it became slower."""
        return stats.drift(self.sustained_ms)


def first_call(clock: Any, work: Work) -> float:
    """Wall milliseconds of one call from an idle device to its end: library handles, algorithm search, lazy loading."""
    clock.drain()
    start = time.perf_counter_ns()
    work()
    clock.drain()
    return (time.perf_counter_ns() - start) / 1e6


def calibrate(clock: Any, work: Work) -> int:
    """How many calls make a sample of ``SAMPLE_MS``, from a growing run of calls that lasts long enough to tell."""
    calls = 1
    while True:
        clock.drain()
        start = clock.mark()
        for _ in range(calls):
            work()
        total: float = clock.ms(start, clock.mark())
        if total >= LEAST_SAMPLE_MS or calls >= MAX_INNER:
            return max(1, min(MAX_INNER, math.ceil(SAMPLE_MS * calls / max(total, 1e-6))))
        calls *= 4


def launch_bound(clock: Any, work: Work, inner: int) -> tuple[int, float]:
    """(calls per held sample, ms to hold) when enqueueing takes as long as the work, else (``inner``, 0.0)."""
    if not clock.depth:
        return inner, 0.0
    calls = min(inner, 50)
    clock.drain()
    began, start = time.perf_counter_ns(), clock.mark()
    for _ in range(calls):
        work()
    enqueue_ms = (time.perf_counter_ns() - began) / 1e6
    each = enqueue_ms / calls
    # A call that takes longer than any launch waits for something itself, such as a copy from pageable memory.
    if enqueue_ms < LAUNCH_BOUND * clock.ms(start, clock.mark()) or each > LAUNCH_MS or not clock.hold(0.1):
        return inner, 0.0
    clock.sm_mhz()  # the clock is up now: the spin must be counted at this speed
    held = max(1, min(HELD_INNER, int(HELD_MS / each)))
    return held, 1.3 * held * each + 0.1


def series(
    clock: Any, work: Work, inner: int, finished: Callable[[list[float]], bool], hold_ms: float = 0.0
) -> list[float]:
    """Samples (ms per call) until ``finished`` says so, at least one: back to back, or each behind a held stream."""
    samples: list[float] = []
    pending: list[Any] = []
    lead = clock.depth
    clock.drain()
    previous = clock.mark()
    while True:
        for _ in range(inner):
            work()
        now = clock.mark()
        pending.append((previous, now))
        if len(pending) > clock.depth:
            start, end = pending.pop(0)
            elapsed = clock.ms(start, end) / inner
            if lead:
                lead -= 1
            else:
                samples.append(elapsed)
                if finished(samples):
                    clock.drain()
                    return samples
        if hold_ms:
            clock.hold(hold_ms)
        # Without a queue our own bookkeeping would fall into the next sample; with one, the GPU is busy meanwhile.
        previous = now if clock.depth and not hold_ms else clock.mark()


def until(seconds: float) -> Callable[[list[float]], bool]:
    """Finished after ``seconds`` from now."""
    end = time.perf_counter() + seconds
    return lambda _samples: time.perf_counter() >= end


def enough(seconds: float, halfwidth: float = HALFWIDTH) -> Callable[[list[float]], bool]:
    """Finished when the median is known to ``halfwidth``, at the time limit or at 500 samples."""
    started = time.perf_counter()

    def finished(samples: list[float]) -> bool:
        spent = time.perf_counter() - started
        if spent >= seconds or len(samples) >= MOST_N:
            return True
        # Sorting every time would cost more than a short sample; every tenth is often enough.
        due = len(samples) >= LEAST_N and len(samples) % 10 == 0 and spent >= LEAST_S
        return due and stats.median_halfwidth(samples) < halfwidth

    return finished


def warm_up(clock: Any, work: Work, inner: int, budget: Budget, hold_ms: float = 0.0) -> bool:
    """Run batches until their medians stop drifting; False when the cap came first."""
    started = time.perf_counter()
    batch_s = min(BATCH_S, max(budget.warm_cap_s / 10, 0.001))
    medians: list[float] = []
    while True:
        medians.append(stats.median(series(clock, work, inner, until(batch_s), hold_ms)))
        spent = time.perf_counter() - started
        if spent >= budget.warm_floor_s and stats.stationary(medians):
            return True
        if spent >= budget.warm_cap_s:
            return False


def time_case(
    clock: Any,
    work: Work,
    budget: Budget,
    say: Callable[[str], None],
    before_sustained: Callable[[], None] = lambda: None,
    burst: bool = True,
    hold: bool = True,
) -> Timing:
    """First call, burst, warm-up, sustained: in this order, because each heats the device for the next.

    Without ``hold`` a launch-bound case is timed as a job meets it: at the speed of Python.
    """
    say("first call")
    cold_ms = first_call(clock, work)
    inner = calibrate(clock, work)
    inner, hold_ms = launch_bound(clock, work, inner) if hold else (inner, 0.0)
    early: list[float] = []
    if burst:
        say("burst")
        early = series(clock, work, inner, until(min(BURST_S, budget.measure_s)), hold_ms)
    low, high = stats.fastest_window([ms * inner for ms in early], BURST_WINDOW_MS, BURST_LEAST)
    say("warming up")
    started = time.perf_counter()
    settled = warm_up(clock, work, inner, budget, hold_ms)
    warm_s = time.perf_counter() - started
    before_sustained()
    say("measuring")
    sustained = series(clock, work, inner, enough(budget.measure_s), hold_ms)
    return Timing(cold_ms, early[low:high], sustained, settled, warm_s, inner, hold_ms > 0)


def middle(values: list[float]) -> float:
    """The median, 0.0 of nothing."""
    return stats.median(values) if values else 0.0


def note_timing(report: Report, name: str, timing: Timing) -> None:
    """Put how the case ran into the settings, and a doubt into the notes when it did not settle."""
    report.settings[f"{name}_inner"] = str(timing.inner)
    report.settings[f"{name}_stationary"] = str(timing.stationary).lower()
    if timing.held:
        report.settings[f"{name}_held"] = "true"
    if len(timing.sustained_ms) >= LEAST_N and abs(timing.drift) > DRIFT_LIMIT:
        way = "slower" if timing.drift > 0 else "faster"
        report.notes.append(
            f"{name}: became {abs(timing.drift):.0%} {way} while it was measured: clocks or a neighbour"
        )
    if not timing.stationary:
        report.notes.append(f"{name}: still drifting after {timing.warm_s:.1f} s of warm-up")
    if len(timing.sustained_ms) < FEW:
        report.notes.append(f"{name}: {len(timing.sustained_ms)} sample(s) are few; give it more --seconds")


def prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    """``say`` with the case's name in front."""
    return lambda text: say(f"{name}: {text}")
