"""What the DataLoader workers were doing: which of them had work, and what that was by their stacks.

Owns: Crew, WorkerView. Refuses: judging.

A job may have a second loader (validation, with persistent workers), and one loader may wait for one slow sample, since
it delivers in order. In both, an average over all workers describes none of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean

from msgspec import Struct

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.evidence import Evidence, ProcessUse
from gpuwatch.diagnose.frames import classify, last_name, worker_activity
from gpuwatch.diagnose.waiting import Wait, waits_for
from gpuwatch.model import CodeLocation, Frame, StackSample, ThreadStack

_TAKES_BATCHES = re.compile(r"torch/utils/data/(_utils/pin_memory|dataloader)\.py$")
_REBUILDS = re.compile(r"torch/multiprocessing/reductions\.py$|multiprocessing/(reduction|resource_sharer)\.py$")
_PINS = re.compile(r"torch/utils/data/_utils/pin_memory\.py$")
_RECEIVES = re.compile(r"multiprocessing/connection\.py$")


class WorkerView(Struct, frozen=True):
    """What those DataLoader workers were doing that had work, by their stacks; what all were doing if none had. Shares
    0..1 of ``samples``."""

    samples: int
    waiting_for_work: float
    preparing: float
    waiting: float
    """Inside a fetch but off the CPU: storage, network, a lock."""
    where: CodeLocation | None
    """Line of the user's code that most fetching samples stand on."""
    library: str
    """Innermost library function under it, such as "Image.resize", or ""."""
    queueing: dict[int, float] = {}
    """Of each worker with enough samples: share of them in which it waits for work."""
    sleeps: dict[Wait, float] = {}
    """Of the samples off the CPU inside a fetch: share that waits for this."""
    lock: CodeLocation | None = None
    """Line of the user's code that takes the lock, of those that wait for one."""
    unpacking: float | None = None
    """Share of the samples of the training process in which a thread of it receives, rebuilds or pins a batch. None
    where no thread was seen that takes batches."""


class Crew(Struct, frozen=True):
    """The workers, by whether they had work."""

    at_work: tuple[ProcessUse, ...]
    """Empty when all were ahead."""
    idle: tuple[ProcessUse, ...]
    """Wait for work nearly all the time."""
    workless: bool = False
    """Some were at work, and the idle ones had not one sample to prepare: another loader's, or one sample takes longer
    than the window."""
    apart: bool = False
    """Workless, and the loader that the training thread waits for would have given them work."""

    @property
    def divided(self) -> bool:
        """Some work while others have nothing to do."""
        return bool(self.at_work) and bool(self.idle)

    @property
    def counted(self) -> tuple[ProcessUse, ...]:
        """Whom averages are over: those at work, or all when nobody is."""
        return self.at_work or self.idle


def crew(evidence: Evidence, view: WorkerView | None) -> Crew:
    """The workers of the job in groups."""
    queueing = view.queueing if view is not None else {}
    cores = [w.cpu_cores or 0.0 for w in evidence.workers]
    if not cores:
        return Crew((), ())
    pooled = fmean(queueing.values()) if queueing else None
    # Workers of one kind use about the same; those that wait for a remote store use as little as idle ones.
    little = max(t.IDLE_CPU_CORES, fmean(cores) / 2)
    busy = max(cores) >= t.WAITING_CPU_CORES
    idle = tuple(
        w
        for w in evidence.workers
        if (w.cpu_cores or 0.0) < little and _has_no_work(w, queueing.get(w.pid, pooled), others_busy=busy)
    )
    at_work = tuple(w for w in evidence.workers if w not in idle)
    if not at_work or not idle:
        return Crew(at_work, idle)
    workless = all(_had_no_work(w, queueing.get(w.pid)) for w in idle)
    return Crew(at_work, idle, workless, workless and _in_a_row(at_work, idle) and _works_throughout(evidence))


def _has_no_work(worker: ProcessUse, queueing: float | None, *, others_busy: bool) -> bool:
    """By its stacks; where there are none, by what it leaves undone while others compute: a worker that waits for a
    remote store looks the same, but then so do the others."""
    if queueing is not None:
        return queueing >= t.IDLE_WORKER
    still = worker.cpu_cores is not None and not worker.rchar_bytes_per_s
    return others_busy and still and worker.states.get("D", 0.0) < t.DISK_WAIT_STATE


def _had_no_work(worker: ProcessUse, queueing: float | None) -> bool:
    return worker.cpu_cores is not None and worker.cpu_cores < t.NO_WORK_CORES and queueing in (None, 1.0)


def _in_a_row(at_work: Sequence[ProcessUse], idle: Sequence[ProcessUse]) -> bool:
    """The workers of one loader are started one after another."""
    first, second = sorted(([w.pid for w in at_work], [w.pid for w in idle]), key=min)
    return max(first) < min(second)


def _works_throughout(evidence: Evidence) -> bool:
    """The GPU worked in each third of the window: batches went on being taken. With each, a loader hands the next of
    its workers another to prepare, so none of them stays without any work."""
    third = (evidence.end_ns - evidence.start_ns) / 3
    seen = {
        min(2, int((w.start_ns - evidence.start_ns) / third))
        for w in evidence.windows
        if third and w.busy >= t.IDLE_WINDOW_BUSY
    }
    return len(seen) == 3


def workers(evidence: Evidence) -> WorkerView | None:
    """The workers' stacks in sum, None without any."""
    seen: dict[int, list[ThreadStack]] = defaultdict(list)
    for stack in evidence.worker_stacks:
        main = main_thread(stack)
        if main is not None:
            seen[stack.pid].append(main)
    if not seen:
        return None
    doing = {pid: Counter(worker_activity(thread) for thread in threads) for pid, threads in seen.items()}
    queueing = {
        pid: counts[Activity.WAITING_FOR_WORK] / counts.total()
        for pid, counts in doing.items()
        if counts.total() >= t.WORKER_STACKS
    }
    # The groups need the shares of each, and the sum needs the groups.
    bare = WorkerView(0, 0.0, 0.0, 0.0, None, "", queueing)
    counted = {w.pid for w in crew(evidence, bare).counted} & seen.keys() or seen.keys()
    total = sum((doing[pid] for pid in counted), Counter[Activity]())
    place, library = _place(evidence, [thread for pid in sorted(counted) for thread in seen[pid]])
    sleeps, lock = _sleeps(evidence, counted)
    return WorkerView(
        samples=total.total(),
        waiting_for_work=total[Activity.WAITING_FOR_WORK] / total.total(),
        preparing=total[Activity.PREPARING_DATA] / total.total(),
        waiting=total[Activity.WAITING] / total.total(),
        where=place,
        library=library,
        queueing=queueing,
        sleeps=sleeps,
        lock=lock,
        unpacking=_unpacking(evidence),
    )


def _place(evidence: Evidence, threads: Sequence[ThreadStack]) -> tuple[CodeLocation | None, str]:
    """The line of the user's code that most fetches stand on, and the library function that most stand in."""
    lines: Counter[Frame] = Counter()
    leaves: Counter[str] = Counter()
    for thread in threads:
        if worker_activity(thread) in (Activity.PREPARING_DATA, Activity.WAITING):
            frame = classify(thread, evidence.source).where
            if frame is not None:
                lines[frame] += 1
                if thread.frames[0] != frame:
                    leaves[thread.frames[0].function] += 1
    if not lines:
        return None, ""
    frame, n = lines.most_common(1)[0]
    place = CodeLocation(frame.file, frame.line, frame.function, n / lines.total())
    return place, leaves.most_common(1)[0][0] if leaves else ""


def _sleeps(evidence: Evidence, pids: Collection[int]) -> tuple[dict[Wait, float], CodeLocation | None]:
    """What the workers wait for that are off the CPU inside a fetch, and where they take a lock."""
    wchans = {w.pid: [name for name, _ in w.wchans] for w in evidence.workers}
    kinds: Counter[Wait] = Counter()
    lines: Counter[Frame] = Counter()
    for stack in evidence.worker_stacks:
        main = main_thread(stack)
        if stack.pid not in pids or main is None or worker_activity(main) is not Activity.WAITING:
            continue
        kind = waits_for(main, [th for th in stack.threads if th is not main], wchans.get(stack.pid, ()))
        kinds[kind] += 1
        frame = classify(main, evidence.source).where
        if kind is Wait.LOCK and frame is not None:
            lines[frame] += 1
    shares = {kind: n / kinds.total() for kind, n in kinds.items()}
    if not lines:
        return shares, None
    frame, n = lines.most_common(1)[0]
    return shares, CodeLocation(frame.file, frame.line, frame.function, n / lines.total())


def main_thread(stack: StackSample) -> ThreadStack | None:
    """The thread of a worker that fetches, if its stack is there."""
    main = next((th for th in stack.threads if th.name == "MainThread" or th.os_tid == stack.pid), None)
    return main if main is not None and main.frames else None


def _unpacks(frames: Sequence[Frame]) -> bool | None:
    """Whether a thread receives, rebuilds or pins a batch; None for one that takes no batches from workers."""
    if not any(_TAKES_BATCHES.search(f.file) for f in frames):
        return None
    return any(
        _REBUILDS.search(f.file) or (_PINS.search(f.file) and last_name(f.function) == "pin_memory") for f in frames
    ) or (bool(_RECEIVES.search(frames[0].file)) and "recv" in last_name(frames[0].function))


def _unpacking(evidence: Evidence) -> float | None:
    """How often the training process takes a batch apart, in its pin_memory thread or in the training thread."""
    told = [[u for th in s.threads if (u := _unpacks(th.frames)) is not None] for s in evidence.main_stacks]
    return sum(any(states) for states in told) / len(told) if any(told) else None
