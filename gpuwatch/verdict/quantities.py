"""Which figures of a probe are judged, how noisy they may be, and their units.

Owns: the judged values of a result, tolerances until a machine's own noise is known, units that policies may use.
Refuses: statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from gpuwatch.model import ProbeResult, ProbeValue

_SHOWN = re.compile(r"first_call|first_batch|compile_(s|time)|cold|worker_start|_p9\d|^knee")
"""Shown, never judged: the costs of a start, one sample a run and ten times as long after a driver update; tails; and
what was measured at the knee, which moves from run to run."""
COUNTS = ("", "workers", "count", "x")
"""Units of numbers that are chosen, or follow from others, as a speed-up does."""

# Relative noise between fresh processes until selftest has learned this machine's own. Published spread behind them:
# 39 H100 nodes, ResNet-50 AMP 0.62 % and TF32 0.07 %, BERT fp16 1.85 %.
_TOLERANCES = (
    (r"launch|latency|kernel_gap", 0.05),
    (r"loader|storage|shm|decode|disk|worker|pin_memory", 0.10),
    (r"compile", 0.03),
    (r"copies|copy|h2d|d2h|bert|transfer", 0.02),
    (r"allreduce|all_reduce|allgather|all_gather|collective", 0.05),
)
GPU_TOLERANCE = 0.02
CPU_TOLERANCE = 0.10
"""A CPU shares its caches, memory and clocks with everybody on the machine."""


def judged(result: ProbeResult) -> Iterator[ProbeValue]:
    """The values that a verdict may rest on: no cold start, no chosen count, one of a rate and its time."""
    names = {value.name for value in result.values}
    for value in result.values:
        twin = value.name.endswith("_ms") and value.name[:-3] in names
        if not twin and not _SHOWN.search(value.name) and value.unit not in COUNTS:
            yield value


def broken(value: ProbeValue) -> bool:
    """Whether the figure is no measurement: zero, negative or not finite. All-equal zeros are no healthy fleet."""
    return not (math.isfinite(value.median) and value.median > 0)


def tolerance(probe: str, value: str, device: str) -> float:
    """Changes of this share or less count as none until the machine's own noise is known."""
    found = next((share for words, share in _TOLERANCES if re.search(words, f"{probe}.{value}")), GPU_TOLERANCE)
    return max(found, CPU_TOLERANCE) if device.startswith("cpu") else found


def score(median: float, higher_is_better: bool) -> float:
    """The logarithm that grows as things get better: differences of scores are log ratios."""
    return math.log(median) if higher_is_better else -math.log(median)


def figure_of(score_: float, higher_is_better: bool) -> float:
    """The figure that has this score."""
    return math.exp(score_ if higher_is_better else -score_)


def share(log_ratio: float) -> float:
    """A difference of scores as a share: 0.0488 is 0.05, five percent better. Saturates instead of overflowing."""
    return math.expm1(min(log_ratio, 700.0))


# --------------------------------------------------------------------------- units

_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def base_unit(unit: str) -> tuple[str, float] | None:
    """The unit without its prefix, and the factor: "TB/s" is ("B/s", 1e12), "µs" is ("s", 1e-6). None: not known."""
    text = unit.strip().replace("FLOPS", "FLOP/s")
    if text in _TIMES:
        return "s", _TIMES[text]
    match = re.fullmatch(r"(Ki|Mi|Gi|Ti|[kKMGTP]?)(B|FLOP|OP)/s", text)
    if match:
        factor = _BINARY[match[1]] if match[1] in _BINARY else _SCALES[match[1]]
        return f"{match[2]}/s", factor
    if re.fullmatch(r"[a-z]+/s|IOPS", text):
        return text, 1.0
    if text in ("B", "KiB", "MiB", "GiB", "TiB"):
        return "B", _BINARY.get(text[:-1], 1.0)
    return None


def in_base_unit(value: float, unit: str) -> float | None:
    """The value in bytes per second, FLOP per second or seconds. None for a unit that is not known."""
    found = base_unit(unit)
    return value * found[1] if found else None


def converted(value: float, unit: str, to: str) -> float | None:
    """The value in another unit of the same kind, None when they are of different kinds."""
    source, target = base_unit(unit), base_unit(to)
    if source is None or target is None or source[0] != target[0]:
        return None
    return value * source[1] / target[1]
