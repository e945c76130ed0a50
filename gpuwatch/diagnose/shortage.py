"""Loader workers for which there is no more CPU: they wait for it, or use all of it and are still late.

Owns: the findings for them. Refuses: the limit itself (cores.py), a throttled quota (gates.py).
"""

from __future__ import annotations

from gpuwatch.diagnose import cores
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import finding, pct, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.loader import (
    WAITS,
    crowded,
    hot_row,
    of_them_text,
    or_slow_sample,
    others_cores,
    told_apart,
    workers_row,
    workers_text,
)
from gpuwatch.model import Confidence, EvidenceRow, Finding


def is_short(case: Case) -> bool:
    """The workers wait for a CPU, and neither a throttled quota nor their own threads or number explain it: a machine
    that the job itself fills is one with a transform that costs too much."""
    uses, e = case.crew.counted, case.evidence
    if case.throttled or not cores.short(e, uses):
        return False
    if cores.bound_to(e, uses):
        return True
    ours = crowded(case, case.worker_cores or 0.0) or (others_cores(case) or 0.0) < t.OTHERS_SHARE * e.host.online
    return not (cores.full(e) and ours)


def short_of_cpu(case: Case, lost: float) -> Finding:
    """The finding for them."""
    e, uses, view = case.evidence, case.crew.counted, case.workers
    return finding(
        "cpu_oversubscribed",
        f"{workers_text(len(uses))} would compute and wait for a CPU: {cores.limit_text(e, uses)}. The GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy=cores.remedy(e, uses),
        location=view.where if view else None,
        confidence=sure(case),
        alternatives=("loader_slow_transform",) if cores.bound_to(e, uses) else ("cpu_quota_throttled",),
        experiment="Halve num_workers: if the job is as fast as before, CPU is what the workers share out.",
        evidence=rows(
            case.stack_row("training thread waits for a batch", *WAITS),
            workers_row(case),
            row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
            *wait_rows(case),
            row("CPU of other processes", others_cores(case), "cores", "/proc", e.window_s),
            hot_row(case, view.where if view else None, view),
            *case.gpu_rows(),
        ),
    )


def sure(case: Case) -> Confidence:
    """Sure where the limit is seen: the CPUs are counted and the job uses them up."""
    e = case.evidence
    cpus = cores.bound_to(e, case.crew.counted)
    return Confidence.HIGH if cpus and cores.fills(e, cpus) else Confidence.MEDIUM


def wait_rows(case: Case) -> tuple[EvidenceRow | None, ...]:
    """How long the workers wait for a CPU, and which CPUs they may use."""
    e, uses = case.evidence, case.crew.counted
    waited = sum(cores.waits(use) for use in uses) / len(uses)
    allowed = cores.allowed(uses)
    return (
        row("workers ready to run, without a CPU", pct(waited), "% of the time", "/proc/PID/schedstat and state",
            e.window_s),
        row("CPUs that they may run on", cores.list_text(allowed) or None, f"of {e.host.online}", "/proc/PID/status",
            e.window_s),
        row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.online} CPUs", "/proc/stat", e.window_s),
    )  # fmt: skip


def all_cores_used(case: Case, lost: float, evidence: tuple[EvidenceRow, ...]) -> Finding:
    """Workers that compute all the time on all the cores there are for them."""
    account, view, count = case.account, case.workers, len(case.crew.counted)
    assert account is not None
    hot = view.where if view else None
    hot_text = f" in {view.library}" if view and view.library else ""
    limit, which = _limit(case)
    cause = "cpu_oversubscribed" if crowded(case, case.worker_cores or 0.0) else "loader_slow_transform"
    if case.throttled:
        remedy = f"First the CPU limit: more workers would share the same {case.cpus:g} CPUs. Then the work per sample."
    elif cause == "cpu_oversubscribed":
        remedy = "Set one thread per worker (cv2.setNumThreads(0), OMP_NUM_THREADS=1); then make the transform cheaper."
    else:
        remedy = (
            ("Give the job CPU cores of its own first. " if _crowd_text(case) else "")
            + f"More workers would find no core. Make the per-sample work cheaper: decode at the size you train on, "
            f"store pre-resized images, move augmentation to the GPU (nvJPEG, DALI, kornia), or get more CPU cores for "
            f"this GPU{which}."
        )
    return finding(
        cause,
        f"{workers_text(count)} cannot keep up{hot_text}{place_text(hot)}{of_them_text(case)} and {limit}"
        f"{_crowd_text(case)}: the GPU waits {share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy=remedy,
        location=hot or account.location(*WAITS),
        evidence=evidence,
        confidence=told_apart(case, Confidence.MEDIUM if case.throttled else Confidence.HIGH),
        alternatives=() if case.throttled else ("loader_too_few_workers", *or_slow_sample(case)),
        experiment="" if case.throttled else "Double num_workers: if throughput stays, the cores are the limit.",
    )


def _limit(case: Case) -> tuple[str, str]:
    """(what the workers have used up, where to ask for more)."""
    cpus = cores.bound_to(case.evidence, case.crew.counted)
    if case.throttled:
        return "the CPU limit of their cgroup is used up", ""
    if cpus and not cores.full(case.evidence):
        named = f"(Cpus_allowed_list {cores.list_text(cpus)})"
        return f"the job may run on no more than {len(cpus)} CPUs {named}", " (--cpus-per-task, cpuset, taskset)"
    return "no CPU core is left", ""


def _crowd_text(case: Case) -> str:
    others, cpus = others_cores(case), case.evidence.host.online
    if others is None or others < t.OTHERS_SHARE * cpus:
        return ""
    return f" (other processes use {others:.1f} of {cpus})"
