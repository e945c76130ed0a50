"""Observations of one short look, gathered into one reading of the node.

Owns: NodeView, and Gathering, which says when a look is complete. Refuses: sources, clocks, layout.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from gpuwatch.collect.fold import fold_samples, summarise
from gpuwatch.model import (
    Absent,
    Burst,
    BurstSummary,
    DeviceHealth,
    DeviceSample,
    Diagnosis,
    DriverState,
    EventRecord,
    HostSample,
    Inventory,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Reason,
)

MIN_LOOK_NS = 900_000_000
"""Shares over a shorter time than about a second are a lottery, and the first of them are of our own start."""

KEEP_EVENTS = 100


class NodeView(Struct, frozen=True):
    """One reading of everything, from whichever source."""

    inventory: Inventory
    devices: dict[int, DeviceSample] = {}
    host: HostSample | None = None
    infos: dict[int, ProcessInfo] = {}
    processes: dict[int, ProcessSample] = {}
    diagnoses: tuple[Diagnosis, ...] = ()
    now_ns: int = 0
    """The clock of the samples' ``mono_ns`` at the moment of the view: ages are differences to it."""
    origin: str = ""
    """Where it was read, for a person: "daemon at /run/gpuwatch", "read directly", "recorded, starved-loader.gwrec"."""
    health: dict[int, DeviceHealth] = {}
    bursts: dict[int, BurstSummary] = {}
    events: tuple[EventRecord, ...] = ()
    """XIDs and the like, newest first."""

    def age_s(self, sample: DeviceSample) -> float:
        """Age of a sample in seconds."""
        return max(0, self.now_ns - sample.mono_ns) / 1e9


class Gathering:
    """Takes observations as they come; the newest of each kind stands, GPM columns are means over ``mean_s``."""

    def __init__(self, mean_s: float) -> None:
        self.inventory: Inventory | None = None
        self.newest_ns = 0
        """Newest ``mono_ns`` seen: the "now" of a recording."""
        self._mean_ns = round(mean_s * 1e9)
        self._samples: dict[int, deque[DeviceSample]] = {}
        self._host: HostSample | None = None
        self._first_host_ns = 0
        self._infos: dict[int, ProcessInfo] = {}
        self._processes: dict[int, ProcessSample] = {}
        self._ticks = 0
        self._health: dict[int, DeviceHealth] = {}
        self._bursts: dict[int, BurstSummary] = {}
        self._events: deque[EventRecord] = deque(maxlen=KEEP_EVENTS)

    def add(self, observation: Observation) -> None:
        """Take one observation; stacks and source lines are no part of a reading."""
        match observation:
            case Inventory():
                self.inventory = observation
                return
            case DeviceSample():
                self._add_sample(observation)
            case HostSample():
                self._first_host_ns = self._first_host_ns or observation.mono_ns
                self._host = observation
            case ProcessTick():
                self._add_tick(observation)
            case DeviceHealth():
                self._health[observation.device_index] = observation
            case Burst():
                self._bursts[observation.device_index] = summarise([observation])
            case EventRecord():
                self._events.appendleft(observation)
            case _:
                pass
        self.newest_ns = max(self.newest_ns, observation.mono_ns)

    @property
    def opened(self) -> bool:
        """The driver has said something, be it an error. A source announces one that is slow to start as UNKNOWN."""
        if self.inventory is None:
            return False
        return self.inventory.driver is not DriverState.UNKNOWN or not _pending(self.inventory.node.driver_version)

    def complete(self) -> bool:
        """Nothing would be gained by waiting longer: rates need two readings, and a broken driver gives none."""
        if self.inventory is None or not self.opened:
            return False
        if self.inventory.driver is not DriverState.OK:
            return True
        return (
            self._host is not None
            and not _pending(self._host.cpu_busy_pct)
            and self._host.mono_ns - self._first_host_ns >= MIN_LOOK_NS
            and self._ticks > 1
            and all(self._device_done(device.index, device.gpm) for device in self.inventory.devices)
        )

    def view(self, now_ns: int, origin: str) -> NodeView | None:
        """The reading so far; None before the inventory has come."""
        if self.inventory is None:
            return None
        return NodeView(
            inventory=self.inventory,
            devices={index: fold_samples(samples) for index, samples in self._samples.items()},
            host=self._host,
            infos=dict(self._infos),
            processes=dict(self._processes),
            now_ns=now_ns,
            origin=origin,
            health=dict(self._health),
            bursts=dict(self._bursts),
            events=tuple(self._events),
        )

    def _add_sample(self, sample: DeviceSample) -> None:
        samples = self._samples.setdefault(sample.device_index, deque())
        samples.append(sample)
        while samples[0].mono_ns < sample.mono_ns - self._mean_ns:
            samples.popleft()

    def _add_tick(self, tick: ProcessTick) -> None:
        self._ticks += 1
        self._infos.update((info.pid, info) for info in tick.infos)
        for pid in tick.gone:
            self._infos.pop(pid, None)
        self._processes = {sample.pid: sample for sample in tick.samples}

    def _device_done(self, index: int, gpm: bool) -> bool:
        samples = self._samples.get(index, ())
        return bool(samples) and not (gpm and all(_pending(sample.busy_pct) for sample in samples))


def _pending(reading: float | str | Absent) -> bool:
    return isinstance(reading, Absent) and reading.reason is Reason.NOT_READ
