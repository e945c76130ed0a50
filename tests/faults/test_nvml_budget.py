"""What a tick may ask of the driver, per tier, counted through the C ABI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fakenvml.bench import MS, Ticking, ticking

from gpuwatch.model import NOT_SUPPORTED, Absent

SCENARIO = "gpu 0 util=90 gpm.1=90 procs=5:1:C putil=5:90:10 fi.74=0@1 fi.3=0 fi.187=200000"

EVERY_TICK = {
    "nvmlGpmSampleGet": 1,
    "nvmlGpmMetricsGet": 1,
    "nvmlDeviceGetUtilizationRates": 1,
    "nvmlDeviceGetMemoryInfo_v2": 1,
    "nvmlDeviceGetComputeRunningProcesses_v3": 1,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 1,
    "nvmlDeviceGetPowerUsage": 1,
    "nvmlDeviceGetTemperatureV": 1,
    "nvmlDeviceGetClockInfo": 2,
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    # Power. Utilization comes every third second where GPM tells how busy the GPU is.
    "nvmlDeviceGetSamples": 1,
}
EVERY_2_S = {
    "nvmlDeviceGetFieldValues": 1,
    "nvmlDeviceGetEncoderUtilization": 1,
    "nvmlDeviceGetDecoderUtilization": 1,
    "nvmlDeviceGetJpgUtilization": 1,
    "nvmlDeviceGetOfaUtilization": 1,
    "nvmlDeviceGetPerformanceState": 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 1,
}
EVERY_3_S = {"nvmlDeviceGetSamples": 1}
EVERY_10_S = {
    # What a GPU does is what its only process does.
    "nvmlDeviceGetProcessesUtilizationInfo": 1,
}
EVERY_5_S = {
    "nvmlDeviceGetTotalEnergyConsumption": 1,
    "nvmlDeviceGetMarginTemperature": 1,
    "nvmlDeviceGetBAR1MemoryInfo": 1,
    # Graphics and video; those of each tick are SM and memory.
    "nvmlDeviceGetClockInfo": 2,
}
MPS = {"nvmlDeviceGetMPSComputeRunningProcesses_v3": 1}
"""Every 5 s, watched or not."""
EVERY_30_S = {
    "nvmlDeviceGetFieldValues": 1,
    "nvmlDeviceGetRemappedRows": 1,
    "nvmlDeviceGetEccMode": 1,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 1,
    "nvmlDeviceGetEnforcedPowerLimit": 1,
    "nvmlDeviceGetGpuFabricInfoV": 1,
}
NEVER = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetInforomConfigurationChecksum")


def minute(t: Ticking) -> Counter[str]:
    """Calls of sixty ticks, after everything has been asked once."""
    t.tick()
    total: Counter[str] = Counter()
    for _ in range(60):
        total.update(t.tick().calls)
    return total


def per_minute(*tiers: tuple[dict[str, int], int]) -> Counter[str]:
    total: Counter[str] = Counter()
    for tier, times in tiers:
        total.update({name: count * times for name, count in tier.items()})
    return total


def test_each_tier_asks_what_it_may_and_no_more(tmp_path: Path) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        made = minute(t)
    assert made == per_minute(
        (EVERY_TICK, 60), (EVERY_2_S, 30), (EVERY_3_S, 20), (EVERY_5_S, 12), (EVERY_10_S, 6), (EVERY_30_S, 2), (MPS, 12)
    )
    assert not set(NEVER) & set(made)


def test_with_nobody_watching_the_slow_tiers_slow_down_and_no_sample_is_lost(tmp_path: Path) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        t.reader.set_demand(True)
        made = minute(t)
    wanted = per_minute((EVERY_TICK, 60), (EVERY_2_S, 6), (EVERY_5_S, 2), (EVERY_10_S, 6), (EVERY_30_S, 1), (MPS, 12))
    # The power ring holds 2.4 s and is drained each second; utilization holds 14 s: every five seconds will do.
    wanted["nvmlDeviceGetSamples"] = 60 + 12
    assert made == wanted


def test_shares_of_several_processes_and_samples_of_a_card_without_counters_come_faster(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 gpm=0 util=90 procs=5:1:C,6:1:C putil=5:90:10") as t:
        made = minute(t)
    assert made["nvmlDeviceGetProcessesUtilizationInfo"] == 30
    assert made["nvmlDeviceGetSamples"] == 120


def test_what_never_changes_is_asked_once(tmp_path: Path) -> None:
    once = ("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetSupportedClocksEventReasons")
    with ticking(tmp_path, SCENARIO) as t:
        first = t.tick().calls
        made: Counter[str] = Counter()
        for _ in range(40):
            made.update(t.tick().calls)
    assert all(first[name] for name in once)
    assert not set(once) & set(made)


EVERYTHING_MAY_COME = (
    "rc.nvmlDeviceGetPowerUsage=0 rc.nvmlDeviceGetSamples=0 rc.nvmlDeviceGetProcessesUtilizationInfo=0 "
    "rc.nvmlDeviceGetProcessUtilization=0 gpm=1 gpm.2=95 fi.3=7 fi.74=0@1"
)
NOTHING_YET = (
    "procs=5:1:C,6:1:C putil=5:90:10 rc.nvmlDeviceGetPowerUsage=3 rc.nvmlDeviceGetSamples=3 "
    "rc.nvmlDeviceGetProcessesUtilizationInfo=3 rc.nvmlDeviceGetProcessUtilization=3 gpm=0"
)


def everything_came(t: Ticking) -> bool:
    """After some ticks in which each group has had its turn."""
    ticks = [t.tick() for _ in range(35)]
    health = [tick.health for tick in ticks if tick.health is not None][-1]
    bursts = [tick.burst for tick in ticks if tick.burst is not None]
    return (
        (ticks[-1].sample.power_w, ticks[-1].sample.sm_active_pct, health.ecc_volatile_corrected) == (76.0, 95.0, 7)
        and bool(bursts and bursts[-1].power_mw.values)
        and health.process_utils_absent is None
    )


def test_what_a_gpu_has_not_is_asked_again_every_ten_minutes_and_not_sooner(tmp_path: Path) -> None:
    # It is true of a mode, not of a card: MIG, ECC, confidential computing, and what a reset makes of them.
    with ticking(tmp_path, f"gpu 0 {NOTHING_YET}") as t:
        made = minute(t)
        assert made["nvmlDeviceGetPowerUsage"] == 0
        hour: Counter[str] = Counter()
        for _ in range(360):
            hour.update(t.tick(10_000).calls)
        assert hour["nvmlDeviceGetPowerUsage"] == 6
        assert hour["nvmlGpmQueryDeviceSupport"] == 6
        # Two rings; the newer call and the older one.
        assert (hour["nvmlDeviceGetSamples"], hour["nvmlDeviceGetProcessUtilization"]) == (12, 6)
        t.fake.set(f"gpu 0 {EVERYTHING_MAY_COME}")
        t.tick(600_000)
        assert everything_came(t)


def test_a_gpu_that_was_lost_and_answers_again_is_asked_for_everything_anew(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 ecc=0 {NOTHING_YET}") as t:
        t.tick()
        t.fake.set("gpu 0 rc.*=15 rc.nvmlDeviceGetPowerUsage=15")
        assert t.tick().calls["nvmlDeviceGetUtilizationRates"] == 1
        t.fake.set(f"gpu 0 rc.*=0 ecc=1 {EVERYTHING_MAY_COME}")
        t.tick()
        assert t.tick().calls["nvmlDeviceGetHandleByIndex_v2"] == 1, "after a reset the old handle may be stale"
        assert everything_came(t)


def test_a_mode_that_was_switched_brings_what_depends_on_it(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 ecc=0") as t:
        assert t.health(3).ecc_volatile_corrected == NOT_SUPPORTED
        t.fake.set("gpu 0 ecc=1 fi.3=7")
        assert t.health(65).ecc_volatile_corrected == 7, "the modes, then the counters: half a minute each"


def test_what_failed_for_now_is_asked_again(tmp_path: Path) -> None:
    with ticking(tmp_path, f"{SCENARIO} rc.nvmlDeviceGetCpuAffinity=999,0") as t:
        assert isinstance(t.health().cpu_affinity, Absent)
        assert t.health(31).cpu_affinity == "0-1"


def slow(t: Ticking, name: str, cost_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call of the binding take so long."""
    original: Callable[..., Any] = getattr(pynvml, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        t.clock[0] += int(cost_ms * MS)
        return original(*arguments, **keywords)

    monkeypatch.setattr(pynvml, name, call)


def slow_symbol(t: Ticking, name: str, cost_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function of the library that we call ourselves take so long."""
    original = pynvml._nvmlGetFunctionPointer

    def pointer(symbol: str) -> Any:
        if symbol == name:
            t.clock[0] += int(cost_ms * MS)
        return original(symbol)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", pointer)


def test_a_process_list_that_takes_6_ms_is_read_every_other_second_and_stands_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        slow_symbol(t, "nvmlDeviceGetComputeRunningProcesses_v3", 6, monkeypatch)
        ticks = [t.tick() for _ in range(12)]
    asked = [tick.calls.get("nvmlDeviceGetComputeRunningProcesses_v3", 0) > 0 for tick in ticks]
    assert asked[:3] == [True] * 3
    assert sum(asked[3:]) <= 5
    assert {tick.sample.processes[0].pid for tick in ticks} == {5}
    told = [tick.health.slowed_calls for tick in ticks if tick.health is not None]
    assert told[-1] == ("processes",)


def test_a_slow_group_is_named_and_the_others_keep_their_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        slow(t, "nvmlDeviceGetEncoderUtilization", 7, monkeypatch)
        ticks = [t.tick() for _ in range(40)]
    engines = sum("nvmlDeviceGetEncoderUtilization" in tick.calls for tick in ticks)
    links = sum("nvmlDeviceGetPerformanceState" in tick.calls for tick in ticks)
    assert engines <= 10 < links
    assert [t.health.slowed_calls for t in ticks if t.health][-1] == ("engines",)


def test_one_round_of_slow_readings_does_not_take_all_the_driver_time_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetBAR1MemoryInfo")
    with ticking(tmp_path, SCENARIO) as t:
        for name in dear:
            slow(t, name, 4, monkeypatch)
        t.tick()
        made: Counter[str] = Counter()
        for _ in range(60):
            calls = t.tick().calls
            assert sum(calls.get(name, 0) for name in dear) <= 2
            made.update(calls)
    # None of them starves for it.
    assert all(made[name] >= 9 for name in dear)


def test_the_time_of_slow_readings_is_part_of_the_next_sample_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        slow(t, "nvmlDeviceGetRemappedRows", 9, monkeypatch)
        assert t.tick().sample.nvml_ns == 0
        assert t.tick().sample.nvml_ns == 9 * MS
        assert t.tick().sample.nvml_ns == 0


def test_a_cheap_reading_of_a_burst_makes_no_slow_ones(tmp_path: Path) -> None:
    with ticking(tmp_path, SCENARIO) as t:
        t.tick()
        t.fake.advance(150)
        t.clock[0] += 150 * MS
        t.fake.forget_calls()
        t.reader.read(t.clock[0], full=False)
        assert {name for name, _ in t.fake.calls()} == {
            "nvmlGpmSampleGet",
            "nvmlGpmMetricsGet",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrentClocksEventReasons",
        }


def test_a_ring_that_is_dear_to_drain_is_drained_less_often_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ticking(tmp_path, f"{SCENARIO} gpm=0") as t:
        slow_symbol(t, "nvmlDeviceGetSamples", 6, monkeypatch)
        ticks = [t.tick() for _ in range(13)]
    # Utilization is kept for 14 s and may wait; power for 2.4 s and may not.
    assert [tick.calls.get("nvmlDeviceGetSamples") for tick in ticks[3:]] == [1, 2] * 5
    util = [tick.burst.util_pct for tick in ticks if tick.burst is not None]
    assert {step for series in util[1:] for step in series.steps_us} == {200_000}
    assert sum(len(series.values) for series in util) == 13 * 5
    assert [tick.health.slowed_calls for tick in ticks if tick.health][-1] == ("sample buffers",)
