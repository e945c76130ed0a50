"""One reading of a node as lines of text: what ``gpuwatch status`` prints.

Owns: the layout of the table, the marks for proxies and old readings.
Refuses: getting the readings, judging them, colours.

A cell is at most as wide as its column in 80 columns; only the command gives way to a narrower or wider terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuwatch import units
from gpuwatch.export import card, unseen
from gpuwatch.export.cells import clean, cut, pad
from gpuwatch.export.reading import NodeView
from gpuwatch.model import (
    NOT_READ,
    Absent,
    ClocksEvent,
    DeviceHealth,
    DeviceProcess,
    DeviceSample,
    HostSample,
    Int,
    Num,
    Reason,
    Role,
    value_or,
)

PROXY = "*"
"""After a percentage that is NVML's "something was resident", where the card has no better counter."""
OLD_AFTER_S = 3.0
"""Age from which a reading is marked: three periods of the default rate, as on the screen."""

_HELD_BACK = {
    ClocksEvent.SW_POWER_CAP: "power cap",
    ClocksEvent.HW_SLOWDOWN: "hardware slowdown",
    ClocksEvent.SW_THERMAL: "temperature (software)",
    ClocksEvent.HW_THERMAL: "temperature (hardware)",
    ClocksEvent.HW_POWER_BRAKE: "external power brake",
    ClocksEvent.BOARD_LIMIT: "the board's limit",
    ClocksEvent.RELIABILITY: "the reliable voltage",
}
"""Clock events that slow a busy GPU down. Idle and application clocks are somebody's choice."""

_LADDER = {
    "SM": "sm_active_pct",
    "tensor": "tensor_active_pct",
    "DRAM": "dram_active_pct",
    "memory": "mem_used_bytes",
    "power": "power_w",
    "temperature": "temp_c",
}


def status_lines(view: NodeView, width: int = 80) -> list[str]:
    """The whole screen, no line wider than ``width`` (at least 60 is sensible)."""
    lines = [*_head(view), "", *_device_table(view)]
    notes = list(_notes(view))
    if notes:
        lines += ["", *notes]
    lines += ["", *_process_table(view)]
    verdicts = list(_verdicts(view))
    if verdicts:
        lines += ["", *verdicts]
    return [cut(line, width) for line in lines]


# The node.


def _head(view: NodeView) -> Iterator[str]:
    node = view.inventory.node
    driver = node.driver_version if isinstance(node.driver_version, str) else units.NA
    cuda = f", CUDA {node.cuda_driver_version}" if isinstance(node.cuda_driver_version, str) else ""
    yield f"{node.hostname}  driver {driver}{cuda}  {view.origin}".rstrip()
    if view.host is not None:
        yield _host_line(view.host, node.cpu_count)


def _host_line(host: HostSample, cpu_count: int) -> str:
    cpus = host.cpus_online or cpu_count
    return (
        f"host  CPU {units.pct_text(host.cpu_busy_pct)} of {cpus} cores"
        f"  memory {units.bytes_text(host.mem_available_bytes)} of {units.bytes_text(host.mem_total_bytes)} free"
        f"  load {_one_digit(host.load_1m)}"
    )


def _one_digit(reading: Num) -> str:
    return units.NA if isinstance(reading, Absent) else f"{reading:.1f}"


# The devices.


def _device_row(*cells: str) -> str:
    gpu, name, busy, sm, tensor, dram, memory, power, temp = cells
    return (
        f"{gpu:>3} {pad(cut(name, 15), 15)} {busy:>6} {sm:>5} {tensor:>6} {dram:>5} {memory:>16} {power:>9} {temp:>6}"
    ).rstrip()


def _device_table(view: NodeView) -> Iterator[str]:
    yield _device_row("GPU", "NAME", "BUSY ", "SM", "TENSOR", "DRAM", "MEMORY", "POWER", "TEMP")
    for device in view.inventory.devices:
        sample = view.devices.get(device.index, DeviceSample(device.index, 0))
        yield _device_row(
            str(device.index),
            f"MIG {device.mig_profile}" if device.mig_profile else device.name.removeprefix("NVIDIA "),
            _busy(sample),
            units.pct_text(sample.sm_active_pct),
            units.pct_text(sample.tensor_active_pct),
            units.pct_text(sample.dram_active_pct),
            _of(units.bytes_text(sample.mem_used_bytes), device.mem_total_bytes, units.bytes_text),
            _of(units.count_text(sample.power_w), device.power_limit_w, units.watts_text),
            units.celsius_text(sample.temp_c),
        )


def _of(used: str, limit: Num | Int, text: Callable[[object], str]) -> str:
    return used if isinstance(limit, Absent) or used == units.NA else f"{used}/{text(limit)}"


def _busy(sample: DeviceSample) -> str:
    if not isinstance(sample.busy_pct, Absent):
        return units.pct_text(sample.busy_pct) + " "
    proxy = units.pct_text(sample.gpu_util_pct)
    return proxy + (" " if proxy == units.NA else PROXY)


# What the cells cannot say.


def _notes(view: NodeView) -> Iterator[str]:
    samples = [view.devices.get(device.index) for device in view.inventory.devices]
    if any(sample and _busy(sample).endswith(PROXY) for sample in samples):
        yield f"{PROXY} NVML's utilization: something was resident, not that the SMs were busy"
    told: dict[str, list[int]] = {}
    for device, sample in zip(view.inventory.devices, samples, strict=True):
        if device.mem_shared_with_host:
            told.setdefault("memory is the machine's, shared with the CPU", []).append(device.index)
        for note in _device_notes(sample, view.age_s(sample)) if sample else ["no reading yet"]:
            told.setdefault(note, []).append(device.index)
        for note in _card_notes(view.health.get(device.index)):
            told.setdefault(note, []).append(device.index)
    for note, indices in told.items():
        yield f"GPU {units.ranges_text(indices)}: {note}"
    margins = {i: h.temp_margin_c for i, h in sorted(view.health.items()) if isinstance(h.temp_margin_c, int)}
    if margins:
        degrees = ", ".join(map(str, margins.values()))
        yield f"GPU {units.ranges_text(margins)}: {degrees} °C left to the slowdown temperature"
    for part in view.inventory.unwatched or ():
        yield f"not watched: {part.part}: {reason_text(part.absent)}"
    yield from _foreign_pids(view)


def _foreign_pids(view: NodeView) -> Iterator[str]:
    """Processes that NVML lists and /proc does not show. In a container they may be pids of the host, which look like
    ours and are not."""
    listed = {process.pid for sample in view.devices.values() for process in sample.processes}
    unknown, node = len(listed - view.infos.keys()), view.inventory.node
    if unknown and node.proc_hides:
        yield f"{unknown} of {len(listed)} listed processes are hidden: /proc is mounted with {unseen.options(node)};"
        yield f"  {unseen.remedy(node)}"
    elif unknown and node.containerised:
        yield f"{unknown} of {len(listed)} listed processes are not in this container: such a pid may be the host's;"
        yield f"  {unseen.remedy(node)}, to see who they are"


def _device_notes(sample: DeviceSample, age_s: float) -> Iterator[str]:
    if age_s > OLD_AFTER_S:
        yield f"last reading {units.seconds_text(age_s)} old, the driver may hang"
    for reason, names in _missing(sample).items():
        yield f"{', '.join(names)} n/a: {reason}"
    bits = int(value_or(sample.clocks_event_reasons, 0))
    held = [text for event, text in _HELD_BACK.items() if bits & event]
    if held:
        yield f"clocks held at {units.mhz_text(sample.sm_clock_mhz)} by {', '.join(held)}"
    if sample.processes_absent is not None and not sample.processes:
        yield f"processes n/a: {reason_text(sample.processes_absent)}"


def _card_notes(health: DeviceHealth | None) -> Iterator[str]:
    if health is None:
        return
    if held := card.duty_text(health):
        yield f"clocks held down for a share of the time by: {held}"
    yield from card.warnings(health)
    yield from card.modes(health)


def _missing(sample: DeviceSample) -> dict[str, list[str]]:
    missing: dict[str, list[str]] = {}
    for name, field in _LADDER.items():
        reading = getattr(sample, field)
        if isinstance(reading, Absent):
            missing.setdefault(reason_text(reading), []).append(name)
    return missing


def reason_text(reading: Absent) -> str:
    """Why a reading has no value, for a person: "not supported (GPM needs Hopper or newer)"."""
    reason = _REASONS[reading.reason]
    return f"{reason} ({reading.detail})" if reading.detail else reason


_REASONS = {
    Reason.NOT_READ: "not read yet",
    Reason.NOT_SUPPORTED: "not supported",
    Reason.NO_PERMISSION: "no permission",
    Reason.NOT_FOUND: "not found",
    Reason.LOST: "GPU lost",
    Reason.TIMEOUT: "the driver does not answer",
    Reason.OUT_OF_RANGE: "the driver's value is out of range",
    Reason.DRIVER: "driver",
    Reason.ERROR: "error",
}


# The processes.


def _process_row(*cells: str) -> str:
    gpu, pid, user, memory, cpu, command = cells
    return f"{cut(gpu, 5):>5} {pid:>8} {pad(cut(clean(user), 10), 10)} {memory:>9} {cpu:>7}  {clean(command)}".rstrip()


def _process_table(view: NodeView) -> Iterator[str]:
    jobs: dict[int, dict[int, DeviceProcess]] = {}
    for device in view.inventory.devices:
        sample = view.devices.get(device.index)
        for process in sample.processes if sample else ():
            jobs.setdefault(process.pid, {})[device.index] = process
    if not jobs:
        told = len(view.devices) == len(view.inventory.devices)
        told = told and all(sample.processes_absent is None for sample in view.devices.values())
        yield "no processes on any GPU" if told else "no processes seen"
        return
    yield _process_row("GPU", "PID", "USER", "MEMORY", "CPU", "COMMAND")
    for pid, on in jobs.items():
        yield from _process_lines(view, pid, on)


def _process_lines(view: NodeView, pid: int, on: dict[int, DeviceProcess]) -> Iterator[str]:
    """A job that uses several GPUs is one process: its memory is the sum, unknown when one part is."""
    info, sample = view.infos.get(pid), view.processes.get(pid)
    yield _process_row(
        units.ranges_text(on),
        str(pid),
        info.user if info else units.NA,
        units.bytes_text(_sum([process.mem_used_bytes for process in on.values()])),
        units.pct_text(sample.cpu_pct) if sample else units.NA,
        info.command or info.comm if info else f"{units.NA} ({unseen.in_short(view.inventory.node)})",
    )
    if info and info.container_pid:
        where = info.container if isinstance(info.container, str) else "its container"
        yield _process_row("", "", "", "", "", f"└ PID {info.container_pid} in {where}")
    workers = [i.pid for i in view.infos.values() if i.root_pid == pid and i.role is Role.LOADER_WORKER]
    if workers:
        loads = [view.processes[worker].cpu_pct if worker in view.processes else NOT_READ for worker in workers]
        plural = "s" if len(workers) > 1 else ""
        yield _process_row("", "", "", "", units.pct_text(_sum(loads)), f"└ {len(workers)} loader worker{plural}")


def _sum(readings: Sequence[Num]) -> Num:
    """The sum, or the first reason why there is none."""
    total = 0.0
    for reading in readings:
        if isinstance(reading, Absent):
            return reading
        total += reading
    return total


def _verdicts(view: NodeView) -> Iterator[str]:
    for diagnosis in view.diagnoses:
        subject = f"PID {diagnosis.pid}" if diagnosis.pid else f"GPU {units.ranges_text(diagnosis.device_indices)}"
        yield f"why {subject}: {diagnosis.verdict.cause}: {clean(diagnosis.verdict.summary)}"
