"""Who computes on which GPU, and how busy each GPU was.

Owns: jobs out of NVML's lists and /proc, activity over a window. Refuses: deciding anything. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuwatch.model import Absent, DeviceSample, ProcessInfo, Role, value_or


class Subject(Struct, frozen=True):
    """What to diagnose: a GPU process with all its devices, or (pid 0) devices without one."""

    pid: int
    device_indices: tuple[int, ...]


class Activity(Struct, frozen=True):
    """Mean activity of one device over a window."""

    busy_pct: float | None
    sm_active_pct: float | None
    idle: bool
    """Not one reading of the window saw any activity, and there were readings."""


def busy_of(sample: DeviceSample) -> float | None:
    """GPM's busy share, else NVML's utilization; None when neither was read."""
    for reading in (sample.busy_pct, sample.gpu_util_pct):
        if not isinstance(reading, Absent):
            return float(reading)
    return None


class Jobs:
    """Who computes on which device, from what NVML lists and from what /proc says."""

    def __init__(self) -> None:
        self._listed: dict[int, dict[int, float]] = {}

    def observe(self, samples: Sequence[DeviceSample]) -> None:
        """A list that was not read completely does not replace one that was."""
        for sample in samples:
            if sample.processes_absent is None:
                self._listed[sample.device_index] = {
                    process.pid: value_or(process.mem_used_bytes, 0.0)
                    for process in sample.processes
                    if "C" in process.kind
                }

    def forget_devices(self, known: Sequence[int]) -> None:
        """Devices that the inventory has no more."""
        self._listed = {index: pids for index, pids in self._listed.items() if index in known}

    def subjects(self, infos: Mapping[int, ProcessInfo]) -> dict[int, Subject]:
        """Pid to subject. A pid on several devices is one job on all of them."""
        devices: dict[int, set[int]] = {}
        for index, pids in self._listed.items():
            for pid in pids:
                devices.setdefault(pid, set()).add(index)
        for info in infos.values():
            if info.role is Role.MAIN and info.device_indices:
                devices.setdefault(info.pid, set()).update(info.device_indices)
        return {pid: Subject(pid, tuple(sorted(indices))) for pid, indices in sorted(devices.items())}

    def memory_of(self, pid: int, index: int) -> float:
        """Bytes that a process holds on a device; 0 when not known."""
        return self._listed.get(index, {}).get(pid, 0.0)


class Meter:
    """Activity of the devices over the last while, from one folded reading a tick."""

    def __init__(self) -> None:
        self._readings: dict[int, deque[tuple[int, float | None, float | None]]] = {}

    def observe(self, samples: Sequence[DeviceSample], keep_s: float) -> None:
        """Add each device's reading; a repeated one (hung GPU) is not one."""
        for sample in samples:
            readings = self._readings.setdefault(sample.device_index, deque())
            if readings and sample.mono_ns <= readings[-1][0]:
                continue
            sm = None if isinstance(sample.sm_active_pct, Absent) else float(sample.sm_active_pct)
            readings.append((sample.mono_ns, busy_of(sample), sm))
            while readings and readings[0][0] < sample.mono_ns - keep_s * 1e9:
                readings.popleft()

    def over(self, index: int, window_s: float) -> Activity | None:
        """Over the last ``window_s``; None while there is no such window yet."""
        readings = self._readings.get(index)
        if not readings:
            return None
        start = readings[-1][0] - window_s * 1e9
        if readings[0][0] > start:
            return None
        inside = [reading for reading in readings if reading[0] > start]
        busy = [b for _, b, _ in inside if b is not None]
        sm = [s for _, _, s in inside if s is not None]
        return Activity(
            busy_pct=sum(busy) / len(busy) if busy else None,
            sm_active_pct=sum(sm) / len(sm) if sm else None,
            idle=bool(busy) and not any(busy) and not any(sm),
        )
