"""Which processes are on which GPU, as NVML lists them and as /proc knows them.

Owns: the last list of each GPU, the facts of each process, whose a process on a MIG instance is. Refuses: reading
either. Thread-safe: each GPU's thread tells it, the host's thread and a burst of stacks ask it.
"""

from __future__ import annotations

import threading

from gpuwatch.collect.host_sampler import Roots
from gpuwatch.model import Device, DeviceSample, ProcessInfo, ProcessTick


class GpuProcesses:
    """Of one node. Knows nothing until it is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, tuple[int, ...]] = {}
        self._whole: dict[int, int] = {}
        """Index of a MIG instance to that of its GPU."""
        self._infos: dict[int, ProcessInfo] = {}

    def begin(self, devices: tuple[Device, ...]) -> None:
        """These devices are there from now on; the lists of others are forgotten."""
        by_uuid = {device.uuid: device.index for device in devices}
        known = {device.index for device in devices}
        with self._lock:
            self._whole = {d.index: by_uuid[d.parent_uuid] for d in devices if d.parent_uuid in by_uuid}
            self._pids = {index: pids for index, pids in self._pids.items() if index in known}

    def listed(self, sample: DeviceSample) -> bool:
        """Take the list of a sample that has one; True when a process has come."""
        if sample.processes_absent is not None:
            return False
        pids = tuple(process.pid for process in sample.processes)
        with self._lock:
            before, self._pids[sample.device_index] = self._pids.get(sample.device_index, ()), pids
        return not set(pids) <= set(before)

    def none(self) -> bool:
        """No GPU has a process."""
        with self._lock:
            return not any(self._pids.values())

    def roots(self) -> Roots:
        """Pids that NVML lists, with the devices that it lists them on; of a lost GPU the last that were known.

        A process on a MIG instance is listed by its GPU too and belongs to the instance.
        """
        with self._lock:
            listed, whole = list(self._pids.items()), self._whole
        found: dict[int, set[int]] = {}
        for index, pids in listed:
            for pid in pids:
                found.setdefault(pid, set()).add(index)
        return {
            pid: tuple(sorted(indices - {whole[index] for index in indices if index in whole}))
            for pid, indices in found.items()
        }

    def remember(self, tick: ProcessTick) -> None:
        """Take what is new and forget what is gone."""
        with self._lock:
            for pid in tick.gone:
                self._infos.pop(pid, None)
            self._infos.update((info.pid, info) for info in tick.infos)

    def others_of(self, root_pid: int) -> tuple[ProcessInfo, ...]:
        """The processes of a job other than the one that holds the GPU."""
        with self._lock:
            return tuple(i for i in self._infos.values() if i.root_pid == root_pid and i.pid != root_pid)
