"""A stack sampler on a clock of its own, with spies that answer from a script.

Owns: the fakes. Refuses: expectations.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from gpuwatch.collect.native_look import Look
from gpuwatch.collect.py_spy import Dump, Failure
from gpuwatch.collect.source import Focus
from gpuwatch.collect.stacks import StackSampler
from gpuwatch.model import Frame, ProcessInfo, Role, StackSample, ThreadStack

MAIN = 100
MS = 1_000_000
STACK = (ThreadStack(MAIN, "MainThread", True, True, (Frame("loop", "/home/a/train.py", 7),)),)
FOCUS = Focus(MAIN, (0,), 20.0)


def worker(pid: int, python: bool = True) -> ProcessInfo:
    return ProcessInfo(
        pid, 1, MAIN, MAIN, Role.LOADER_WORKER, "pt_data_worker", "python train.py", "a", 1000, python=python
    )


class FakeTime(threading.Event):
    """A clock that moves only while the sampler waits or dumps; also the stop event that it waits on."""

    def __init__(self, stop_at_ns: int = 1 << 62) -> None:
        super().__init__()
        self.now_ns = 0
        self.stop_at_ns = stop_at_ns

    def clock(self) -> int:
        return self.now_ns

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_ns += round(timeout * 1e9)
        return self.now_ns >= self.stop_at_ns


class FakeSpy:
    """Answers by pid and takes ``cost_ns`` of the fake time for each dump."""

    def __init__(self, now: FakeTime, cost_ns: int = 9 * MS) -> None:
        self.now = now
        self.cost_ns = cost_ns
        self.answers: dict[int, Dump] = {}
        self.not_python: set[int] = set()
        self.calls: list[tuple[int, int]] = []

    def unfit(self, pid: int) -> Failure | None:
        return Failure.NOT_PYTHON if pid in self.not_python else None

    def dump(self, pid: int, stop: threading.Event | None = None) -> Dump:
        self.calls.append((self.now.now_ns, pid))
        self.now.now_ns += self.cost_ns
        return self.answers.get(pid, Dump(STACK))

    def counts(self) -> Counter[int]:
        return Counter(pid for _, pid in self.calls)


class FakeLooker:
    """Gives ``answer`` to each look, which takes ``cost_ns`` of the fake time."""

    def __init__(self, now: FakeTime) -> None:
        self.now = now
        self.answer = Look(STACK)
        self.cost_ns = 3_500 * MS
        self.calls: list[tuple[int, int]] = []

    def look(self, pid: int, stop: threading.Event | None = None) -> Look:
        assert stop is self.now, "the end of the focus must end the look"
        self.calls.append((self.now.now_ns, pid))
        self.now.now_ns += self.cost_ns
        return self.answer


class Stage:
    """A sampler with fake spies and clock."""

    def __init__(self, cost_ns: int = 9 * MS, stop_at_ns: int = 1 << 62, root: Path = Path("/nowhere")) -> None:
        self.root = root
        self.now = FakeTime(stop_at_ns)
        self.spy = FakeSpy(self.now, cost_ns)
        self.looker = FakeLooker(self.now)
        self.sampler = StackSampler(self.spy, self.now.clock, root, self.looker)
        self.emitted: list[StackSample] = []

    def start_job(self, pid: int, start_ticks: int) -> None:
        """Give a process a start time in the stage's /proc."""
        (self.root / str(pid)).mkdir(exist_ok=True)
        after_comm = ["R", *["0"] * 18, str(start_ticks), *["0"] * 20]
        (self.root / str(pid) / "stat").write_text(f"{pid} (python) {' '.join(after_comm)}\n")

    def run(self, *workers: ProcessInfo, focus: Focus = FOCUS) -> None:
        def emit(observation: object) -> None:
            assert isinstance(observation, StackSample)
            self.emitted.append(observation)

        self.sampler.run(focus, lambda: workers, emit, self.now)

    def errors(self) -> list[tuple[int, str]]:
        return [(sample.pid, sample.error) for sample in self.emitted if sample.error]
