"""What a treatment costs a job: the job's steps per second in turns with and without it.

Owns: the order of the turns, rates from marks, the paired difference and its interval. Refuses: knowing the treatment.

Turns follow as with-without, without-with, …, so that a drift of the machine falls on both alike; runs of one job
differ by 15 % from each other, which is why the same run is compared with itself.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gpuwatch.verdict.statistics import paired_interval

GUARD_S = 0.25
"""At the start of a turn, not counted: what was switched is still starting or ending, and batches are in the queue."""
LEAST_PAIRS = 3

Mark = tuple[int, int]
"""(CLOCK_MONOTONIC in nanoseconds, steps done by then)"""


class Steps(Protocol):
    """A job that tells its steps: ``StepJob``, or a test's."""

    def marks(self) -> Sequence[Mark]:
        """All so far, oldest first. Raises RuntimeError when the job has ended."""


class Pair(NamedTuple):
    """Two turns beside each other."""

    with_it: float
    """Steps per second."""
    without: float
    with_first: bool


class Paired(NamedTuple):
    """What was found."""

    pairs: list[Pair]
    change_pct: float
    """Geometric mean of the changes of the rate in per cent: negative is slower."""
    low_pct: float
    high_pct: float
    """95 % interval: the wider of Student's t and a bootstrap."""
    with_it: float
    without: float
    """Median steps per second."""


def rate(marks: Sequence[Mark], begin_ns: int, end_ns: int) -> float:
    """Steps per second in between, interpolated between marks. Raises RuntimeError where they do not reach."""
    if not marks or marks[0][0] > begin_ns or marks[-1][0] < end_ns:
        raise RuntimeError("the job did not tell its steps during the whole turn")
    return (_at(marks, end_ns) - _at(marks, begin_ns)) * 1e9 / (end_ns - begin_ns)


def _at(marks: Sequence[Mark], instant_ns: int) -> float:
    place = bisect.bisect_left(marks, instant_ns, key=lambda mark: mark[0])
    after = marks[place]
    if after[0] == instant_ns or place == 0:
        return after[1]
    before = marks[place - 1]
    return before[1] + (after[1] - before[1]) * (instant_ns - before[0]) / (after[0] - before[0])


def measure(
    job: Steps,
    switch: Callable[[bool], None],
    *,
    pairs: int,
    turn_s: float,
    ends_s: float,
    settle_s: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Paired:
    """So many pairs of turns of ``turn_s`` each, or as many as there is time for until ``ends_s`` (CLOCK_MONOTONIC).

    Raises RuntimeError when fewer than three fit, or when the job ends or stands still.
    """
    turns: list[tuple[bool, int, int]] = []
    for number in range(pairs):
        if clock() / 1e9 + 2 * turn_s + settle_s > ends_s:
            break
        for on in (True, False) if number % 2 == 0 else (False, True):
            switch(on)
            begin_ns = clock()
            sleep(turn_s)
            turns.append((on, begin_ns + round(GUARD_S * 1e9), clock()))
    switch(False)
    sleep(settle_s)  # The mark after the last turn must have come.
    if len(turns) < 2 * LEAST_PAIRS:
        raise RuntimeError(f"there was time for {len(turns) // 2} pairs only, {LEAST_PAIRS} are the least")
    return found(turns, job.marks())


def found(turns: Sequence[tuple[bool, int, int]], marks: Sequence[Mark]) -> Paired:
    """The result of turns (with it or not, begin and end in ns). Raises RuntimeError when the job stood still."""
    rates = [(on, rate(marks, begin_ns, end_ns)) for on, begin_ns, end_ns in turns]
    pairs = []
    for (on, first), (_, second) in zip(rates[::2], rates[1::2], strict=True):
        pair = Pair(first, second, with_first=True) if on else Pair(second, first, with_first=False)
        if pair.without <= 0.0 or pair.with_it <= 0.0:
            raise RuntimeError(
                f"the job stood still in a turn with{'out' if pair.without <= 0.0 else ''} the treatment"
            )
        pairs.append(pair)
    # Of logarithms: a job with two speeds is as often +37 % as -27 %, whose mean is no change and not +5 %.
    interval = paired_interval([math.log(pair.with_it / pair.without) for pair in pairs], seed=1)
    change, low, high = (100 * math.expm1(value) for value in (interval.estimate, interval.low, interval.high))
    return Paired(
        pairs,
        change,
        low,
        high,
        statistics.median(pair.with_it for pair in pairs),
        statistics.median(pair.without for pair in pairs),
    )
