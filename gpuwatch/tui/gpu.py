"""One GPU over time: charts from a minute to a day, what held its clocks down, what probes say it can reach.

Owns: which charts there are and how the lines are shared out. Refuses: where the points come from (series.py), marks
on the time axis (marks.py), what happened between two readings (bursts.py).

As the height shrinks: the chart of sub-second samples becomes one line, then the charts get lower, down to two rows,
then they go from the last one on: clock, memory, PCIe, power, DRAM. Readings, one chart, marks and axis stay.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.export import card
from gpuwatch.model import Absent, Device
from gpuwatch.tui import bursts, chart, columns, facts, marks
from gpuwatch.tui.marks import AXIS, window_text
from gpuwatch.tui.overview import part_of, troubles
from gpuwatch.tui.selection import ViewOptions, selected_device
from gpuwatch.tui.series import Curve, Past, ceilings, past_of
from gpuwatch.tui.text import Row, Span, between, clean, fit, flow, row_width, rule

_TWO_CHARTS_WIDTH = 110
_MIN_ROWS = 3
_MOST_ROWS = 12
_ROOMY = 6
"""Lines of each chart, its legend included, that the chart of sub-second samples must leave."""
_CARD_ROOM = 28
"""Lines of the body from which on the card has lines of its own, also when all is well: at 24 the charts need them."""
_SAME_LEVEL = 0.1
"""Ceilings that are this close to each other are one line: both ways of a link, as a rule."""


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
    across = 2 if width >= _TWO_CHARTS_WIDTH else 1
    cell = (width - 2 * (across - 1)) // across
    plots = [plot for plot in _PLOTS if plot.area in past.curves or plot.line in past.curves or plot is _PLOTS[0]]
    all_deep = -(-len(plots) // across)
    sample = state.devices.get(device.index)
    known = sample is not None and not isinstance(sample.clocks_event_reasons, Absent) and not past.missing
    feet = marks.rows(past, options, cell, known=known, across=across)
    out = [*_head(state, device, options, width), *_card(state, device, options, width, roomy=room >= _CARD_ROOM)]
    roomy = room - len(out) - len(feet) - bursts.LINES >= all_deep * _ROOMY
    out += _bursts(state, device, options, width, cell, roomy=roomy)
    left = room - len(out) - len(feet)
    deep = min(max(1, left // (_MIN_ROWS + 1)), all_deep)
    lines = min(left // deep, _MOST_ROWS + 1)
    for number in range(deep):
        line = plots[number * across : (number + 1) * across]
        drawn = [_plot(state, device, past, plot, options, width=cell, lines=lines) for plot in line]
        drawn += [[((" " * cell, "text"),)] * lines] * (across - len(drawn))
        out += [_beside(parts, cell, options) for parts in zip(*drawn, strict=True)]
    out += [_beside(foot, cell, options) for foot in feet]
    return out[:room]


def _bursts(state: NodeState, device: Device, options: ViewOptions, width: int, cell: int, *, roomy: bool) -> list[Row]:
    """The sub-second samples: a chart, or two side by side, where there is room; else one line."""
    if not roomy or not bursts.has_chart(state, device):
        return bursts.line(state, device, options)
    util = bursts.util_chart(state, device, options, cell, with_power=cell == width)
    if cell == width:
        return util
    power = bursts.power_chart(state, device, options, cell)
    return [_beside(parts, cell, options) for parts in zip(util, power, strict=True)]


def _beside(parts: tuple[Row, ...], cell: int, options: ViewOptions) -> Row:
    out: list[Span] = []
    for number, part in enumerate(parts):
        out += [("  ", "text")] if number else []
        out += fit(part, cell, options.glyphs)
    return tuple(out)


def _head(state: NodeState, device: Device, options: ViewOptions, width: int) -> list[Row]:
    glyphs = options.glyphs
    keys: list[Span] = [(window_text(options.window_s), "title"), ("  - +", "key"), (" window", "dim")]
    title = f"GPU {device.index}: {columns.short_name(clean(device.name))}{part_of(state, device)}"
    title += f"  {clean(device.pci_bus_id)}"
    sample = state.devices.get(device.index)
    about = troubles(state, device)
    if sample is not None:
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
    return [rule(title, keys, width, glyphs), *flow(" now ", about, width, 2, glyphs)]


def _card(state: NodeState, device: Device, options: ViewOptions, width: int, *, roomy: bool) -> list[Row]:
    """What the slow readings say: one line where somebody should do something or the clocks were held down, and, where
    there is room, always."""
    health = state.health.get(device.index)
    if health is None:
        return []
    said: list[Span] = [(text, "warn") for text in card.warnings(health)]
    if held := card.duty_text(health):
        said.append((f"held down: {held} of the time", "warn"))
    hot = isinstance(health.temp_margin_c, int) and health.temp_margin_c <= card.NEAR_LIMIT_C
    if not (said or hot or roomy):
        return []
    if isinstance(health.temp_margin_c, int):
        said.append((card.margin_text(health.temp_margin_c), "text"))
    said += [(text, "text") for text in card.modes(health)]
    return flow(" card ", said, width, 2, options.glyphs) if said else []


def _plot(
    state: NodeState, device: Device, past: Past, plot: Plot, options: ViewOptions, *, width: int, lines: int
) -> list[Row]:
    glyphs = options.glyphs
    area, line = past.curves.get(plot.area), past.curves.get(plot.line)
    levels, said = _levels(state, device, plot, ascii_only=glyphs.ascii_only)
    most = max((curve.high_value or 0.0 for curve in (area, line) if curve is not None), default=0.0)
    top = 100.0 if plot.percent else max(most, *levels, 0.0) or 1.0
    dots = (width - AXIS) * chart.DOTS_PER_COLUMN
    # Exactly the window: the axis below says where it begins.
    step_ns = max(1, options.window_s * chart.NANOSECOND // dots)
    hold_ns = 3 * max(past.step_ns, step_ns)
    area_data = chart.resample(area.mean if area else [], past.end_ns, step_ns, dots, hold_ns)
    over: list[chart.Point] = []
    if line is not None:
        over = line.mean
    elif area is not None and area.high is not area.mean:
        over = area.high
    line_data = chart.resample(over, past.end_ns, step_ns, dots, hold_ns)
    legend = _legend(plot, area, line, device, glyphs.ascii_only)
    # What the scale ends at can be read beside it: a legend without room says only what that is.
    for text in said:
        if row_width(legend) + len(text) <= width:
            legend.append((text, "dim"))
            break
    out = [between(legend, (), width, (" ", "text")) if legend else fit(((past.missing, "dim"),), width, glyphs)]
    area_role, line_role = plot.area_role, plot.line_role
    drawn = chart.area_and_line(
        area_data, line_data, lines - 1, area_role=area_role, line_role=line_role, glyphs=glyphs, top=top, levels=levels
    )
    for number, cells in enumerate(drawn):
        label = _short(plot, top) if number == 0 else "0" if number == len(drawn) - 1 else ""
        out.append(((f"{label:>{AXIS - 1}} ", "dim"), *cells))
    return out


def _legend(plot: Plot, area: Curve | None, line: Curve | None, device: Device, ascii_only: bool) -> list[Span]:
    legend: list[Span] = []
    mark_area, mark_line = ("#", "-") if ascii_only else ("⣿", "⠒")
    if area is not None:
        legend.append((f"{mark_area} {_said(plot, plot.area_name, area.low_value, area.high_value)}", plot.area_role))
    if line is not None:
        star = "*" if plot.line == "busy_pct" and not device.gpm else ""
        said = _said(plot, f"{plot.line_name}{star}", line.low_value, line.high_value)
        legend.append((f"  {mark_line} {said}", plot.line_role))
    return legend


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


def _levels(
    state: NodeState, device: Device, plot: Plot, *, ascii_only: bool
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """The most that these readings can be, as levels, and what to say of them: the longest first."""
    sign = "  = " if ascii_only else "  ⠁ "
    known = {
        "power_w": device.power_limit_w, "mem_used_bytes": device.mem_total_bytes,
        "sm_clock_mhz": device.sm_clock_max_mhz,
    }.get(plot.area)  # fmt: skip
    if known is not None and not isinstance(known, Absent):
        return (float(known),), (f"{sign}{plot.line_name} {plot.text(float(known))}", f"{sign}{plot.line_name}")
    reached = ceilings(state, device)
    inward, outward = reached.get(plot.area), reached.get(plot.line)
    if inward is None or outward is None:
        level, name = (inward, "") if inward is not None else (outward, f"{plot.line_name} ")
        if level is None:
            return (), ()
        return (level,), (f"{sign}{name}{plot.text(level)} measured", f"{sign}{name}measured")
    if abs(inward - outward) <= _SAME_LEVEL * max(inward, outward):
        level = max(inward, outward)
        return (level,), (
            f"{sign}{plot.text(level)} measured",
            f"{sign}{_short(plot, level)} measured",
            f"{sign}measured",
        )
    both = f"in {_short(plot, inward)}, out {_short(plot, outward)} measured"
    return (inward, outward), (f"{sign}{both}", f"{sign}measured")
