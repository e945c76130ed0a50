"""The driver's own sample buffers, drained so that each sample is seen once.

Owns: the last stamp seen, the array that is kept, gaps, a clock that was set. Refuses: importing pynvml, schedules.

The driver samples utilization every 200 ms and power every 20 ms into rings (71 and 119 long on an H200, other lengths
elsewhere, so that the length is asked). "Newer than" is told only by stamps that the driver returned: its clock is its
own. NOT_FOUND means that nothing is newer, which is normal on an idle GPU.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Final

from gpuwatch.collect.nvml_calls import MAX_MILLIWATT, MAX_PCT, Calls, Clock
from gpuwatch.collect.nvml_fields import (
    INSUFFICIENT_SIZE,
    NOT_FOUND,
    PERMANENT_CODES,
    VALUE_MEMBERS,
    absent_for,
)
from gpuwatch.collect.tiers import Pace, Tier
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, Burst, Reason, SampleSeries

POWER: Final = 0
UTILIZATION: Final = 1
"""nvmlSamplingType_t."""
_LIMITS: Final = {POWER: MAX_MILLIWATT, UTILIZATION: MAX_PCT}

_DEFAULT_LENGTH: Final = 128
_HEADROOM: Final = 2
_MAX_LENGTH: Final = 4096
_SET_NS: Final = 1_000_000_000
"""A stamp that moved this much more or less than our clock: the driver's clock was set."""
_LOOK_EVERY: Final = 10
"""After an empty drain, and then at every tenth, the whole ring is looked at: with the driver's clock set back nothing
would ever be "newer", and the power ring of an H200 is overwritten after 2.4 s."""
_CREEP_NS: Final = 1_000_000
"""What the two clocks may drift apart between two drains."""
_PATIENT_US: Final = 5_000_000
"""A ring that holds less is drained each second, whatever it costs: samples would be lost."""
_UNWATCHED_US: Final = 10_000_000
_UNWATCHED_NS: Final = 4_500_000_000
"""While nobody watches, a ring that holds ten seconds and more is drained every five: nothing is lost, and one drain of
an H200's utilization ring takes 1.7 to 8.6 ms of driver time, the dearest part of a tick."""
_BESIDE_GPM_NS: Final = 2_500_000_000
"""Where GPM's counters say how busy the GPU was in each second, the samples are drained every third second."""
_JUMP_US: Final = 2_000_000
_GAP: Final = 1.5
"""Of the usual interval: a longer one after a full ring means that samples were overwritten."""

_Sample = tuple[int, int]
"""(driver's stamp in microseconds, value)"""


class SampleBuffer:
    """One ring of one GPU. Not thread-safe: its sampler owns it."""

    def __init__(self, calls: Calls, handle: Any, kind: int, clock: Clock) -> None:
        self._calls = calls
        self._handle = handle
        self._kind = kind
        self._clock = clock
        self._never: Absent | None = None
        self._era = 0
        """In which that was learned."""
        self._array: Any = None
        self._ring = 0
        self._seen_us = 0
        self._before_set_us = 0
        """The last stamp from before the clock was set back, as long as the ring may hold that sample."""
        self._anchor_ns: int | None = None
        """CLOCK_MONOTONIC minus the driver's clock: the least that was seen, because a drain always comes late."""
        self._empty = 0
        self.span_us = 0
        """Time that the ring holds, 0 before it is known."""
        self.sets = 0
        """Times that the driver's clock was set; whoever keeps a stamp of it must begin anew."""

    @property
    def seen_us(self) -> int:
        """The newest stamp so far, 0 before the first."""
        return self._seen_us

    def drain(self) -> SampleSeries:
        """What is new. Raises GoneError when the GPU no longer answers."""
        if self._never is not None and self._era == self._calls.era:
            return SampleSeries(absent=self._never)
        look = self._empty % _LOOK_EVERY == 1
        fetched = self._fetch(0 if look else self._seen_us)
        if isinstance(fetched, Absent):
            return self._nothing(fetched)
        now_ns = self._clock()
        fresh = _after(fetched, self._seen_us) if look else self._newer(fetched)
        if not fresh:
            return self._nothing(Absent(Reason.NOT_FOUND))
        self._empty = 0
        return self._series(fresh, now_ns)

    def _newer(self, fetched: list[_Sample]) -> list[_Sample]:
        """Those newer than the last seen. After the clock was set back, samples of before it carry larger stamps."""
        if self._before_set_us:
            if all(stamp != self._before_set_us for stamp, _ in fetched):
                self._before_set_us = 0
            else:
                fetched = _after(fetched, self._before_set_us)
        return [sample for sample in fetched if sample[0] > self._seen_us]

    def _nothing(self, absent: Absent) -> SampleSeries:
        if absent.reason is Reason.NOT_FOUND:
            self._empty += 1
        return SampleSeries(absent=absent)

    def _series(self, fresh: list[_Sample], now_ns: int) -> SampleSeries:
        was_set = self._was_set(fresh, now_ns)
        if not was_set:
            fresh.sort(key=lambda sample: sample[0])
        stamps = [stamp for stamp, _ in fresh]
        steps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
        usual = sorted(steps)[len(steps) // 2] if steps else 0
        self.span_us = max(usual, 0) * self._ring
        lost = len(stamps) >= self._ring and 0 < usual * _GAP < stamps[0] - self._seen_us
        broken = was_set or lost or self._anchor_ns is None
        first = 0 if broken else stamps[0] - self._seen_us
        if stamps[-1] < self._seen_us:
            self._before_set_us = self._seen_us
        self._seen_us = stamps[-1]
        late_ns = now_ns - stamps[-1] * 1000
        if self._anchor_ns is None or was_set:
            # A jump among the samples is no time that went by.
            steps = [step if 0 <= step <= _JUMP_US else max(usual, 0) for step in steps]
            self._anchor_ns = late_ns
        self._anchor_ns = min(late_ns, self._anchor_ns + _CREEP_NS)
        end_ns = self._anchor_ns + stamps[-1] * 1000
        return SampleSeries(end_ns, (first, *steps), self._checked(fresh), broken, None)

    def _checked(self, fresh: list[_Sample]) -> tuple[int, ...]:
        """The values. Garbage such as 4294967295 is replaced by the one before: a hole would shift the others."""
        values, last, limit = [], 0, _LIMITS[self._kind]
        for _, value in fresh:
            last = value if 0 <= value <= limit else last
            values.append(last)
        return tuple(values)

    def _was_set(self, fresh: list[_Sample], now_ns: int) -> bool:
        """The driver's clock has been set since the last series."""
        if self._anchor_ns is None:
            return False
        newest_us = max(stamp for stamp, _ in fresh)
        was_set = abs(now_ns - newest_us * 1000 - self._anchor_ns) > _SET_NS
        self.sets += was_set
        return was_set

    def _fetch(self, seen_us: int) -> list[_Sample] | Absent:
        """Samples newer than ``seen_us``, oldest first, or why there are none."""
        found: list[_Sample] = []
        while True:
            array = self._prepared()
            count, value_type = ctypes.c_uint(len(array)), ctypes.c_uint(0)
            code = self._call(seen_us, value_type, count, array)
            if code == INSUFFICIENT_SIZE and len(array) < _MAX_LENGTH:
                self._array = (self._calls.n.c_nvmlSample_t * max(len(array) * 2, count.value))()
                continue
            if code == NOT_FOUND and found:
                return found
            if code != 0:
                if code in PERMANENT_CODES:
                    self._never, self._era = absent_for(code), self._calls.era
                return absent_for(code)
            member = VALUE_MEMBERS.get(value_type.value, "uiVal")
            found += [(int(s.timeStamp), int(getattr(s.sampleValue, member))) for s in array[: count.value]]
            newest = max((stamp for stamp, _ in found), default=seen_us)
            # A full array may have been cut off by the driver: what follows is asked for.
            if count.value < len(array) or newest <= seen_us or len(found) > _MAX_LENGTH:
                return found
            seen_us = newest

    def _call(self, seen_us: int, value_type: Any, count: Any, array: Any) -> int:
        """The return code. Raises GoneError, and what no code stands for."""
        stamp = ctypes.c_ulonglong(seen_us)
        references = ctypes.byref(value_type), ctypes.byref(count)
        return self._calls.code("nvmlDeviceGetSamples", self._handle, self._kind, stamp, *references, array)

    def _prepared(self) -> Any:
        """The kept array, as long as the driver says that its ring is, and some more."""
        if self._array is None:
            count = ctypes.c_uint(0)
            code = self._call(0, ctypes.c_uint(0), count, None)
            if code == 0 and 0 < count.value <= _MAX_LENGTH:
                self._ring = count.value
            length = self._ring or _DEFAULT_LENGTH
            self._array = (self._calls.n.c_nvmlSample_t * (length + _HEADROOM))()
        return self._array


class Bursts:
    """Both rings of one GPU. One that takes long to drain is drained every other second, if it holds that much."""

    def __init__(self, calls: Calls, handle: Any, index: int, clock: Clock) -> None:
        self._calls = calls
        self._index = index
        self.utilization = SampleBuffer(calls, handle, UTILIZATION, clock)
        self._power = SampleBuffer(calls, handle, POWER, clock)
        self._drained_ns: dict[SampleBuffer, int] = {}
        self._paces = {buffer: Pace(Tier.TICK, slowest=Tier.MEDIUM) for buffer in (self.utilization, self._power)}

    def drain(self, mono_ns: int, *, low: bool = False, gpm: bool = False) -> Burst | None:
        """What is new; None when this GPU has neither ring. Raises GoneError. ``low``: nobody watches. ``gpm``: its
        counters work, so that utilization may wait."""
        util = self._paced(self.utilization, mono_ns, low, _BESIDE_GPM_NS if gpm else 0)
        power = self._paced(self._power, mono_ns, low, 0)
        if util.absent == power.absent == NOT_SUPPORTED:
            return None
        return Burst(self._index, mono_ns, util, power)

    def slowed(self) -> bool:
        """A ring is drained less often because it takes long."""
        return any(pace.slowed and buffer.span_us >= _PATIENT_US for buffer, pace in self._paces.items())

    def _paced(self, buffer: SampleBuffer, mono_ns: int, low: bool, wait_ns: int) -> SampleSeries:
        """``wait_ns``: between two drains of a ring that holds as much and more."""
        pace = self._paces[buffer]
        since_ns = mono_ns - self._drained_ns.get(buffer, 0)
        unwatched = low and buffer.span_us >= _UNWATCHED_US and since_ns < _UNWATCHED_NS
        waits = buffer.span_us >= _PATIENT_US and (since_ns < wait_ns or not pace.due(mono_ns))
        if unwatched or waits:
            return SampleSeries(absent=NOT_READ)
        self._drained_ns[buffer] = mono_ns
        before_ns = self._calls.spent_ns
        series = _guarded(buffer)
        pace.ran(mono_ns, self._calls.spent_ns - before_ns)
        return series


def _guarded(buffer: SampleBuffer) -> SampleSeries:
    try:
        return buffer.drain()
    except (TypeError, ValueError, AttributeError, ctypes.ArgumentError) as exc:
        return SampleSeries(absent=Absent(Reason.ERROR, f"{type(exc).__name__}: {exc}"[:200]))


def _after(samples: list[_Sample], stamp_us: int) -> list[_Sample]:
    """Of a whole ring, in its order, what came after the sample with this stamp.

    Order, not stamps, tells new samples from old ones when the clock was set back; the first of two equal stamps is the
    older. When the sample has been overwritten, all that is left is newer.
    """
    for place, (stamp, _) in enumerate(samples):
        if stamp == stamp_us:
            return samples[place + 1 :]
    return [s for s in samples if s[0] > stamp_us] or samples
