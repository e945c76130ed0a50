"""One thread per GPU that reads it on monotonic deadlines.

Owns: when to read, at which depth, and how long the read under way has been going on. Refuses: NVML, what becomes of
the samples. One thread per GPU because a driver call can hang for 45 s or for ever, and must then hold up no other.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from gpuwatch.collect.nvml_fields import GPM_METRICS, READING_FIELDS, blank_sample
from gpuwatch.model import Absent, DeviceSample, Observation, Reason

MIN_PERIOD_S: Final = 0.1
MAX_PERIOD_S: Final = 5.0
FULL_PERIOD_NS: Final = 1_000_000_000
"""A burst asks for everything only this often; in between GPM, clocks, their reasons and power."""

_ASKED: Final = tuple(name for name in READING_FIELDS if name != "mem_used_bytes") + tuple(GPM_METRICS)
"""Readings that a cheap sample does not carry over from the last full one."""

_log = logging.getLogger(__name__)


class Deadline:
    """Times at which something is due: a fixed grid, so that a late run does not delay the ones after it.

    Deadlines with one origin and one period fall due at the same instants, whatever happened to each before: that
    is how the GPUs of a node come to share their GPM windows.
    """

    def __init__(self, period_ns: int, now_ns: int, origin_ns: int | None = None) -> None:
        self.period_ns = period_ns
        self.due_ns = now_ns
        """The first is due at once."""
        self.overruns = 0
        """Deadlines that passed while something else went on. They are skipped, never made up for."""
        self._origin_ns = now_ns if origin_ns is None else origin_ns
        self._not_before_ns = now_ns

    def wait_ns(self, now_ns: int) -> int:
        """Time left, 0 when it is due."""
        return max(0, self.due_ns - now_ns)

    def advance(self, now_ns: int) -> None:
        """The due run is done at ``now_ns``: go to the next point of the grid that is still ahead."""
        self.overruns += max(0, now_ns - self.due_ns) // self.period_ns
        self.due_ns = self._after(max(now_ns, self.due_ns, self._not_before_ns))

    def postpone(self, until_ns: int) -> None:
        """The next run is not before ``until_ns``; the grid stays where it is."""
        self.due_ns = max(self.due_ns, until_ns)

    def hurry(self, now_ns: int) -> None:
        """Due now; the run after it comes at least half a period later, so that rates have a window."""
        if self.due_ns > now_ns:
            self.due_ns = now_ns
            self._not_before_ns = now_ns + self.period_ns // 2

    def set_period(self, period_ns: int, now_ns: int) -> None:
        """Another rate from now on; a shorter one shows at once, not after the old period."""
        self.period_ns = period_ns
        self.due_ns = min(self.due_ns, self._after(now_ns))

    def _after(self, now_ns: int) -> int:
        """The first point of the grid after ``now_ns``."""
        return self._origin_ns + ((now_ns - self._origin_ns) // self.period_ns + 1) * self.period_ns


class Failures:
    """Which readings of a thread fail through a bug of ours: told when one begins to, and when it is over.

    What a driver or a process does is a reason in a reading, never an exception that comes here.
    """

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    @property
    def now(self) -> dict[str, str]:
        """What fails now, with the error. From any thread."""
        return dict(self._now)

    def failed(self, what: str, error: Exception) -> str:
        """``what`` could not be read, to be called where ``error`` is handled. Gives the error in one line."""
        if what not in self._now:
            _log.exception("reading %s failed", what)
        self._now[what] = f"{type(error).__name__}: {error}"[:200]
        return self._now[what]

    def worked(self, what: str) -> None:
        """It could be read."""
        if self._now.pop(what, None) is not None:
            _log.info("reading %s works again", what)


class Reader(Protocol):
    """What reads one GPU: ``nvml.DeviceReader``."""

    @property
    def gpm_ready_ns(self) -> int:
        """Earliest time at which another read yields GPM values."""

    @property
    def opened(self) -> bool:
        """The GPU could be opened, now or before."""

    @property
    def driver_gone_reads(self) -> int:
        """Consecutive readings in which the driver was gone."""

    def read(self, mono_ns: int, gpm: bool = True, full: bool = True) -> DeviceSample:
        """One sample; blocks as long as the driver does."""


@runtime_checkable
class ReadsMore(Protocol):
    """A reader that has more to tell than samples: ``nvml.DeviceReader``."""

    def extras(self, mono_ns: int) -> Sequence[Observation]:
        """What has come up beside the sample; blocks as long as the driver does."""

    def set_demand(self, low: bool) -> None:
        """Nobody watches: slow readings less often."""


class PacedThread(threading.Thread, abc.ABC):
    """A thread that reads at a deadline's pace until it is ended.

    Subclasses give ``step``: read if it is due, return the nanoseconds until there is something to do. They take the
    lock around what other threads set.
    """

    def __init__(self, name: str, deadline: Deadline, clock: Callable[[], int]) -> None:
        super().__init__(name=name, daemon=True)
        self._clock = clock
        self._deadline = deadline
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._progress_ns = 0

    @property
    def progress_ns(self) -> int:
        """When the last reading was completed; 0 before the first."""
        return self._progress_ns

    def set_period(self, period_s: float) -> None:
        """Another rate, from 0.1 to 5 s, from any thread and at once."""
        with self._lock:
            self._deadline.set_period(_period_ns(period_s), self._clock())
        self._wake.set()

    def end(self) -> None:
        """Read no more and emit no more; the thread ends when a call that is under way returns."""
        self._ended = True
        self._wake.set()

    def run(self) -> None:
        """Thread body."""
        while not self._ended:
            wait_ns = self.step()
            if wait_ns and self._wake.wait(wait_ns / 1e9):
                self._wake.clear()

    @abc.abstractmethod
    def step(self) -> int:
        """Read if it is due. Returns the nanoseconds until there is something to do."""


class DeviceSampler(PacedThread):
    """Reads one GPU every ``period_s`` and hands each sample to ``emit``."""

    def __init__(
        self,
        index: int,
        reader: Reader,
        emit: Callable[[DeviceSample], None],
        period_s: float = 1.0,
        clock: Callable[[], int] = time.monotonic_ns,
        origin_ns: int | None = None,
        more: Callable[[Observation], None] | None = None,
    ) -> None:
        """``origin_ns``: samplers that share it and the period read at the same instants. ``more``: takes what the
        reader has beside samples; without it that is not read."""
        super().__init__(f"gpu{index}", Deadline(_period_ns(period_s), clock(), origin_ns), clock)
        self.index = index
        self.reader = reader
        self._emit = emit
        self._more = more
        self._full_ns: int | None = None
        self._began_ns: int | None = None
        self.failures = Failures()
        self.mute_reads = 0
        """Consecutive readings in which the driver had no value and at least one error or loss."""
        self.errors = False
        """The last of them had an error that says nothing by itself."""

    @property
    def period_s(self) -> float:
        """Seconds between readings."""
        return self._deadline.period_ns / 1e9

    @property
    def overruns(self) -> int:
        """Readings left out because one before took too long."""
        return self._deadline.overruns

    @property
    def stuck_since_ns(self) -> int | None:
        """When the reading that has not returned began; None between readings."""
        return self._began_ns

    def step(self) -> int:
        """Read if it is due. Returns the nanoseconds until there is something to do."""
        with self._lock:
            # Two GPM samples must be 100 ms apart: at 10 Hz it is the counters that set the pace.
            if self._deadline.period_ns < FULL_PERIOD_NS:
                self._deadline.postpone(self.reader.gpm_ready_ns)
            now_ns = self._clock()
            wait_ns = self._deadline.wait_ns(now_ns)
        if wait_ns:
            return wait_ns
        sample = self._read(now_ns)
        if self._ended:
            return 0
        self._emit(sample)
        if self._full_ns == now_ns:
            self._read_more(now_ns)
        with self._lock:
            self._deadline.advance(self._clock())
            return self._deadline.wait_ns(self._clock())

    def _read(self, now_ns: int) -> DeviceSample:
        full = self._full_due(now_ns)
        self._began_ns = now_ns
        try:
            sample = self.reader.read(now_ns, full=full)
        except Exception as exc:
            # The reader guards every call itself; a bug in it must show as a reason, not as a silent GPU.
            why = self.failures.failed(f"GPU {self.index}", exc)
            return blank_sample(self.index, now_ns, Absent(Reason.ERROR, why))
        finally:
            self._began_ns = None
            self._progress_ns = self._clock()
        self.failures.worked(f"GPU {self.index}")
        if full:
            self._full_ns = now_ns
        reasons = _without_a_value(sample)
        self.errors = Reason.ERROR in reasons
        self.mute_reads = self.mute_reads + 1 if self.errors or Reason.LOST in reasons else 0
        return sample

    def _read_more(self, now_ns: int) -> None:
        """Slow readings, after the sample is out. A call that hangs here makes this GPU stuck as one before would."""
        if self._more is None or not isinstance(self.reader, ReadsMore):
            return
        self._began_ns = now_ns
        try:
            extras = self.reader.extras(now_ns)
        except Exception as exc:
            self.failures.failed(f"the slow readings of GPU {self.index}", exc)
            return
        finally:
            self._began_ns = None
            self._progress_ns = self._clock()
        self.failures.worked(f"the slow readings of GPU {self.index}")
        for extra in () if self._ended else extras:
            self._more(extra)

    def _full_due(self, now_ns: int) -> bool:
        """Half a period early counts: a full reading that comes a little late must not make the next one cheap."""
        if self._full_ns is None:
            return True
        return now_ns - self._full_ns + self._deadline.period_ns // 2 >= FULL_PERIOD_NS


def _without_a_value(sample: DeviceSample) -> frozenset[Reason]:
    """Why there is no value at all; empty when there is one. A card without a power reading still fails as a whole, and
    a cheap reading does not ask for everything: neither is a value, nor an error."""
    reasons = set()
    for name in _ASKED:
        reading = getattr(sample, name)
        if not isinstance(reading, Absent):
            return frozenset()
        reasons.add(reading.reason)
    return frozenset(reasons)


def _period_ns(period_s: float) -> int:
    return int(min(max(period_s, MIN_PERIOD_S), MAX_PERIOD_S) * 1e9)
