"""When the host and the processes are read."""

from __future__ import annotations

import logging

import pytest

from gpuwatch.collect.host_sampler import HostSampler, Roots
from gpuwatch.model import HostSample, Observation, ProcessTick

MS = 1_000_000
S = 1000 * MS


class Bench:
    def __init__(self) -> None:
        self.ns = 10**12
        self.got: list[Observation] = []
        self.asked: list[Roots] = []
        self.broken = False
        self.sampler = HostSampler(
            self, _Processes(self), lambda: {42: (0, 1)}, self.got.append, period_s=1.0, clock=lambda: self.ns
        )

    def read(self, mono_ns: int) -> HostSample:
        if self.broken:
            raise RuntimeError("a bug")
        return HostSample(mono_ns)


class _Processes:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        self._bench.asked.append(roots)
        return ProcessTick(mono_ns)


def test_host_and_processes_are_read_together_for_the_pids_that_hold_gpus() -> None:
    bench = Bench()
    assert bench.sampler.step() == S
    assert bench.got == [HostSample(bench.ns), ProcessTick(bench.ns)]
    assert bench.asked == [{42: (0, 1)}]
    assert bench.sampler.progress_ns == bench.ns


def test_a_focus_reads_processes_four_times_a_second_at_once() -> None:
    bench = Bench()
    bench.sampler.step()
    bench.sampler.set_period(0.25)
    assert bench.sampler.step() == 250 * MS


def test_a_new_gpu_process_is_read_without_waiting_for_the_next_second() -> None:
    bench = Bench()
    bench.sampler.step()
    bench.ns += 100 * MS
    bench.sampler.hurry()
    bench.sampler.step()
    assert len(bench.asked) == 2


def test_a_bug_in_the_host_reader_does_not_stop_the_process_reader(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.broken = True
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            bench.sampler.step()
            bench.ns += S
    assert [type(observation) for observation in bench.got] == [ProcessTick] * 3
    assert len(caplog.records) == 1
    assert bench.sampler.failures.now == {"the host": "RuntimeError: a bug"}


def test_a_host_that_can_be_read_again_is_not_said_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO):
        for bench.broken in (True, True, False, True):
            bench.sampler.step()
            bench.ns += S
    assert [record.message for record in caplog.records] == [
        "reading the host failed",
        "reading the host works again",
        "reading the host failed",
    ]


def test_nothing_is_emitted_after_the_end() -> None:
    bench = Bench()
    bench.sampler.end()
    bench.sampler.step()
    assert bench.got == []
