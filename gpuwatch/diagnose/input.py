"""Causes in the input pipeline: the GPU waits because the next batch is not there.

Owns: why the loader is late. Refuses: waits that the GPU's queue hides (the account has taken them out).
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import Bound, WorkerAdvice, advise_workers, finding, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.delivery import held_up, transfer
from gpuwatch.diagnose.loader import (
    WAITS,
    hot_row,
    no_core_left,
    of_them_text,
    or_slow_sample,
    others_cores,
    queue_row,
    told_apart,
    workers_row,
    workers_text,
)
from gpuwatch.diagnose.shortage import all_cores_used, is_short, short_of_cpu
from gpuwatch.diagnose.storage import (
    is_hung,
    loader_hung,
    shm_short,
    shm_too_small,
    small_reads,
    state_share,
    waits_for_storage,
)
from gpuwatch.diagnose.worker_view import WorkerView
from gpuwatch.model import Confidence, Finding


def find(case: Case) -> list[Finding]:
    """Findings of this family that cost at least a tenth of the wall time."""
    account = case.account
    if account is None:
        return []
    found = []
    if account.lost_in(Activity.PREPARING_DATA) >= t.NAMED_FROM:
        found.append(_in_main(case))
    if account.lost_in(*WAITS) >= t.NAMED_FROM:
        found.append(_late(case))
    return found


def _in_main(case: Case) -> Finding:
    account, e = case.account, case.evidence
    assert account is not None
    lost = account.lost_in(Activity.PREPARING_DATA)
    held = account.held_in(Activity.PREPARING_DATA)
    advice = advise_workers(0, held, account.computing, case.cpus)
    place = account.location(Activity.PREPARING_DATA)
    return finding(
        "loader_in_main_process",
        f"The training process loads its own data{place_text(place)}: the GPU waits {share_text(lost)} of the time.",
        lost,
        _bound(advice),
        remedy=f"DataLoader(num_workers={advice.advised}, persistent_workers=True, pin_memory=True). "
        f"{_why_count(case, advice)}",
        location=place,
        evidence=rows(
            case.stack_row("training thread prepares samples", Activity.PREPARING_DATA),
            row("DataLoader workers", float(len(e.workers)), "processes", "/proc", e.window_s),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            *case.gpu_rows(),
            row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.online} CPUs", "/proc/stat", e.window_s),
        ),
    )


def _late(case: Case) -> Finding:
    """The training thread waits for a batch: why is it not there?"""
    account, e = case.account, case.evidence
    assert account is not None
    lost = account.lost_in(*WAITS)
    if account.lost_in(Activity.RESTARTING_WORKERS) >= max(t.NAMED_FROM, lost / 2) or _restarted(case):
        return _restarts(case, lost)
    if account.lost_in(Activity.RECEIVING_DATA) >= max(t.NAMED_FROM, lost / 2):
        return transfer(case, lost)
    if shm_short(case):
        return shm_too_small(case, lost)
    cores, view = case.worker_cores, case.workers
    elsewhere = view is not None and view.unpacking is None and not case.crew.at_work
    if not e.workers or elsewhere:
        return _unknown_loader(case, lost)
    held = held_up(case, lost)
    if held is not None:
        return held
    if is_hung(case):
        return loader_hung(case, lost)
    if cores is None:
        return _unknown_loader(case, lost)
    if is_short(case):
        return short_of_cpu(case, lost)
    if cores < t.BUSY_CPU_CORES and state_share(case, "D") >= t.DISK_WAIT_STATE:
        return waits_for_storage(case, lost)
    # Runnable is short of CPU even where the counters show little of it: quota, crowded cores.
    runnable = state_share(case, "R")
    if cores >= t.BUSY_CPU_CORES or (max(cores, runnable) >= t.WAITING_CPU_CORES and not _stalled(case, view)):
        return _cpu_bound(case, lost, cores)
    return waits_for_storage(case, lost)


def _stalled(case: Case, view: WorkerView | None) -> bool:
    """Whether the workers sleep inside a fetch more often than they compute."""
    if view is not None:
        return view.waiting > view.preparing
    return state_share(case, "D") >= t.DISK_WAIT_STATE


def _cpu_bound(case: Case, lost: float, cores: float) -> Finding:
    account, e, view = case.account, case.evidence, case.workers
    assert account is not None
    count = len(case.crew.counted)
    held = account.held_in(*WAITS)
    advice = advise_workers(count, held, account.computing, case.cpus, cores_per_worker=cores)
    loop = account.location(*WAITS)
    hot = view.where if view else None
    evidence = rows(
        case.stack_row("training thread waits for a batch", *WAITS),
        workers_row(case),
        row("CPU per worker", cores, "cores", "/proc", e.window_s),
        row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.online} CPUs", "/proc/stat", e.window_s),
        row("CPU of other processes", others_cores(case), "cores", "/proc", e.window_s),
        hot_row(case, hot, view),
        *case.gpu_rows(),
        queue_row(case, view),
    )
    if no_core_left(case, advice):
        return all_cores_used(case, lost, evidence)
    small = small_reads(case)
    return finding(
        "loader_too_few_workers",
        f"{workers_text(count)} cannot keep up{of_them_text(case)}: the training loop{place_text(loop)} waits for data "
        f"and the GPU is idle {share_text(lost)} of the time.",
        lost,
        _bound(advice),
        remedy=f"num_workers={advice.advised} (now {count}). {_why_count(case, advice)}",
        location=loop,
        evidence=rows(*evidence, *small),
        # A fifth of the workers' time for 22 files a sample: packed files made that job as fast as more workers did.
        confidence=Confidence.MEDIUM if small else told_apart(case, Confidence.HIGH),
        alternatives=(*(("loader_small_files",) if small else ()), *or_slow_sample(case)),
        experiment="Read some samples from one packed file: if a worker makes them faster, opening files is what costs."
        if small
        else "",
    )


def _restarted(case: Case) -> bool:
    """The workers were exchanged at least twice: the wait is for new ones to start and to bring their first batch."""
    return case.evidence.worker_generations >= t.WORKER_GENERATIONS


def _restarts(case: Case, lost: float) -> Finding:
    account, e = case.account, case.evidence
    assert account is not None
    return finding(
        "loader_worker_restart",
        f"The loader starts its workers again and again (each epoch): the GPU is idle {share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="DataLoader(persistent_workers=True); with short epochs also an endless sampler.",
        location=account.location(Activity.RESTARTING_WORKERS),
        evidence=rows(
            case.stack_row("training thread starts or stops workers", Activity.RESTARTING_WORKERS),
            row("DataLoader worker processes seen", float(len(e.workers)), "", "/proc", e.window_s),
            row("generations of workers", e.worker_generations, "in the window", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _unknown_loader(case: Case, lost: float) -> Finding:
    account, e = case.account, case.evidence
    assert account is not None
    place = account.location(*WAITS)
    return finding(
        "unattributed",
        f"The training loop waits for its next batch{place_text(place)}; who should deliver it is not visible from "
        f"here. The GPU is idle {share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Run gpuwatch as the job's user or on the host, so that the loader's processes can be seen; until then "
        "raise the loader's parallelism and see whether the wait shrinks.",
        location=place,
        confidence=Confidence.LOW,
        alternatives=("loader_too_few_workers", "loader_storage_latency", "loader_collate_or_ipc"),
        experiment="Iterate over the loader alone, without the model: its samples/s is the ceiling of the job.",
        evidence=rows(
            case.stack_row("training thread waits for a batch", *WAITS),
            row("DataLoader workers visible", float(len(e.workers)), "processes", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _why_count(case: Case, advice: WorkerAdvice) -> str:
    if advice.cores_limit:
        fewer = case.cpus < case.evidence.host.cpus
        where = f"the {case.cpus:g} CPUs that the job may use have" if fewer else "this machine has"
        return (
            f"Keeping up would take {advice.needed}, more than {where} cores for; beyond that, decode less per sample "
            "or move it to the GPU."
        )
    return f"By their measured pace {advice.needed} keep up; the rest is headroom."


def _bound(advice: WorkerAdvice) -> Bound:
    workers = f"{advice.advised} worker" + ("" if advice.advised == 1 else "s")
    return Bound(advice.gain_max, f"{workers} at the pace measured now, and no faster than GPU and loop allow")
