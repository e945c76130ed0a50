"""What the host does: CPUs, memory, pressure.

Owns: HostSample. Refuses: single processes (process.py).
"""

from __future__ import annotations

from msgspec import Struct

from gpuwatch.model.reading import NOT_READ, Int, Num


class CoreGroup(Struct, frozen=True, array_like=True):
    """CPU use of the cores of one NUMA node since the previous reading."""

    name: str
    cpus: int
    busy_pct: Num
    iowait_pct: Num


class Pressure(Struct, frozen=True, array_like=True):
    """PSI of one resource. Totals are cumulative microseconds; ``some_pct`` is our own delta over the tick."""

    some_pct: Num = NOT_READ
    full_pct: Num = NOT_READ
    some_total_us: Int = NOT_READ
    full_total_us: Int = NOT_READ


class HostSample(Struct, frozen=True, array_like=True):
    """One reading of the host."""

    mono_ns: int
    cpu_busy_pct: Num = NOT_READ
    """Of all logical CPUs, 0..100."""
    core_groups: tuple[CoreGroup, ...] = ()
    psi_cpu: Pressure = Pressure()
    psi_io: Pressure = Pressure()
    psi_memory: Pressure = Pressure()
    mem_total_bytes: Int = NOT_READ
    mem_available_bytes: Int = NOT_READ
    swap_used_bytes: Int = NOT_READ
    load_1m: Num = NOT_READ
    shm_total_bytes: Int = NOT_READ
    shm_used_bytes: Int = NOT_READ
    cpus_online: int = 0
