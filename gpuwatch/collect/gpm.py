"""GPM counters of one GPU: two sample handles, one request struct, windows of at least 100 ms.

Owns: pairing of samples, what counts as a window, the lock that keeps GPM calls apart. Refuses: importing pynvml
(the binding is passed in), scheduling.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from gpuwatch.collect.gpm_engines import GpmEngines
from gpuwatch.collect.nvml_fields import GPM_METRICS, absent_for
from gpuwatch.model import NOT_READ, Absent, Num, Reason

MIN_WINDOW_NS: Final = 100_000_000
"""Closer pairs are answered with zeros and return code 0 (measured at 50 ms on an H200)."""
PACE_NS: Final = 101_000_000
"""When to come again: the sample call itself takes 0.1 to 0.6 ms, so exactly 100 ms could fall short."""
MAX_WINDOW_NS: Final = 30_000_000_000
"""An older sample says nothing about now: the machine slept, or the GPU was hung."""

_MAX_PCT: Final = 101.0
"""Rounding at the edges of a window gives a hair over 100; more is garbage."""
_MAX_MIB_PER_S: Final = 1e7
_IDS: Final = tuple(GPM_METRICS.values())


class GpmBusyError(Exception):
    """Another GPU's GPM call has not returned."""


class GpmGate:
    """Lets one thread at a time into GPM: parallel calls for different GPUs have crashed inside the library.

    A call that hangs must not blind the other GPUs: whoever waits too long goes without, and a lock held for
    ``break_ns`` is abandoned, because its owner then sits in the kernel, not in the library's shared state.
    """

    def __init__(self, clock: Callable[[], int], wait_s: float = 0.2, break_ns: int = 2_000_000_000) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._break_ns = break_ns
        self._lock = threading.Lock()
        self._since_ns = clock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Enter, or raise GpmBusyError after ``wait_s``."""
        lock = self._lock
        if not lock.acquire(timeout=self._wait_s):
            if self._lock is lock and self._clock() - self._since_ns >= self._break_ns:
                self._since_ns = self._clock()
                self._lock = threading.Lock()
            raise GpmBusyError
        self._since_ns = self._clock()
        try:
            yield
        finally:
            lock.release()


class GpmReading(NamedTuple):
    """Values in the order of GPM_METRICS. ``window_ns`` 0: nothing new."""

    window_ns: int
    values: tuple[Num, ...]


NOTHING_NEW: Final = GpmReading(0, (NOT_READ,) * len(_IDS))


def absent_reading(absent: Absent) -> GpmReading:
    """No value for any counter, for one reason."""
    return GpmReading(0, (absent,) * len(_IDS))


class GpmReader:
    """Windows between consecutive samples of one device. Not thread-safe: its sampler owns it."""

    def __init__(self, binding: Any, handle: Any, clock: Callable[[], int]) -> None:
        self._n = binding
        self._handle = handle
        self._clock = clock
        self._samples: list[Any] = []
        """The driver's two sample handles: what the last read took, then the one to overwrite."""
        self._has_previous = False
        self._previous_ns = 0
        self._request: Any = None
        self.engines = GpmEngines(binding)

    @property
    def ready_ns(self) -> int:
        """Earliest time at which another read makes a window; 0 when there is no sample to pair with."""
        return self._previous_ns + PACE_NS if self._has_previous else 0

    def too_soon(self) -> bool:
        """The window that the last read opened is shorter than the counters can tell."""
        return self._has_previous and self._clock() - self._previous_ns < MIN_WINDOW_NS

    def read(self) -> GpmReading:
        """Close the window that the last read opened, and open the next; not while it is ``too_soon``.

        Call it while holding the gate. Raises what the binding raises.
        """
        now_ns = self._clock()
        try:
            return self._next(now_ns, now_ns - self._previous_ns)
        except Exception:
            self._has_previous = False
            raise

    def close(self) -> None:
        """Free the driver's samples. Only while NVML is initialised and no read is under way."""
        self._has_previous = False
        while self._samples:
            self._n.nvmlGpmSampleFree(self._samples.pop())

    def _next(self, now_ns: int, gap_ns: int) -> GpmReading:
        while len(self._samples) < 2:
            self._samples.append(self._n.nvmlGpmSampleAlloc())
        older, current = self._samples
        self._n.nvmlGpmSampleGet(self._handle, current)
        self._samples.reverse()
        fresh, self._has_previous, self._previous_ns = not self._has_previous, True, now_ns
        if fresh or gap_ns > MAX_WINDOW_NS:
            return NOTHING_NEW
        request = self._prepared()
        request.sample1, request.sample2 = older, current
        self._n.nvmlGpmMetricsGet(request)
        self.engines.take(older, current)
        metrics = request.metrics
        return GpmReading(gap_ns, tuple(_value(metrics[i], scale) for i, (_, scale) in enumerate(_IDS)))

    def _prepared(self) -> Any:
        """The request struct, built once: 19 kB, 12 µs to build against 0.3 µs to reuse."""
        if self._request is None:
            request = self._n.c_nvmlGpmMetricsGet_t()
            # Plain 1, not a struct-size version, which the driver refuses with 25.
            request.version = 1
            request.numMetrics = len(_IDS)
            for i, (metric_id, _) in enumerate(_IDS):
                request.metrics[i].metricId = metric_id
            self._request = request
        return self._request


def _value(metric: Any, scale: int) -> Num:
    if metric.nvmlReturn != 0:
        return absent_for(metric.nvmlReturn)
    value = float(metric.value)
    if not math.isfinite(value):
        return Absent(Reason.OUT_OF_RANGE, str(value))
    if scale == 1:
        return min(value, 100.0) if 0.0 <= value <= _MAX_PCT else Absent(Reason.OUT_OF_RANGE, f"{value:g} %")
    return value * scale if 0.0 <= value <= _MAX_MIB_PER_S else Absent(Reason.OUT_OF_RANGE, f"{value:g} MiB/s")
