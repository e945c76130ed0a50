"""The driver's own samples through the C ABI: at 1 Hz none is lost, none comes twice, whatever the clock does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fakenvml.bench import Ticking, ticking

from gpuwatch.collect.buffers import SampleBuffer
from gpuwatch.collect.fold import summarise
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, Burst, Reason, SampleSeries

EVERY_MS = {"util": 200, "power": 20}


def older(tmp_path: Path, scenario: str = "gpus=1") -> AbstractContextManager[Ticking]:
    """A card without GPM: its samples are all that there is below a second, and are drained each second."""
    return ticking(tmp_path, f"gpu * gpm=0\n{scenario}")


def series(bursts: Sequence[Burst], name: str) -> list[SampleSeries]:
    return [burst.util_pct if name == "util" else burst.power_mw for burst in bursts]


def steps(parts: Sequence[SampleSeries]) -> list[int]:
    """All steps after the first sample of all."""
    return list(itertools.chain.from_iterable(part.steps_us for part in parts))[1:]


@pytest.mark.parametrize("name", ["util", "power"])
def test_at_one_hertz_no_sample_is_lost_and_none_comes_twice(tmp_path: Path, name: str) -> None:
    with older(tmp_path, "gpu 0 util=0..100/3000 power=100000..700000/900") as t:
        bursts = t.bursts(10)
    parts = series(bursts, name)
    assert set(steps(parts)) == {EVERY_MS[name] * 1000}
    # The first drain brings the past; nine seconds follow.
    assert abs(sum(len(part.values) for part in parts[1:]) - 9000 // EVERY_MS[name]) <= 2
    assert [part.broken for part in parts] == [True, *[False] * 9]


@pytest.mark.parametrize("after_ms", [37, 150, 333, 1900])
def test_no_sample_is_lost_at_any_rate_of_reading_that_the_ring_allows(tmp_path: Path, after_ms: int) -> None:
    with older(tmp_path) as t:
        bursts = t.bursts(12, after_ms)
    for name, every_ms in EVERY_MS.items():
        assert set(steps(series(bursts, name))) <= {every_ms * 1000}, name


def test_each_sample_has_the_value_that_the_driver_saw(tmp_path: Path) -> None:
    with older(tmp_path, "gpu 0 util=0\nat 2050 gpu 0 util=90\nat 3050 gpu 0 util=0") as t:
        values = [value for burst in t.bursts(5) for value in burst.util_pct.values]
    assert values[:10] == [0] * 10
    assert values[10:15] == [90] * 5
    assert set(values[15:]) == {0}


def test_the_length_of_the_ring_is_asked_and_not_assumed(tmp_path: Path) -> None:
    # 300 power samples in a second: a ring of 119 would lose two thirds.
    with older(tmp_path, "gpu 0 ringms.0=3 ringcap.0=700 ringms.1=100 ringcap.1=20") as t:
        bursts = t.bursts(6)
    assert set(steps(series(bursts, "power"))) == {3000}
    assert set(steps(series(bursts, "util"))) == {100_000}
    assert not any(part.broken for part in series(bursts, "power")[1:])


def test_samples_that_were_overwritten_are_admitted(tmp_path: Path) -> None:
    with older(tmp_path) as t:
        t.bursts(2)
        late = t.tick(5000).burst
    assert late is not None
    assert late.power_mw.broken
    assert len(late.power_mw.values) == 119
    assert late.power_mw.steps_us[0] == 0
    # Utilization is kept for 14 s.
    assert not late.util_pct.broken
    assert len(late.util_pct.values) == 25


def test_an_idle_gpu_whose_buffer_goes_dark_has_nothing_new_and_no_error(tmp_path: Path) -> None:
    with older(tmp_path, "gpu 0 util=50 ring=1\nat 2000 gpu 0 ring=0\nat 30000 gpu 0 ring=1") as t:
        before = t.bursts(2)
        dark = t.bursts(27)
        after = t.bursts(3)
    for burst in dark:
        assert burst.util_pct.absent in (None, Absent(Reason.NOT_FOUND))
    assert sum(len(b.util_pct.values) for b in dark[1:]) == 0
    assert sum(len(b.util_pct.values) for b in after) in range(8, 16)
    stepped = steps(series([*before, *dark, *after], "util"))
    assert sorted(stepped)[-1] >= 27_000_000
    assert set(sorted(stepped)[:-1]) == {200_000}


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000, -1500])
def test_a_clock_that_was_set_loses_no_sample_and_repeats_none(tmp_path: Path, jump_ms: int) -> None:
    with older(tmp_path, f"gpu 0 util=0..100/7000 power=0..700000/7777\nat 5010 clock={jump_ms}") as t:
        bursts = t.bursts(12)
    for name, every_ms in EVERY_MS.items():
        parts = series(bursts, name)
        count = sum(len(part.values) for part in parts)
        elapsed = len(steps(parts))
        assert count == elapsed + 1
        assert abs(count - 12_000 // every_ms) <= 2, name
        assert max(steps(parts)) <= every_ms * 1000
        assert min(steps(parts)) >= 0
        assert sum(part.broken for part in parts) == 2, name


def test_samples_stand_where_they_were_taken_on_our_clock_after_the_driver_s_was_set(tmp_path: Path) -> None:
    with older(tmp_path, "gpus=1\nat 5010 clock=3600000") as t:
        for _ in range(9):
            burst = t.tick().burst
            assert burst is not None
            assert 0 <= t.clock[0] - burst.util_pct.end_mono_ns <= 210_000_000


def test_process_utilization_does_not_stick_after_the_clock_was_set_back(tmp_path: Path) -> None:
    scenario = "gpu 0 procs=7:1:C putil=7:80:5\nat 5010 clock=-3600000"
    with older(tmp_path, scenario) as t:
        t.health(5)
        health = t.health(8)
    assert [(u.pid, u.sm_pct) for u in health.process_utils] == [(7, 80)]


def test_garbage_in_a_ring_is_no_spike_and_shifts_nothing(tmp_path: Path) -> None:
    with older(tmp_path, "gpu 0 util=40\nat 2390 gpu 0 util=4294967295\nat 2410 gpu 0 util=40") as t:
        bursts = t.bursts(4)
    assert {value for burst in bursts for value in burst.util_pct.values} == {40}
    assert set(steps(series(bursts, "util"))) == {200_000}


def test_a_driver_that_gives_its_ring_out_of_order_is_put_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotated(self: SampleBuffer, seen_us: int) -> list[tuple[int, int]] | Absent:
        found = fetch(self, seen_us)
        return found if isinstance(found, Absent) else [*found[3:], *found[:3]]

    fetch = SampleBuffer._fetch
    monkeypatch.setattr(SampleBuffer, "_fetch", rotated)
    with older(tmp_path, "gpu 0 util=0..100/3000") as t:
        bursts = t.bursts(6)
    assert set(steps(series(bursts, "util"))) == {200_000}
    assert [part.broken for part in series(bursts, "util")] == [True, *[False] * 5]


def test_draining_costs_one_call_per_ring_once_the_length_is_known(tmp_path: Path) -> None:
    with older(tmp_path) as t:
        assert t.tick().calls["nvmlDeviceGetSamples"] == 4
        assert t.tick().calls["nvmlDeviceGetSamples"] == 2


def test_a_card_without_rings_is_asked_once(tmp_path: Path) -> None:
    with older(tmp_path, "gpu 0 rc.nvmlDeviceGetSamples=3") as t:
        first, second = t.tick(), t.tick()
    assert first.burst is None
    assert "nvmlDeviceGetSamples" not in second.calls


def test_a_passing_failure_of_a_ring_is_told_and_then_nothing_is_missing(tmp_path: Path) -> None:
    with older(tmp_path) as t:
        before = t.bursts(2)
        t.fake.set("gpu 0 rc.nvmlDeviceGetSamples=999,999,0")
        failed = t.bursts(1)
        after = t.bursts(2)
    assert failed[0].util_pct.absent == Absent(Reason.ERROR, "NVML error 999")
    assert set(steps(series([*before, *failed, *after], "util"))) == {200_000}
    assert set(steps(series([*before, *failed, *after], "power"))) == {20_000}


# beside GPM


def test_beside_gpm_utilization_is_drained_every_third_second_and_no_sample_is_lost(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 util=0..100/3000 power=100000..700000/900") as t:
        bursts = t.bursts(11)
    util, power = series(bursts, "util"), series(bursts, "power")
    assert [part.absent for part in util] == [None, *[NOT_READ, NOT_READ, None] * 3, NOT_READ]
    assert set(steps(util)) == {200_000}
    assert sum(len(part.values) for part in util[1:]) == 45, "nine seconds of them"
    assert set(steps(power)) == {20_000}
    assert all(part.values for part in power), "the ring holds 2.4 s only"


def test_a_ring_too_short_to_wait_is_drained_each_second_beside_gpm_too(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 ringcap.1=20") as t:
        util = series(t.bursts(6), "util")
    assert [part.absent for part in util] == [None] * 6
    assert set(steps(util)) == {200_000}


# what is made of them


def test_without_gpm_the_samples_are_busy_windows_below_a_second(tmp_path: Path) -> None:
    with older(tmp_path, "gpu 0 gpm=0 util=0\nat 1410 gpu 0 util=100\nat 1790 gpu 0 util=0") as t:
        windows = [w for burst in t.bursts(3)[1:] for w in burst.busy_windows()]
    assert [busy for _, _, busy in windows] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert all(later[0] == earlier[1] for earlier, later in itertools.pairwise(windows[:5]))
    assert {end_ns - start_ns for start_ns, end_ns, _ in windows} == {200_000_000}


def test_a_sample_without_a_predecessor_is_no_window(tmp_path: Path) -> None:
    with older(tmp_path) as t:
        first = t.bursts(1)[0]
    assert len(first.busy_windows()) == len(first.util_pct.values) - 1
    assert Burst(0, 1).busy_windows() == ()


def test_the_stream_gets_the_extremes_and_a_bounded_number_of_samples() -> None:
    def burst(util: tuple[int, ...], power: tuple[int, ...]) -> Burst:
        return Burst(
            3, 7, SampleSeries(1, (0,) * len(util), util, absent=None), SampleSeries(1, (0,) * len(power), power)
        )

    summary = summarise([burst(tuple(range(10)), (76_400, 300_000)), burst(tuple(range(10)), (700_000,))])
    assert summary.util_pct == (4, 5, 6, 7, 8, 9, *range(10))
    assert (summary.power_min_w, summary.power_mean_w, summary.power_max_w) == (76, 359, 700)
    dark = summarise([Burst(0, 1, power_mw=SampleSeries(absent=NOT_SUPPORTED))])
    assert (dark.util_pct, dark.power_max_w) == ((), NOT_SUPPORTED)
    assert summarise([Burst(0, 1)]).power_min_w == NOT_READ
