"""Bytes and microseconds of one tick on the wire, for any number of GPUs and processes.

Owns: a tick with every field read, so that the size is an upper one. Refuses: sockets.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from gpuwatch import wire
from gpuwatch.model import DeviceProcess, DeviceSample, HostSample, Pressure, ProcessSample

REPEATS = 3000


class EncodeCost(NamedTuple):
    """Of one message."""

    gpus: int
    processes: int
    size_bytes: int
    median_us: float
    p95_us: float


def tick_of(gpus: int, processes_each: int) -> wire.Tick:
    """A tick as a busy node gives it; the digits are arbitrary, their number is that of real readings."""
    pids = range(100_000, 100_000 + gpus * processes_each)
    return wire.Tick(
        epoch=1_764_000_000_000_000_000,
        seq=86_400,
        mono_ns=1_234_567_890_123_456,
        wall_ns=1_764_000_000_123_456_789,
        devices=tuple(
            _device(index, pids[index * processes_each : (index + 1) * processes_each]) for index in range(gpus)
        ),
        host=_host(),
        processes=tuple(_process(pid) for pid in pids),
    )


def encode_cost(gpus: int, processes_each: int) -> EncodeCost:
    """Size and time of encoding one tick, each call timed by itself."""
    tick = tick_of(gpus, processes_each)
    times = []
    for _ in range(REPEATS):
        before = time.perf_counter_ns()
        payload = wire.encode(tick)
        times.append(time.perf_counter_ns() - before)
    times.sort()
    return EncodeCost(
        gpus, gpus * processes_each, len(payload), statistics.median(times) / 1000, times[REPEATS * 95 // 100] / 1000
    )


def _device(index: int, pids: range) -> DeviceSample:
    return DeviceSample(
        index, 1_234_567_890_123_456 + index, 97, 41, 123_456_789_012, 412.337, 61, 1980, 3201, 4, 999_870_112,
        93.17, 88.42, 47.93, 31.08, 0.0, 12.71, 3.05, 44.6, 1_234_567_890.5, 234_567_890.5, 0.0, 0.0,
        tuple(DeviceProcess(pid, 61_728_394_506, "C") for pid in pids), None, 1_234_567,
    )  # fmt: skip


def _host() -> HostSample:
    pressure = Pressure(1.37, 0.12, 123_456_789_012, 12_345_678_901)
    return HostSample(
        1_234_567_890_123_456, 37.25, (), pressure, pressure, pressure, 2_164_000_000_000, 1_904_000_000_000, 0, 61.42,
        1_082_000_000_000, 4_294_967_296, 192,
    )  # fmt: skip


def _process(pid: int) -> ProcessSample:
    return ProcessSample(
        pid, 123_456_789, 1_234_567_890_123_456, "R", 101.25, 12_345_670_000_000, 234_560_000_000, 11_345_678_901_234,
        "R", 142, 3, 34_567_890_123, 1_234_567_890, 123_456_789_012, 12_345_678_901, 223_456_789_012, 12_345_678, 42,
        "",
    )  # fmt: skip
