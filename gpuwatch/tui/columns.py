"""The columns of the GPU table, and which of them a width has room for.

Owns: one cell of one GPU as spans, the growth order. Refuses: the state of the node, the place of the table.

Always there: the index and the truth ladder (busy, SM, tensor, DRAM). Then, as the width grows, in this order:
memory, name, power, temperature, number of processes, bars, clock, longer bars, owners, longer names, PCIe,
longer bars, SM occupancy, commands. The first that does not fit ends the list, so columns drop in the reverse order.

MIG instances hang below their GPU by a branch in the column of the index, which is there at every width.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from msgspec import Struct

from gpuwatch import units
from gpuwatch.client.events import HELD_DOWN
from gpuwatch.model import Absent, Device, DeviceSample
from gpuwatch.tui.chart import bar
from gpuwatch.tui.text import Glyphs, Row, Span, cut, fit, pad

GIB = 1 << 30
SLOWED = functools.reduce(operator.or_, (bit for bit, _ in HELD_DOWN))
"""Reasons that are a fault or heat. A power cap is normal on a busy card and is told on the detail line."""

LADDER = ("busy", "sm", "tensor", "dram")
INDEX_CELLS = 2
"""Of the first column, where no GPU has MIG instances."""
_BASE_WIDTH = 1 + len(LADDER) * 5
_GROWTH = (
    ("memory", 9), ("name", 9), ("power", 8), ("temp", 4), ("procs", 2), ("bars", 4), ("clock", 4), ("bars", 7),
    ("users", 10), ("name", 16), ("pcie_rx", 6), ("pcie_tx", 6), ("bars", 10), ("occupancy", 4), ("command", 20),
)  # fmt: skip
"""(column, its width); "bars" and a repeated column are made as wide as this, not wider by this."""
_BARS_MAX = 14
_NAME_MAX = 26
_ORDER = (
    "gpu", "name", *LADDER, "occupancy", "memory", "power", "temp", "clock", "pcie_rx", "pcie_tx", "procs", "users",
    "command",
)  # fmt: skip


class GpuRow(Struct, frozen=True):
    """What the cells of one GPU are made of."""

    device: Device
    sample: DeviceSample | None
    age_s: float = 0.0
    stale: bool = False
    """The reading is older than it should be; the row says how old."""
    users: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    branch: str = ""
    """What hangs a MIG instance below its GPU; "" for one that stands for itself."""


class Plan(Struct, frozen=True):
    """Columns in the order of drawing, with their widths."""

    columns: tuple[tuple[str, int], ...]
    bars: int
    """Cells of the bar in each ladder column; 0 is none."""


def plan(width: int, index_cells: int = INDEX_CELLS) -> Plan:
    """The columns for this many cells; ``index_cells`` of them are the index, with its branches."""
    widths = {"gpu": index_cells} | dict.fromkeys(LADDER, 4)
    bars, left = 0, width - _BASE_WIDTH - index_cells
    for name, target in _GROWTH:
        if name == "bars":
            cost = (target - bars) * len(LADDER)
        else:
            cost = target - widths[name] if name in widths else target + 1
        if cost > left:
            break
        left -= cost
        if name == "bars":
            bars = target
        else:
            widths[name] = target
    more_bars = min(left // len(LADDER), _BARS_MAX - bars) if bars else 0
    bars, left = bars + more_bars, left - more_bars * len(LADDER)
    if "name" in widths:
        more_name = min(left, _NAME_MAX - widths["name"])
        widths["name"], left = widths["name"] + more_name, left - more_name
    if "command" in widths:
        widths["command"] += left
    for name in LADDER:
        widths[name] = 4 + bars
    return Plan(tuple((name, widths[name]) for name in _ORDER if name in widths), bars)


_TITLES = {
    "gpu": ("#",), "name": ("NAME",), "busy": ("BUSY %", "BUSY"), "sm": ("SM %", "SM"),
    "tensor": ("TENSOR %", "TENS"), "dram": ("DRAM %", "DRAM"), "occupancy": ("OCC%",), "memory": ("MEM GiB",),
    "power": ("POWER W",), "temp": ("TEMP",), "clock": ("MHz",), "pcie_rx": ("PCIe in",  "PCI in"),
    "pcie_tx": ("PCIe out", "PCIout"), "procs": ("P",), "users": ("USER",), "command": ("COMMAND",),
}  # fmt: skip
_RIGHT = frozenset({"gpu", "memory", "power", "temp", "clock", "pcie_rx", "pcie_tx", "procs", "occupancy"})


def header(layout: Plan, width: int, glyphs: Glyphs) -> Row:
    """The line of column titles."""
    spans: list[Span] = [(" ", "head")]
    for name, cells in layout.columns:
        title = next((t for t in _TITLES[name] if len(t) <= cells), _TITLES[name][-1])
        right = name in _RIGHT and not (name == "gpu" and cells > INDEX_CELLS)
        spans.append((pad(title, cells, right=right, ellipsis=glyphs.ellipsis), "head"))
        spans.append((" ", "head"))
    return fit(spans[:-1], width, glyphs, "head")


def row(gpu: GpuRow, layout: Plan, width: int, glyphs: Glyphs, *, is_selected: bool) -> Row:
    """One GPU as one line."""
    spans: list[Span] = [(glyphs.cursor if is_selected else " ", "accent")]
    for name, cells in layout.columns:
        if len(spans) > 1:
            # In its neighbour's role: a space has no colour of its own, and a run less is 25 bytes less.
            spans.append((" ", spans[-1][1]))
        spans.extend(_cell(name, gpu, cells, layout.bars, glyphs))
    return fit(spans, width, glyphs)


def proxy(sample: DeviceSample | None) -> bool:
    """Only NVML's utilization is known: shown with a mark, because it says little."""
    return sample is not None and isinstance(sample.busy_pct, Absent) and not isinstance(sample.gpu_util_pct, Absent)


def short_name(name: str) -> str:
    """A marketing name without the vendor, which is always the same."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")


def short_age(seconds: float) -> str:
    """ "12s", "3m", "2h", "4d": for a column that has no room for more."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _cell(name: str, gpu: GpuRow, cells: int, bars: int, glyphs: Glyphs) -> list[Span]:
    if name == "gpu":
        index = str(gpu.device.index)
        return [(pad(gpu.branch + index, cells) if cells > INDEX_CELLS else f"{index:>{cells}}", "key")]
    if name == "name":
        return [_name(gpu, cells, glyphs)]
    if gpu.sample is None:
        return [(pad("", cells), "dim")]
    if name in LADDER:
        return _ladder(name, gpu.sample, bars, glyphs)
    text, role = _PLAIN[name](gpu, gpu.sample, glyphs)
    return [(pad(text, cells, right=name in _RIGHT, ellipsis=glyphs.ellipsis), role)]


def _name(gpu: GpuRow, cells: int, glyphs: Glyphs) -> Span:
    if gpu.stale:
        return pad(f"{glyphs.warning} {short_age(gpu.age_s)} old", cells, ellipsis=glyphs.ellipsis), "warn"
    if gpu.sample is None:
        return pad("waiting" + glyphs.ellipsis, cells, ellipsis=glyphs.ellipsis), "dim"
    name = gpu.device.mig_profile if gpu.branch and gpu.device.mig_profile else short_name(gpu.device.name)
    return pad(name, cells, ellipsis=glyphs.ellipsis), "text"


def _ladder(name: str, sample: DeviceSample, bars: int, glyphs: Glyphs) -> list[Span]:
    reading = {
        "busy": sample.busy_pct,
        "sm": sample.sm_active_pct,
        "tensor": sample.tensor_active_pct,
        "dram": sample.dram_active_pct,
    }[name]
    mark = " "
    if name == "busy" and proxy(sample):
        reading, mark = sample.gpu_util_pct, "*"
    if isinstance(reading, Absent):
        return [(pad(units.NA, 4 + bars), "dim")]
    number = units.pct_text(reading).removesuffix(" %")
    if reading == 0:
        return [(f"{number:>3}{mark}" + " " * bars, "dim")]
    return [(f"{number:>3}{mark}" + (bar(reading, bars, glyphs) if bars else ""), name)]


def _memory(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    used, total = sample.mem_used_bytes, gpu.device.mem_total_bytes
    parts = [
        units.NA if isinstance(x, Absent) else f"{x / GIB:.{0 if x >= 99.95 * GIB else 1}f}" for x in (used, total)
    ]
    return _of(*parts)


def _power(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    parts = [units.watts_text(x).removesuffix(" W") for x in (sample.power_w, gpu.device.power_limit_w)]
    text, role = _of(*parts)
    return (glyphs.warning + text, "warn") if slowed(sample) else (text, role)


def _of(used: str, total: str) -> Span:
    """ "13.4/141"; without the first there is nothing to say, without the second only the first."""
    if used == units.NA:
        return units.NA, "dim"
    return (used if total == units.NA else f"{used}/{total}"), "text"


def slowed(sample: DeviceSample) -> bool:
    """Heat or a fault holds the clocks down."""
    reasons = sample.clocks_event_reasons
    return not isinstance(reasons, Absent) and bool(reasons & SLOWED)


def _temp(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    text = units.celsius_text(sample.temp_c)
    return text if text == units.NA else text.split()[0] + glyphs.degree, "text"


def _clock(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    return units.mhz_text(sample.sm_clock_mhz).removesuffix(" MHz"), "text"


def _rate(reading: object) -> Span:
    text = units.bytes_text(reading)
    if text == units.NA:
        return text, "dim"
    number, prefix = text.split()
    return (f"{number}{prefix[0]}", "text") if number != "0" else ("0", "dim")


def _procs(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    if sample.processes_absent is not None:
        return "?", "dim"
    count = len(sample.processes)
    return str(count), "text" if count else "dim"


def _users(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    return cut(",".join(gpu.users), 10, glyphs.ellipsis), "text"


def _command(gpu: GpuRow, sample: DeviceSample, glyphs: Glyphs) -> Span:
    return ", ".join(gpu.commands), "dim"


_PLAIN: dict[str, Callable[[GpuRow, DeviceSample, Glyphs], Span]] = {
    "memory": _memory,
    "power": _power,
    "temp": _temp,
    "clock": _clock,
    "pcie_rx": lambda gpu, sample, glyphs: _rate(sample.pcie_rx_bytes_per_s),
    "pcie_tx": lambda gpu, sample, glyphs: _rate(sample.pcie_tx_bytes_per_s),
    "occupancy": lambda gpu, sample, glyphs: (units.pct_text(sample.sm_occupancy_pct).removesuffix(" %"), "text"),
    "procs": _procs,
    "users": _users,
    "command": _command,
}
