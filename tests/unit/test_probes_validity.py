"""Figures that look good and are wrong: each fault that was published as a record is refused or named here."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakegpu.simulated import CYCLES_PER_MS, ENQUEUE_MS, SimulatedGpu

from probes import catalogue, clocks, copies, device, disk, harness, launch, memory, peaks, stats
from probes.report import Report

MIB = 1024**2


def test_events_on_another_stream_make_every_figure_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    for other_stream, says in ((False, ""), (True, "not on the stream that works")):
        gpu = SimulatedGpu(other_stream=other_stream)
        clock = clocks.CudaClock(gpu.torch, "cuda:0")
        # The rate of the spin kernel is known here: with blind events it could not even be learned.
        monkeypatch.setattr(clock, "_cycles_per_ms", CYCLES_PER_MS)
        monkeypatch.setattr(time, "perf_counter", lambda gpu=gpu: gpu.cpu_ms / 1000.0)
        told = clocks.self_test(clock)
        assert (told == "") == (says == "")
        assert says in told


def test_a_clock_that_forgets_to_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu()
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    monkeypatch.setattr(clock, "_cycles_per_ms", CYCLES_PER_MS)
    monkeypatch.setattr(time, "perf_counter", lambda: gpu.cpu_ms / 1000.0)
    monkeypatch.setattr(clock, "ms", lambda start, end: ENQUEUE_MS)  # the launch alone, as without synchronise
    assert "the events read 0.01 ms of" in clocks.self_test(clock)


def test_a_kernel_shorter_than_its_launch_is_not_timed_as_python() -> None:
    gpu = SimulatedGpu(kernel_ms=0.002)
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    naive = harness.series(clock, gpu.work, 100, lambda seen: len(seen) >= 5)
    # The time that Python takes to enqueue one, whatever the kernel does.
    assert stats.median(naive) > 4 * gpu.kernel_ms
    gpu.streams.clear()
    held = harness.series(clock, gpu.work, 100, lambda seen: len(seen) >= 5, hold_ms=5.0)
    assert held == pytest.approx([gpu.kernel_ms] * 5)
    assert set(gpu.streams) == {"current"}


def test_holding_is_chosen_only_where_enqueueing_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel_ms, held in ((0.002, True), (1.0, False)):
        gpu = SimulatedGpu(kernel_ms=kernel_ms)
        clock = clocks.CudaClock(gpu.torch, "cuda:0")
        monkeypatch.setattr(time, "perf_counter_ns", lambda gpu=gpu: int(gpu.cpu_ms * 1e6))
        calls, hold_ms = harness.launch_bound(clock, gpu.work, 100)
        assert (hold_ms > 0) == held
        assert calls <= harness.HELD_INNER
        # The stream waits longer than the CPU needs to enqueue everything behind it.
        assert not held or hold_ms > calls * ENQUEUE_MS


def test_without_a_spin_kernel_nothing_is_held_and_nothing_breaks() -> None:
    gpu = SimulatedGpu(kernel_ms=0.002, spin=False)
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    assert (clock.hold(1.0), clock.sm_mhz(), clocks.self_test(clock)) == (False, 0.0, "")
    assert harness.launch_bound(clock, gpu.work, 10) == (10, 0.0)


def test_the_sm_clock_is_read_from_a_spin_of_known_length() -> None:
    assert clocks.CudaClock(SimulatedGpu().torch, "cuda:0").sm_mhz() == pytest.approx(1980.0)
    assert clocks.CpuClock().sm_mhz() == 0.0


def test_clocks_that_fall_while_measuring_are_named() -> None:
    gpu = SimulatedGpu()
    gpu.slower_each_call = 1.002
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    samples = harness.series(clock, gpu.work, 1, lambda seen: len(seen) >= 60)
    report = Report("matmul", "cuda:0")
    timing = harness.Timing(1.0, [], samples, True, 1.0, 1)
    assert timing.drift == pytest.approx(0.115, abs=0.02)
    harness.note_timing(report, "bf16_8192", timing)
    assert report.notes == ["bf16_8192: became 11% slower while it was measured: clocks or a neighbour"]


def test_noise_is_not_called_a_drift() -> None:
    report = Report("matmul", "cuda:0")
    harness.note_timing(report, "x", harness.Timing(1.0, [], [1.0, 1.05, 0.95, 1.02, 0.98] * 12, True, 1.0, 1))
    assert report.notes == []


def test_what_fits_in_the_cache_is_never_called_memory() -> None:
    l2 = 50 * MIB
    assert device.cache_state(2048 * MIB, 1, l2) == "cold"
    assert device.cache_state(40 * MIB, 12, l2) == "rotating"
    assert device.cache_state(40 * MIB, 1, l2) == "warm"
    assert device.cache_state(40 * MIB, 5, l2) == "warm"
    assert device.cache_state(40 * MIB, 5, 0) == "unknown"
    assert stats.rotation(40 * MIB, l2, 2048 * MIB) == 10
    assert stats.rotation(2048 * MIB, l2, 2048 * MIB) == 1
    assert stats.rotation(40 * MIB, l2, 100 * MIB) == 1
    assert stats.rotation(40 * MIB, 0, 2048 * MIB) == 1


def test_cached_bandwidth_is_impossible_as_memory_bandwidth() -> None:
    # 3530 GB/s on a card whose memory does 864: the persisting L2 had been measured.
    assert "cannot do more than 864.0 of dram" in peaks.impossible("NVIDIA L40S", "dram", 3530.0, unit="GB/s")
    assert peaks.impossible("NVIDIA H200", "dram", 4800.0 * 1.019, unit="GB/s") == ""
    assert "63.0 of link" in peaks.impossible("NVIDIA H200", "link", 70.0, unit="GB/s")
    assert peaks.impossible("NVIDIA H200", "link", 100.0, 2, "GB/s") == "", "both directions at once"


def test_bytes_are_counted_as_read_and_written() -> None:
    assert {case.name: case.arrays for case in memory.CASES} == {
        "copy": 2,
        "clone": 2,
        "broadcast_add": 2,
        "triad": 3,
    }


def test_a_link_that_is_slow_one_way_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"h2d_pinned_256MiB": 26.3, "d2h_pinned_256MiB": 6.3}
    monkeypatch.setattr(copies, "_measure", lambda *args: rates.get(args[3].name, 20.0))
    report = Report("copies", "cuda:0")
    target = device.Target(None, "cuda:0", True, "", "NVIDIA A100", 80 << 30, 80 << 30, 8)
    copies.run(target, None, report, 0.1, "", lambda _text: None)
    assert len(report.notes) == 1
    assert "h2d_pinned_256MiB 26.3 and back 6.3 GB/s" in report.notes[0]


def test_a_pair_of_events_is_timed_in_a_queue_that_is_full_as_a_jobs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone in its queue it reads 2.9 µs on an H200, behind four others 3.7, as do_bench says: another quantity."""
    gpu = SimulatedGpu(kernel_ms=0.003)
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    clock.hold(0.1)  # learns the rate of the spin
    added: list[int] = []
    asked_at: list[int] = []

    def add() -> None:
        added.append(len(gpu.spins_ms))
        gpu.work()

    def ms(start: Any, end: Any, inner: Any = clock.ms) -> float:
        asked_at.append(len(added))
        return float(inner(start, end))

    monkeypatch.setattr(clock, "ms", ms)
    found = launch.pairs_us(clock, cast("Any", SimpleNamespace(add=add)))
    assert found == pytest.approx([3.0] * (launch.PAIRS - launch.FILLING))
    assert set(asked_at) == {launch.PAIRS}, "one was waited for before all were queued"
    assert len(set(added)) == launch.PAIRS, "each behind a spin of its own, so that Python is not timed"


def test_a_lost_launch_is_found_by_counting() -> None:
    counter: Any = SimpleNamespace(element=SimpleNamespace(item=lambda: 9.0, zero_=lambda: None))
    counter.expected, counter.wrong = 10, 0
    launch.Counter.settle(counter)
    assert (counter.wrong, counter.expected) == (1, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_out_of_memory_is_told_from_a_broken_device(text: str, says: bool) -> None:
    assert device.is_out_of_memory(RuntimeError(text)) == says
    assert device.is_out_of_memory(MemoryError())


def test_the_folder_of_a_disk_test_is_told_from_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nnas:/d /data\\040set nfs4 rw 0 0\n")
    assert disk.file_system(Path("/dev/shm"), mounts) == "tmpfs"
    assert disk.file_system(Path("/dev/shmx"), mounts) == "ext4"
    assert disk.file_system(Path("/data set"), mounts) == "nfs4"
    assert disk.file_system(Path("/"), tmp_path / "absent") == "unknown"


def test_a_set_can_be_built_without_torch() -> None:
    assert len({probe.name for probe in catalogue.PROBES}) == len(catalogue.PROBES) == 12
    for probe in catalogue.PROBES:
        assert probe.kind in (catalogue.LIGHT, catalogue.INTENSIVE)
        assert probe.question.endswith("?")
        assert min(probe.gpu_s, probe.cpu_s) > 0
        assert math.isfinite(probe.gpu_s + probe.cpu_s)
        assert probe.disturbs
