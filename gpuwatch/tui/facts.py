"""What can be said of a GPU or the host in a line: absent values with their reasons, throttling, pressure.

Owns: the words. Refuses: where the line goes, judging.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.client.events import HELD_DOWN
from gpuwatch.client.state import NodeState
from gpuwatch.model import Absent, ClocksEvent, Device, DeviceSample, DriverState, Pressure, Reason
from gpuwatch.tui.selection import ViewOptions, parts_of
from gpuwatch.tui.text import Row, Span, clean, flow

_REASONS = {
    Reason.NOT_READ: "not read yet",
    Reason.NOT_SUPPORTED: "not supported here",
    Reason.NO_PERMISSION: "no permission",
    Reason.NOT_FOUND: "not found",
    Reason.LOST: "the GPU is lost: reset or reboot",
    Reason.TIMEOUT: "the driver does not answer",
    Reason.OUT_OF_RANGE: "the driver answered nonsense",
    Reason.DRIVER: "driver missing or not matching",
    Reason.ERROR: "error",
}

DRIVER_WORDS = {
    DriverState.NO_LIBRARY: "no driver library",
    DriverState.NO_DRIVER: "driver not loaded",
    DriverState.MISMATCH: "driver and library differ",
    DriverState.NO_DEVICES: "driver shows no GPU",
    DriverState.NO_PERMISSION: "not allowed to open the GPUs",
    DriverState.UNKNOWN: "driver does not answer",
}
"""For a line of a list; a whole screen has the hint too."""

_THROTTLES = (
    *HELD_DOWN,
    (ClocksEvent.SW_POWER_CAP, "power cap"),
    (ClocksEvent.BOARD_LIMIT, "board limit"),
    (ClocksEvent.RELIABILITY, "reliable voltage"),
)


def absences(device: Device, sample: DeviceSample) -> list[str]:
    """Why values of a row are "n/a", the values of one reason together."""
    readings: dict[str, object] = {
        "busy": sample.busy_pct,
        "SM": sample.sm_active_pct,
        "tensor": sample.tensor_active_pct,
        "DRAM": sample.dram_active_pct,
        "memory": sample.mem_used_bytes,
        "power": sample.power_w,
        "temperature": sample.temp_c,
        "clock": sample.sm_clock_mhz,
        "processes": sample.processes_absent,
    }
    reasons: dict[str, list[str]] = {}
    for name, reading in readings.items():
        if isinstance(reading, Absent):
            reasons.setdefault(reason_text(reading, gpm=device.gpm), []).append(name)
    # The reason first: when the line is cut, the names can be seen in the table.
    whole = len(readings)
    return [
        f"n/a, {reason}: {', '.join(names) if len(names) < whole else 'everything'}"
        for reason, names in reasons.items()
    ]


def reason_text(absent: Absent, *, gpm: bool = True) -> str:
    """A reason for a person, with its detail."""
    if absent.detail:
        return f"{_REASONS[absent.reason]}: {clean(absent.detail)}"
    if absent.reason is Reason.NOT_SUPPORTED and not gpm:
        return "needs GPM: Hopper or newer"
    return _REASONS[absent.reason]


def throttle(sample: DeviceSample) -> list[Span]:
    """Why the clocks are held down, if they are."""
    bits = sample.clocks_event_reasons
    if isinstance(bits, Absent):
        return []
    names = [name for bit, name in _THROTTLES if bits & bit]
    return [("clocks held down: " + ", ".join(names), "warn")] if names else []


def more(sample: DeviceSample) -> list[Span]:
    """The readings that have no column at 80 cells."""
    pairs = (
        ("occupancy", units.pct_text(sample.sm_occupancy_pct)),
        ("PCIe in", units.rate_text(sample.pcie_rx_bytes_per_s)),
        ("out", units.rate_text(sample.pcie_tx_bytes_per_s)),
        ("SM clock", units.mhz_text(sample.sm_clock_mhz)),
        ("NVML util", units.pct_text(sample.gpu_util_pct)),
    )
    return [(f"{name} {text}", "text") for name, text in pairs if text != units.NA]


def host_rows(state: NodeState, options: ViewOptions, width: int) -> list[Row]:
    """CPU, pressure, memory and shared memory of the host; a second line with the core groups."""
    host = state.host
    if host is None:
        return [((" host ", "key"), ("waiting for the first sample", "dim"))]
    memory = units.NA
    if not isinstance(host.mem_total_bytes, Absent) and not isinstance(host.mem_available_bytes, Absent):
        memory = _of(host.mem_total_bytes - host.mem_available_bytes, host.mem_total_bytes)
    shm = _of(host.shm_used_bytes, host.shm_total_bytes)
    pressures: tuple[tuple[str, Pressure], ...] = (("cpu", host.psi_cpu), ("io", host.psi_io), ("mem", host.psi_memory))
    psi = " ".join(f"{name} {units.pct_text(p.some_pct)}" for name, p in pressures)
    cpus = state.inventory.node.cpu_count if state.inventory is not None else host.cpus_online
    said: list[Span] = [
        (f"CPU {units.pct_text(host.cpu_busy_pct)} of {cpus}", "text"),
        (f"stalled: {psi}", "text"),
        (f"memory {memory}", "text"),
        (f"shm {shm}", "text"),
    ]
    out = flow(" host ", said, width, 1, options.glyphs)
    groups: list[Span] = [(f"load {units.count_text(host.load_1m)}", "text")]
    groups += [
        (f"{clean(g.name)} {units.pct_text(g.busy_pct)} of {g.cpus} (iowait {units.pct_text(g.iowait_pct)})", "text")
        for g in host.core_groups
    ]
    return [*out, *flow("      ", groups, width, 1, options.glyphs)]


def _of(used: object, total: object) -> str:
    """ "34 of 512 GiB" without saying the unit twice when it is the same."""
    left, right = units.bytes_text(used), units.bytes_text(total)
    if units.NA in (left, right):
        return units.NA if left == right else f"{left} of {right}"
    number, prefix = left.split()
    return f"{number} of {right}" if right.endswith(f" {prefix}") else f"{left} of {right}"


def no_process_text(state: NodeState, device_index: int) -> str:
    """Why a GPU shows no process: it has none, or we do not know."""
    sample = state.devices.get(device_index)
    if sample is None:
        return "not read yet"
    if sample.processes_absent is not None:
        return f"its processes are not known ({reason_text(sample.processes_absent)})"
    device = state.device(device_index)
    parts = parts_of(device, state.inventory.devices) if device is not None and state.inventory is not None else ()
    if any(state.devices[part.index].processes for part in parts if part.index in state.devices):
        return "its MIG instances have the processes"
    return "no process"
