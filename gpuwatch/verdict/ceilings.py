"""What this machine can reach, from its own probes: the yardsticks of a diagnosis.

Owns: which probe figure is the ceiling of what, in base units. Refuses: judging a job.

Units are in the names: bytes per second, FLOP per second, seconds, items per second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict.quantities import broken, in_base_unit

_RULES: tuple[tuple[str, str], ...] = (
    (r"^copies\.(h2d|d2h|bidir)_(pinned|pageable)_\d+MiB$", r"\1_\2_bytes_per_s"),
    (r"^matmul\.(fp64|fp32|tf32|fp16|bf16|fp8)_\d+_sustained$", r"matmul_\1_flop_per_s"),
    (r"^memory\.(copy|clone|triad|broadcast_add)$", r"dram_\1_bytes_per_s"),
    (r"^conv\.(fp32|bf16)_(nchw|channels_last)_(forward|train)$", r"conv_\1_\2_\3_flop_per_s"),
    (r"^launch\.enqueue$", "launch_enqueue_s"),
    (r"^launch\.round_trip$", "launch_round_trip_s"),
    (r"^launch\.event_gap$", "launch_gap_s"),
    (r"^dataloader\.workers_\d+$", "loader_items_per_s"),
    (r"^storage\.(sequential|sequential_cached|write)$", r"storage_\1_bytes_per_s"),
    (r"^storage\.small_files$", "storage_small_files_per_s"),
    (r"^shm\.transfer_\w+$", "shm_transfer_bytes_per_s"),
    (r"^allreduce\.(\w+)_busbw$", r"\1_busbw_bytes_per_s"),
)


def ceilings(results: Iterable[ProbeResult]) -> dict[str, float]:
    """The best that the given results show, by name: of several sizes or worker counts the best one.

    Only results that are OK and had the device to themselves count; of several runs of one probe on one device the
    newest does. Pass the results of one device; several devices give the best of them.
    """
    newest: dict[tuple[str, str], ProbeResult] = {}
    for result in sorted(results, key=lambda result: result.started_wall_ns):
        if result.status is ProbeStatus.OK and not result.contaminated:
            newest[result.probe, result.device_uuid or result.device] = result
    found: dict[str, float] = {}
    for result in newest.values():
        for value in result.values:
            name = ceiling_name(result.probe, value.name)
            figure = in_base_unit(value.median, value.unit)
            if name and figure is not None and not broken(value):
                found[name] = _better(found[name], figure, value) if name in found else figure
    return found


def ceiling_name(probe: str, value: str) -> str:
    """The ceiling that this quantity is, such as "h2d_pinned_bytes_per_s", or ""."""
    for pattern, name in _RULES:
        match = re.search(pattern, f"{probe}.{value}")
        if match:
            return match.expand(name)
    return ""


def _better(one: float, other: float, value: ProbeValue) -> float:
    return max(one, other) if value.higher_is_better else min(one, other)
