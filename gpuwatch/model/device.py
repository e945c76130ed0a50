"""What a GPU does: a reading of each tick, what lies between two ticks, and what the driver tells unasked.

Owns: DeviceSample, Burst, EventRecord. Refuses: what is read more rarely (health.py).
"""

from __future__ import annotations

import enum

from msgspec import Struct

from gpuwatch.model.reading import NOT_READ, Absent, Int, Num


class ClocksEvent(enum.IntFlag):
    """Bits of NVML's clocks event reasons (formerly throttle reasons). Test with ``&``."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100
    BOARD_LIMIT = 0x200
    """Told by drivers from 615 on, as is the next."""
    RELIABILITY = 0x400


class DeviceProcess(Struct, frozen=True, array_like=True):
    """A process that NVML lists on a GPU."""

    pid: int
    mem_used_bytes: Int
    kind: str
    """"C" compute, "G" graphics, "CG" both; with "M" it computes through MPS, together with others."""


class DeviceSample(Struct, frozen=True, array_like=True):
    """One reading of one GPU.

    ``gpu_util_pct`` is NVML's "a kernel or copy was resident" and is kept for comparison only. The fields from
    ``busy_pct`` on are GPM averages over ``gpm_window_ns`` ending at ``mono_ns``.
    """

    device_index: int
    mono_ns: int
    gpu_util_pct: Int = NOT_READ
    mem_util_pct: Int = NOT_READ
    """Share of time in which memory was read or written; not bandwidth."""
    mem_used_bytes: Int = NOT_READ
    power_w: Num = NOT_READ
    temp_c: Int = NOT_READ
    sm_clock_mhz: Int = NOT_READ
    mem_clock_mhz: Int = NOT_READ
    clocks_event_reasons: Int = NOT_READ
    gpm_window_ns: int = 0
    busy_pct: Num = NOT_READ
    sm_active_pct: Num = NOT_READ
    sm_occupancy_pct: Num = NOT_READ
    tensor_active_pct: Num = NOT_READ
    fp64_active_pct: Num = NOT_READ
    fp32_active_pct: Num = NOT_READ
    fp16_active_pct: Num = NOT_READ
    dram_active_pct: Num = NOT_READ
    pcie_rx_bytes_per_s: Num = NOT_READ
    """Towards the GPU (host to device)."""
    pcie_tx_bytes_per_s: Num = NOT_READ
    nvlink_rx_bytes_per_s: Num = NOT_READ
    nvlink_tx_bytes_per_s: Num = NOT_READ
    processes: tuple[DeviceProcess, ...] = ()
    processes_absent: Absent | None = NOT_READ
    """Why ``processes`` cannot be trusted to be complete; None when it was read. (A positional struct and a tuple
    cannot share a union in msgspec.)"""
    nvml_ns: int = 0
    """Time spent inside NVML for this reading."""


class SampleSeries(Struct, frozen=True, array_like=True):
    """What the driver sampled by itself of one quantity since the previous series, oldest first."""

    end_mono_ns: int = 0
    """When the newest was taken, on CLOCK_MONOTONIC, to within one sampling interval."""
    steps_us: tuple[int, ...] = ()
    """From the sample before to each; of the first, from the last one of the previous series, or 0 when ``broken``."""
    values: tuple[int, ...] = ()
    broken: bool = False
    """Does not follow on the previous series: it is the first, samples were lost, or the driver's clock was set."""
    absent: Absent | None = NOT_READ
    """Why there are no values. NOT_FOUND: nothing new, as on an idle GPU whose buffer goes dark."""


class Burst(Struct, frozen=True, array_like=True):
    """The sub-second samples of one GPU between two readings: none is twice in the stream, none is left out."""

    device_index: int
    mono_ns: int
    util_pct: SampleSeries = SampleSeries()
    """NVML's "something was resident", as ``DeviceSample.gpu_util_pct``."""
    power_mw: SampleSeries = SampleSeries()

    def busy_windows(self) -> tuple[tuple[int, int, float], ...]:
        """The utilization samples as (start, end, busy share) on CLOCK_MONOTONIC in nanoseconds, oldest first: for GPUs
        without GPM. A sample whose predecessor is not known has no width of its own and is left out."""
        found: list[tuple[int, int, float]] = []
        end_ns = self.util_pct.end_mono_ns
        for step_us, value in zip(reversed(self.util_pct.steps_us), reversed(self.util_pct.values), strict=True):
            if step_us <= 0:
                break
            start_ns = end_ns - step_us * 1000
            found.append((start_ns, end_ns, value / 100))
            end_ns = start_ns
        return tuple(reversed(found))


class BurstSummary(Struct, frozen=True, array_like=True):
    """A :class:`Burst` for the stream, in some 20 bytes: utilization as sampled, power by its extremes."""

    device_index: int
    util_pct: tuple[int, ...] = ()
    """At most 16, the newest last."""
    power_min_w: Int = NOT_READ
    power_mean_w: Int = NOT_READ
    power_max_w: Int = NOT_READ


class EventKind(enum.StrEnum):
    """What the driver told without being asked."""

    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    MIG_CONFIG = "mig_config"
    ECC_STORM = "ecc_storm"
    DRAM_RETIREMENT = "dram_retirement"
    DRAM_RETIREMENT_FAILURE = "dram_retirement_failure"
    POISON = "poison"
    """Uncorrectable data was used; contained to the process."""
    FATAL_POISON = "fatal_poison"
    UNAVAILABLE = "unavailable"
    RECOVERY_ACTION = "recovery_action"
    OTHER = "other"


class EventOrigin(enum.StrEnum):
    """Whose fault an event is, by its kind."""

    APPLICATION = "application"
    """The job did it: news for its owner, none for the card's."""
    HARDWARE = "hardware"
    DRIVER = "driver"
    """Driver, firmware or an operator."""
    UNKNOWN = "unknown"


class EventRecord(Struct, frozen=True):
    """One event of one GPU."""

    device_index: int
    """-1: the driver did not say which."""
    mono_ns: int
    wall_ns: int
    kind: EventKind
    origin: EventOrigin
    xid: int = 0
    """For ``EventKind.XID``."""
    data: int = 0
    text: str = ""
    """What it means, one line."""
    gpu_instance: int = -1
    """MIG; -1 is the whole GPU."""
    compute_instance: int = -1
    repeats: int = 0
    """Further ones of the same since the last record of it: what comes within a second is not told one by one."""
