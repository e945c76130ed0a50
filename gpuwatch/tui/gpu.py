"""One GPU over time: charts from a minute to a day, what held its clocks down, what probes say it can reach.

Owns: which charts there are and how the lines are shared out. Refuses: where the points come from (series.py).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.model import Absent, Device
from gpuwatch.tui import chart, columns, facts
from gpuwatch.tui.overview import gpu_row
from gpuwatch.tui.selection import ViewOptions, selected_device
from gpuwatch.tui.series import Past, ceilings, mark, past_of
from gpuwatch.tui.text import Row, Span, between, clean, fit, flow, rule

_AXIS = 5
_TWO_CHARTS_WIDTH = 110
_MIN_ROWS = 3
_MOST_ROWS = 12


class Plot(Struct, frozen=True):
    """One chart: an area with a line over it, on one scale."""

    area: str
    area_name: str
    area_role: str
    line: str
    line_name: str
    line_role: str
    text: Callable[[object], str]
    percent: bool = False


_PLOTS = (
    Plot("sm_active_pct", "SM active", "sm", "busy_pct", "busy", "busy", units.pct_text, percent=True),
    Plot("dram_active_pct", "DRAM", "dram", "tensor_active_pct", "tensor", "tensor", units.pct_text, percent=True),
    Plot("power_w", "power", "warn", "", "limit", "dim", units.watts_text),
    Plot("pcie_rx_bytes_per_s", "PCIe in", "key", "pcie_tx_bytes_per_s", "out", "text", units.rate_text),
    Plot("mem_used_bytes", "memory", "ok", "", "size", "dim", units.bytes_text),
    Plot("sm_clock_mhz", "SM clock", "accent", "", "most", "dim", units.mhz_text),
)
"""In the order in which they get room."""


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines: the readings of now, as many charts as fit, the marks, the time axis."""
    index = selected_device(state, options)
    device = state.device(index) if index is not None else None
    if device is None:
        return [(), (("  no GPU to look at", "dim"),)]
    past = past_of(state, device.index, options.window_s)
    head = _head(state, device, options, width)
    across = 2 if width >= _TWO_CHARTS_WIDTH else 1
    plots = [plot for plot in _PLOTS if plot.area in past.curves or plot.line in past.curves or plot is _PLOTS[0]]
    left = room - len(head) - 2
    deep = min(max(1, left // (_MIN_ROWS + 1)), -(-len(plots) // across))
    lines = min(left // deep, _MOST_ROWS + 1)
    cell = (width - 2 * (across - 1)) // across
    out = list(head)
    for number in range(deep):
        line = plots[number * across : (number + 1) * across]
        drawn = [_plot(state, device, past, plot, options, width=cell, lines=lines) for plot in line]
        drawn += [[((" " * cell, "text"),)] * lines] * (across - len(drawn))
        out += [_beside(parts, cell, options) for parts in zip(*drawn, strict=True)]
    sample = state.devices.get(device.index)
    known = sample is not None and not isinstance(sample.clocks_event_reasons, Absent) and not past.missing
    out.append(_beside((_marks(past, options, cell, known=known),) * across, cell, options))
    out.append(_beside((_time_axis(options, cell),) * across, cell, options))
    return out[:room]


def _beside(parts: tuple[Row, ...], cell: int, options: ViewOptions) -> Row:
    out: list[Span] = []
    for number, part in enumerate(parts):
        out += [("  ", "text")] if number else []
        out += fit(part, cell, options.glyphs)
    return tuple(out)


def window_text(window_s: int) -> str:
    """ "10 min", "1 h", "24 h"."""
    return f"{window_s // 3600} h" if window_s >= 3600 else f"{window_s // 60} min"


def _head(state: NodeState, device: Device, options: ViewOptions, width: int) -> list[Row]:
    glyphs = options.glyphs
    keys: list[Span] = [(window_text(options.window_s), "title"), ("  - +", "key"), (" window", "dim")]
    title = f"GPU {device.index}: {columns.short_name(clean(device.name))}  {clean(device.pci_bus_id)}"
    sample = state.devices.get(device.index)
    about: list[Span] = []
    if sample is None:
        about.append(("waiting for the first sample", "accent"))
    else:
        gpu = gpu_row(state, device)
        if gpu.stale:
            about.append((f"no reading for {units.seconds_text(gpu.age_s)}: its driver call does not return", "warn"))
        if columns.proxy(sample):
            about.append(("* NVML utilization: a kernel was resident; says little", "warn"))
        about += [(text, "warn") for text in facts.absences(device, sample)]
        about += facts.throttle(sample)
        for name, text in (
            ("busy", units.pct_text(sample.busy_pct)),
            ("SM", units.pct_text(sample.sm_active_pct)),
            ("tensor", units.pct_text(sample.tensor_active_pct)),
            ("DRAM", units.pct_text(sample.dram_active_pct)),
            ("power", units.watts_text(sample.power_w)),
            ("memory", units.bytes_text(sample.mem_used_bytes)),
            ("", units.celsius_text(sample.temp_c)),
        ):
            about += [(f"{name} {text}".strip(), "text")] if text != units.NA else []
        about += facts.more(sample)
    return [rule(title, keys, width, glyphs), *flow(" now ", about, width, 2, glyphs), *_burst(state, device, options)]


def _burst(state: NodeState, device: Device, options: ViewOptions) -> list[Row]:
    """What happened between two readings: the driver's own samples, some ten a second."""
    burst = state.bursts.get(device.index)
    if burst is None or not (burst.util_pct or not isinstance(burst.power_max_w, Absent)):
        return []
    said: list[Span] = [(" within the last second  ", "dim")]
    if burst.util_pct:
        steps = options.glyphs.steps
        drawn = "".join(steps[min(len(steps) - 1, value * len(steps) // 101)] for value in burst.util_pct)
        least, most = min(burst.util_pct), max(burst.util_pct)
        said += [("NVML util ", "text"), (drawn, "busy"), (f" {least}-{most} %  ", "text")]
    if not isinstance(burst.power_max_w, Absent):
        power = units.watts_text(burst.power_max_w)
        said.append((f"power {units.watts_text(burst.power_min_w).removesuffix(' W')}-{power}", "text"))
    return [tuple(said)]


def _plot(
    state: NodeState, device: Device, past: Past, plot: Plot, options: ViewOptions, *, width: int, lines: int
) -> list[Row]:
    glyphs = options.glyphs
    area, line = past.curves.get(plot.area), past.curves.get(plot.line)
    ceiling, why = _ceiling(state, device, plot)
    most = max((curve.high_value or 0.0 for curve in (area, line) if curve is not None), default=0.0)
    top = 100.0 if plot.percent else max(most, ceiling or 0.0) or 1.0
    dots = (width - _AXIS) * chart.DOTS_PER_COLUMN
    # Exactly the window: the axis below says where it begins.
    step_ns = max(1, options.window_s * chart.NANOSECOND // dots)
    hold_ns = 3 * max(past.step_ns, step_ns)
    area_data = chart.resample(area.mean if area else [], past.end_ns, step_ns, dots, hold_ns)
    if line is not None:
        line_data = chart.resample(line.mean, past.end_ns, step_ns, dots, hold_ns)
    elif area is not None and area.high is not area.mean:
        line_data = chart.resample(area.high, past.end_ns, step_ns, dots, hold_ns)
    else:
        line_data = [None] * dots
    if ceiling is not None and not plot.percent and line is None:
        line_data = [ceiling] * dots
    legend: list[Span] = []
    mark_area, mark_line = ("#", "-") if glyphs.ascii_only else ("⣿", "⠒")
    if area is not None:
        legend.append((f"{mark_area} {_said(plot, plot.area_name, area.low_value, area.high_value)}", plot.area_role))
    if line is not None:
        star = "*" if plot.line == "busy_pct" and not device.gpm else ""
        said = _said(plot, f"{plot.line_name}{star}", line.low_value, line.high_value)
        legend.append((f"  {mark_line} {said}", plot.line_role))
    if ceiling is not None and not plot.percent:
        top_is = "top: " if line is not None else ""
        legend.append((f"  {top_is}{why} {plot.text(ceiling)}", "dim"))
    out = [between(legend, (), width, (" ", "text")) if legend else fit(((past.missing, "dim"),), width, glyphs)]
    area_role, line_role = plot.area_role, plot.line_role
    drawn = chart.area_and_line(
        area_data, line_data, lines - 1, area_role=area_role, line_role=line_role, glyphs=glyphs, top=top
    )
    for number, cells in enumerate(drawn):
        label = _short(plot, top) if number == 0 else "0" if number == len(drawn) - 1 else ""
        out.append(((f"{label:>{_AXIS - 1}} ", "dim"), *cells))
    return out


def _said(plot: Plot, name: str, low: float | None, high: float | None) -> str:
    """ "SM active 3-92 %": the least and the most in the window."""
    if low is None or high is None:
        return name
    least, most = plot.text(low), plot.text(high)
    if least.split()[-1] == most.split()[-1]:
        least = least.split()[0]
    return f"{name} {most}" if least == most.split()[0] else f"{name} {least}-{most}"


def _short(plot: Plot, top: float) -> str:
    """The top of the scale in four cells."""
    if plot.percent:
        return "100"
    if plot.text in (units.bytes_text, units.rate_text):
        size, prefix = units.scaled(top)
        return f"{size:.0f}{prefix[0]}"
    return f"{top:.0f}"


def _ceiling(state: NodeState, device: Device, plot: Plot) -> tuple[float | None, str]:
    """The most that this reading can be, and how that is known."""
    measured = ceilings(state, device).get(plot.area)
    if measured is not None:
        return measured[0], f"probe {measured[1]}"
    known = {
        "power_w": device.power_limit_w, "mem_used_bytes": device.mem_total_bytes,
        "sm_clock_mhz": device.sm_clock_max_mhz,
    }.get(plot.area)  # fmt: skip
    if known is None or isinstance(known, Absent):
        return None, ""
    return float(known), plot.line_name


def _marks(past: Past, options: ViewOptions, width: int, *, known: bool) -> Row:
    """One letter for each cell in which something held the clocks down."""
    cells = width - _AXIS
    step_ns = max(1, options.window_s * 1_000_000_000 // cells)
    bits = [0] * cells
    last = past.end_ns // step_ns
    for time_ns, reasons in past.reasons:
        place = cells - 1 - (last - time_ns // step_ns)
        # A reading stands for the time since the one before it.
        for covered in range(place - past.step_ns // step_ns, place + 1):
            if 0 <= covered < cells:
                bits[covered] |= reasons
    faults = {cells - 1 - (last - time_ns // step_ns) for time_ns in past.faults}
    letters = "".join("X" if place in faults else mark(b) for place, b in enumerate(bits))
    if not letters.strip():
        said = "nothing held the clocks down" if known else "what held the clocks down is not known"
        return ((" " * _AXIS + said, "dim"),)
    said = letters.rstrip()
    legend = "  p power cap  T too hot  H hardware  X XID"
    text = said + legend if len(said) + len(legend) <= cells else letters
    return ((f"{'held':>{_AXIS - 1}} ", "dim"), (text, "warn"))


def _time_axis(options: ViewOptions, width: int) -> Row:
    window, cells = options.window_s, width - _AXIS
    left = f"-{window_text(window)}"
    middle = f"-{window_text(window // 2)}" if window >= 3600 else f"-{window / 120:g} min"
    text = left + middle.rjust(cells // 2 - len(left) + len(middle) // 2)
    return ((" " * _AXIS + text + "now".rjust(max(4, cells - len(text))), "dim"),)
