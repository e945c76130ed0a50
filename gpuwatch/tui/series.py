"""The past of one GPU as curves: from the samples that came, or from the daemon's history for longer windows.

Owns: which source serves which window, points of a reading, ceilings that probes have measured. Refuses: drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuwatch.client.state import NodeState
from gpuwatch.model import Absent, Device, DeviceSample, EventRecord
from gpuwatch.tui.chart import Point
from gpuwatch.tui.columns import proxy
from gpuwatch.verdict import ceilings as probe_ceilings
from gpuwatch.wire import GetHistory, History

WINDOWS_S = (60, 300, 600, 3600, 6 * 3600, 24 * 3600)
"""Up to ten minutes come from the samples that this client has, longer ones from the daemon."""
OWN_WINDOW_S = 600
POINTS = 300
_CEILINGS = {"pcie_rx_bytes_per_s": "h2d_pinned_bytes_per_s", "pcie_tx_bytes_per_s": "d2h_pinned_bytes_per_s"}
"""Reading to the probe's figure of the same unit. None for tensor and DRAM: those readings are percent of a peak, and
a probe says bytes and operations per second; what it saw meanwhile is a mean with its start and checks in it."""


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
    events: tuple[EventRecord, ...] = ()
    """What the driver told of this GPU, also before the window. Newest first."""


def past_of(state: NodeState, device_index: int, window_s: int) -> Past:
    """The window's past of one GPU."""
    return replace(_past_of(state, device_index, window_s), events=events_of(state, device_index))


def events_of(state: NodeState, device_index: int) -> tuple[EventRecord, ...]:
    """XIDs and the like that can be this device's: those of the GPU that it is a part of, and those of which the driver
    did not say whose they are, too. A recording that went back has no future."""
    device = state.device(device_index)
    whose = {device_index, -1}
    if device is not None and device.parent_uuid and state.inventory is not None:
        whose |= {other.index for other in state.inventory.devices if other.uuid == device.parent_uuid}
    return tuple(
        event for event in state.device_events if event.device_index in whose and event.mono_ns <= state.tick_mono_ns
    )


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


def ceilings(state: NodeState, device: Device) -> dict[str, float]:
    """Reading to the most that a clean probe of this device has reached, in the reading's unit."""
    known = probe_ceilings.ceilings(result for result in state.probes if result.device_uuid == device.uuid)
    return {name: known[figure] for name, figure in _CEILINGS.items() if figure in known}


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
