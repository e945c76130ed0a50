"""Several ranks of one job on one node: who waits for whom.

Owns: telling a rank that waits in a collective from one that is slow itself. Refuses: why the slow one is slow (its
own diagnosis says that).

A rank that waits for the others spins in a communication kernel: its GPU reads busy all the time, while its SMs,
tensor cores and memory hardly move. The rank that is waited for shows the opposite: its GPU idles. So the culprit is
the one that does not look busy, and looking at one GPU alone gets it the wrong way round.
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import Bound, finding, gain_bound, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.evidence import Rank
from gpuwatch.model import Confidence, Finding


def find(case: Case) -> Finding | None:
    """The finding for a rank that waits, or None when it does not (or has no other ranks)."""
    e = case.evidence
    sm = e.mean("sm")
    slowest = straggler(case)
    if slowest is None or sm is None or sm >= t.SMALL_GRID_SM_OF_BUSY * case.busy:
        return None
    lost = case.busy - sm
    which = ", ".join(map(str, slowest.device_indices))
    return finding(
        "nvlink_or_collective_wait",
        f"This rank waits for the others in collective operations {share_text(lost)} of the time: its GPU is busy "
        f"without working. The one it waits for is pid {slowest.pid} on GPU {which}, whose GPU idles.",
        lost,
        Bound(gain_bound(lost), "this rank never waits; the slowest rank sets the pace of all"),
        remedy=f"Diagnose pid {slowest.pid}: gpuwatch diagnose --pid {slowest.pid}. Nothing is wrong with this rank.",
        confidence=Confidence.MEDIUM,
        alternatives=("batch_too_small",),
        experiment="Compare the ranks' own step times without the collective (no_sync in DDP).",
        evidence=rows(
            *case.gpu_rows(),
            row(f"GPU busy of pid {slowest.pid}", 100 * slowest.busy, "%", "GPM", e.window_s),
            row("ranks of this job here", float(len(e.ranks) + 1), "processes", "/proc", e.window_s),
        ),
    )


def straggler(case: Case) -> Rank | None:
    """The other rank whose GPU idles most, if it idles clearly more than ours."""
    if not case.evidence.ranks:
        return None
    slowest = min(case.evidence.ranks, key=lambda rank: rank.busy)
    return slowest if slowest.busy <= case.busy - t.STRAGGLER_GAP else None
