"""The threads that read the GPUs between two openings of the driver.

Owns: one sampler per device on a common grid, which of them hang, whether the driver must be opened again. Refuses:
opening it, what becomes of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpuwatch.collect.nvml_fields import blank_sample
from gpuwatch.collect.nvml_identity import UNREADABLE, gpu_of
from gpuwatch.collect.nvml_reader import GONE_AFTER_READS
from gpuwatch.collect.sampler import DeviceSampler, Reader, ReadsMore
from gpuwatch.model import Absent, Device, DeviceSample, Observation, Reason

SILENT_PERIODS: Final = 3
"""A GPU that has not completed its first reading after so many periods is shown as TIMEOUT. One that hangs later
keeps its last values, and their age shows."""
_IDENTIFY_AGAIN_S: Final = 5.0
_JOIN_S: Final = 1.0

Emit = Callable[[DeviceSample], None]


class GpuThreads:
    """All samplers. Its methods are for the driver's thread, the properties for any."""

    def __init__(self, emit: Emit, period_s: float, retry_s: float, clock: Callable[[], int]) -> None:
        self._emit = emit
        self._period_s = period_s
        self._retry_s = retry_s
        self._clock = clock
        self.samplers: tuple[DeviceSampler, ...] = ()
        self._unreadable: frozenset[int] = frozenset()
        self._hanging: dict[int, DeviceSampler] = {}
        """Threads that have not returned from a driver that has been opened again since. While one has not, its GPU
        gets no other: they would pile up."""
        self._told: set[int] = set()
        self.started_ns = 0
        self.more: Callable[[Observation], None] | None = None
        """Takes what the readers have beside samples: slow readings and the driver's own sub-second samples."""
        self._low_demand = False

    def prepare(
        self, devices: Sequence[Device], reader: Callable[[int], Reader], rate: Callable[[int], float]
    ) -> tuple[DeviceSampler, ...]:
        """A sampler for each device, not started. One origin: all GPUs are read at the same instants."""
        origin_ns = self.started_ns = self._clock()
        self._told.clear()
        self._unreadable = frozenset(d.index for d in devices if d.uuid.startswith(UNREADABLE))
        self.samplers = tuple(
            DeviceSampler(d.index, reader(d.index), self._emit, rate(d.index), self._clock, origin_ns, self.more)
            for d in devices
            if d.index not in self._hanging
        )
        self.set_demand(self._low_demand)
        for index in self._hanging:
            self._tell_timeout(index, origin_ns)
        return self.samplers

    def set_demand(self, low: bool) -> None:
        """Nobody watches (``low``): slow readings are taken less often."""
        self._low_demand = low
        for sampler in self.samplers:
            if isinstance(sampler.reader, ReadsMore):
                sampler.reader.set_demand(low)

    def end(self) -> None:
        """End all; those that do not return are remembered."""
        for sampler in self.samplers:
            sampler.end()
        for sampler in self.samplers:
            sampler.join(_JOIN_S)
        both = (*self._hanging.values(), *self.samplers)
        self._hanging = {sampler.index: sampler for sampler in both if sampler.is_alive()}
        self.samplers = ()

    def failing(self) -> dict[str, str]:
        """Readings beside the samples that fail through a bug of ours, with the error. A sample that fails says so
        itself."""
        found = [sampler.failures.now for sampler in self.samplers]
        return {what: why for now in found for what, why in now.items() if not what.startswith("GPU ")}

    def stuck_since_ns(self) -> dict[int, int]:
        """Device index to when the reading under way began: old ones hang in the driver."""
        both = (*self._hanging.values(), *self.samplers)
        since = {sampler.index: sampler.stuck_since_ns for sampler in both}
        return {index: ns for index, ns in since.items() if ns is not None}

    def stuck(self) -> frozenset[int]:
        """Devices whose reading has been under way for some periods."""
        limit_ns, now_ns = SILENT_PERIODS * int(self._period_s * 1e9), self._clock()
        return frozenset(index for index, ns in self.stuck_since_ns().items() if now_ns - ns > limit_ns)

    def tell_silent(self) -> None:
        """A GPU that hangs in its first reading gets a sample that says so: otherwise it would have none at all."""
        stuck, since = self.stuck(), self.stuck_since_ns()
        for sampler in self.samplers:
            if sampler.index in stuck and sampler.index in since and not sampler.progress_ns:
                if sampler.index not in self._told:
                    self._tell_timeout(sampler.index, since[sampler.index])
                self._told.add(sampler.index)

    def driver_gone(self) -> bool:
        """The driver has gone from under all GPUs, or has had nothing but errors for all.

        One GPU that fell off the bus is no reason: opening again would not bring it back and would stop the others.
        """
        stuck = self.stuck()
        # What a MIG instance has, and what not, is no proof: its GPU decides.
        whole = [sampler for sampler in self.samplers if sampler.index == gpu_of(sampler.index)]
        answering = [sampler for sampler in whole if sampler.index not in stuck]
        if not answering:
            return False
        if all(sampler.reader.driver_gone_reads >= GONE_AFTER_READS for sampler in answering):
            return True
        # Errors may last: then NVML is opened no more often than a driver that is not there.
        mute = all(s.mute_reads >= GONE_AFTER_READS for s in answering) and any(s.errors for s in answering)
        return mute and self._age_s() >= self._retry_s

    def answers_again(self, settled: bool) -> bool:
        """A GPU that had no identity can be asked for it now, or one that hung across an opening has come back."""
        if any(not sampler.is_alive() for sampler in self._hanging.values()):
            self._hanging = {index: sampler for index, sampler in self._hanging.items() if sampler.is_alive()}
            return True
        if not settled or self._age_s() < min(self._retry_s, _IDENTIFY_AGAIN_S):
            return False
        return any(sampler.reader.opened for sampler in self.samplers if sampler.index in self._unreadable)

    def _age_s(self) -> float:
        return (self._clock() - self.started_ns) / 1e9

    def _tell_timeout(self, index: int, since_ns: int) -> None:
        self._emit(blank_sample(index, since_ns, Absent(Reason.TIMEOUT, "the driver does not answer for this GPU")))
