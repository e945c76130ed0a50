"""Samplers on one grid: GPUs are compared over the same window, whatever happened to each before."""

from __future__ import annotations

from gpuwatch.collect.sampler import Deadline
from gpuwatch.collect.shared_memory import with_shared_memory
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, DeviceProcess, DeviceSample, Reason

MS = 1_000_000
S = 1000 * MS


def test_threads_that_start_apart_are_due_together_from_the_second_run_on() -> None:
    deadlines = [Deadline(S, start * MS, origin_ns=0) for start in (0, 7, 140)]
    for deadline, start in zip(deadlines, (0, 7, 140), strict=True):
        deadline.advance(start * MS + 5 * MS)
    assert {deadline.due_ns for deadline in deadlines} == {S}


def test_after_a_hang_and_after_a_burst_they_are_due_together_again() -> None:
    calm, hung, burst = (Deadline(S, 0, origin_ns=0) for _ in range(3))
    hung.advance(3700 * MS)
    burst.set_period(100 * MS, 1234 * MS)
    burst.postpone(1301 * MS)
    burst.advance(1303 * MS)
    burst.set_period(S, 3800 * MS)
    burst.advance(3800 * MS)
    calm.advance(3001 * MS)
    assert calm.due_ns == hung.due_ns == burst.due_ns == 4 * S


def test_a_hurried_run_is_followed_half_a_period_later_at_the_earliest() -> None:
    deadline = Deadline(S, 0)
    deadline.advance(0)
    deadline.hurry(900 * MS)
    assert deadline.wait_ns(900 * MS) == 0
    deadline.advance(900 * MS)
    assert deadline.due_ns == 2 * S, "100 ms would be too short a window for a rate"
    deadline.hurry(1900 * MS)
    deadline.hurry(1900 * MS)
    assert deadline.due_ns == 1900 * MS


def processes(*used: int | Absent) -> DeviceSample:
    listed = tuple(DeviceProcess(n, bytes_, "C") for n, bytes_ in enumerate(used, 1))
    return DeviceSample(0, 1, mem_used_bytes=NOT_SUPPORTED, processes=listed, processes_absent=None)


def test_memory_in_use_of_a_unified_gpu_is_what_its_processes_hold() -> None:
    assert with_shared_memory(processes(5, NOT_SUPPORTED, 7)).mem_used_bytes == 12
    assert with_shared_memory(processes()).mem_used_bytes == 0
    assert with_shared_memory(processes(NOT_SUPPORTED)).mem_used_bytes == NOT_SUPPORTED


def test_memory_in_use_stays_unknown_where_the_list_was_not_read() -> None:
    unread = DeviceSample(0, 1, mem_used_bytes=NOT_SUPPORTED, processes_absent=Absent(Reason.NO_PERMISSION))
    assert with_shared_memory(unread).mem_used_bytes == NOT_SUPPORTED
    assert with_shared_memory(DeviceSample(0, 1, mem_used_bytes=44)).mem_used_bytes == 44
    assert with_shared_memory(DeviceSample(0, 1)).mem_used_bytes == NOT_READ
