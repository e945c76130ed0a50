"""How much of a GPU each of its processes used, by the driver.

Owns: which readings of it lie in the window. Refuses: what follows (gates.py).

A reading covers the time since the one before and stands until the next, in whatever else of a DeviceHealth is read
meanwhile. So what the window begins with may be of the time before it: it counts only where nothing else came.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

from gpuwatch.diagnose.gpu_windows import value_of
from gpuwatch.model import DeviceHealth, ProcessUtil


def sm_shares(health: Iterable[DeviceHealth], start_ns: int, end_ns: int) -> dict[int, float]:
    """Mean share of the time, 0..1, in which kernels of each process ran between the two instants, by pid.

    Of a process on several of the devices, where it used most. A process that no reading names has none here.
    """
    by_device: dict[int, list[tuple[ProcessUtil, ...]]] = defaultdict(list)
    for reading in health:
        if start_ns <= reading.mono_ns <= end_ns and reading.process_utils_absent is None:
            by_device[reading.device_index].append(reading.process_utils)
    found: dict[int, float] = {}
    for readings in by_device.values():
        for pid, share in _means(_within(readings)).items():
            found[pid] = max(share, found.get(pid, 0.0))
    return found


def _within(readings: list[tuple[ProcessUtil, ...]]) -> list[tuple[ProcessUtil, ...]]:
    """Without what may have been read of the time before."""
    first = len(list(next(groupby(readings))[1]))
    return readings[first:] or readings


def _means(readings: list[tuple[ProcessUtil, ...]]) -> dict[int, float]:
    """Where a reading does not name a process, it was not on the GPU then."""
    totals: dict[int, float] = defaultdict(float)
    for reading in readings:
        for use in reading:
            percent = value_of(use.sm_pct)
            if percent is not None:
                totals[use.pid] += percent / 100.0
    return {pid: total / len(readings) for pid, total in totals.items()}
