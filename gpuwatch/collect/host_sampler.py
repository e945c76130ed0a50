"""One thread that reads the host and the processes of the GPU jobs.

Owns: when to read. Refuses: /proc itself (the readers are passed in), the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuwatch.collect.sampler import Deadline, Failures, PacedThread
from gpuwatch.collect.source import Emit
from gpuwatch.model import HostSample, Observation, ProcessTick

Roots = dict[int, tuple[int, ...]]
"""Pid to the indices of the devices that NVML lists it on."""


class HostPart(Protocol):
    """What reads the host: ``host.HostReader``."""

    def read(self, mono_ns: int) -> HostSample:
        """One sample."""


class ProcessPart(Protocol):
    """What reads the processes of GPU jobs: ``procfs.ProcessReader``."""

    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        """All processes of all jobs."""


class HostSampler(PacedThread):
    """Reads host and processes every ``period_s``. Both by one thread, so that their windows are the same."""

    def __init__(
        self,
        host: HostPart,
        processes: ProcessPart,
        roots: Callable[[], Roots],
        emit: Emit,
        *,
        period_s: float,
        clock: Callable[[], int],
    ) -> None:
        super().__init__("host", Deadline(int(period_s * 1e9), clock()), clock)
        self._host = host
        self._processes = processes
        self._roots = roots
        self._emit = emit
        self.failures = Failures()

    def hurry(self) -> None:
        """Read now: a new process is on a GPU."""
        with self._lock:
            self._deadline.hurry(self._clock())
        self._wake.set()

    def step(self) -> int:
        """Read if it is due. Returns the nanoseconds until there is something to do."""
        with self._lock:
            now_ns = self._clock()
            wait_ns = self._deadline.wait_ns(now_ns)
            if wait_ns:
                return wait_ns
            self._deadline.advance(now_ns)
        self._emit_one("the host", lambda: self._host.read(now_ns))
        self._emit_one("the processes", lambda: self._processes.read(self._roots(), now_ns))
        self._progress_ns = self._clock()
        with self._lock:
            return self._deadline.wait_ns(self._clock())

    def _emit_one(self, what: str, read: Callable[[], Observation]) -> None:
        try:
            observation = read()
        except Exception as exc:
            # The readers answer with reasons; a bug in one must not take the other and the watchdog with it.
            self.failures.failed(what, exc)
            return
        self.failures.worked(what)
        if not self._ended:
            self._emit(observation)
