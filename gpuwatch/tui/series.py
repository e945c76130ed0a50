"""The past of one GPU as curves: from the samples that came, or from the daemon's history for longer windows.

Owns: which source serves which window, points of a reading, ceilings that probes have measured. Refuses: drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuwatch.client.state import NodeState
from gpuwatch.model import Absent, ClocksEvent, Device, DeviceSample, ProbeStatus
from gpuwatch.tui.chart import Point
from gpuwatch.tui.columns import proxy
from gpuwatch.wire import GetHistory, History

WINDOWS_S = (60, 300, 600, 3600, 6 * 3600, 24 * 3600)
"""Up to ten minutes come from the samples that this client has, longer ones from the daemon."""
OWN_WINDOW_S = 600
POINTS = 300
MARKS: tuple[tuple[ClocksEvent, str], ...] = (
    (ClocksEvent.HW_SLOWDOWN | ClocksEvent.HW_POWER_BRAKE, "H"),
    (ClocksEvent.HW_THERMAL | ClocksEvent.SW_THERMAL, "T"),
    (ClocksEvent.SW_POWER_CAP, "p"),
)
"""Worst first: one letter stands for a cell."""


class Curve(Struct, frozen=True):
    """One reading over the window."""

    mean: list[Point]
    high: list[Point]
    """The same as ``mean`` where there is one reading a point."""
    low_value: float | None = None
    high_value: float | None = None
    """Extremes over the window."""


class Past(Struct, frozen=True):
    """What there is to draw."""

    end_ns: int
    step_ns: int
    curves: dict[str, Curve]
    reasons: list[tuple[int, int]]
    """Time and bits of clocks_event_reasons."""
    missing: str = ""
    """Why there is nothing, one line."""
    faults: list[int] = []
    """When the driver reported an XID or the like."""


def past_of(state: NodeState, device_index: int, window_s: int) -> Past:
    """The window's past of one GPU."""
    faults = [record.mono_ns for record in state.device_events if record.device_index == device_index]
    return replace(_past_of(state, device_index, window_s), faults=faults)


def _past_of(state: NodeState, device_index: int, window_s: int) -> Past:
    if window_s <= OWN_WINDOW_S:
        return _own(state, device_index, window_s)
    past = state.past
    if past is None or (past.device_index, round(past.seconds)) != (device_index, window_s):
        why = state.past_refusal or "asking the daemon for its history"
        return Past(state.tick_mono_ns, window_s * 1_000_000_000 // POINTS, {}, [], why)
    return _from_daemon(past)


def request_for(state: NodeState, device_index: int, window_s: int) -> GetHistory | None:
    """What to ask the daemon for, or None while what we have is new enough."""
    if window_s <= OWN_WINDOW_S or not state.tick_mono_ns:
        return None
    past = state.past
    if past is not None and (past.device_index, round(past.seconds)) == (device_index, window_s):
        end_ns = past.start_mono_ns + len(past.reasons) * past.step_ns
        if past.start_mono_ns <= state.tick_mono_ns < end_ns:
            return None
    return GetHistory(0, device_index, float(window_s), POINTS)


def value_of(sample: DeviceSample, name: str) -> float | None:
    """A reading as a number; busy falls back to NVML's utilization where that is all there is."""
    value = getattr(sample, "gpu_util_pct" if name == "busy_pct" and proxy(sample) else name)
    return None if isinstance(value, Absent) else float(value)


def mark(bits: int) -> str:
    """The letter of the worst reason that holds the clocks down; a space for none."""
    return next((letter for reason, letter in MARKS if bits & reason), " ")


def ceilings(state: NodeState, device: Device) -> dict[str, tuple[float, str]]:
    """Reading to (measured most, by which probe): the line that this machine can reach."""
    best: dict[str, tuple[float, str]] = {}
    for result in state.probes:
        if result.status is not ProbeStatus.OK or result.device_uuid != device.uuid or result.contaminated:
            continue
        for value in result.values:
            for way, name in (("h2d", "pcie_rx_bytes_per_s"), ("d2h", "pcie_tx_bytes_per_s")):
                if value.name.startswith(f"{way}_") and value.unit == "GB/s":
                    reached = value.median * 1e9
                    if reached > best.get(name, (0.0, ""))[0]:
                        best[name] = (reached, result.probe)
    return best


def _own(state: NodeState, device_index: int, window_s: int) -> Past:
    history = state.history.get(device_index)
    samples = history.samples if history is not None else ()
    end_ns = samples[-1].mono_ns if samples else state.tick_mono_ns
    samples = tuple(s for s in samples if s.mono_ns > end_ns - window_s * 1_000_000_000)
    names = (
        *("busy_pct", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "power_w", "temp_c", "sm_clock_mhz"),
        *("mem_used_bytes", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    )
    curves = {}
    for name in names:
        points = [(s.mono_ns, value) for s in samples if (value := value_of(s, name)) is not None]
        if points:
            values = [value for _, value in points]
            curves[name] = Curve(points, points, min(values), max(values))
    reasons = [(s.mono_ns, s.clocks_event_reasons) for s in samples if not isinstance(s.clocks_event_reasons, Absent)]
    missing = "" if samples else "waiting for the first sample"
    return Past(end_ns, int(state.period_s * 1e9), curves, reasons, missing)


def _from_daemon(past: History) -> Past:
    def points(values: Sequence[int | None], scale: float) -> list[Point]:
        middle = past.start_mono_ns + past.step_ns // 2
        return [(middle + i * past.step_ns, v * scale) for i, v in enumerate(values) if v is not None]

    curves = {}
    for series in past.series:
        mean = points(series.mean, series.scale)
        high = points(series.high, series.scale) if series.high else mean
        low = points(series.low, series.scale) if series.low else mean
        if mean:
            curves[series.name] = Curve(mean, high, min(v for _, v in low), max(v for _, v in high))
    if "busy_pct" not in curves and "gpu_util_pct" in curves:
        curves["busy_pct"] = curves["gpu_util_pct"]
    reasons = [(past.start_mono_ns + i * past.step_ns, bits) for i, bits in enumerate(past.reasons) if bits]
    end_ns = past.start_mono_ns + len(past.reasons) * past.step_ns - 1
    return Past(end_ns, past.step_ns, curves, reasons)
