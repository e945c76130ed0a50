"""What was seen during a run, what becomes a ceiling, what is published: numbers with the right name and unit."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.model import Absent, ClocksEvent, DeviceSample, ProbeStatus, Reason
from gpuwatch.verdict.ceilings import ceilings
from gpuwatch.verdict.expectations import TABLE, expectation, published
from gpuwatch.verdict.measured import measured
from gpuwatch.verdict.observe import energy_j, observed, with_observed
from verdict.parts import result, value

S = 1_000_000_000


def sample(second: float, watts: float | Absent = 700.0, util: int = 100, bits: int = 0) -> DeviceSample:
    return DeviceSample(
        *(0, round(second * S), util),
        power_w=watts,
        sm_clock_mhz=1755,
        clocks_event_reasons=bits,
        tensor_active_pct=Absent(Reason.NOT_SUPPORTED),
    )


def test_start_up_does_not_thin_out_what_was_seen_under_load() -> None:
    seen = observed([sample(0, 100.0, util=0), sample(1, 600.0), sample(2, 700.0), sample(3, 120.0, util=3)])
    assert (seen["power_w"], seen["power_w_max"]) == (650.0, 700.0)
    assert (seen["samples"], seen["loaded_samples"]) == (4.0, 2.0)
    assert seen["energy_j"] == pytest.approx(350 + 650 + 410)
    assert "tensor_active_pct" not in seen
    assert observed([]) == {}


def test_an_idle_run_is_described_over_all_its_samples() -> None:
    assert observed([sample(0, 100.0, util=0)])["power_w"] == 100.0


def test_heat_is_a_slowdown_and_the_power_limit_is_not() -> None:
    seen = observed(
        [sample(0, bits=ClocksEvent.SW_POWER_CAP), sample(1, bits=ClocksEvent.HW_THERMAL), sample(2), sample(3)]
    )
    assert seen["throttled_share"] == 0.25
    assert seen["power_capped_share"] == 0.25


def test_energy_needs_two_readings_and_skips_holes() -> None:
    assert energy_j([sample(0)]) is None
    hole = Absent(Reason.TIMEOUT)
    assert energy_j([sample(0, 100.0), sample(1, hole), sample(2, 300.0)]) == 400.0


def test_energy_per_unit_of_work_only_where_the_power_belongs_to_one_rate() -> None:
    one = with_observed(result(value("resnet", 1400.0, "images/s")), [sample(0), sample(1)])
    assert one.observed["energy_per_images_j"] == 0.5
    two = with_observed(result(value("a", 1.0), value("b", 2.0)), [sample(0), sample(1)])
    assert not [name for name in two.observed if name.startswith("energy_per")]
    assert with_observed(result(value("a", 1.0)), []).observed == {}


# --------------------------------------------------------------------------- ceilings


def test_ceilings_are_in_base_units_and_the_best_of_several_sizes() -> None:
    copies = result(
        value("h2d_pinned_1MiB", 38.0, "GB/s"),
        value("h2d_pinned_256MiB", 52.0, "GB/s"),
        value("d2h_pageable_256MiB", 9.0, "GB/s"),
        value("h2d_pinned_4KiB", 9.0, "µs", higher=False),
        probe="copies",
    )
    launch = result(value("enqueue", 3.0, "µs", higher=False), probe="launch")
    found = ceilings([copies, launch, result(value("bf16_8192_sustained", 700.0))])
    assert found == {
        "h2d_pinned_bytes_per_s": 52e9,
        "d2h_pageable_bytes_per_s": 9e9,
        "launch_enqueue_s": pytest.approx(3e-6),
        "matmul_bf16_flop_per_s": 700e12,
    }


def test_only_clean_and_newest_results_become_ceilings() -> None:
    old, new = (
        result(value("triad", figure, "GB/s"), probe="memory", at=at) for figure, at in ((4100.0, 1), (4000.0, 2))
    )
    assert ceilings([new, old]) == {"dram_triad_bytes_per_s": 4e12}
    forced = msgspec.structs.replace(new, contaminated=True, started_wall_ns=9)
    invalid = msgspec.structs.replace(new, status=ProbeStatus.INVALID, started_wall_ns=9)
    assert ceilings([old, forced, invalid]) == {"dram_triad_bytes_per_s": 4.1e12}
    assert ceilings([]) == {}
    assert ceilings([result(value("triad", 0.0, "GB/s"), probe="memory")]) == {}


# --------------------------------------------------------------------------- published figures


def test_a_published_figure_is_information_with_its_source() -> None:
    told = published("memory", "copy", "NVIDIA H200", 4010.0 * 0.9)
    assert told == "published: 4010 GB/s (BabelStream on the part), here 90%"
    assert published("memory", "copy", "NVIDIA Unheard-of", 1.0) == ""
    judged = measured([result(value("copy", 1.0, "GB/s"), probe="memory")])
    assert judged.exit_code == 0, "far below what is published, and yet no verdict"


def test_the_narrow_name_wins_and_nothing_exceeds_its_ceiling() -> None:
    found = expectation("matmul", "bf16_8192_sustained", "NVIDIA GH200 480GB")
    assert found is not None
    assert found.typical == 828.6
    pcie = expectation("matmul", "bf16_8192_sustained", "NVIDIA H100 PCIe")
    assert pcie is not None
    assert pcie.typical == 0.0
    assert all(entry.typical <= entry.ceiling for entry in TABLE)


def test_the_best_shape_anybody_found_is_no_expectation_of_a_small_product() -> None:
    for size in (256, 512, 1024, 2048):
        assert published("matmul", f"bf16_{size}_sustained", "NVIDIA H200", 9.18) == ""
    for size in (4096, 8192, 16384):
        assert "here 85%" in published("matmul", f"bf16_{size}_sustained", "NVIDIA H200", 676.0)
    small = expectation("matmul", "bf16_256_sustained", "NVIDIA H200")
    assert small is not None
    assert (small.typical, small.ceiling) == (0.0, 989.4), "what the data sheet forbids, it forbids at any size"
