"""Statistics of one run: medians, spread, stationarity, the knee of a curve.

Owns: numbers to numbers. Refuses: clocks, torch, comparing runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WINDOW = 5
"""Batches that must agree before a run counts as stationary."""
SLOPE_LIMIT = 0.002
"""0.2 % per batch: triton#2306 shows 30 % between a 25 ms warm-up and a long one; a slope sees it, a fixed time
does not."""
KNEE_WITHIN = 0.05


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of ``values`` lie, linear between neighbours. Values must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return quantile(values, 0.5)


def theil_sen(values: Sequence[float]) -> float:
    """Slope per step: the median of the slopes of all pairs, which one outlier cannot tilt. 0 for fewer than two."""
    slopes = [
        (values[later] - values[earlier]) / (later - earlier)
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    ]
    return median(slopes) if slopes else 0.0


def drift(values: Sequence[float], blocks: int = 20) -> float:
    """Change from the first to the last of ``values`` as a share of their median, by the slope over block medians."""
    if len(values) < 2:
        return 0.0
    size = max(1, len(values) // blocks)
    medians = [median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]
    level = median(values)
    return theil_sen(medians) * (len(medians) - 1) / level if level > 0 else 0.0


def rotation(pass_bytes: int, cache_bytes: int, most_bytes: int) -> int:
    """How many sets of buffers, used in turn, make a working set of eight caches; 1 when ``most_bytes`` cannot."""
    wanted = max(1, -(-8 * cache_bytes // max(pass_bytes, 1)))
    return wanted if wanted * pass_bytes <= most_bytes else 1


def stationary(batch_medians: Sequence[float], window: int = WINDOW, limit: float = SLOPE_LIMIT) -> bool:
    """Whether the last ``window`` batches drift by less than ``limit`` of their median per batch."""
    recent = list(batch_medians[-window:])
    if len(recent) < window:
        return False
    level = median(recent)
    return level > 0 and abs(theil_sen(recent)) < limit * level


def median_halfwidth(values: Sequence[float]) -> float:
    """Half the width of the 95 % order-statistic interval of the median, as a share of the median.

    Ranks are n/2 ± 0.98·√n (normal approximation of the binomial); with fewer than 10 values nothing is known: inf.
    """
    count = len(values)
    if count < 10:
        return math.inf
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    middle = median(ordered)
    return (ordered[high] - ordered[low]) / 2 / middle if middle > 0 else math.inf


def fastest_window(times: Sequence[float], cover: float, least: int) -> tuple[int, int]:
    """Bounds [start, end) of the run of neighbours with the smallest mean that sums to ``cover`` and has ``least``.

    All of them when they do not reach that far.
    """
    best = (0, len(times))
    best_mean = math.inf
    end = 0
    total = 0.0
    for start in range(len(times)):
        while end < len(times) and (total < cover or end - start < least):
            total += times[end]
            end += 1
        if total < cover or end - start < least:
            break
        if total / (end - start) < best_mean:
            best_mean = total / (end - start)
            best = (start, end)
        total -= times[start]
    return best


def knee(rates: dict[int, float], within: float = KNEE_WITHIN) -> int:
    """The smallest count whose rate is within ``within`` of the best. ``rates`` must not be empty."""
    enough = max(rates.values()) * (1.0 - within)
    return min(count for count, rate in rates.items() if rate >= enough)


def worker_counts(cores: int) -> list[int]:
    """0, 1, 2, 4, … and ``cores`` itself."""
    counts = [0]
    power = 1
    while power < cores:
        counts.append(power)
        power *= 2
    return [*counts, max(cores, 1)]
