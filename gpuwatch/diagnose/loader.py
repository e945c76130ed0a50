"""What the loader's rules share.

Owns: which activities are a wait for data, and the evidence rows about workers. Refuses: deciding why.
"""

from __future__ import annotations

from gpuwatch.diagnose.account import WorkerView
from gpuwatch.diagnose.advice import row, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.frames import Activity
from gpuwatch.model import CodeLocation, EvidenceRow

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
