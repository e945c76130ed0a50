"""Bursts of stack samples of a watched job.

Owns: whom to sample when, how much of the time it may take, which errors are told. Refuses: what a frame means, and
how py-spy is run (py_spy.py).

Always without stopping the job. The price is a torn read now and then, when frames change while they are read; such
a sample is dropped and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gpuwatch.collect.py_spy import Dump, Failure, PySpy
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.model import ProcessInfo, StackSample

TIME_SHARE = 0.3
"""Of the burst, at most, is spent in dumps. One of a torch process takes 9 ms, so this binds where py-spy is slow:
huge processes, overloaded machines."""
WORKERS_PER_S = 4
TORN_READS_TO_TELL = 3
"""One torn read is expected; so many of a process in one burst are worth a line."""
_LASTING = frozenset({Failure.PERMISSION, Failure.GONE, Failure.NOT_PYTHON, Failure.VERSION})
"""The next try on the same process would fail the same way."""


class Spy(Protocol):
    """What the sampler needs of PySpy."""

    def is_python(self, pid: int) -> bool | None:
        """None: no such process."""

    def dump(self, pid: int, native: bool, stop: threading.Event | None = None) -> Dump:
        """All threads of a process, or the failure."""


class StackSampler:
    """Samples stacks in bursts. ``torn_reads`` counts dropped samples since the start."""

    def __init__(
        self, spy: Spy | None = None, clock: Callable[[], int] = time.monotonic_ns, root: Path = Path("/proc")
    ) -> None:
        self._spy = spy or PySpy(root=root)
        self._clock = clock
        self.torn_reads = 0

    def sample(self, pid: int, root_pid: int, native: bool = False) -> StackSample:
        """One sample of one process; ``error`` says in one line why there is none. Never raises.

        ``native`` stops the process for the time of the dump: for a person's explicit request only.
        """
        dump = self._dump(pid, native, None)
        return StackSample(pid, root_pid, self._clock(), dump.threads, dump.error, native)

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        """One burst: the main process at ``stack_hz``, workers about once a second each. Returns at its end.

        ``workers`` is asked before each worker sample, so that restarted workers are followed.
        """
        if focus.root_pid > 0 and focus.stacks:
            _Burst(self, focus, workers, emit, stop).run()

    def _dump(self, pid: int, native: bool, stop: threading.Event | None) -> Dump:
        """A dump of a process that is Python for certain."""
        python = self._spy.is_python(pid)
        if python is None:
            return Dump((), Failure.GONE, f"process {pid} has ended")
        if not python:
            return Dump((), Failure.NOT_PYTHON, f"process {pid} is not a Python process")
        dump = self._spy.dump(pid, native, stop)
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
        self._emit, self._stop, self._clock = emit, stop, sampler._clock
        self._given_up: set[int] = set()
        self._told: set[tuple[int, Failure]] = set()
        self._torn: dict[int, int] = {}
        self._sampled_ns: dict[int, int] = {}

    def run(self) -> None:
        """Until the burst is over, stopped, or there is nobody left to sample."""
        now = self._clock()
        end_ns = now + round(1e9 * min(self._focus.stack_seconds, self._focus.seconds))
        period_ns = round(1e9 / self._focus.stack_hz) if self._focus.stack_hz > 0 else end_ns
        main_ns = now if self._focus.stack_hz > 0 else end_ns
        # Half a period later, so that a worker's dump does not push every one of the main process's back.
        worker_ns = now + period_ns // 2
        free_ns = now
        while True:
            main_turn = main_ns <= worker_ns
            turn_ns = max(main_ns if main_turn else worker_ns, free_ns)
            if turn_ns >= end_ns or self._stop.wait(max(0, turn_ns - self._clock()) / 1e9):
                return
            start_ns = self._clock()
            if main_turn:
                pid = self._focus.root_pid
                main_ns = max(main_ns + period_ns, start_ns) if pid not in self._given_up else end_ns
            else:
                pid, gap_ns = self._next_worker()
                worker_ns = start_ns + gap_ns
            if pid and pid not in self._given_up and not self._take(pid):
                return
            free_ns = start_ns + round((self._clock() - start_ns) / TIME_SHARE)

    def _next_worker(self) -> tuple[int, int]:
        """(the worker that waited longest, ns until the next one's turn); pid 0 when there is none."""
        pids = [
            info.pid
            for info in self._workers()
            if info.python and info.pid != self._focus.root_pid and info.pid not in self._given_up
        ]
        if not pids:
            return 0, 1_000_000_000
        pid = min(pids, key=lambda pid: self._sampled_ns.get(pid, 0))
        self._sampled_ns[pid] = self._clock()
        return pid, 1_000_000_000 // min(WORKERS_PER_S, len(pids))

    def _take(self, pid: int) -> bool:
        """Sample and emit; False when sampling anybody is pointless."""
        dump = self._sampler._dump(pid, False, self._stop)
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
        self._emit(StackSample(pid, self._focus.root_pid, self._clock(), dump.threads, dump.error))
