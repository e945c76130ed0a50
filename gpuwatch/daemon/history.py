"""The past of every GPU in memory: a second for an hour, ten seconds for a day.

Owns: buckets with mean, least and most, their bounds (about 1.4 MB a GPU when full), answers of at most 600 points.
Refuses: clocks, sockets, files. A reading that was not there is no number, and stays so.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from gpuwatch.model import Absent, DeviceSample
from gpuwatch.wire import GetHistory, History, HistorySeries, Refused, Tick

METRICS: tuple[tuple[str, float], ...] = (
    ("busy_pct", 0.1),
    ("sm_active_pct", 0.1),
    ("tensor_active_pct", 0.1),
    ("dram_active_pct", 0.1),
    ("gpu_util_pct", 1.0),
    ("power_w", 1.0),
    ("temp_c", 1.0),
    ("sm_clock_mhz", 1.0),
    ("mem_used_bytes", float(1 << 20)),
    ("pcie_rx_bytes_per_s", float(1 << 16)),
    ("pcie_tx_bytes_per_s", float(1 << 16)),
)
"""Field of DeviceSample and the step in which it is told."""
SECOND = 1_000_000_000
MAX_POINTS = 600
MAX_SECONDS = 24 * 3600.0
_REASON_BITS = 0xFFFFFFFF
_NAN = math.nan


class Track:
    """Buckets of one length of one GPU, oldest first."""

    def __init__(self, step_ns: int, capacity: int, *, ranges: bool) -> None:
        """``ranges``: keep the least and the most of each bucket too."""
        self.step_ns = step_ns
        self.buckets = array("q")
        self.reasons = array("L")
        self.mean = [array("f") for _ in METRICS]
        self.low = [array("f") for _ in METRICS] if ranges else []
        self.high = [array("f") for _ in METRICS] if ranges else []
        self._capacity = capacity
        self._counts = [0] * len(METRICS)

    def add(self, mono_ns: int, values: Sequence[float], reasons: int) -> None:
        """One reading; NaN is a value that was not there."""
        bucket = mono_ns // self.step_ns
        if not self.buckets or bucket != self.buckets[-1]:
            self._open(bucket)
        self.reasons[-1] |= reasons
        for place, value in enumerate(values):
            if math.isnan(value):
                continue
            mean, count = self.mean[place], self._counts[place]
            mean[-1] = value if not count else mean[-1] + (value - mean[-1]) / (count + 1)
            self._counts[place] = count + 1
            if self.low:
                low, high = self.low[place], self.high[place]
                low[-1] = value if not count else min(low[-1], value)
                high[-1] = value if not count else max(high[-1], value)

    def _open(self, bucket: int) -> None:
        self.buckets.append(bucket)
        self.reasons.append(0)
        for column in (*self.mean, *self.low, *self.high):
            column.append(_NAN)
        self._counts = [0] * len(METRICS)
        # In chunks: moving all of them down by one for each reading would cost more than the reading.
        if len(self.buckets) > self._capacity + max(16, self._capacity // 16):
            surplus = len(self.buckets) - self._capacity
            del self.buckets[:surplus]
            del self.reasons[:surplus]
            for column in (*self.mean, *self.low, *self.high):
                del column[:surplus]


class LongHistory:
    """Called by the service's loop only."""

    def __init__(self) -> None:
        self._fine: dict[int, Track] = {}
        self._coarse: dict[int, Track] = {}
        self._newest_ns: dict[int, int] = {}

    def observe(self, tick: Tick) -> None:
        """One tick. A GPU whose driver call hangs repeats its old reading, which is no new one."""
        for sample in tick.devices:
            index = sample.device_index
            if sample.mono_ns <= self._newest_ns.get(index, -1):
                continue
            self._newest_ns[index] = sample.mono_ns
            if index not in self._fine:
                self._fine[index] = Track(SECOND, 3600, ranges=False)
                self._coarse[index] = Track(10 * SECOND, 8640, ranges=True)
            values = [_number(sample, name) for name, _ in METRICS]
            bits = sample.clocks_event_reasons
            reasons = 0 if isinstance(bits, Absent) else bits & _REASON_BITS
            self._fine[index].add(sample.mono_ns, values, reasons)
            self._coarse[index].add(sample.mono_ns, values, reasons)

    def clear(self) -> None:
        """Forget everything: a recording goes back."""
        self._fine.clear()
        self._coarse.clear()
        self._newest_ns.clear()

    def answer(self, request: GetHistory) -> History | Refused:
        """The asked-for past, or in one line why not."""
        if not 0 < request.seconds <= MAX_SECONDS or request.points < 1:
            return Refused(request.request_id, f"history is kept for {MAX_SECONDS / 3600:.0f} h")
        tracks = self._fine if request.seconds <= 3600 else self._coarse
        track = tracks.get(request.device_index)
        if track is None:
            return Refused(request.request_id, f"no reading of GPU {request.device_index} yet")
        points = min(request.points, MAX_POINTS)
        group = max(1, math.ceil(request.seconds * SECOND / points / track.step_ns))
        return _resampled(track, request, group, math.ceil(request.seconds * SECOND / (group * track.step_ns)))


def _number(sample: DeviceSample, name: str) -> float:
    value = getattr(sample, name)
    return _NAN if isinstance(value, Absent) else float(value)


def _resampled(track: Track, request: GetHistory, group: int, points: int) -> History:
    """``group`` buckets of the track to one; the last holds the newest reading."""
    last = track.buckets[-1] // group
    first = last - points + 1
    edges = _edges(track.buckets, first, last, group)
    reasons = [0] * points
    for place, (start, end) in enumerate(edges):
        for bits in track.reasons[start:end]:
            reasons[place] |= bits
    series = []
    for place, (name, scale) in enumerate(METRICS):
        mean = _pick(track.mean[place], edges, scale, _mean)
        if not any(value is not None for value in mean):
            continue
        lows = track.low[place] if track.low else track.mean[place]
        highs = track.high[place] if track.high else track.mean[place]
        one_each = group == 1 and not track.low
        series.append(
            HistorySeries(
                name,
                scale,
                mean,
                () if one_each else _pick(lows, edges, scale, min),
                () if one_each else _pick(highs, edges, scale, max),
            )
        )
    step_ns = group * track.step_ns
    start_ns = first * step_ns
    return History(
        request.request_id, request.device_index, request.seconds, start_ns, step_ns, tuple(series), tuple(reasons)
    )


def _edges(buckets: array[int], first: int, last: int, group: int) -> list[tuple[int, int]]:
    """Where each point's buckets are in the track; buckets rise, and some are missing."""
    out = []
    place = 0
    for point in range(first, last + 1):
        while place < len(buckets) and buckets[place] < point * group:
            place += 1
        start = place
        while place < len(buckets) and buckets[place] < (point + 1) * group:
            place += 1
        out.append((start, place))
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _pick(
    column: array[float],
    edges: Sequence[tuple[int, int]],
    scale: float,
    how: Callable[[Sequence[float]], float],
) -> tuple[int | None, ...]:
    out: list[int | None] = []
    for start, end in edges:
        values: Sequence[float] = column[start:end]
        if values and math.isnan(sum(values)):
            values = [value for value in values if not math.isnan(value)]
        out.append(round(how(values) / scale) if values else None)
    return tuple(out)
