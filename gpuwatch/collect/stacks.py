"""Bursts of stack samples of a watched job.

Owns: whom to sample when, how much of the time it may take, which errors are told. Refuses: what a frame means (who
sets the focus says when plain frames leave it open), and how py-spy is run (py_spy.py, native_look.py).

Without stopping the job. The price is a torn read now and then, when frames change while they are read; such a sample
is dropped and counted. Only the look at native frames holds the job: at most one ends a burst, of the main process
alone, where the burst's own samples leave open what it does. A process of which it cannot be had is not asked again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gpuwatch.collect import native_look
from gpuwatch.collect.native_look import Look, NativeSpy
from gpuwatch.collect.proc_files import reading
from gpuwatch.collect.proc_parse import parse_stat
from gpuwatch.collect.py_spy import Dump, Failure, PySpy
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.collect.source_lines import SourceLines
from gpuwatch.model import Absent, ProcessInfo, StackSample

TIME_SHARE = 0.3
"""Of the burst, at most, is spent in dumps. One of a torch process takes 9 ms, so this binds where py-spy is slow:
huge processes, overloaded machines."""
WORKERS_PER_S = 4
TORN_READS_TO_TELL = 3
"""One torn read is expected; so many of a process in one burst are worth a line."""
SAMPLES_TO_DECIDE_ON = 100
"""The newest of the main process: a recording's burst lasts for an hour, and what it does now is what counts."""
_SECOND_NS = 1_000_000_000
_NEVER_NS = 1 << 62
_LASTING = frozenset({Failure.PERMISSION, Failure.GONE, Failure.NOT_PYTHON, Failure.VERSION})
"""The next try on the same process would fail the same way."""
_UNFIT = {
    Failure.GONE: "has ended",
    Failure.NOT_PYTHON: "is not a Python process",
    Failure.TIMEOUT: "waits in the kernel and lets nobody read its memory: no stacks until it goes on",
}
_NO_LOOK = _LASTING | {Failure.MISSING, Failure.TIMEOUT}
"""Lasting for a look: what made one too long, the size of the job's libraries, stays."""


class Spy(Protocol):
    """What the sampler needs of PySpy."""

    def unfit(self, pid: int) -> Failure | None:
        """Why there is no use in a dump; None when there is."""

    def dump(self, pid: int, stop: threading.Event | None = None) -> Dump:
        """All threads of a process, or the failure."""


class Looker(Protocol):
    """What the sampler needs of NativeSpy."""

    def look(self, pid: int, stop: threading.Event | None = None) -> Look:
        """Native stacks of a process, or the failure."""


class StackSampler:
    """Samples stacks in bursts. ``torn_reads`` counts dropped samples since the start."""

    def __init__(
        self,
        spy: Spy | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        root: Path = Path("/proc"),
        looker: Looker | None = None,
    ) -> None:
        own = PySpy(root=root)
        self._spy = spy or own
        self._looker = looker or NativeSpy(own)
        self._clock = clock
        self._root = root
        self._no_look: set[tuple[int, int]] = set()
        """Pid and start time of processes whose native frames cannot be had."""
        self.torn_reads = 0

    def sample(self, pid: int, root_pid: int) -> StackSample:
        """One sample of one process; ``error`` says in one line why there is none. Never raises."""
        dump = self._dump(pid, None)
        return StackSample(pid, root_pid, self._clock(), dump.threads, dump.error)

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        """One burst: the main process at ``stack_hz``, workers about once a second each, then native frames if they
        are needed, and the text of the user's lines as they come. Returns at its end.

        ``workers`` is asked before each worker sample, so that restarted workers are followed.
        """
        if focus.root_pid > 0 and focus.stacks:
            _Burst(self, focus, workers, emit, stop).run()

    def look(self, pid: int, stop: threading.Event) -> Look | None:
        """Native stacks of a process; None when they could not be had before, which has been told then."""
        stat = reading(self._root / str(pid) / "stat", parse_stat)
        process = pid, 0 if isinstance(stat, Absent) else stat.start_ticks
        if process in self._no_look:
            return None
        found = self._looker.look(pid, stop)
        if found.failure in _NO_LOOK:
            self._no_look.add(process)
        return found

    def _dump(self, pid: int, stop: threading.Event | None) -> Dump:
        """A dump of a process that is Python for certain."""
        unfit = self._spy.unfit(pid)
        if unfit is not None:
            return Dump((), unfit, f"process {pid} {_UNFIT[unfit]}")
        dump = self._spy.dump(pid, stop)
        if dump.failure is Failure.TORN:
            self.torn_reads += 1
        return dump


class _Burst:
    """State of one burst. Times in ns of the sampler's clock."""

    def __init__(
        self,
        sampler: StackSampler,
        focus: Focus,
        workers: Callable[[], Sequence[ProcessInfo]],
        emit: Emit,
        stop: threading.Event,
    ) -> None:
        self._sampler, self._focus, self._workers = sampler, focus, workers
        self._lines = SourceLines(emit, sampler._root)
        self._stop, self._clock = stop, sampler._clock
        self._recent: deque[StackSample] = deque(maxlen=SAMPLES_TO_DECIDE_ON)
        """Of the main process."""
        self._given_up: set[int] = set()
        self._told: set[tuple[int, Failure]] = set()
        self._torn: dict[int, int] = {}
        self._sampled_ns: dict[int, int] = {}
        self._begin_ns = self._clock()
        self._period_ns = round(1e9 / focus.stack_hz) if focus.stack_hz > 0 else _NEVER_NS
        self._main_ns = self._begin_ns if focus.stack_hz > 0 else _NEVER_NS
        # Half a period later, so that a worker's dump does not push every one of the main process's back.
        self._worker_ns = self._begin_ns + min(self._period_ns, _SECOND_NS) // 2
        self._free_ns = self._begin_ns

    def run(self) -> None:
        """Until the burst is over, stopped, or there is nobody left to sample."""
        focus = self._focus
        end_ns = self._begin_ns + round(1e9 * min(focus.stack_seconds, focus.seconds))
        if focus.undecided is not None:
            # The look must end within the focus: whoever set it judges what has come by then.
            ask_ns = min(end_ns, self._begin_ns + round(1e9 * (focus.seconds - native_look.TIMEOUT_S)))
            if not self._sample_until(ask_ns):
                return
            # It takes more of the time than a burst has left: no plain samples after it.
            if focus.undecided(tuple(self._recent), self._lines.texts) and self._look():
                return
        self._sample_until(end_ns)

    def _sample_until(self, end_ns: int) -> bool:
        """Plain samples, each in its turn; False when the burst ends here."""
        while True:
            main_turn = self._main_ns <= self._worker_ns
            turn_ns = max(self._main_ns if main_turn else self._worker_ns, self._free_ns)
            if turn_ns >= end_ns:
                return True
            if self._stop.wait(max(0, turn_ns - self._clock()) / 1e9):
                return False
            start_ns = self._clock()
            if main_turn:
                pid = self._focus.root_pid
                self._main_ns = max(self._main_ns + self._period_ns, start_ns)
                if pid in self._given_up:
                    self._main_ns = _NEVER_NS
            else:
                pid, gap_ns = self._next_worker()
                self._worker_ns = start_ns + gap_ns
            if pid and pid not in self._given_up and not self._take(pid):
                return False
            self._free_ns = start_ns + round((self._clock() - start_ns) / TIME_SHARE)

    def _look(self) -> bool:
        """Native frames of the main process, stamped with the look's end: its samples carry no times. False when no
        look was taken."""
        pid = self._focus.root_pid
        look = self._sampler.look(pid, self._stop)
        if look is None:
            return False
        if look.failure is Failure.STOPPED:
            return True
        emit, now_ns = self._lines.emit, self._clock()
        if look.failure is not None:
            emit(StackSample(pid, pid, now_ns, error=look.error, native=True))
        for stack in look.stacks:
            emit(StackSample(pid, pid, now_ns, (stack,), native=True))
        return True

    def _next_worker(self) -> tuple[int, int]:
        """(the worker that waited longest, ns until the next one's turn); pid 0 when there is none."""
        pids = [
            info.pid
            for info in self._workers()
            if info.python and info.pid != self._focus.root_pid and info.pid not in self._given_up
        ]
        if not pids:
            return 0, _SECOND_NS
        pid = min(pids, key=lambda pid: self._sampled_ns.get(pid, 0))
        self._sampled_ns[pid] = self._clock()
        return pid, _SECOND_NS // min(WORKERS_PER_S, len(pids))

    def _take(self, pid: int) -> bool:
        """Sample and emit; False when sampling anybody is pointless."""
        dump = self._sampler._dump(pid, self._stop)
        failure = dump.failure
        if failure is None:
            self._send(pid, dump)
            return True
        if failure is Failure.STOPPED:
            return False
        if failure in _LASTING:
            self._given_up.add(pid)
        if failure is Failure.TORN:
            self._torn[pid] = self._torn.get(pid, 0) + 1
            if self._torn[pid] != TORN_READS_TO_TELL:
                return True
            dump = dump._replace(error=f"{dump.error} ({TORN_READS_TO_TELL} times; sampling goes on)")
        if (pid, failure) not in self._told:
            self._told.add((pid, failure))
            self._send(pid, dump)
        return failure is not Failure.MISSING

    def _send(self, pid: int, dump: Dump) -> None:
        sample = StackSample(pid, self._focus.root_pid, self._clock(), dump.threads, dump.error)
        if pid == self._focus.root_pid and dump.threads:
            self._recent.append(sample)
        self._lines.emit(sample)
