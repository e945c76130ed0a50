"""When the host and the processes are read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from gpuwatch.collect.host_sampler import SILENT_PERIODS, HostSampler, Roots
from gpuwatch.model import HostSample, Observation, ProcessTick, Reason

MS = 1_000_000
S = 1000 * MS


class Bench:
    def __init__(self) -> None:
        self.ns = 10**12
        self.got: list[Observation] = []
        self.asked: list[Roots] = []
        self.broken = False
        self.during: Callable[[], None] = lambda: None
        """Called inside every read."""
        self.sampler = HostSampler(
            self, _Processes(self), lambda: {42: (0, 1)}, self.got.append, period_s=1.0, clock=lambda: self.ns
        )

    def step(self) -> int:
        """What the two threads do."""
        return min(self.sampler.step(), self.sampler.processes.step())

    def read(self, mono_ns: int) -> HostSample:
        self.during()
        if self.broken:
            raise RuntimeError("a bug")
        return HostSample(mono_ns)


class _Processes:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        self._bench.during()
        self._bench.asked.append(roots)
        return ProcessTick(mono_ns)


def test_host_and_processes_are_read_together_for_the_pids_that_hold_gpus() -> None:
    bench = Bench()
    assert bench.step() == S
    assert bench.got == [HostSample(bench.ns), ProcessTick(bench.ns)]
    assert bench.asked == [{42: (0, 1)}]
    assert bench.sampler.progress_ns == bench.ns


def test_a_focus_reads_processes_four_times_a_second_at_once() -> None:
    bench = Bench()
    bench.step()
    bench.sampler.set_period(0.25)
    assert bench.step() == 250 * MS


def test_a_new_gpu_process_is_read_without_waiting_for_the_next_second() -> None:
    bench = Bench()
    bench.step()
    bench.ns += 100 * MS
    bench.sampler.hurry()
    bench.step()
    assert len(bench.asked) == 2


def test_a_bug_in_the_host_reader_does_not_stop_the_process_reader(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.broken = True
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            bench.step()
            bench.ns += S
    assert [type(observation) for observation in bench.got] == [ProcessTick] * 3
    assert len(caplog.records) == 1
    assert bench.sampler.failures.now == {"the host": "RuntimeError: a bug"}


def test_a_host_that_can_be_read_again_is_not_said_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO):
        for bench.broken in (True, True, False, True):
            bench.step()
            bench.ns += S
    assert [record.message for record in caplog.records] == [
        "reading the host failed",
        "reading the host works again",
        "reading the host failed",
    ]


def test_nothing_is_emitted_after_the_end() -> None:
    bench = Bench()
    bench.sampler.end()
    bench.step()
    assert bench.got == []


def test_a_read_that_does_not_return_is_told_after_three_periods_and_not_before() -> None:
    bench = Bench()
    told: list[dict[str, Reason]] = []

    def during() -> None:
        for after_ns in (SILENT_PERIODS * S, 1):
            bench.ns += after_ns
            told.append({part.part: part.absent.reason for part in bench.sampler.silent()})

    bench.during = during
    bench.step()
    assert told == [{}, {"the host": Reason.TIMEOUT}, {}, {"the processes": Reason.TIMEOUT}]
    assert bench.sampler.silent() == []


def test_a_process_that_cannot_be_read_does_not_stop_the_readings_of_the_host() -> None:
    bench, hangs, release = Bench(), threading.Event(), threading.Event()
    processes = bench.sampler.processes

    def during() -> None:
        if threading.current_thread() is processes:
            hangs.set()
            release.wait()

    bench.during = during
    processes.start()
    assert hangs.wait(10)
    for _ in range(5):
        bench.sampler.step()
        bench.ns += S
    assert [type(observation) for observation in bench.got] == [HostSample] * 5
    assert [part.part for part in bench.sampler.silent()] == ["the processes"]
    bench.sampler.end()
    release.set()
    processes.join()


def test_both_threads_start_and_end_together() -> None:
    bench = Bench()
    bench.sampler.start()
    bench.sampler.end()
    bench.sampler.join(10)
    assert (bench.sampler.is_alive(), bench.sampler.processes.is_alive()) == (False, False)
