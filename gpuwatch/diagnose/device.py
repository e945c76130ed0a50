"""Causes on the device: the GPU is busy, but is it well used?

Owns: memory bandwidth, unused tensor cores, small grids, clocks. Refuses: idle time (the other families).
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import Bound, finding, gain_bound, pct, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.model import Confidence, EvidenceRow, Finding, Severity

_SLOWDOWNS = {
    "hw_slowdown": ("hw_slowdown", "The hardware has cut its clocks (power brake or fast thermal trip)"),
    "hw_power_brake": ("hw_slowdown", "An external power brake holds the clocks down"),
    "hw_thermal": ("thermal_throttle", "The GPU is too hot: the hardware has cut its clocks"),
    "sw_thermal": ("thermal_throttle", "The GPU is too hot: the driver has lowered its clocks"),
}


def find(case: Case) -> list[Finding]:
    """Findings of this family."""
    found = [f for f in (_clocks(case), _small_grids(case)) if f is not None]
    return found + [f for f in (_bandwidth(case), _tensor(case), _power_cap(case), _memory(case)) if f is not None]


def _ladder(case: Case) -> tuple[EvidenceRow | None, ...]:
    e = case.evidence
    fields = (("SM occupancy", "occupancy"), ("tensor active", "tensor"), ("FP32 pipe", "fp32"), ("DRAM", "dram"))
    return (
        *case.gpu_rows(),
        *(row(name, pct(e.mean(field)), "%", "GPM", e.window_s) for name, field in fields),
    )


def _clocks(case: Case) -> Finding | None:
    e = case.evidence
    share, name = max(((e.throttle.get(n, 0.0), n) for n in _SLOWDOWNS), default=(0.0, ""))
    if share < t.THROTTLED_WINDOWS:
        return None
    cause, sentence = _SLOWDOWNS[name]
    lost = case.busy * max(0.0, 1.0 - e.clock_share) if e.clock_share is not None else 0.0
    return finding(
        cause,
        f"{sentence}: {share_text(share)} of the readings.",
        lost,
        Bound(gain_bound(lost), "busy time × (1 - SM clock / maximum)"),
        severity=Severity.CRITICAL if name.startswith("hw") else Severity.WARNING,
        remedy="Tell whoever runs the machine: check air flow, fans, inlet temperature and power supply of this GPU. "
        "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE` shows the sensors.",
        evidence=rows(
            row(f"clocks event {name}", 100 * share, "% of readings", "NVML", e.window_s),
            row("SM clock while busy", pct(e.clock_share), "% of maximum", "NVML", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _small_grids(case: Case) -> Finding | None:
    """Busy all the time with kernels that fill few SMs: NVML says 100 %, most of the card sleeps."""
    e = case.evidence
    sm = e.mean("sm")
    if sm is None or case.busy < 0.5 or sm >= t.SMALL_GRID_SM_OF_BUSY * case.busy:
        return None
    dram, rx = e.mean("dram") or 0.0, e.mean("rx_bytes_per_s") or 0.0
    if dram >= 0.4 or rx >= 8 * t.COPY_BYTES_PER_S:
        return None
    lost = case.busy - sm
    return finding(
        "batch_too_small",
        f"The GPU is busy {share_text(case.busy)} of the time, but only {share_text(sm)} of its SMs work: kernels too "
        "small to fill it.",
        lost,
        Bound(gain_bound(lost), "busy time with idle SMs"),
        remedy="Larger batches (memory permitting), or several models side by side (MPS, MIG): one such job cannot "
        "fill this GPU.",
        confidence=Confidence.MEDIUM,
        # Ranks here that wait for one on another node look the same.
        alternatives=("launch_bound", "nvlink_or_collective_wait") if e.ranks else ("launch_bound",),
        experiment="Double the batch: if the step takes as long as before, the GPU had room.",
        evidence=rows(*_ladder(case), row("GPU memory used", pct(e.mem_used_share), "%", "NVML", e.window_s)),
    )


def _bandwidth(case: Case) -> Finding | None:
    e = case.evidence
    dram, tensor = e.mean("dram"), e.mean("tensor") or 0.0
    if dram is None or dram < t.BANDWIDTH_BOUND_DRAM or tensor >= t.BANDWIDTH_BOUND_TENSOR:
        return None
    return finding(
        "memory_bandwidth_bound",
        f"The GPU works at the limit of its memory ({share_text(dram)} of the bandwidth), not of its arithmetic.",
        0.0,
        Bound(
            gain_bound(min(1.0, dram / t.DRAM_REACHED)),
            "what waits for memory takes no time; how much of it fusing saves cannot be told from outside",
        ),
        severity=Severity.INFO,
        remedy="Fuse elementwise operations (torch.compile, fused optimizers and norms), use bf16 and in-place "
        "operations: fewer bytes is the only way to go faster.",
        evidence=rows(*_ladder(case)),
    )


def _tensor(case: Case) -> Finding | None:
    e = case.evidence
    sm, tensor, fp32 = e.mean("sm"), e.mean("tensor"), e.mean("fp32")
    if sm is None or tensor is None or fp32 is None:
        return None
    if sm < 0.6 or fp32 < t.FP32_HEAVY or tensor >= t.TENSOR_UNUSED * fp32:
        return None
    return finding(
        "tensor_cores_unused",
        f"The FP32 units work {share_text(fp32)} of the time and the tensor cores {share_text(tensor)}.",
        0.0,
        Bound(
            gain_bound(min(1.0, fp32 / t.FP32_REACHED) * (1.0 - 1.0 / t.TENSOR_OVER_FP32)),
            f"all FP32 work is matrix products and runs {t.TENSOR_OVER_FP32:.0f} times as fast on tensor cores",
        ),
        severity=Severity.WARNING,
        remedy='torch.autocast("cuda", dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high") for TF32.',
        confidence=Confidence.MEDIUM,
        alternatives=("no mixed precision", "TF32 off"),
        experiment="Set TF32 on for one run: if the tensor pipe lights up, matrix products were the load.",
        evidence=rows(*_ladder(case)),
    )


def _power_cap(case: Case) -> Finding | None:
    """Touching the power limit under full load is how the card works; a deep cap on a cool load is worth a word."""
    e = case.evidence
    share = e.throttle.get("sw_power_cap", 0.0)
    if share < 0.5 or e.clock_share is None or e.clock_share >= 0.6:
        return None
    return finding(
        "power_capped",
        f"The power limit holds the SM clock at {share_text(e.clock_share)} of its maximum.",
        case.busy * (1.0 - e.clock_share),
        Bound(gain_bound(case.busy * (1.0 - e.clock_share)), "busy time × (1 - SM clock / maximum)"),
        severity=Severity.INFO,
        remedy="Ask whether the power limit was lowered on purpose (`nvidia-smi -q -d POWER`).",
        confidence=Confidence.MEDIUM,
        evidence=rows(
            row("power cap active", 100 * share, "% of readings", "NVML", e.window_s),
            row("SM clock while busy", pct(e.clock_share), "% of maximum", "NVML", e.window_s),
        ),
    )


def _memory(case: Case) -> Finding | None:
    """An allocator that holds nearly all is normal; the next larger tensor fails all the same."""
    share = case.evidence.mem_used_share
    if share is None or share < t.NEARLY_FULL_MEMORY:
        return None
    return finding(
        "gpu_memory_nearly_full",
        f"{share_text(share)} of the GPU's memory is in use: a longer sequence or a larger batch may not fit.",
        0.0,
        Bound(1.0, "memory that is in use costs no time by itself"),
        severity=Severity.INFO,
        remedy="Nothing, while it runs; else a smaller batch, activation checkpointing, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        evidence=rows(row("GPU memory used", 100 * share, "%", "NVML", case.evidence.window_s)),
    )
