"""Two threads: one reads the host, one the processes of the GPU jobs.

Owns: when to read, and that a reading which does not return is told. Refuses: /proc itself (the readers are passed
in), the GPUs.

Two, because a read of /proc/PID can block for as long as another process holds a lock in the kernel: the host's
memory and pressure are what is wanted then, and they must go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gpuwatch.collect.sampler import Deadline, Failures, PacedThread
from gpuwatch.collect.source import Emit
from gpuwatch.model import Absent, HostSample, Observation, ProcessTick, Reason, Unwatched

Roots = dict[int, tuple[int, ...]]
"""Pid to the indices of the devices that NVML lists it on."""

SILENT_PERIODS: Final = 3
"""A reading that has been under way for so many periods is told, as one of a GPU is."""
_JOIN_S: Final = 0.3


class HostPart(Protocol):
    """What reads the host: ``host.HostReader``."""

    def read(self, mono_ns: int) -> HostSample:
        """One sample."""


class ProcessPart(Protocol):
    """What reads the processes of GPU jobs: ``procfs.ProcessReader``."""

    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        """All processes of all jobs."""


class _Part(PacedThread):
    """Reads one thing each period and emits it."""

    def __init__(
        self,
        what: str,
        read: Callable[[int], Observation],
        emit: Emit,
        failures: Failures,
        *,
        period_s: float,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(what.removeprefix("the "), Deadline(int(period_s * 1e9), clock()), clock)
        self._what = what
        self._read = read
        self._emit = emit
        self.failures = failures
        self._began_ns: int | None = None

    def hurry(self) -> None:
        """Read now."""
        with self._lock:
            self._deadline.hurry(self._clock())
        self._wake.set()

    def silent(self) -> list[Unwatched]:
        """Itself, when the reading under way does not return. From any thread."""
        began_ns = self._began_ns
        if began_ns is None or self._clock() - began_ns <= SILENT_PERIODS * self._deadline.period_ns:
            return []
        # The same words at each question: an inventory that differs is published and recorded.
        why = Absent(Reason.TIMEOUT, "a read of /proc does not return: a process may hang in the kernel")
        return [Unwatched(self._what, why)]

    def step(self) -> int:
        """Read if it is due. Returns the nanoseconds until there is something to do."""
        with self._lock:
            now_ns = self._clock()
            wait_ns = self._deadline.wait_ns(now_ns)
            if wait_ns:
                return wait_ns
            self._deadline.advance(now_ns)
        self._began_ns = now_ns
        try:
            observation = self._read(now_ns)
        except Exception as exc:
            # The readers answer with reasons; a bug in one must not take the other and the watchdog with it.
            self.failures.failed(self._what, exc)
        else:
            self.failures.worked(self._what)
            if not self._ended:
                self._emit(observation)
        finally:
            self._began_ns = None
        self._progress_ns = self._clock()
        with self._lock:
            return self._deadline.wait_ns(self._clock())


class HostSampler(_Part):
    """Reads the host every ``period_s``, and by ``processes``, on the same grid, the processes: their windows agree."""

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
        failures = Failures()
        super().__init__("the host", host.read, emit, failures, period_s=period_s, clock=clock)
        self.processes = _Part(
            "the processes",
            lambda now_ns: processes.read(roots(), now_ns),
            emit,
            failures,
            period_s=period_s,
            clock=clock,
        )

    def start(self) -> None:
        """Start both threads."""
        self.processes.start()
        super().start()

    def run(self) -> None:
        """Thread body. The other thread is waited for briefly at the end: it may hang in the kernel."""
        super().run()
        self.processes.join(_JOIN_S)

    def hurry(self) -> None:
        """Read now: a new process is on a GPU."""
        super().hurry()
        self.processes.hurry()

    def set_period(self, period_s: float) -> None:
        """Another rate for both."""
        super().set_period(period_s)
        self.processes.set_period(period_s)

    def end(self) -> None:
        """End both."""
        super().end()
        self.processes.end()

    def silent(self) -> list[Unwatched]:
        """Whichever of the two has a reading that does not return."""
        return super().silent() + self.processes.silent()
