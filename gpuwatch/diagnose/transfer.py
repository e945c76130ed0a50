"""Causes on the way to the GPU.

Owns: copies that keep the GPU waiting, and whether the link or the host's memory is the limit.
Refuses: copies that overlap with computing (they cost nothing).
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import Bound, finding, gain_bound, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.moments import pinned_ceiling
from gpuwatch.model import CodeLocation, Confidence, Finding

_COPIES = (Activity.COPYING, Activity.COPY_WAIT)


def find(case: Case) -> list[Finding]:
    """Findings of this family that cost at least a tenth of the wall time."""
    account, e = case.account, case.evidence
    if account is None:
        return []
    if (_link_full(case) or copies_between(case)) and account.lost_in(*_BEHIND_COPIES) >= t.NAMED_FROM:
        return [_link_bound(case, account.lost_in(*_BEHIND_COPIES), account.location(Activity.COPYING))]
    lost = account.lost_in(*_COPIES)
    if lost < t.NAMED_FROM:
        return []
    rx, tx = account.copy_rx_bytes_per_s, account.copy_tx_bytes_per_s
    ceiling = pinned_ceiling(case.evidence)
    place = account.location(*_COPIES)
    to_host = (tx or 0.0) > 2 * (rx or 0.0) and (tx or 0.0) >= t.COPY_BYTES_PER_S / 4
    rate = tx if to_host else rx
    bound = case.bound(*_COPIES)
    evidence = rows(
        case.stack_row("training thread copies", Activity.COPYING),
        row("PCIe towards the GPU meanwhile", _gib(rx), "GiB/s", "GPM", e.window_s),
        row("PCIe towards the host meanwhile", _gib(tx), "GiB/s", "GPM", e.window_s),
        row("pinned copies reach", _gib(ceiling), "GiB/s", _ceiling_source(case), 0.0),
        row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
        *case.gpu_rows(),
    )
    if rate is not None and rate >= t.PINNED_LINK_SHARE * ceiling:
        return [_link_bound(case, lost, place)]
    if to_host:
        return [
            finding(
                "host_sync",
                f"The training thread copies results to the host{place_text(place)} and waits for them: the GPU idles "
                f"{share_text(lost)} of the time.",
                lost,
                bound,
                remedy="Reduce on the GPU first and copy rarely, or copy asynchronously into pinned memory.",
                location=place,
                evidence=evidence,
            )
        ]
    if rate:
        held = account.held_in(*_COPIES)
        alone = gain_bound(held * (1.0 - min(1.0, rate / ceiling)))
        bound = Bound(bound.gain, f"{bound.basis}; with pinned memory but no overlap {units.factor_text(alone)}")
    return [
        finding(
            "pageable_copies",
            f"Copies from pageable memory{place_text(place)} run at {units.rate_text(rate)} and hold up the training "
            f"thread: the GPU is idle {share_text(lost)} of the time.",
            lost,
            bound,
            remedy="DataLoader(pin_memory=True) (or tensor.pin_memory() once), then .to(device, non_blocking=True), so "
            "that the copy runs at link speed beside the computing.",
            location=place,
            evidence=evidence,
            confidence=Confidence.HIGH if rate is not None and rate >= t.COPY_BYTES_PER_S else Confidence.MEDIUM,
            alternatives=("pcie_bound", "host_preprocessing"),
            experiment="gpuwatch probe measures what pinned copies reach here; bytes per step over that is the floor.",
        )
    ]


_BEHIND_COPIES = (*_COPIES, Activity.SYNCHRONISING, Activity.LAUNCHING, Activity.WAITING, Activity.USER_LINE)
"""What a thread does while asynchronous copies fill the link: it waits for the GPU or queues more work."""


def _link_full(case: Case) -> bool:
    """The link carries what pinned copies reach, over the whole window. Copies that are asynchronous leave no trace in
    the stacks, and the GPU's engines idle meanwhile: only the bytes tell."""
    return link_use(case) >= t.PINNED_LINK_SHARE


def link_use(case: Case) -> float:
    """Share of the time that the bytes of the window take at the speed of pinned copies, in the busier direction."""
    e = case.evidence
    return max(e.mean("rx_bytes_per_s") or 0.0, e.mean("tx_bytes_per_s") or 0.0) / pinned_ceiling(e)


def copies_between(case: Case) -> bool:
    """Asynchronous copies in the stream of the kernels: the GPU copies or computes, one after the other, and both
    together are its whole time."""
    link = link_use(case)
    return link >= t.LINK_SHARE_NAMED and case.busy + link >= t.GPU_TIME_EXPLAINED


def _link_bound(case: Case, lost: float, place: CodeLocation | None) -> Finding:
    e = case.evidence
    rx, tx = e.mean("rx_bytes_per_s"), e.mean("tx_bytes_per_s")
    rate = max(rx or 0.0, tx or 0.0)
    return finding(
        "pcie_bound",
        f"Copies{place_text(place)} keep the PCIe link busy ({units.rate_text(rate)}): the GPU waits for them "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*_BEHIND_COPIES),
        remedy="Send fewer bytes: uint8 instead of float32 and normalise on the GPU, drop unused fields, keep the data "
        "set in GPU memory if it fits. Copies of the next batch in a stream of their own run beside the computing.",
        location=place,
        evidence=rows(
            row("PCIe towards the GPU", _gib(rx), "GiB/s", "GPM", e.window_s),
            row("PCIe towards the host", _gib(tx), "GiB/s", "GPM", e.window_s),
            row("pinned copies reach", _gib(pinned_ceiling(e)), "GiB/s", _ceiling_source(case), 0.0),
            case.stack_row("training thread copies", Activity.COPYING),
            case.stack_row("training thread waits for the GPU", Activity.SYNCHRONISING),
            *case.gpu_rows(),
        ),
    )


def _ceiling_source(case: Case) -> str:
    if "h2d_pinned_bytes_per_s" in case.evidence.ceilings:
        return "measured here: gpuwatch probe copies"
    return "typical of this link; measure: gpuwatch probe run copies"


def _gib(rate: float | None) -> float | None:
    return None if rate is None else rate / 2**30
