"""What the GPU did while a probe ran: samples folded into a few numbers of the result.

Owns: the names and the arithmetic. Refuses: reading a GPU.

So a slow result says by itself whether it was the clocks, power, another tenant or the code. A name that is not there
was not read; it is never zero for that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from gpuwatch.model import Absent, ClocksEvent, DeviceSample, ProbeResult, value_or
from gpuwatch.verdict.quantities import judged

_MEANS = (
    "power_w",
    "temp_c",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "busy_pct",
    "sm_active_pct",
    "tensor_active_pct",
    "fp32_active_pct",
    "dram_active_pct",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
)
_HIGHEST = ("power_w", "temp_c", "mem_used_bytes")
_LOADED_PCT = 50
"""A sample counts as "under load" from this utilization on: start-up and checks of a probe leave the GPU idle."""
_THROTTLED = ClocksEvent.SW_THERMAL | ClocksEvent.HW_THERMAL | ClocksEvent.HW_SLOWDOWN | ClocksEvent.HW_POWER_BRAKE
"""A power cap is not among them: a matrix product at the power limit is what the card is built for."""


def observed(samples: Sequence[DeviceSample]) -> dict[str, float]:
    """Means over the samples under load (over all when none is), highest values, shares of throttled samples, energy.

    Names: those of DeviceSample for means, ``*_max`` for highest values, ``energy_j`` over the whole run, and
    ``samples``. Empty without a sample. Of several GPUs, means are of one of them and energy is of all.
    """
    if not samples:
        return {}
    loaded = [sample for sample in samples if value_or(sample.gpu_util_pct, 0.0) >= _LOADED_PCT]
    span = loaded or list(samples)
    found: dict[str, float] = {"samples": float(len(samples)), "loaded_samples": float(len(loaded))}
    for name in _MEANS:
        values = _values(span, name)
        if values:
            found[name] = sum(values) / len(values)
    clocks = _values(span, "sm_clock_mhz")
    if clocks:
        found["sm_clock_mhz_min"] = min(clocks)
    for name in _HIGHEST:
        values = _values(samples, name)
        if values:
            found[f"{name}_max"] = max(values)
    reasons = [sample.clocks_event_reasons for sample in span if isinstance(sample.clocks_event_reasons, int)]
    if reasons:
        found["throttled_share"] = sum(bool(bits & _THROTTLED) for bits in reasons) / len(reasons)
        found["power_capped_share"] = sum(bool(bits & ClocksEvent.SW_POWER_CAP) for bits in reasons) / len(reasons)
    energy = energy_j(samples)
    if energy is not None:
        found["energy_j"] = energy
    return found


def energy_j(samples: Sequence[DeviceSample]) -> float | None:
    """Energy of all GPUs together between the first and the last sample with a power reading (trapezoids); None where
    one of them has fewer than two."""
    points: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        here = points.setdefault(sample.device_index, [])
        if not isinstance(sample.power_w, Absent):
            here.append((sample.mono_ns / 1e9, float(sample.power_w)))
    if not points or any(len(here) < 2 for here in points.values()):
        return None
    return sum((t1 - t0) * (p0 + p1) / 2 for here in points.values() for (t0, p0), (t1, p1) in pairwise(here))


def with_observed(result: ProbeResult, samples: Iterable[DeviceSample]) -> ProbeResult:
    """The result with what was seen, and the energy per unit of work where the probe has a single rate.

    With several rates in one run the power is a mean over all of them and belongs to none.
    """
    samples = list(samples)
    seen = observed(samples)
    rates = [value for value in judged(result) if value.higher_is_better and value.unit.endswith("/s")]
    if len(rates) == 1 and seen.get("loaded_samples") and "power_w" in seen:
        unit = rates[0].unit.removesuffix("/s").lower()
        seen[f"energy_per_{unit}_j"] = (
            seen["power_w"] * len({sample.device_index for sample in samples}) / rates[0].median
        )
    return msgspec.structs.replace(result, observed=seen) if seen else result


def _values(samples: Iterable[DeviceSample], name: str) -> list[float]:
    readings = (getattr(sample, name) for sample in samples)
    return [float(reading) for reading in readings if isinstance(reading, (int, float))]
