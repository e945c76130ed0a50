"""GPU windows looked up by the instant at which the host did something.

Owns: the lag of GPM's counters, known or learnt from the job itself, and the lookup. Refuses: what the host did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.gpu_windows import GpuWindow


class Timeline:
    """The windows of a job's devices."""

    def __init__(self, windows: Sequence[GpuWindow], lag_ns: int = t.GPM_LAG_NS) -> None:
        self._windows: dict[int, list[GpuWindow]] = defaultdict(list)
        for window in windows:
            self._windows[window.device_index].append(window)
        self._ends = {index: [w.end_ns for w in of] for index, of in self._windows.items()}
        self._lag_ns = lag_ns

    def at(self, instant_ns: int) -> list[GpuWindow]:
        """The windows that saw this instant, one of each device that has one."""
        return [w for index in self._windows if (w := self._covering(index, instant_ns)) is not None]

    def _covering(self, index: int, instant_ns: int) -> GpuWindow | None:
        windows = self._windows[index]
        instant_ns += 0 if windows[0].proxy else self._lag_ns
        place = bisect_left(self._ends[index], instant_ns)
        if place < len(windows) and windows[place].start_ns <= instant_ns:
            return windows[place]
        return None


def lag_ns(windows: Sequence[GpuWindow], fed: Sequence[tuple[int, bool]]) -> int:
    """How late the counters are: what was measured on one driver, unless this job shows otherwise.

    ``fed``: instants, and whether the thread stood in a training step then. A job that alternates between steps and
    something else shows the lag as the shift at which both agree best; one that does not, shows nothing. Stacks that
    take long to read are stamped late, which makes the counters look less so.
    """
    known = t.GPM_LAG_NS
    if not alternates(fed) or not windows or windows[0].proxy:
        return known
    found = {lag: agreement(windows, fed, lag) for lag in (known, *t.GPM_LAGS_NS)}
    best = max(found, key=lambda lag: found[lag])
    sure = found[best] >= t.LAG_AGREES and found[best] - found[known] >= t.LAG_AGREES_BETTER
    return best if sure else known


def alternates(fed: Sequence[tuple[int, bool]]) -> bool:
    """Whether there is enough of both kinds for their agreement with anything to mean something."""
    rarer = min(sum(feeds for _, feeds in fed), sum(not feeds for _, feeds in fed))
    return len(fed) >= t.SURE_STACKS and rarer >= t.LAG_SEEN * len(fed)


def agreement(windows: Sequence[GpuWindow], fed: Sequence[tuple[int, bool]], late_ns: int) -> float:
    """Correlation of feeding with the busy share of windows so late; 0 where either never changes."""
    timeline = Timeline(windows, late_ns)
    seen = [(float(feeds), fmean(w.busy for w in at)) for instant, feeds in fed if (at := timeline.at(instant))]
    try:
        return correlation(*zip(*seen, strict=True)) if len(seen) >= t.SURE_STACKS else 0.0
    except StatisticsError:
        return 0.0
