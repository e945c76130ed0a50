"""When a diagnosis runs, of what, and over which observations.

Owns: the decision (pure: observations and times in, a subject out) and the one inquiry that may run.
Refuses: judging, sockets, and clocks of its own; times are passed in.

``mono_ns`` here is the source's clock: a replay's inquiries happen in the recording's time.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from gpuwatch.collect.source import Focus, Undecided
from gpuwatch.config import DiagnosisConfig
from gpuwatch.daemon.jobs import Activity, Jobs, Meter, Subject
from gpuwatch.daemon.ring import Timed
from gpuwatch.model import (
    DeviceSample,
    Diagnosis,
    Inventory,
    Observation,
    ProcessInfo,
    ProcessTick,
    Severity,
    SourceLine,
)

Judge = Callable[..., Diagnosis]
"""(observations, pid, device indices) to a diagnosis, with ``ceilings=`` (name to figure) where probes have measured
this machine. Pure; runs in a worker thread."""

INQUIRY_S = 8.0
BEFORE_S = 0.0
"""Observations before an inquiry that are judged with it: none. They have no stacks, and may be of another phase: with
10 s of them a job's start was mixed into its first verdict, which advised 4 workers where 15 were needed (H200)."""
MIN_REQUEST_S = 2.0
MAX_REQUEST_S = 50.0
"""The ring keeps 60 s."""
FIRST_LOOK_S = 20.0
"""Age of a job at its first look: imports, cuDNN's search and the first batches are no steady state."""
HEALTHY_LOOK_S = 30.0
"""A job whose GPU is well used is looked at once too, so that the screen says so."""
OLD_JOB_S = 60.0
FIRST_WINDOW_S = 4.0
"""A job that was there long before us is past its start: a person who opens the screen need not wait ``after_s``."""
TICKS_PER_S = 100
"""USER_HZ, in which /proc gives start times; 100 on every Linux that NVIDIA supports."""
NOT_SETTLED = frozenset({"warming_up", "unattributed"})
"""Verdicts that ask for another look as soon as one is allowed."""
MIN_SPACING_S = 60.0
"""Stack bursts slow the watched job: at most one a minute that nobody asked for."""
SM_ACTIVE_BELOW_PCT = 30.0
JUDGE_TIMEOUT_S = 60.0
PROGRESS_NS = 1_000_000_000
CHANGED_PCT = 20.0
"""A mean busy share this far from that of the last diagnosis is a new picture."""


class _Past(Struct):
    """What we know of a job that is there now."""

    appeared_ns: int
    judged_ns: int = -1
    """Start of its last inquiry; -1 before the first."""
    judged_busy_pct: float | None = None
    judged_idle: bool = False
    judged_low: bool = False
    started_ns: int | None = None
    """On the same clock, by /proc; None when not known."""
    settled: bool = True

    def age_s(self, mono_ns: int) -> float:
        """Since it was started, or since we know of it."""
        since = self.appeared_ns if self.started_ns is None else min(self.appeared_ns, self.started_ns)
        return (mono_ns - since) / 1e9


class Decider:
    """Which job is due for an inquiry by itself. Pure: same observations and times, same answers."""

    def __init__(self, settings: DiagnosisConfig) -> None:
        self.settings = settings
        self.jobs = Jobs()
        self.occupied: Collection[int] = ()
        """Devices that our own probes load: stacks would spoil the figure, and the verdict would be about us."""
        self._meter = Meter()
        self._subjects: dict[int, Subject] = {}
        self._past: dict[int, _Past] = {}
        self._recorded: set[tuple[int, bool]] = set()

    def observe(self, samples: Sequence[DeviceSample], infos: Mapping[int, ProcessInfo], mono_ns: int) -> None:
        """One tick."""
        self.jobs.observe(samples)
        # A second more than the window: readings come a little late or early.
        self._meter.observe(samples, max(self.settings.after_s, self.settings.idle_after_s) + 6.0)
        self._subjects = self.jobs.subjects(infos)
        # By pid: a job that appears on one more device is the same job, and is not looked at twice a minute.
        self._past = {pid: self._past.get(pid, _Past(mono_ns)) for pid in self._subjects}
        for pid, past in self._past.items():
            if past.started_ns is None and pid in infos:
                past.started_ns = infos[pid].start_ticks * (1_000_000_000 // TICKS_PER_S)

    def pids(self) -> set[int]:
        """Jobs that are there now."""
        return set(self._subjects)

    def due(self, mono_ns: int) -> Subject | None:
        """The job that has waited longest of those whose turn it is."""
        if not self.settings.automatic:
            return None
        waiting = [subject for subject in self._subjects.values() if self._is_due(subject, mono_ns)]
        return min(waiting, key=lambda subject: (self._past[subject.pid].judged_ns, subject.pid), default=None)

    def started(self, subject: Subject, mono_ns: int) -> None:
        """An inquiry of this job began: remember what it looked like."""
        past = self._past.setdefault(subject.pid, _Past(mono_ns))
        past.judged_ns = mono_ns
        activity = self._lowest(subject, self.settings.after_s)
        past.judged_busy_pct = activity.busy_pct if activity else None
        past.judged_idle = self._idle(subject)
        past.judged_low = activity is not None and self._low(activity)

    def concluded(self, diagnosis: Diagnosis) -> None:
        """A verdict is there: an unsettled one is looked at again soon."""
        past = self._past.get(diagnosis.pid)
        if past is not None:
            verdict = diagnosis.verdict
            # A server that waits for requests is told so and is no fault: nothing is left to be found out.
            waits = verdict.cause == "unattributed" and verdict.severity is Severity.INFO
            past.settled = verdict.cause not in NOT_SETTLED or waits

    def well_used(self, subject: Subject) -> bool:
        """Whether even the job's least busy device has little to gain. False while not known."""
        activity = self._lowest(subject, self.settings.after_s)
        return activity is not None and activity.busy_pct is not None and not self._low(activity)

    def _is_due(self, subject: Subject, mono_ns: int) -> bool:
        if any(index in self.occupied for index in subject.device_indices):
            return False
        past = self._past[subject.pid]
        since_s = (mono_ns - past.judged_ns) / 1e9
        if past.judged_ns >= 0 and since_s < MIN_SPACING_S:
            return False
        age_s = past.age_s(mono_ns)
        first = past.judged_ns < 0
        window_s = min(self.settings.after_s, FIRST_WINDOW_S) if first and age_s >= OLD_JOB_S else self.settings.after_s
        idle = self._idle(subject)
        activity = self._lowest(subject, window_s)
        if activity is None or (self._all_idle(subject, window_s) and not idle):
            return False  # Nothing known yet, or still within the time that a job may be quiet.
        if first:
            return idle or age_s >= (FIRST_LOOK_S if self._low(activity) else HEALTHY_LOOK_S)
        return not past.settled or since_s >= self.settings.every_s or self._changed(past, activity, idle)

    def _low(self, activity: Activity) -> bool:
        busy_low = activity.busy_pct is not None and activity.busy_pct < self.settings.busy_below_pct
        return busy_low or (activity.sm_active_pct is not None and activity.sm_active_pct < SM_ACTIVE_BELOW_PCT)

    def _changed(self, past: _Past, activity: Activity, idle: bool) -> bool:
        if idle != past.judged_idle or (self._low(activity) and not past.judged_low):
            return True
        if activity.busy_pct is None or past.judged_busy_pct is None:
            return False
        return abs(activity.busy_pct - past.judged_busy_pct) >= CHANGED_PCT

    def _lowest(self, subject: Subject, window_s: float) -> Activity | None:
        """Of the job's least busy device: one starved GPU of eight holds up the other seven."""
        seen = [a for index in subject.device_indices if (a := self._meter.over(index, window_s)) is not None]
        return min(seen, key=lambda a: 101.0 if a.busy_pct is None else a.busy_pct) if seen else None

    def _idle(self, subject: Subject) -> bool:
        return self._all_idle(subject, self.settings.idle_after_s)

    def _all_idle(self, subject: Subject, window_s: float) -> bool:
        """None of the job's devices saw anything for so long."""
        seen = [self._meter.over(index, window_s) for index in subject.device_indices]
        return bool(seen) and all(activity is not None and activity.idle for activity in seen)

    def due_recorded(self, span_ns: int, ended: bool, infos: Mapping[int, ProcessInfo]) -> Subject | None:
        """In a recording: each job once there is enough of it, and again over all of it when it has ended."""
        if not self.settings.automatic or (span_ns < INQUIRY_S * 1e9 and not ended):
            return None
        for subject in self.jobs.subjects(infos).values():
            if (subject.pid, ended) not in self._recorded and (subject.pid, True) not in self._recorded:
                self._recorded.add((subject.pid, ended))
                return subject
        return None


# ------------------------------------------------------------------ requests


def resolve(
    pid: int,
    device_index: int,
    jobs: Jobs,
    inventory: Inventory | None,
    infos: Mapping[int, ProcessInfo],
    exists: Callable[[int], bool],
) -> Subject | str:
    """What a request means: a subject, or one line that says why it means nothing here."""
    subjects = jobs.subjects(infos)
    if pid > 0:
        root = infos[pid].root_pid if pid in infos else pid
        subject = subjects.get(root)
        return subject if subject is not None else _no_such_job(pid, subjects, infos, exists)
    if device_index < 0:
        return "name a process with its pid or a GPU with its index"
    known = [] if inventory is None else [device.index for device in inventory.devices]
    if device_index not in known:
        return f"no GPU {device_index}; " + (f"GPUs here: {', '.join(map(str, known))}" if known else "no GPU here")
    there = [subject for subject in subjects.values() if device_index in subject.device_indices]
    if not there:
        return Subject(0, (device_index,))
    return max(there, key=lambda subject: jobs.memory_of(subject.pid, device_index))


def _no_such_job(
    pid: int, subjects: Mapping[int, Subject], infos: Mapping[int, ProcessInfo], exists: Callable[[int], bool]
) -> str:
    names = [f"{known} ({infos[known].comm})" if known in infos else str(known) for known in subjects]
    there = f"GPU processes: {', '.join(names)}" if names else "no process is on a GPU"
    return f"process {pid} is not on a GPU; {there}" if exists(pid) else f"no process {pid}; {there}"


# ------------------------------------------------------------------ evidence


def evidence(
    inventory: Inventory,
    infos: Mapping[int, ProcessInfo],
    lines: Iterable[SourceLine],
    observed: Sequence[Timed],
) -> list[Observation]:
    """What the judge gets: the inventory, then the window. Infos and source lines are observed once, when they are
    new: those from before the window are put at its beginning."""
    start = observed[0].mono_ns if observed else 0
    first = next((o for o in observed if isinstance(o, ProcessTick)), ProcessTick(start))
    changed = {info.pid for info in first.infos}
    known = tuple(info for info in infos.values() if info.pid not in changed)
    completed = msgspec.structs.replace(first, infos=(*known, *first.infos))
    earlier = [line for line in lines if line.mono_ns < start]
    rest = [completed if o is first else o for o in observed]
    return [inventory, *earlier, *([] if any(o is first for o in observed) else [completed]), *rest]


class Progress(Struct, frozen=True):
    """So many of so many seconds; ``done_s`` < 0: given up, ``message`` says why."""

    subject: Subject
    done_s: float
    total_s: float
    message: str


class _Active(Struct):
    """The inquiry that runs."""

    subject: Subject
    seconds: float
    clock_ns: int
    mono_ns: int
    reported_ns: int
    judging_ns: int = 0
    """When the judge was called; 0 before."""


class Inquiries:
    """Runs one inquiry at a time: look closely, collect, have it judged in a thread so that the loop goes on."""

    def __init__(self, judge: Judge, focus: Callable[[Focus | None], None], wake: Callable[[], None]) -> None:
        self._judge = judge
        self._focus = focus
        self._wake = wake
        self._active: _Active | None = None
        self._verdicts: queue.SimpleQueue[tuple[_Active, Diagnosis | str]] = queue.SimpleQueue()

    @property
    def running(self) -> Subject | None:
        """What is being diagnosed."""
        return self._active.subject if self._active else None

    def begin(
        self,
        subject: Subject,
        seconds: float,
        stacks: bool,
        clock_ns: int,
        mono_ns: int,
        undecided: Undecided | None = None,
    ) -> Progress:
        """Start one; 0 seconds judge what is there. The caller has seen that none is running."""
        assert self._active is None
        self._active = _Active(subject, seconds, clock_ns, mono_ns, clock_ns)
        if seconds > 0:
            stacks = stacks and subject.pid > 0
            self._focus(Focus(subject.pid, subject.device_indices, seconds, stacks=stacks, undecided=undecided))
        return Progress(subject, 0.0, seconds, "watching")

    def step(self, clock_ns: int, observed: Callable[[int], list[Observation]]) -> Progress | Diagnosis | None:
        """What there is to tell now. ``observed(since_mono_ns)`` gives the evidence."""
        active = self._active
        if active is None:
            return None
        while not self._verdicts.empty():
            whose, verdict = self._verdicts.get()
            if whose is active:
                self._active = None
                if isinstance(verdict, str):
                    return Progress(active.subject, -1.0, active.seconds, verdict)
                return verdict
        done_s = (clock_ns - active.clock_ns) / 1e9
        if not active.judging_ns and done_s >= active.seconds:
            since = active.mono_ns - int(BEFORE_S * 1e9) if active.seconds > 0 else 0
            active.judging_ns = clock_ns
            work = (active, observed(since))
            threading.Thread(target=self._judge_in_thread, args=work, name="judge", daemon=True).start()
        if active.judging_ns and clock_ns - active.judging_ns > JUDGE_TIMEOUT_S * 1e9:
            self._active = None
            return Progress(active.subject, -1.0, active.seconds, f"no verdict within {JUDGE_TIMEOUT_S:.0f} s")
        if clock_ns - active.reported_ns < PROGRESS_NS:
            return None
        active.reported_ns = clock_ns
        message = "judging" if active.judging_ns else "watching"
        return Progress(active.subject, min(done_s, active.seconds), active.seconds, message)

    def left_s(self, clock_ns: int) -> float:
        """Seconds until the running inquiry has watched enough."""
        return (
            0.0 if self._active is None else max(0.0, self._active.seconds - (clock_ns - self._active.clock_ns) / 1e9)
        )

    def _judge_in_thread(self, active: _Active, observed: list[Observation]) -> None:
        verdict: Diagnosis | str
        try:
            verdict = self._judge(observed, active.subject.pid, active.subject.device_indices)
        except Exception as exc:
            # The rules meet every machine there is: a slip in one must cost this verdict, not the daemon.
            logging.getLogger("gpuwatch").exception("the diagnosis of pid %d failed", active.subject.pid)
            verdict = f"the diagnosis failed: {type(exc).__name__}: {exc}".replace("\n", " ")
        self._verdicts.put((active, verdict))
        self._wake()
