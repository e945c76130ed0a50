"""What the loader's rules share.

Owns: which activities are a wait for data, whether more workers would find a core, the evidence rows about workers.
Refuses: deciding why the data is late.
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import WorkerAdvice, row, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.cores import job
from gpuwatch.diagnose.worker_view import WorkerView
from gpuwatch.model import CodeLocation, Confidence, EvidenceRow

WAITS = (Activity.WAITING_FOR_DATA, Activity.RECEIVING_DATA, Activity.RESTARTING_WORKERS)


def hot_row(case: Case, hot: CodeLocation | None, view: WorkerView | None) -> EvidenceRow | None:
    """The line of the user's code that the workers' time goes to."""
    if hot is None or view is None:
        return None
    where = f"{hot.file}:{hot.line} {hot.function.rsplit('.', 1)[-1]}" + (f" > {view.library}" if view.library else "")
    return row("workers' time goes to", where, "", f"stack samples (n={view.samples})", case.evidence.window_s,
               f"{share_text(hot.share)} of them")  # fmt: skip


def queue_row(case: Case, view: WorkerView | None) -> EvidenceRow | None:
    """How often the workers have nothing to do: high means that they are ahead."""
    if view is None:
        return None
    return row("workers wait for work", 100 * view.waiting_for_work, "% of samples",
               f"stack samples (n={view.samples})", case.evidence.window_s)  # fmt: skip


def no_core_left(case: Case, advice: WorkerAdvice) -> bool:
    """More workers would find no core. A sixteenth worker beside fifteen is no remedy either."""
    few_more = advice.advised < len(case.crew.counted) * t.WORTHWHILE
    return case.throttled or (case.evidence.host.cpu_busy_pct or 0.0) >= t.HOST_CPU_FULL_PCT or few_more


def crowded(case: Case, cores: float) -> bool:
    """Each worker runs several threads, together far more than there are cores: they push each other off."""
    workers, cpus = case.crew.counted, case.cpus
    threads = sum(w.threads for w in workers) / len(workers)
    return (
        bool(cpus)
        and cores >= t.MULTITHREADED_CORES
        and threads >= t.MULTITHREADED_THREADS
        and len(workers) * threads > 1.5 * cpus
    )


def others_cores(case: Case) -> float | None:
    """CPU that processes outside this job use, in cores."""
    host = case.evidence.host
    if host.cpu_busy_pct is None or not host.online:
        return None
    return max(0.0, host.cpu_busy_pct / 100.0 * host.online - sum(p.cpu_cores or 0.0 for p in job(case.evidence)))


def workers_text(count: int) -> str:
    """ "One loader worker" or "4 loader workers"."""
    return "One loader worker" if count == 1 else f"{count} loader workers"


def of_them_text(case: Case) -> str:
    """What the workers do that are not counted, or ""."""
    crew = case.crew
    if not crew.divided:
        return ""
    whose = "another loader's" if crew.apart else "another loader's, or held up by one slow sample"
    return f" ({len(crew.idle)} more had nothing to do: {whose})"


def told_apart(case: Case, confidence: Confidence) -> Confidence:
    """As sure as it can be when workers without work may or may not belong to the loader that is waited for."""
    crew = case.crew
    return Confidence.MEDIUM if crew.divided and not crew.apart and confidence is Confidence.HIGH else confidence


def or_slow_sample(case: Case) -> tuple[str, ...]:
    """The alternative in that case."""
    crew = case.crew
    return ("loader_slow_sample",) if crew.divided and not crew.apart else ()


def workers_row(case: Case) -> EvidenceRow | None:
    """How many workers there are, and how many of them had work where that differs."""
    crew, total = case.crew, len(case.evidence.workers)
    unit = f"of {total} processes had work" if crew.divided else "processes"
    return row("DataLoader workers", float(len(crew.counted)), unit, "/proc", case.evidence.window_s)
