"""Readings of one GPU.

Owns: which calls make a sample, what a cheap sample leaves out, when a GPU counts as gone, what is carried over while
a call is too dear to be made each time. Refuses: importing pynvml (the binding is passed in), schedules, threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from gpuwatch.collect.buffers import Bursts
from gpuwatch.collect.field_ids import version_of
from gpuwatch.collect.gpm import NOTHING_NEW, GpmBusyError, GpmGate, GpmReader, GpmReading, absent_reading
from gpuwatch.collect.health import HealthReader, Situation
from gpuwatch.collect.nvml_calls import (
    CLOCK_MEM,
    CLOCK_SM,
    MAX_MHZ,
    MAX_MILLIWATT,
    MAX_PCT,
    MAX_TEMP_C,
    Calls,
    Clock,
    GoneError,
    Query,
    memory_ways,
    scaled,
    text,
    used_of,
    within,
)
from gpuwatch.collect.nvml_fields import GPM_METRICS, blank_sample
from gpuwatch.collect.nvml_identity import open_handle
from gpuwatch.collect.process_lists import Processes, ProcessLists
from gpuwatch.collect.tiers import Pace, Tier
from gpuwatch.model import (
    NOT_READ,
    NOT_SUPPORTED,
    Absent,
    Burst,
    DeviceHealth,
    DeviceSample,
    Int,
    Reason,
    value_or,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)
_SENSOR_GPU: Final = 0
_LOADED_PCT: Final = 5
_BUSY: Final = list(GPM_METRICS).index("busy_pct")

GONE_AFTER_READS: Final = 3
"""Reads that a reloading driver is given before its GPU counts as lost and NVML is opened again."""


class DeviceReader:
    """Readings of one GPU; remembers what this GPU does not have."""

    def __init__(self, binding: Any, index: int, gate: GpmGate, clock: Clock) -> None:
        self._n = binding
        self._index = index
        self._gate = gate
        self._clock = clock
        self._calls = Calls(binding, clock)
        self._queries: _Queries | None = None
        self._memory: Int = NOT_READ
        self._processes: Processes = ((), NOT_READ)
        self._loaded = False
        self._low_demand = False
        self._extra_ns = 0
        self._was_gone = False
        self._modes: dict[str, int] = {}
        self.busy = False
        """A reading is under way."""
        self.driver_gone_reads = 0
        """Consecutive readings in which the driver was gone: at 3 NVML should be opened again."""

    @property
    def gpm_ready_ns(self) -> int:
        """Earliest time at which another read yields GPM values; 0 when any time will do."""
        return self._queries.gpm_reader.ready_ns if self._queries is not None else 0

    @property
    def opened(self) -> bool:
        """The GPU could be opened, now or before."""
        return self._queries is not None

    def read(self, mono_ns: int, gpm: bool = True, full: bool = True) -> DeviceSample:
        """One sample, whatever the driver says. ``full=False`` asks only GPM, clocks, their reasons and power.

        A cheap reading carries memory and processes of the last full one; utilization and temperature are NOT_READ.
        """
        self._calls.begin()
        self.busy = True
        try:
            sample = self._sample(self._opened(), mono_ns, gpm, full)
        except GoneError as gone:
            return self._gone(gone.absent, mono_ns)
        finally:
            self.busy = False
        self.driver_gone_reads = 0
        if self._was_gone:
            self._begin_anew()
        return sample

    def set_demand(self, low: bool) -> None:
        """``low``: no client, no alert and no diagnosis: what is slow anyway is read less often. From any thread."""
        self._low_demand = low

    def extras(self, mono_ns: int) -> tuple[Burst | DeviceHealth, ...]:
        """What has come up since the last call beside the sample: the driver's own samples, and slow readings.

        To be called after a full reading; blocks as long as the driver does. Its driver time counts to the next sample.
        """
        queries = self._queries
        if queries is None:
            return ()
        self._calls.begin()
        self.busy = True
        try:
            return self._extras(queries, mono_ns)
        except GoneError:
            return ()
        finally:
            self._extra_ns += self._calls.spent_ns
            self.busy = False

    def _extras(self, q: _Queries, mono_ns: int) -> tuple[Burst | DeviceHealth, ...]:
        sets = q.bursts.utilization.sets
        burst = q.bursts.drain(mono_ns, low=self._low_demand, gpm=q.gpm_works)
        if q.bursts.utilization.sets != sets:
            q.health.processes.forget()
        listed, absent = self._processes
        pids = tuple(process.pid for process in listed)
        situation = Situation(mono_ns, self._loaded, pids, absent, q.bursts.utilization.seen_us)
        health = q.health.read(situation, low=self._low_demand)
        if health is not None:
            self._look_at_modes(health)
            health = msgspec.structs.replace(health, slowed_calls=q.slowed() + health.slowed_calls)
        return tuple(extra for extra in (burst, health) if extra is not None)

    def _look_at_modes(self, health: DeviceHealth) -> None:
        """In another mode a GPU has other readings: what it did not have is asked for again."""
        for name, mode in (("ecc", health.ecc_enabled), ("mig", health.mig_enabled)):
            if not isinstance(mode, Absent) and self._modes.setdefault(name, mode) != mode:
                self._modes[name] = mode
                self._calls.forget()

    def _begin_anew(self) -> None:
        """A GPU that was lost answers again: it may have been reset, into another mode, and its handle may be stale."""
        self._was_gone = False
        queries, self._queries = self._queries, None
        if queries is None:
            return
        try:
            with self._gate.hold():
                Query(self._calls, queries.gpm_reader.close).read()
        except (GpmBusyError, GoneError):
            _log.debug("GPM samples of GPU %d are not given back", self._index)

    def close(self) -> None:
        """Free the GPM samples."""
        if self._queries is not None:
            self._queries.gpm_reader.close()
            self._queries = None

    def _opened(self) -> _Queries:
        if self._queries is None:
            query = Query(self._calls, lambda: open_handle(self._n, self._index))
            handle = query.read()
            if isinstance(handle, Absent):
                raise GoneError(handle)
            self._calls.begin()
            self._queries = _Queries(self._calls, handle, self._index, self._gate, self._clock)
        return self._queries

    def _sample(self, q: _Queries, mono_ns: int, gpm: bool, full: bool) -> DeviceSample:
        counters = q.counters() if gpm else absent_reading(NOT_READ)
        util = q.utilization.read(mono_ns) if full else NOT_READ
        if full:
            self._memory = used_of(q.memory.read(mono_ns))
            self._processes = q.processes.read(mono_ns)
            self._loaded = _is_loaded(util, counters)
        processes, processes_absent = self._processes
        return DeviceSample(
            self._index,
            mono_ns,
            gpu_util_pct=util if isinstance(util, Absent) else within(util.gpu, MAX_PCT),
            mem_util_pct=util if isinstance(util, Absent) else within(util.memory, MAX_PCT),
            mem_used_bytes=self._memory,
            power_w=scaled(within(q.power.read(), MAX_MILLIWATT), 1000),
            temp_c=within(q.temperature.read(mono_ns), MAX_TEMP_C) if full else NOT_READ,
            sm_clock_mhz=within(q.sm_clock.read(), MAX_MHZ),
            mem_clock_mhz=within(q.mem_clock.read(), MAX_MHZ),
            clocks_event_reasons=q.reasons.read(),
            gpm_window_ns=counters.window_ns,
            **dict(zip(GPM_METRICS, counters.values, strict=True)),
            processes=processes,
            processes_absent=processes_absent,
            nvml_ns=self._spent_ns(),
        )

    def _spent_ns(self) -> int:
        """Time inside NVML since the sample before: this reading's and what the extras took."""
        extra_ns, self._extra_ns = self._extra_ns, 0
        return self._calls.spent_ns + extra_ns

    def _gone(self, absent: Absent, mono_ns: int) -> DeviceSample:
        self._was_gone = True
        if absent.reason is Reason.DRIVER:
            self.driver_gone_reads += 1
            if self.driver_gone_reads >= GONE_AFTER_READS:
                absent = Absent(Reason.LOST, absent.detail)
        return blank_sample(self._index, mono_ns, absent, self._spent_ns())


class _Carried(Generic[T]):
    """A reading of each tick, or of ``tier``. While its calls are dear it is taken every 2 or 5 s; the last one stands
    meanwhile."""

    def __init__(self, calls: Calls, read: Callable[[], T], tier: Tier = Tier.TICK) -> None:
        self._calls = calls
        self._read = read
        self._value: T | None = None
        self.pace = Pace(tier, slowest=Tier.SLOW)

    def read(self, mono_ns: int) -> T:
        """The value, new or carried over. Raises GoneError."""
        if self._value is None or self.pace.due(mono_ns):
            before_ns = self._calls.spent_ns
            self._value = self._read()
            self.pace.ran(mono_ns, self._calls.spent_ns - before_ns)
        return self._value


class _Queries:
    """What is asked of one GPU. PcieThroughput is not: it sleeps 20 ms in the driver for each direction."""

    def __init__(self, calls: Calls, handle: Any, index: int, gate: GpmGate, clock: Clock) -> None:
        n, h = calls.n, handle
        self._gate = gate
        self.gpm_reader = GpmReader(n, h, clock)
        self._supported = Query(calls, lambda: n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice)
        self._gpm_known: bool | None = None
        self._calls, self._era = calls, calls.era
        self._gpm = Query(calls, self.gpm_reader.read)
        self.bursts = Bursts(calls, h, index, clock)
        driver = version_of(Query(calls, lambda: text(n, "nvmlSystemGetDriverVersion")).read())
        self.health = HealthReader(calls, h, index, driver, clock)
        self.health.gpm_engines = self.gpm_reader.engines
        self.utilization = _Carried(calls, Query(calls, lambda: n.nvmlDeviceGetUtilizationRates(h)).read)
        self.memory = _Carried(calls, Query(calls, *memory_ways(n, h)).read)
        self.power = Query(calls, lambda: int(n.nvmlDeviceGetPowerUsage(h)))
        temperature = Query(
            calls,
            lambda: int(n.nvmlDeviceGetTemperatureV(h, _SENSOR_GPU)),
            lambda: int(n.nvmlDeviceGetTemperature(h, _SENSOR_GPU)),
        )
        self.temperature = _Carried(calls, temperature.read)
        self.sm_clock = Query(calls, lambda: int(n.nvmlDeviceGetClockInfo(h, CLOCK_SM)))
        self.mem_clock = Query(calls, lambda: int(n.nvmlDeviceGetClockInfo(h, CLOCK_MEM)))
        self.reasons = Query(
            calls,
            lambda: int(n.nvmlDeviceGetCurrentClocksEventReasons(h)),
            lambda: int(n.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
        )
        lists = ProcessLists(calls, h)
        # Who shares the GPU through MPS changes rarely, and on most machines never.
        mps = _Carried(calls, lists.mps.read, Tier.SLOW)
        self.processes = _Carried(calls, lambda: lists.read(mps.read(clock())))

    @property
    def gpm_works(self) -> bool:
        """This GPU has the counters."""
        return self._gpm_known is True

    def slowed(self) -> tuple[str, ...]:
        """Readings of each tick that are too dear for it here."""
        carried: dict[str, _Carried[Any]] = {
            "utilization": self.utilization,
            "memory": self.memory,
            "temperature": self.temperature,
            "processes": self.processes,
        }
        names = [name for name, reading in carried.items() if reading.pace.slowed]
        return (*names, "sample buffers") if self.bursts.slowed() else tuple(names)

    def counters(self) -> GpmReading:
        """GPM values since the last call, or why there are none."""
        if not self._gpm_known and self._era != self._calls.era:
            self._era, self._gpm_known = self._calls.era, None
        if self._gpm_known is None:
            supported = self._supported.read()
            if isinstance(supported, Absent):
                return absent_reading(supported)
            self._gpm_known = supported == 1
        if not self._gpm_known:
            return absent_reading(NOT_SUPPORTED)
        if self.gpm_reader.too_soon():
            return NOTHING_NEW
        try:
            # Waiting for the gate is not time inside NVML, so it is done outside the timed call.
            with self._gate.hold():
                reading = self._gpm.read()
        except GpmBusyError:
            return absent_reading(Absent(Reason.TIMEOUT, "a GPM call for another GPU has not returned"))
        return absent_reading(reading) if isinstance(reading, Absent) else reading


def _is_loaded(util: Any, counters: GpmReading) -> bool:
    """The GPU is busy enough for its PCIe link to be at full speed."""
    busy = counters.values[_BUSY]
    return value_or(busy, 0.0) >= _LOADED_PCT or (not isinstance(util, Absent) and util.gpu >= _LOADED_PCT)
