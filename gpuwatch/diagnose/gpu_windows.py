"""What the GPU did, window by window.

Owns: GPM windows (or proxies) out of device samples, and what follows from the samples of one window of evidence.
Refuses: processes and stacks (evidence.py), judging.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from gpuwatch.model import Absent, Burst, ClocksEvent, Device, DeviceHealth, DeviceSample, Num, Reason, StackSample

MAX_WINDOW_NS = 2_500_000_000
"""GPM windows longer than this average over too much to be joined with a stack."""

_KNOWN_EVENTS = int(sum(ClocksEvent))
"""Bits that this version can name: one that it cannot has no name to tell."""
LINK_READINGS = 2

PROXY_NS = 250_000_000
"""The driver samples utilization every 167 to 200 ms."""


class GpuWindow(Struct, frozen=True):
    """One GPM window of one device (or one NVML utilization reading where GPM is missing). Shares 0..1."""

    device_index: int
    start_ns: int
    end_ns: int
    busy: float
    sm: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    fp64: float | None = None
    dram: float | None = None
    occupancy: float | None = None
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    proxy: bool = False
    """``busy`` is NVML utilization: "a kernel was resident", not more."""


def windows_of(samples: Sequence[DeviceSample], bursts: Sequence[Burst] = ()) -> Iterable[GpuWindow]:
    """GPM windows; where a device has none at all, proxies: the driver's own utilization samples (five a second), and
    without those its NVML utilization readings."""
    with_gpm = {s.device_index for s in samples if s.gpm_window_ns and not isinstance(s.busy_pct, Absent)}
    sampled = {b.device_index for b in bursts if b.device_index not in with_gpm and b.busy_windows()}
    previous: dict[int, int] = {}
    for s in samples:
        before = previous.get(s.device_index)
        if s.device_index in with_gpm:
            busy = share_of(s.busy_pct)
            if not s.gpm_window_ns or busy is None or s.gpm_window_ns > MAX_WINDOW_NS:
                continue
            yield GpuWindow(
                device_index=s.device_index,
                start_ns=s.mono_ns - s.gpm_window_ns,
                end_ns=s.mono_ns,
                busy=min(1.0, busy),
                sm=share_of(s.sm_active_pct),
                tensor=share_of(s.tensor_active_pct),
                fp32=share_of(s.fp32_active_pct),
                fp64=share_of(s.fp64_active_pct),
                dram=share_of(s.dram_active_pct),
                occupancy=share_of(s.sm_occupancy_pct),
                rx_bytes_per_s=value_of(s.pcie_rx_bytes_per_s),
                tx_bytes_per_s=value_of(s.pcie_tx_bytes_per_s),
                nvlink_rx_bytes_per_s=value_of(s.nvlink_rx_bytes_per_s),
                nvlink_tx_bytes_per_s=value_of(s.nvlink_tx_bytes_per_s),
            )
        elif s.device_index in sampled:
            continue
        elif not isinstance(s.gpu_util_pct, Absent) and before is not None and s.mono_ns - before <= MAX_WINDOW_NS:
            yield GpuWindow(s.device_index, before, s.mono_ns, min(1.0, s.gpu_util_pct / 100.0), proxy=True)
        previous[s.device_index] = s.mono_ns
    # A driver's ring reaches back before the first sample, which is the evidence's beginning.
    first_ns = min((s.mono_ns for s in samples), default=0)
    for burst in bursts:
        for start_ns, end_ns, busy in burst.busy_windows() if burst.device_index in sampled else ():
            if start_ns >= first_ns and end_ns - start_ns <= MAX_WINDOW_NS:
                yield GpuWindow(burst.device_index, start_ns, end_ns, min(1.0, busy), proxy=True)


def held_by_us(stacks: Sequence[StackSample]) -> tuple[tuple[int, int], ...]:
    """(from, to) of the looks at native frames, in ns: py-spy holds the job then, which must not count as the job's own
    doing. A look is stamped with its end, and while it lasts no plain stack is taken."""
    plain = sorted(s.mono_ns for s in stacks if not s.native)
    ends = sorted({s.mono_ns for s in stacks if s.native})
    return tuple((plain[place - 1], end) for end in ends if (place := bisect_left(plain, end)))


def without(windows: Iterable[GpuWindow], held: Sequence[tuple[int, int]], lag_ns: int) -> Iterable[GpuWindow]:
    """The windows that saw nothing of these times; GPM's are late by ``lag_ns``."""
    for window in windows:
        lag = 0 if window.proxy else lag_ns
        if not any(window.start_ns - lag < end and window.end_ns - lag > start for start, end in held):
            yield window


def share_of(reading: Num) -> float | None:
    """Percent to a share 0..1; None when absent."""
    return None if isinstance(reading, Absent) else reading / 100.0


def value_of(reading: Num) -> float | None:
    """The number in a reading; None when absent."""
    return None if isinstance(reading, Absent) else float(reading)


def mem_used_share(samples: Sequence[DeviceSample], devices: Sequence[Device]) -> float | None:
    """Of the fullest device, 0..1; None when not read."""
    totals = {d.index: value_of(d.mem_total_bytes) for d in devices}
    shares = [
        used / total
        for s in samples
        if (used := value_of(s.mem_used_bytes)) is not None and (total := totals.get(s.device_index))
    ]
    return max(shares, default=None)


def job_memory(samples: Sequence[DeviceSample], pid: int) -> float | None:
    """Most bytes that the process held at once; None when not read."""
    used = [value_of(p.mem_used_bytes) for s in samples for p in s.processes if p.pid == pid]
    return max((u for u in used if u is not None), default=None)


def job_memory_series(samples: Sequence[DeviceSample], pid: int) -> tuple[tuple[int, float], ...]:
    """(instant in ns, bytes that the process held), of a job on one device."""
    held: dict[int, dict[int, float]] = {}
    for s in samples:
        for p in s.processes:
            if p.pid == pid and (used := value_of(p.mem_used_bytes)) is not None:
                held.setdefault(s.device_index, {})[s.mono_ns] = used
    if len(held) != 1:
        return ()
    return tuple(sorted(next(iter(held.values())).items()))


def duty_shares(health: Sequence[DeviceHealth]) -> dict[str, float]:
    """Share of the time in which each reason held the clocks down, by the driver's counters in nanoseconds: they miss
    nothing, where the reasons of a moment miss what is shorter than the time between two readings."""
    # A reading of health repeats what its slower parts had before: a window is known by its length in nanoseconds.
    windows = {(h.device_index, h.throttle_window_ns): h for h in health if h.throttle_window_ns > 0}
    found: dict[str, list[float]] = {}
    for h in windows.values():
        for name, share in (
            ("sw_power_cap", h.throttle_power_cap_share),
            ("sw_thermal", h.throttle_sw_thermal_share),
            ("hw_thermal", h.throttle_hw_thermal_share),
            ("hw_power_brake", h.throttle_power_brake_share),
            ("board_limit", h.throttle_board_limit_share),
            ("reliability", h.throttle_reliability_share),
            ("sync_boost", h.throttle_sync_boost_share),
        ):
            if not isinstance(share, Absent):
                found.setdefault(name, []).append(share)
    return {name: fmean(shares) for name, shares in found.items()}


def throttle_shares(samples: Sequence[DeviceSample], windows: Sequence[GpuWindow]) -> dict[str, float]:
    """Clock reasons count only while the GPU works: an idle card reports idle clocks, not a fault."""
    busy_ends = {(w.device_index, w.end_ns) for w in windows if w.busy >= 0.3}
    # The driver's own samples do not end with a reading of ours: there one that ended shortly before counts.
    proxies = [(w.device_index, w.end_ns) for w in windows if w.busy >= 0.3 and w.proxy]
    masks = [
        ClocksEvent(s.clocks_event_reasons & _KNOWN_EVENTS)
        for s in samples
        if isinstance(s.clocks_event_reasons, int)
        and (
            (s.device_index, s.mono_ns) in busy_ends
            or any(index == s.device_index and 0 <= s.mono_ns - end_ns <= PROXY_NS for index, end_ns in proxies)
        )
    ]
    if not masks:
        return {}
    counts = Counter(bit.name.lower() for mask in masks for bit in mask if bit.name)
    return {name: n / len(masks) for name, n in counts.items()}


def clock_share(samples: Sequence[DeviceSample], devices: Sequence[Device]) -> float | None:
    """Mean SM clock over its maximum while busy; None when the GPU was not."""
    maxima = {d.index: value_of(d.sm_clock_max_mhz) for d in devices}
    shares = [
        clock / top
        for s in samples
        if (clock := value_of(s.sm_clock_mhz)) is not None
        and (top := maxima.get(s.device_index))
        and (share_of(s.busy_pct) or 0.0) >= 0.3
    ]
    return fmean(shares) if shares else None


def link_share(health: Sequence[DeviceHealth]) -> float:
    """Speed of the PCIe link over what card and slot can do, 0..1, read while the GPU was busy: an idle link rests.
    1 where that was not read often enough."""
    shares = [share for h in health if h.pcie_under_load and (share := _link_speed(h)) is not None]
    return median(shares) if len(shares) >= LINK_READINGS else 1.0


def slowest_link(health: Sequence[DeviceHealth]) -> DeviceHealth | None:
    """The reading under load with the slowest link; None without any."""
    read = [(share, i) for i, h in enumerate(health) if h.pcie_under_load and (share := _link_speed(h)) is not None]
    return health[min(read)[1]] if read else None


def _link_speed(health: DeviceHealth) -> float | None:
    """Each generation doubles a lane's rate."""
    values = (health.pcie_gen, health.pcie_gen_max, health.pcie_width, health.pcie_width_max)
    numbers = [v for v in values if isinstance(v, int) and v > 0]
    if len(numbers) < len(values):
        return None
    gen, gen_max, width, width_max = numbers
    return float(2.0 ** (gen - gen_max) * width / width_max)


def lost_devices(samples: Sequence[DeviceSample]) -> tuple[int, ...]:
    """Devices whose newest reading says that they are lost."""
    newest = {s.device_index: s for s in samples}
    return tuple(
        sorted(i for i, s in newest.items() if isinstance(s.power_w, Absent) and s.power_w.reason is Reason.LOST)
    )
