"""What the DataLoader workers were doing, by their stacks.

Owns: WorkerView. Refuses: judging, and the workers' counters (evidence.py).
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.frames import classify, worker_activity
from gpuwatch.model import CodeLocation, Frame


class WorkerView(Struct, frozen=True):
    """What the DataLoader workers were doing, by their stacks. Shares 0..1 of ``samples``."""

    samples: int
    waiting_for_work: float
    preparing: float
    waiting: float
    """Inside a fetch but off the CPU: storage, network, a lock."""
    where: CodeLocation | None
    """Line of the user's code that most fetching samples stand on."""
    library: str
    """Innermost library function under it, such as "Image.resize", or ""."""


def workers(evidence: Evidence) -> WorkerView | None:
    """The workers' stacks in sum, None without any."""
    counts: Counter[Activity] = Counter()
    lines: Counter[Frame] = Counter()
    leaves: Counter[str] = Counter()
    for stack in evidence.worker_stacks:
        main = next((th for th in stack.threads if th.name == "MainThread" or th.os_tid == stack.pid), None)
        if main is None or not main.frames:
            continue
        activity = worker_activity(main)
        counts[activity] += 1
        if activity in (Activity.PREPARING_DATA, Activity.WAITING):
            frame = classify(main, evidence.source).where
            if frame is not None:
                lines[frame] += 1
                if main.frames[0] != frame:
                    leaves[main.frames[0].function] += 1
    total = counts.total()
    if not total:
        return None
    place = None
    if lines:
        frame, n = lines.most_common(1)[0]
        place = CodeLocation(frame.file, frame.line, frame.function, n / lines.total())
    return WorkerView(
        samples=total,
        waiting_for_work=counts[Activity.WAITING_FOR_WORK] / total,
        preparing=counts[Activity.PREPARING_DATA] / total,
        waiting=counts[Activity.WAITING] / total,
        where=place,
        library=leaves.most_common(1)[0][0] if leaves else "",
    )
