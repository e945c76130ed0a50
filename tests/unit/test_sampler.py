"""When a GPU is read, and what is known while a reading hangs."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

from gpuwatch.collect.sampler import Deadline, DeviceSampler
from gpuwatch.model import Absent, DeviceSample, Reason

MS = 1_000_000
S = 1000 * MS


class Clock:
    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns


class FakeReader:
    """Takes ``cost_ns`` of the clock for a reading; GPM may be read every 101 ms."""

    def __init__(self, clock: Clock, cost_ns: int = 0) -> None:
        self.clock = clock
        self.cost_ns = cost_ns
        self.gpm_ready_ns = 0
        self.driver_gone_reads = 0
        self.opened = True
        self.reads: list[tuple[int, bool]] = []
        self.fails = False

    def read(self, mono_ns: int, gpm: bool = True, full: bool = True) -> DeviceSample:
        self.reads.append((mono_ns, full))
        self.gpm_ready_ns = self.clock.ns + 101 * MS
        self.clock.ns += self.cost_ns
        if self.fails:
            raise RuntimeError("a bug")
        return DeviceSample(3, mono_ns)


def run_for(sampler: DeviceSampler, clock: Clock, ns: int) -> None:
    """Step as the thread does, with the waiting done by the clock."""
    ends = clock.ns + ns
    while clock.ns < ends:
        wait_ns = sampler.step()
        clock.ns = min(ends, clock.ns + wait_ns)


def test_a_late_run_does_not_shift_the_ones_after_it() -> None:
    deadline = Deadline(S, 0)
    deadline.advance(300 * MS)
    assert deadline.wait_ns(300 * MS) == 700 * MS
    assert deadline.overruns == 0


def test_missed_deadlines_are_counted_and_not_made_up_for() -> None:
    deadline = Deadline(S, 0)
    deadline.advance(3500 * MS)
    assert deadline.overruns == 3
    assert deadline.due_ns == 4 * S
    deadline.advance(4 * S)
    assert deadline.due_ns == 5 * S
    assert deadline.overruns == 3


def test_a_faster_rate_shows_at_once_and_a_slower_one_keeps_the_next_run() -> None:
    deadline = Deadline(5 * S, 0)
    deadline.advance(0)
    deadline.set_period(100 * MS, S)
    assert deadline.due_ns == 1100 * MS
    deadline.set_period(5 * S, S)
    assert deadline.due_ns == 1100 * MS


def test_once_a_second_every_reading_is_full_even_with_jitter() -> None:
    clock = Clock()
    reader = FakeReader(clock, cost_ns=7 * MS)
    got: list[DeviceSample] = []
    sampler = DeviceSampler(3, reader, got.append, 1.0, clock)
    start = clock.ns
    for late_ms in (0, 20, 0, 15, 0):
        clock.ns += late_ms * MS
        assert sampler.step() > 0
        clock.ns = start + len(reader.reads) * S
    assert [full for _, full in reader.reads] == [True] * 5
    assert len(got) == 5
    assert sampler.overruns == 0


def test_at_10_hz_counters_are_100_ms_apart_and_one_reading_a_second_is_full() -> None:
    clock = Clock()
    reader = FakeReader(clock, cost_ns=2 * MS)
    sampler = DeviceSampler(3, reader, lambda sample: None, 0.1, clock)
    run_for(sampler, clock, 3 * S)
    times = [ns for ns, _ in reader.reads]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 101 * MS
    assert max(gaps) <= 103 * MS
    assert sum(full for _, full in reader.reads) == 3
    assert sampler.overruns == 0


def test_a_focus_takes_effect_before_the_old_period_is_over() -> None:
    clock = Clock()
    reader = FakeReader(clock)
    sampler = DeviceSampler(3, reader, lambda sample: None, 5.0, clock)
    sampler.step()
    sampler.set_period(0.1)
    assert sampler.period_s == 0.1
    assert sampler.step() <= 101 * MS


def test_periods_outside_the_range_are_clamped() -> None:
    sampler = DeviceSampler(3, FakeReader(Clock()), lambda sample: None, 0.001, Clock())
    assert sampler.period_s == 0.1
    sampler.set_period(60)
    assert sampler.period_s == 5.0


def test_readings_that_take_too_long_are_skipped_and_counted() -> None:
    clock = Clock()
    reader = FakeReader(clock, cost_ns=3500 * MS)
    sampler = DeviceSampler(3, reader, lambda sample: None, 1.0, clock)
    assert sampler.step() == 500 * MS
    assert sampler.overruns == 3


def test_progress_and_the_age_of_a_hanging_reading_are_visible() -> None:
    clock = Clock()
    entered, leave = threading.Event(), threading.Event()

    class Hanging(FakeReader):
        def read(self, mono_ns: int, gpm: bool = True, full: bool = True) -> DeviceSample:
            entered.set()
            assert leave.wait(30)
            return super().read(mono_ns, gpm, full)

    got: list[DeviceSample] = []
    sampler = DeviceSampler(3, Hanging(clock), got.append, 1.0, clock)
    sampler.start()
    assert entered.wait(30)
    assert (sampler.stuck_since_ns, sampler.progress_ns) == (clock.ns, 0)
    sampler.end()
    leave.set()
    sampler.join(30)
    assert not sampler.is_alive()
    assert (sampler.stuck_since_ns, sampler.progress_ns) == (None, clock.ns)
    assert got == []


def test_a_bug_in_the_reader_shows_as_a_reason_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    reader = FakeReader(clock)
    reader.fails = True
    got: list[DeviceSample] = []
    sampler = DeviceSampler(3, reader, got.append, 1.0, clock)
    with caplog.at_level(logging.ERROR):
        run_for(sampler, clock, 3 * S)
    assert [sample.power_w for sample in got] == [Absent(Reason.ERROR, "RuntimeError: a bug")] * 3
    assert len(caplog.records) == 1


class BothWays(FakeReader):
    """Has slow readings too, which may fail for themselves."""

    more_fails = False

    def set_demand(self, low: bool) -> None:
        pass

    def extras(self, mono_ns: int) -> tuple[DeviceSample, ...]:
        if self.more_fails:
            raise TypeError("another bug")
        return (DeviceSample(4, mono_ns),)


def test_each_kind_of_failing_reading_is_told_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    reader = BothWays(clock)
    more: list[object] = []
    sampler = DeviceSampler(3, reader, lambda _: None, 1.0, clock, more=more.append)
    with caplog.at_level(logging.INFO):
        reader.more_fails = True
        run_for(sampler, clock, 2 * S)
        assert sampler.failures.now == {"the slow readings of GPU 3": "TypeError: another bug"}
        reader.fails = True
        run_for(sampler, clock, 2 * S)
        assert set(sampler.failures.now) == {"GPU 3", "the slow readings of GPU 3"}
        reader.fails = reader.more_fails = False
        run_for(sampler, clock, 2 * S)
    assert sampler.failures.now == {}
    assert len(more) == 2
    assert [record.message for record in caplog.records] == [
        "reading the slow readings of GPU 3 failed",
        "reading GPU 3 failed",
        "reading GPU 3 works again",
        "reading the slow readings of GPU 3 works again",
    ]
