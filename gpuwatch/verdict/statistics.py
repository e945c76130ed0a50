"""Statistics across runs: intervals, tests, slopes, what a design can detect.

Owns: numbers to numbers. Refuses: probes, clocks, NumPy. The unit of evidence is a fresh process, so samples are few
(3 to 30) and everything here is plain Python. Chance comes only from a seed that is passed in.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

BOOTSTRAP_FROM = 8
"""Pairs from which the bootstrap interval is used: with fewer, resampling seven values says too little."""
RESAMPLES = 2000
_NORMAL = NormalDist()


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    estimate: float
    low: float
    high: float

    def inside(self, limit: float) -> bool:
        """Whether all of it lies within ±``limit``."""
        return -limit < self.low and self.high < limit


def mad(values: Sequence[float]) -> float:
    """Median distance from the median, times 1.4826: the standard deviation of normal data, blind to outliers."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """Slope of ``values`` over ``times``: the median over all pairs, which one outlier cannot tilt. 0 for fewer than 2.

    Pairs at the same time have no slope and are left out.
    """
    slopes = [
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
        if times[later] != times[earlier]
    ]
    return median(slopes) if slopes else 0.0


# --------------------------------------------------------------------------- Student's t


def t_tail(t: float, freedom: int) -> float:
    """Two-sided tail probability of Student's t with ``freedom`` ≥ 1 degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(probability: float, freedom: int) -> float:
    """The t below which ``probability`` (0.5 to 1, both excluded) lies, by bisection to 1e-9."""
    low, high = 0.0, 1.0
    while 1 - t_tail(high, freedom) / 2 < probability:
        high *= 2
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        if 1 - t_tail(middle, freedom) / 2 < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for step in range(1, 300):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 / _not_zero(1.0 + term * d, tiny)
            c = _not_zero(1.0 + term / c, tiny)
            change = c * d
            fraction *= change
        if abs(change - 1.0) < 1e-14:
            break
    return front * fraction


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


# --------------------------------------------------------------------------- intervals and tests


def t_interval(values: Sequence[float], coverage: float = 0.95) -> Interval:
    """Mean and its t interval. Needs two values at least (ValueError)."""
    if len(values) < 2:
        raise ValueError("an interval needs two values")
    centre = fmean(values)
    reach = t_quantile(0.5 + coverage / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(centre, centre - reach, centre + reach)


def t_test(values: Sequence[float]) -> float:
    """Two-sided p-value of "the mean is zero"; 1.0 for fewer than two values."""
    if len(values) < 2:
        return 1.0
    error = stdev(values) / math.sqrt(len(values))
    centre = fmean(values)
    if error == 0.0:
        return 1.0 if centre == 0.0 else 0.0
    return t_tail(abs(centre) / error, len(values) - 1)


def bootstrap_interval(
    values: Sequence[float],
    seed: int,
    coverage: float = 0.95,
    statistic: Callable[[Sequence[float]], float] = fmean,
    resamples: int = RESAMPLES,
) -> Interval:
    """BCa interval of ``statistic``: resampled with replacement, corrected for bias and skew. Needs two values."""
    if len(values) < 2:
        raise ValueError("an interval needs two values")
    estimate = statistic(values)
    chance = random.Random(seed)  # noqa: S311 - reproducible on purpose, nothing secret
    drawn = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(resamples))
    if drawn[0] == drawn[-1]:
        return Interval(estimate, drawn[0], drawn[0])
    below = sum(value < estimate for value in drawn) + sum(value == estimate for value in drawn) / 2
    bias = _NORMAL.inv_cdf(min(max(below / resamples, 1 / resamples), 1 - 1 / resamples))
    left_out = [statistic([*values[:i], *values[i + 1 :]]) for i in range(len(values))]
    centre = fmean(left_out)
    spread = sum((centre - value) ** 2 for value in left_out)
    skew = sum((centre - value) ** 3 for value in left_out) / (6 * spread**1.5) if spread > 0 else 0.0

    def end(probability: float) -> float:
        z = bias + _NORMAL.inv_cdf(probability)
        share = _NORMAL.cdf(bias + z / (1 - skew * z))
        return drawn[min(resamples - 1, max(0, round(share * (resamples - 1))))]

    return Interval(estimate, end(0.5 - coverage / 2), end(0.5 + coverage / 2))


def paired_interval(differences: Sequence[float], seed: int) -> Interval:
    """95 % interval of the mean of paired differences: t below 8 pairs; from 8 on the wider of t and bootstrap.

    The wider, because a bootstrap of eight values is too narrow (its spread has n where it should have n - 1).
    """
    interval = t_interval(differences)
    if len(differences) < BOOTSTRAP_FROM:
        return interval
    other = bootstrap_interval(differences, seed)
    return Interval(interval.estimate, min(interval.low, other.low), max(interval.high, other.high))


class Difference(NamedTuple):
    """How far new runs lie from a baseline."""

    interval: Interval
    p: float
    deviation: float
    """Standard deviation of one run."""


def prediction(base: Sequence[float], new: Sequence[float], assumed: float) -> Difference:
    """Mean of ``new`` minus mean of ``base``, with the interval that includes the noise of the new runs themselves.

    For one new run this is the prediction interval of the baseline. The deviation is pooled over both sides;
    ``assumed``, with ten degrees of freedom, stands for it where neither side has two runs.
    """
    groups = [group for group in (base, new) if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(sum((value - fmean(group)) ** 2 for value in group) for group in groups)
    deviation = math.sqrt(squares / freedom) if freedom else assumed
    freedom = freedom or 10
    error = deviation * math.sqrt(1 / len(base) + 1 / len(new))
    estimate = fmean(new) - fmean(base)
    reach = t_quantile(0.975, freedom) * error
    surely = 1.0 if estimate == 0.0 else 0.0
    p = t_tail(abs(estimate) / error, freedom) if error > 0.0 else surely
    return Difference(Interval(estimate, estimate - reach, estimate + reach), p, deviation)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): the chance of any false change among all rows stays below the level."""
    adjusted = [1.0] * len(p_values)
    worst = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


# --------------------------------------------------------------------------- what can be detected


def detectable_paired(deviation: float, pairs: int, level: float = 0.05) -> float:
    """Smallest change found with 80 % power by ``pairs`` pairs, when one run has this deviation and a change is
    believed at p < ``level``. inf below 2 pairs."""
    if pairs < 2:
        return math.inf
    return _reach(pairs - 1, level) * deviation * math.sqrt(2 / pairs)


def detectable_against(deviation: float, base: int, new: int, level: float = 0.05) -> float:
    """The same for ``new`` runs against a baseline of ``base`` runs. inf below 2 runs in the baseline."""
    if base < 2 or new < 1:
        return math.inf
    return _reach(base + new - 2, level) * deviation * math.sqrt(1 / base + 1 / new)


def pairs_needed(deviation: float, change: float, level: float = 0.05, most: int = 200) -> int | None:
    """Pairs with which ``change`` would be found; None when even ``most`` are not enough."""
    fewer = range(3, most)  # more pairs never detect less
    found = bisect.bisect_left(fewer, True, key=lambda pairs: detectable_paired(deviation, pairs, level) <= change)
    return fewer[found] if found < len(fewer) else None


def _reach(freedom: int, level: float) -> float:
    """How many standard errors a change must have to be found at ``level`` with 80 % power."""
    return t_quantile(1.0 - level / 2, freedom) + t_quantile(0.8, freedom)
