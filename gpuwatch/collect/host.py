"""The machine around the GPUs: CPUs by NUMA node, pressure, memory, /dev/shm, and who it is.

Owns: rates between two readings of the host's files. Refuses: processes and devices.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from gpuwatch import __version__
from gpuwatch.collect.proc_files import absent, reading
from gpuwatch.collect.proc_parse import (
    CpuTimes,
    parse_cpu_lines,
    parse_cpu_list,
    parse_hidepid,
    parse_meminfo,
    parse_pressure,
    printable,
)
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, CoreGroup, HostSample, Int, NodeInfo, Num, Pressure, Reason

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the first PID namespace this fixed inode (PROC_PID_INIT_INO, 0xEFFFFFFC)."""
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


def node_info(root: Path = Path("/proc"), container_marks: tuple[Path, ...] = _CONTAINER_MARKS) -> NodeInfo:
    """Static facts about this machine; driver versions are left NOT_READ for the NVML reader to fill in."""
    uname = os.uname()
    memory = reading(root / "meminfo", parse_meminfo)
    boot_id = reading(root / "sys/kernel/random/boot_id", lambda data: printable(data.strip()))
    return NodeInfo(
        hostname=socket.gethostname(),
        kernel=uname.release,
        boot_id="" if isinstance(boot_id, Absent) else boot_id,
        cpu_count=len(os.sched_getaffinity(0)),
        mem_total_bytes=memory if isinstance(memory, Absent) else memory["MemTotal"],
        gpuwatch_version=__version__,
        containerised=in_pid_namespace(root, container_marks),
        proc_hides=_proc_hides(root) or UNSET,
    )


def _proc_hides(root: Path) -> tuple[str, ...]:
    """The options of /proc's mount that hide other users' processes from us; none for root and a group they let in."""
    options = reading(root / "self/mountinfo", parse_hidepid)
    if isinstance(options, Absent) or not options:
        return ()
    # The first process is root's, and its stat is for everybody where nothing hides it: what we may is told by trying.
    return () if os.access(root / "1/stat", os.R_OK) else options


def in_pid_namespace(root: Path = Path("/proc"), container_marks: tuple[Path, ...] = _CONTAINER_MARKS) -> bool:
    """Whether pids here differ from the host's. The namespace's inode decides: a container may share the host's
    PID namespace, and a virtual machine may carry a container's mark file. Without it, the marks must do."""
    try:
        return os.readlink(root / "self/ns/pid") != INIT_PID_NAMESPACE  # noqa: PTH115 - not a path
    except OSError:
        return any(mark.exists() for mark in container_marks)


class _Psi(NamedTuple):
    """The previous totals of one resource."""

    mono_ns: int
    some_us: int
    full_us: int | None


class HostReader:
    """Reads the host. Rates are between two calls; the first call's are Absent(NOT_READ). One thread owns it."""

    def __init__(self, root: Path = Path("/proc"), sys: Path = Path("/sys"), shm: Path = Path("/dev/shm")) -> None:  # noqa: S108 - read only
        self._root = root
        self._sys = sys
        self._shm = shm
        self._cpus: dict[int, CpuTimes] = {}
        self._nodes: dict[str, frozenset[int]] = {}
        self._psi: dict[str, _Psi] = {}

    def read(self, mono_ns: int) -> HostSample:
        """One reading at ``mono_ns``. Raises nothing: what cannot be read is Absent in its field."""
        busy, groups, online = self._cpu()
        memory = reading(self._root / "meminfo", parse_meminfo)
        shm_total, shm_used = self._shared_memory()
        return HostSample(
            mono_ns=mono_ns,
            cpu_busy_pct=busy,
            core_groups=groups,
            psi_cpu=self._pressure("cpu", mono_ns),
            psi_io=self._pressure("io", mono_ns),
            psi_memory=self._pressure("memory", mono_ns),
            mem_total_bytes=memory if isinstance(memory, Absent) else memory["MemTotal"],
            mem_available_bytes=_field(memory, "MemAvailable"),
            swap_used_bytes=_swap_used(memory),
            load_1m=reading(self._root / "loadavg", lambda data: float(data.split()[0])),
            shm_total_bytes=shm_total,
            shm_used_bytes=shm_used,
            cpus_online=online,
        )

    def _cpu(self) -> tuple[Num, tuple[CoreGroup, ...], int]:
        """(busy percent, the same per NUMA node, CPUs online). Only CPUs that both readings have count."""
        cpus = reading(self._root / "stat", parse_cpu_lines)
        if isinstance(cpus, Absent):
            return cpus, (), 0
        previous, self._cpus = self._cpus, cpus
        if previous.keys() != cpus.keys():
            # At the start and whenever a CPU was switched on or off.
            self._nodes = self._numa_nodes(frozenset(cpus))
        both = {cpu: (previous[cpu], cpus[cpu]) for cpu in cpus if cpu in previous}
        groups = tuple(
            CoreGroup(name, len(numbers), *_shares([both[cpu] for cpu in numbers if cpu in both]))
            for name, numbers in self._nodes.items()
        )
        return _shares(list(both.values()))[0], groups, len(cpus)

    def _numa_nodes(self, online: frozenset[int]) -> dict[str, frozenset[int]]:
        """Name → online CPUs. Nodes of memory only (GPU memory of GH200) have none and are left out."""
        nodes: dict[str, frozenset[int]] = {}
        folders = (self._sys / "devices/system/node").glob("node[0-9]*")
        for folder in sorted(folders, key=lambda folder: int(folder.name[4:])):
            cpus = reading(folder / "cpulist", parse_cpu_list)
            if not isinstance(cpus, Absent) and cpus & online:
                nodes[folder.name] = cpus & online
        return nodes or {"node0": online}

    def _pressure(self, resource: str, mono_ns: int) -> Pressure:
        """PSI of one resource with our own delta. Absent(NOT_SUPPORTED) before Linux 4.20 or when switched off."""
        totals = reading(self._root / "pressure" / resource, parse_pressure, missing=Reason.NOT_SUPPORTED)
        if isinstance(totals, Absent):
            self._psi.pop(resource, None)
            return Pressure(totals, totals, totals, totals)
        # For the whole system "full" of the CPU is not defined; since 5.13 the kernel prints zero (psi.rst).
        full_us = None if resource == "cpu" else totals.full_us
        previous = self._psi.get(resource)
        self._psi[resource] = _Psi(mono_ns, totals.some_us, full_us)
        some_pct: Num = NOT_READ
        full_pct: Num = NOT_READ if full_us is not None else NOT_SUPPORTED
        if previous is not None and mono_ns > previous.mono_ns:
            elapsed_us = (mono_ns - previous.mono_ns) / 1000
            some_pct = _percent(totals.some_us - previous.some_us, elapsed_us)
            if full_us is not None and previous.full_us is not None:
                full_pct = _percent(full_us - previous.full_us, elapsed_us)
        return Pressure(some_pct, full_pct, totals.some_us, full_us if full_us is not None else NOT_SUPPORTED)

    def _shared_memory(self) -> tuple[Int, Int]:
        """(size, use) of /dev/shm as this process sees it; a container's own is another file system."""
        try:
            stat = os.statvfs(self._shm)
        except OSError as error:
            reason = absent(error)
            return reason, reason
        return stat.f_blocks * stat.f_frsize, (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def _percent(delta: float, whole: float) -> float:
    """0..100: two clocks that tick apart must not print 100.3 %."""
    return min(100.0, max(0.0, 100.0 * delta / whole))


def _shares(pairs: list[tuple[CpuTimes, CpuTimes]]) -> tuple[Num, Num]:
    """(busy, iowait) percent. Stolen time counts in the total only: it is not ours and the CPU was not idle.

    Idle and iowait counters can step back (proc(5)): a CPU's negative step counts as none.
    """
    busy = iowait = total = 0
    for before, after in pairs:
        steps = [max(0, new - old) for old, new in zip(before, after, strict=True)]
        busy += steps[0]
        iowait += steps[2]
        total += sum(steps)
    if not total:
        return NOT_READ, NOT_READ
    return 100.0 * busy / total, 100.0 * iowait / total


def _field(memory: dict[str, int] | Absent, name: str) -> Int:
    return memory if isinstance(memory, Absent) else memory.get(name, NOT_SUPPORTED)


def _swap_used(memory: dict[str, int] | Absent) -> Int:
    """Bytes; a machine without swap uses 0."""
    total, free = _field(memory, "SwapTotal"), _field(memory, "SwapFree")
    if isinstance(total, Absent) or isinstance(free, Absent):
        return total if isinstance(total, Absent) else free
    return total - free
