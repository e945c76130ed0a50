"""Causes between worker and training thread: batches are made, but not in time where they are wanted.

Owns: the hand-over to the training process, one sample that holds up those behind it. Refuses: workers that are all
late (input.py, storage.py).
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import finding, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.loader import WAITS, hot_row, queue_row
from gpuwatch.model import Confidence, EvidenceRow, Finding


def held_up(case: Case, lost: float) -> Finding | None:
    """The finding where most workers have nothing to do although the training thread waits for a batch."""
    view, crew = case.workers, case.crew
    if view is not None and (view.unpacking or 0.0) >= t.UNPACKING and (not crew.at_work or crew.divided):
        return transfer(case, lost)
    if crew.divided and not crew.workless:
        return slow_sample(case, lost)
    if view is None or view.waiting_for_work < t.WORKER_QUEUE_IDLE:
        return None
    if (case.worker_cores or 0.0) >= t.WAITING_CPU_CORES:
        return None
    # Nobody takes batches apart, and at any time about one worker makes one: that one is what all wait for.
    at_once = len(crew.counted) * (1.0 - view.waiting_for_work)
    unseen = view.unpacking is None or view.unpacking >= t.UNPACKING
    return transfer(case, lost) if unseen or at_once < t.ONE_AT_WORK else slow_sample(case, lost)


def transfer(case: Case, lost: float) -> Finding:
    """The workers are ahead; their batches come late to the training process."""
    account, e, view = case.account, case.evidence, case.workers
    assert account is not None
    return finding(
        "loader_collate_or_ipc",
        f"The workers are ahead, but their batches arrive slowly in the training process: the GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Send few large tensors per batch instead of many objects: collate in the worker (collate_fn), return "
        "tensors rather than lists and dicts of arrays, raise prefetch_factor.",
        location=account.location(*WAITS),
        confidence=Confidence.MEDIUM,
        evidence=rows(
            case.stack_row("training thread waits for a batch", Activity.WAITING_FOR_DATA),
            case.stack_row("training thread unpacks a batch", Activity.RECEIVING_DATA),
            _unpacking_row(case),
            queue_row(case, view),
            row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def slow_sample(case: Case, lost: float) -> Finding:
    """Few workers have work while the others have none, and no batch comes: batches are delivered in order."""
    account, e, view, crew = case.account, case.evidence, case.workers, case.crew
    assert account is not None
    place = (view.where if view else None) or account.location(*WAITS)
    seen = len(crew.at_work) if crew.divided else 1
    total = len(e.workers)
    others = "loader_too_few_workers" if (case.worker_cores or 0.0) >= t.BUSY_CPU_CORES else "loader_storage_latency"
    return finding(
        "loader_slow_sample",
        f"{seen} of {total} loader workers {'has' if seen == 1 else 'have'} work{place_text(place)} while the others "
        "wait for some: a loader delivers in order, so one slow sample holds up the batches behind it. The GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Let batches pass each other (DataLoader(in_order=False), torch 2.6 or newer), raise prefetch_factor, "
        "or make the slow samples cheaper (store them cut, sorted or grouped by size). More workers would wait too.",
        location=place,
        confidence=Confidence.MEDIUM if crew.divided else Confidence.LOW,
        alternatives=(others, "loader_collate_or_ipc"),
        experiment="Time each sample in __getitem__: a few that take many times the median are the cause. If none does "
        "and the waiting workers are another loader's, this one has too few.",
        evidence=rows(
            case.stack_row("training thread waits for a batch", *WAITS),
            row("DataLoader workers with work", float(len(crew.at_work)), f"of {total} processes", "/proc", e.window_s),
            row("CPU per worker with work", case.worker_cores, "cores", "/proc", e.window_s),
            _unpacking_row(case),
            hot_row(case, view.where if view else None, view),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _unpacking_row(case: Case) -> EvidenceRow | None:
    view = case.workers
    if view is None or view.unpacking is None:
        return None
    return row("training process takes batches apart", 100 * view.unpacking, "% of samples",
               f"stack samples (n={len(case.evidence.main_stacks)})", case.evidence.window_s)  # fmt: skip
