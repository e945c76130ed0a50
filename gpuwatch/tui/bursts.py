"""What happened between two readings: the driver's own samples, utilization some five a second, power some fifty.

Owns: one line of the last tick, or a small chart of the last ticks. Refuses: which of them there is room for (gpu.py).
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.client.state import NodeState, TimedBurst
from gpuwatch.model import Absent, Device
from gpuwatch.tui import chart
from gpuwatch.tui.marks import AXIS
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Row, Span, between

LINES = 4
"""Of the chart, its legend included."""
_STEP_NS = 200_000_000
"""Of one dot: how often an H200 samples its utilization."""


def has_chart(state: NodeState, device: Device) -> bool:
    """More than one tick of sub-second samples is known."""
    known = [entry for entry in state.burst_history.get(device.index, ()) if _said(entry)]
    return len(known) > 1


def line(state: NodeState, device: Device, options: ViewOptions) -> list[Row]:
    """The last tick in one line; none when the driver has no such samples."""
    burst = state.bursts.get(device.index)
    if burst is None or not (burst.util_pct or not isinstance(burst.power_max_w, Absent)):
        return []
    said: list[Span] = [(" sample by sample  ", "dim")]
    if burst.util_pct:
        steps = options.glyphs.steps
        drawn = "".join(steps[min(len(steps) - 1, value * len(steps) // 101)] for value in burst.util_pct)
        said += [("NVML util ", "text"), (drawn, "busy"), (f" {_range(burst.util_pct)} %  ", "text")]
    if not isinstance(burst.power_max_w, Absent) and not isinstance(burst.power_min_w, Absent):
        said.append((f"power {_range((burst.power_min_w, burst.power_max_w))} W", "text"))
    return [tuple(said)]


def util_chart(state: NodeState, device: Device, options: ViewOptions, width: int, *, with_power: bool) -> list[Row]:
    """Utilization, each sample for itself. ``with_power``: the least and the most power at the end of the legend."""
    ticks = _shown(state, device, width)
    points = [point for tick, interval_ns in ticks for point in _util_points(tick, interval_ns)]
    sign = "#" if options.glyphs.ascii_only else "⣿"
    legend: list[Span] = [(f"{sign} NVML util below a second, {_span(ticks)}: ", "busy")]
    legend.append((f"{_range([value for _, value in points])} %" if points else "no samples, an idle GPU", "busy"))
    power: list[Span] = [(f"power {text}", "warn")] if with_power and (text := _power_text(ticks)) else []
    values = _dots(points, ticks, width, 3 * _STEP_NS)
    nothing: list[float | None] = [None] * len(values)
    plot = chart.area_and_line(values, nothing, LINES - 1, area_role="busy", glyphs=options.glyphs)
    return [between(legend, power, width), *_labelled(plot, "100")]


def power_chart(state: NodeState, device: Device, options: ViewOptions, width: int) -> list[Row]:
    """The least and the most power of each tick, under the card's limit."""
    ticks = _shown(state, device, width)
    low: list[chart.Point] = []
    high: list[chart.Point] = []
    for tick, interval_ns in ticks:
        # Both stand for the whole tick.
        begin_ns = tick.mono_ns - interval_ns + _STEP_NS // 2
        if not isinstance(tick.burst.power_min_w, Absent) and not isinstance(tick.burst.power_max_w, Absent):
            low.append((begin_ns, float(tick.burst.power_min_w)))
            high.append((begin_ns, float(tick.burst.power_max_w)))
    limit = None if isinstance(device.power_limit_w, Absent) else device.power_limit_w
    top = max(limit or 1.0, *(value for _, value in high), 1.0)
    signs = ("#", "-", "=") if options.glyphs.ascii_only else ("⣿", "⠒", "⠁")
    legend: list[Span] = [(f"{signs[0]} least ", "warn"), (f"{signs[1]} most ", "text")]
    legend.append((f"power: {_power_text(ticks) or 'no samples'}", "text"))
    legend += [(f"  {signs[2]} limit {units.watts_text(limit)}", "dim")] if limit is not None else []
    hold_ns = max((interval_ns for _, interval_ns in ticks), default=0)
    drawn = [_dots(points, ticks, width, hold_ns) for points in (low, high)]
    levels = () if limit is None else (limit,)
    plot = chart.area_and_line(
        drawn[0], drawn[1], LINES - 1, area_role="warn", line_role="text", glyphs=options.glyphs, top=top, levels=levels
    )
    return [between(legend, (), width), *_labelled(plot, f"{top:.0f}")]


def _said(entry: TimedBurst) -> bool:
    return bool(entry.burst.util_pct) or not isinstance(entry.burst.power_max_w, Absent)


def _shown(state: NodeState, device: Device, width: int) -> list[tuple[TimedBurst, int]]:
    """The ticks that the chart has room for, each with its length; across a gap a tick is one period long. Beside GPM
    the samples of two periods come together."""
    history = state.burst_history.get(device.index, ())
    end_ns = history[-1].mono_ns if history else 0
    period_ns = int(state.period_s * chart.NANOSECOND)
    first_ns = end_ns - (width - AXIS) * chart.DOTS_PER_COLUMN * _STEP_NS
    out = []
    for before, tick in zip((None, *history), history, strict=False):
        length_ns = tick.mono_ns - before.mono_ns if before is not None else period_ns
        together = 2 * len(tick.burst.util_pct) * _STEP_NS > 3 * period_ns
        if tick.mono_ns > first_ns:
            out.append((tick, length_ns if 2 * length_ns < (5 if together else 3) * period_ns else period_ns))
    return out


def _util_points(tick: TimedBurst, interval_ns: int) -> list[chart.Point]:
    """The message has the values in their order and not their times: they are spread evenly over the tick."""
    count = len(tick.burst.util_pct)
    begin_ns = tick.mono_ns - interval_ns
    return [
        (begin_ns + (2 * place + 1) * interval_ns // (2 * count), float(value))
        for place, value in enumerate(tick.burst.util_pct)
    ]


def _dots(
    points: list[chart.Point], ticks: list[tuple[TimedBurst, int]], width: int, hold_ns: int
) -> list[float | None]:
    end_ns = ticks[-1][0].mono_ns if ticks else 0
    return chart.resample(points, end_ns, _STEP_NS, (width - AXIS) * chart.DOTS_PER_COLUMN, hold_ns)


def _labelled(plot: list[Row], top: str) -> list[Row]:
    labels = [top, *[""] * (len(plot) - 2), "0"]
    return [((f"{label:>{AXIS - 1}} ", "dim"), *cells) for label, cells in zip(labels, plot, strict=True)]


def _span(ticks: list[tuple[TimedBurst, int]]) -> str:
    seconds = (ticks[-1][0].mono_ns - ticks[0][0].mono_ns + ticks[0][1]) / 1e9 if ticks else 0.0
    return f"last {units.seconds_text(round(seconds))}"


def _power_text(ticks: list[tuple[TimedBurst, int]]) -> str:
    low = [tick.burst.power_min_w for tick, _ in ticks]
    high = [tick.burst.power_max_w for tick, _ in ticks]
    values = [value for value in (*low, *high) if not isinstance(value, Absent)]
    return f"{_range(values)} W" if values else ""


def _range(values: list[float] | list[int] | tuple[int, ...]) -> str:
    """ "0-100", or one number."""
    least, most = round(min(values)), round(max(values))
    return f"{least}-{most}" if least != most else f"{most}"
