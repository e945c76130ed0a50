"""Several ranks of one job on one node: who waits for whom, and whether the exchange itself is what costs.

Owns: telling a rank that waits in a collective from one that is slow itself. Refuses: why the slow one is slow (its
own diagnosis says that).

A rank that waits for the others spins in a communication kernel: its GPU reads busy all the time, while its SMs,
tensor cores and memory hardly move. Its thread stands at the next call that waits for the GPU, which says nothing. The
rank that is waited for shows the opposite: its GPU idles, or works longer than the others'. So the culprit is the one
that does not look stuck, and looking at one GPU alone gets it the wrong way round.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import Bound, finding, gain_bound, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.evidence import Evidence, Rank
from gpuwatch.diagnose.moments import pinned_ceiling
from gpuwatch.model import Confidence, EvidenceRow, Finding


def find(case: Case) -> Finding | None:
    """The finding for a rank that waits or exchanges, or None when it does neither (or has no other ranks)."""
    if not case.evidence.ranks:
        return None
    return _waits_for_idle(case) or _waits_for_busy(case) or _exchanges(case)


def _waits_for_idle(case: Case) -> Finding | None:
    """Ranks in step have the same work: what our GPU is busy longer than the slowest one's is our wait, unless our SMs
    work longer in the same measure. Without SM counters the gap alone must do."""
    e, sm = case.evidence, case.evidence.mean("sm")
    slowest = min(e.ranks, key=lambda rank: rank.busy)
    lost = case.busy - slowest.busy
    if lost < t.STRAGGLER_GAP:
        return None
    known = sm is not None and slowest.sm is not None
    if known and sm - slowest.sm >= t.SMALL_GRID_SM_OF_BUSY * lost:  # type: ignore[operator]
        return None
    return _waiting(case, slowest, lost, "whose GPU idles", known=known)


def _waits_for_busy(case: Case) -> Finding | None:
    """All GPUs are busy, and one works while the others spin: a slower card, or more work in the same step."""
    e, sm = case.evidence, case.evidence.mean("sm")
    slowest = max(e.ranks, key=lambda rank: rank.sm or 0.0)
    if sm is None or slowest.sm is None or abs(case.busy - slowest.busy) >= t.STRAGGLER_GAP:
        return None
    lost = slowest.sm - sm
    if lost < t.STRAGGLER_GAP:
        return None
    return _waiting(case, slowest, lost, "whose GPU works longer: lower clocks, or more work per step", known=True)


def _waiting(case: Case, slowest: Rank, lost: float, why: str, *, known: bool) -> Finding:
    e = case.evidence
    told = "" if slowest.number is None else f", rank {slowest.number}"
    which = ", ".join(map(str, slowest.device_indices))
    return finding(
        "nvlink_or_collective_wait",
        f"This rank waits for the others in collective operations {share_text(lost)} of the time: its GPU is busy "
        f"without working. The one it waits for is pid {slowest.pid} on GPU {which}{told}, {why}.",
        lost,
        Bound(gain_bound(lost), "this rank never waits; the slowest rank sets the pace of all"),
        remedy=f"Diagnose pid {slowest.pid}: gpuwatch diagnose --pid {slowest.pid}. Nothing is wrong with this rank.",
        confidence=Confidence.MEDIUM if known else Confidence.LOW,
        alternatives=("batch_too_small",) if known else ("healthy",),
        experiment="Compare the ranks' own step times without the collective (no_sync in DDP).",
        evidence=rows(*case.gpu_rows(), *_rank_rows(e, slowest)),
    )


def _exchanges(case: Case) -> Finding | None:
    """No rank waits for another: they all move gradients, at what the links carry."""
    e, sm = case.evidence, case.evidence.mean("sm")
    if sm is None or case.busy < 0.5:
        return None
    share, rate, link, reached = _traffic(e)
    spare = case.busy - sm
    lost = min(share, spare)
    # What the links did not carry was not the exchange: then kernels too small to fill the GPU say more.
    if lost < t.STRAGGLER_GAP or share < spare / 2:
        return None
    return finding(
        "nvlink_or_collective_wait",
        f"The ranks exchange gradients {share_text(lost)} of the time, at {units.rate_text(rate)} over {link}: the "
        "model is large for the work of a step, and no rank is slower than the others.",
        lost,
        Bound(gain_bound(lost), "the exchange is hidden behind computing altogether"),
        remedy="Exchange less often or less: more samples per step and GPU, gradient accumulation under no_sync(), "
        "bf16 gradients (bf16_compress_hook), fewer and larger buckets. The probe allreduce says what the links reach.",
        confidence=Confidence.MEDIUM,
        alternatives=("batch_too_small",),
        experiment="Time steps under no_sync(): what they are shorter by is the exchange.",
        evidence=rows(
            *case.gpu_rows(),
            row(f"{link}, each way", rate / 1e9, "GB/s", "GPM", e.window_s),
            row(f"{link} can carry", reached / 1e9, "GB/s", _source(e, link), 0.0),
            *_rank_rows(e, min(e.ranks, key=lambda rank: rank.busy)),
        ),
    )


def _rank_rows(e: Evidence, other: Rank) -> tuple[EvidenceRow | None, ...]:
    source = "GPM" if other.sm is not None else "NVML utilization (proxy)"
    sm = 100 * other.sm if other.sm is not None else None
    return (
        row(f"GPU busy of pid {other.pid}", 100 * other.busy, "%", source, e.window_s),
        row(f"SM active of pid {other.pid}", sm, "%", "GPM", e.window_s),
        row("ranks of this job here", float(len(e.ranks) + 1), "processes", "/proc", e.window_s),
    )


def _traffic(e: Evidence) -> tuple[float, float, str, float]:
    """(share of the time that moving it takes, bytes per second each way, link, bytes per second that it can carry).

    An all-reduce sends as much as it receives, so the smaller direction counts: batches only come in.
    """
    found = []
    for link, prefix, reached in (("NVLink", "nvlink_", nvlink_ceiling(e)), ("PCIe", "", pinned_ceiling(e))):
        rate = min(e.mean(f"{prefix}rx_bytes_per_s") or 0.0, e.mean(f"{prefix}tx_bytes_per_s") or 0.0)
        found.append((min(1.0, rate / reached), rate, link, reached))
    return max(found)


def nvlink_ceiling(e: Evidence) -> float:
    """Bytes per second each way that an all-reduce moves over this GPU's NVLinks: measured here, or of the card."""
    capability = next((d.compute_capability for d in e.devices), "")
    known = t.NVLINK_BYTES_PER_S.get(capability if isinstance(capability, str) else "", t.NVLINK_BYTES_PER_S_DEFAULT)
    return _measured(e) or t.RING_LINK_SHARE * known


def _measured(e: Evidence) -> float:
    """Of the sizes that the probe took, the best; 0.0 when it has not run."""
    found = (v for k, v in e.ceilings.items() if k.startswith("all_reduce_") and k.endswith("_busbw_bytes_per_s"))
    return max(found, default=0.0)


def _source(e: Evidence, link: str) -> str:
    if link == "NVLink" and _measured(e):
        return "measured here: probe allreduce"
    return "typical of this link; to measure: probe allreduce"
