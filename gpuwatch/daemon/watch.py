"""A look at this machine in the foreground: for commands that collect by themselves instead of asking a daemon.

Owns: waiting for the first readings, finding the jobs, collecting a focus. Refuses: judging and printing.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from gpuwatch.collect.source import Focus, ObservationSource, Undecided
from gpuwatch.daemon.jobs import Jobs, Subject
from gpuwatch.daemon.looks import Looks
from gpuwatch.daemon.steps import Steps, listening
from gpuwatch.errors import InputNotFoundError, UnavailableError
from gpuwatch.model import (
    Absent,
    DeviceSample,
    DriverState,
    Inventory,
    Observation,
    ProcessInfo,
    ProcessTick,
    StackSample,
)

FIRST_READING_S = 15.0
"""nvmlInit takes 10 ms with persistence on and some seconds per GPU without."""
SETTLE_S = 1.5
"""After the first readings: processes have been looked up and every GPU had its turn."""

WELL_USED_PCT = 85.0
"""From here on little is lost, whatever the reason (diagnose.thresholds.HEALTHY_LOST_BELOW)."""

Sink = Callable[[Observation], None]
Progress = Callable[[float, float], None]
"""(done, total) in seconds."""


def here() -> Watch:
    """A look at this machine, and at what its jobs say of themselves."""
    from gpuwatch.collect.node import live_source

    return Watch(live_source(1.0), steps=listening(os.environ, os.getpid()))


class Watch:
    """Collects from a source. Use as a context manager."""

    def __init__(
        self,
        source: ObservationSource,
        clock: Callable[[], float] = time.monotonic,
        *,
        steps: Steps | None = None,
    ) -> None:
        """``steps``: where jobs may tell their step times meanwhile."""
        self._source = source
        self._steps = steps or Steps([])
        self._clock = clock
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._jobs = Jobs()
        self._looks = Looks()
        self.infos: dict[int, ProcessInfo] = {}
        self.inventory: Inventory | None = None
        self._seen: list[Observation] = []

    def __enter__(self) -> Watch:
        self._source.start(self._queue.put)
        self._steps.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.stop()
        self._steps.close()

    def open(self) -> Inventory:
        """Wait for the inventory and the first readings. Raises UnavailableError with the driver's hint."""
        deadline = self._clock() + FIRST_READING_S
        while self.inventory is None and self._take(deadline):
            pass
        if self.inventory is None:
            raise UnavailableError(f"the NVIDIA driver has not answered within {FIRST_READING_S:.0f} s; see dmesg")
        if self.inventory.driver is not DriverState.OK:
            raise UnavailableError(self.inventory.driver_hint or f"no GPU to watch here ({self.inventory.driver})")
        self._drain(self._clock() + SETTLE_S)
        return self.inventory

    def subjects(self) -> tuple[Subject, ...]:
        """Every GPU job, by pid."""
        return tuple(self._jobs.subjects(self.infos).values())

    def memory_of(self, subject: Subject) -> float:
        """Bytes that a job holds on all its devices."""
        return sum(self._jobs.memory_of(subject.pid, index) for index in subject.device_indices)

    def subject(self, pid: int) -> Subject:
        """The job with this pid. Raises InputNotFoundError that names the pids there are."""
        subjects = {s.pid: s for s in self.subjects()}
        info = self.infos.get(pid)
        root = info.root_pid if info is not None else pid
        if root in subjects:
            return subjects[root]
        there = ", ".join(map(str, subjects)) or "none"
        raise InputNotFoundError(f"pid {pid} is not a process on a GPU (GPU processes here: {there})")

    def collect(
        self,
        subject: Subject,
        seconds: float,
        *,
        stacks: bool = True,
        stack_seconds: float = 5.0,
        undecided: Undecided | None = None,
        sink: Sink | None = None,
        progress: Progress | None = None,
    ) -> list[Observation]:
        """Look closely at a job: everything observed in ``seconds``, preceded by what a reader must know (inventory,
        process facts) and what earlier looks at native frames have told. With a ``sink`` each observation goes there
        too, as it comes. ``undecided``: see ``Focus``."""
        earlier = self._looks.of(subject.pid, self.infos, round(self._clock() * 1e9))
        ask = undecided and self._where_something_is_lost(subject, undecided, earlier)
        focus = Focus(
            *(subject.pid, subject.device_indices, seconds, stacks), stack_seconds=stack_seconds, undecided=ask
        )
        start = self._clock()
        kept: list[Observation] = []
        for known in self._preface():
            kept.append(known)
            if sink is not None:
                sink(known)
        self._seen = []
        self._source.focus(focus)
        try:
            while (now := self._clock()) < start + seconds:
                if progress is not None:
                    progress(now - start, seconds)
                self._drain(min(now + 0.5, start + seconds), sink)
        finally:
            self._source.focus(None)
        self._looks.learn(self._seen, self.infos)
        kept.extend(earlier)
        kept.extend(self._seen)
        self._seen = []
        return kept

    def _where_something_is_lost(
        self, subject: Subject, undecided: Undecided, earlier: Sequence[StackSample]
    ) -> Undecided:
        """``undecided``, but never of a job that uses its GPU well: it is not held for a better account of nothing.
        ``earlier``: of looks that need not be repeated."""

        def ask(stacks: Sequence[StackSample], texts: Mapping[tuple[str, int], str]) -> bool:
            return not self._well_used(subject) and undecided((*earlier, *stacks), texts)

        return ask

    def _well_used(self, subject: Subject) -> bool:
        """By the mean of each device's activity since the close look began; False while nothing was read."""
        seen = self._seen
        means = []
        for index in subject.device_indices:
            busy = [s.busy_pct for s in seen if isinstance(s, DeviceSample) and s.device_index == index]
            values = [b for b in busy if not isinstance(b, Absent)]
            means.append(sum(values) / len(values) if values else 0.0)
        return bool(means) and min(means) >= WELL_USED_PCT

    def _preface(self) -> list[Observation]:
        assert self.inventory is not None
        infos = tuple(self.infos.values())
        last = max((o.mono_ns for o in self._seen if isinstance(o, ProcessTick)), default=self._source.now_ns())
        return [self.inventory, ProcessTick(last, infos=infos)] if infos else [self.inventory]

    def _drain(self, deadline: float, sink: Sink | None = None) -> None:
        while self._take(deadline, sink):
            pass

    def _take(self, deadline: float, sink: Sink | None = None) -> bool:
        for report in self._steps.receive(self._source.now_ns(), self.infos):
            self._queue.put(report)
        try:
            observation = self._queue.get(timeout=max(0.0, deadline - self._clock()))
        except queue.Empty:
            return False
        if isinstance(observation, Inventory):
            self.inventory = observation
        elif isinstance(observation, DeviceSample):
            self._jobs.observe([observation])
        elif isinstance(observation, ProcessTick):
            self.infos.update((info.pid, info) for info in observation.infos)
            for pid in observation.gone:
                self.infos.pop(pid, None)
        self._seen.append(observation)
        if sink is not None:
            sink(observation)
        return self._clock() < deadline
