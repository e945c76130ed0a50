"""The numbers of one run: medians, drift, knees, and what is refused as a measurement."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from probes import dataloader, device, peaks, stats
from probes.__main__ import without_shadows
from probes.report import BusyError, Report, UnavailableError, as_json, number, table


def test_quantiles_lie_between_neighbours() -> None:
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.median([1.0, 2.0]) == 1.5
    assert stats.quantile([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], 0.2) == 10.0
    assert stats.quantile([7.0], 0.8) == 7.0


def test_one_outlier_does_not_tilt_the_drift() -> None:
    assert stats.theil_sen([1.0, 1.0, 9.0, 1.0, 1.0]) == 0.0
    assert stats.theil_sen([1.0, 2.0, 3.0, 4.0]) == 1.0
    assert stats.theil_sen([5.0]) == 0.0


def test_a_clock_ramp_is_not_taken_for_a_warm_device() -> None:
    ramp = [11.23 * 0.97**step for step in range(12)]
    assert not any(stats.stationary(ramp[:count]) for count in range(1, 13))
    assert stats.stationary([*ramp, 8.79, 8.80, 8.78, 8.79, 8.80])


def test_thermal_decay_is_not_stationary_and_noise_is() -> None:
    assert not stats.stationary([1.0, 1.003, 1.006, 1.009, 1.012])
    assert stats.stationary([1.0, 1.01, 0.99, 1.0, 1.005])


def test_too_few_batches_are_never_stationary() -> None:
    assert not stats.stationary([1.0] * 4)


def test_the_median_of_few_samples_is_not_known() -> None:
    assert stats.median_halfwidth([1.0] * 9) == math.inf
    assert stats.median_halfwidth([1.0] * 30) == 0.0
    wide = stats.median_halfwidth([1.0 + 0.01 * (index % 10) for index in range(30)])
    assert 0.005 < wide < 0.05


def test_burst_is_the_fastest_window_not_the_first_samples() -> None:
    ramp_then_cap = [20.0, 12.0, *[10.0] * 5, *[14.0] * 10]
    assert stats.fastest_window(ramp_then_cap, cover=50.0, least=5) == (2, 7)


def test_a_series_shorter_than_the_burst_window_is_taken_whole() -> None:
    assert stats.fastest_window([3.0, 3.0], cover=50.0, least=5) == (0, 2)


def test_knee_is_the_smallest_count_within_five_percent_of_the_best() -> None:
    assert stats.knee({0: 100.0, 1: 98.0, 2: 190.0, 4: 382.0, 8: 400.0, 16: 350.0}) == 4
    assert stats.knee({0: 100.0, 1: 90.0}) == 0


def test_worker_counts_double_up_to_the_cores() -> None:
    assert stats.worker_counts(1) == [0, 1]
    assert stats.worker_counts(2) == [0, 1, 2]
    assert stats.worker_counts(6) == [0, 1, 2, 4, 6]
    assert stats.worker_counts(16) == [0, 1, 2, 4, 8, 16]


def test_small_shared_memory_limits_the_workers_instead_of_killing_them() -> None:
    batch = 32 * 3 * 224 * 224
    assert dataloader.allowed_workers(16, 64 * 1024**2, batch) == 2
    assert dataloader.allowed_workers(16, 0, batch) == 0
    assert dataloader.allowed_workers(16, 1 << 40, batch) == 16


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf])
def test_a_sample_that_cannot_be_a_time_makes_the_result_invalid(sample: float) -> None:
    report = Report("matmul", "cpu")
    report.add("good", "ms", [1.0])
    report.add("x", "TFLOP/s", [1.0, sample])
    result = report.finish()
    assert result["status"] == "invalid"
    assert "x: a sample is missing, zero or not finite" in str(result["message"])
    json.loads(as_json(result))


def test_a_probe_that_measured_nothing_is_not_ok() -> None:
    assert Report("matmul", "cpu").finish()["status"] == "failed"


def test_the_table_is_aligned_and_names_what_went_wrong() -> None:
    report = Report("conv", "cpu")
    report.add("a", "ms", [1.0, 2.0, 3.0])
    report.add_count("knee", "workers", 0, 3)
    report.problems.append("a: wrong")
    report.notes.append("cold")
    assert table(report.finish()).splitlines() == [
        "conv on cpu: invalid",
        "  a: wrong",
        "        median    p20    p80  n",
        "  a      2.000  1.400  2.600  3  ms",
        "  knee       0      0      0  3  workers",
        "  note: cold",
    ]


def test_numbers_keep_four_digits() -> None:
    assert [number(value) for value in (0, 12.3456, 789.12, 12345.6, 0.00123456)] == [
        "0",
        "12.35",
        "789.1",
        "12346",
        "0.001235",
    ]


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA L40S", "fp16", 366.0),
        ("Tesla V100-SXM2-16GB", "bf16", 0.0),
        ("NVIDIA A10G", "bf16", 0.0),
        ("AMD EPYC", "fp32", 0.0),
        ("NVIDIA H200", "dram", 4800.0),
        ("NVIDIA H200", "link", 63.0),
        ("NVIDIA A100-SXM4-40GB", "dram", 1555.0),
        ("NVIDIA A100 80GB PCIe", "link", 31.5),
        ("NVIDIA GH200 480GB", "link", 450.0),
        ("NVIDIA B200", "link", 0.0),
    ],
)
def test_peaks_are_those_of_the_very_part(name: str, kind: str, limit: float) -> None:
    assert peaks.peak(name, kind) == limit


def test_a_figure_above_the_peak_is_impossible_and_one_at_it_is_not() -> None:
    assert peaks.impossible("NVIDIA H200", "bf16", 989.4 * 1.019) == ""
    assert "NVIDIA H200 cannot do more than 989.4 of bf16" in peaks.impossible("NVIDIA H200", "bf16", 3530.0)
    assert peaks.impossible("NVIDIA H200", "fp32", 150.0, factor=4.0) == ""
    assert peaks.impossible("unknown", "bf16", 1e9) == ""


def _target(free: int, total: int, is_cuda: bool = True) -> device.Target:
    return device.Target(None, "cuda:0", is_cuda, "", "", free, total, 9)


def test_memory_held_by_others_is_busy_and_a_small_gpu_is_unavailable() -> None:
    gib = 1024**3
    device.require_memory(_target(20 * gib, 80 * gib), 10 * gib)
    device.require_memory(_target(0, 0, is_cuda=False), 10 * gib)
    with pytest.raises(BusyError, match=r"needs 10.0 GiB, 2.0 of 80.0 GiB are free"):
        device.require_memory(_target(2 * gib, 80 * gib), 10 * gib)
    with pytest.raises(UnavailableError, match="too small"):
        device.require_memory(_target(7 * gib, 8 * gib), 10 * gib)


def test_the_uuid_is_nvmls_and_never_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid: Any = "0a1b"

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb,3")
    assert device.device_uuid(Properties(), 0) == "GPU-0a1b"
    assert device.device_uuid(object(), 1) == "GPU-bb"
    assert device.device_uuid(object(), 2) == ""
    assert device.device_uuid(object(), 3) == ""


def test_a_cpu_quota_counts_not_the_cores_of_the_box(tmp_path: Path) -> None:
    assert device.cpu_quota(tmp_path) == 0.0
    v1 = tmp_path / "cpu"
    v1.mkdir()
    (v1 / "cpu.cfs_quota_us").write_text("-1\n")
    (v1 / "cpu.cfs_period_us").write_text("100000\n")
    assert device.cpu_quota(tmp_path) == 0.0
    (v1 / "cpu.cfs_quota_us").write_text("250000\n")
    assert device.cpu_quota(tmp_path) == 2.5
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert device.cpu_quota(tmp_path) == 4.0
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (v1 / "cpu.cfs_quota_us").unlink()
    assert device.cpu_quota(tmp_path) == 0.0


def test_an_empty_pythonpath_entry_does_not_let_the_working_directory_in() -> None:
    folder, cwd = Path("/opt/probes"), Path("/home/u/job")
    path = ["/opt/probes", "/home/u/job", "/opt/x", "/usr/lib/python3"]
    assert without_shadows(path, folder, cwd, ":/opt/x") == ["/opt/x", "/usr/lib/python3"]
    assert without_shadows(path, folder, cwd, "/home/u/job:/opt/x") == ["/home/u/job", "/opt/x", "/usr/lib/python3"]
    assert without_shadows(["", *path], folder, cwd, "") == ["/home/u/job", "/opt/x", "/usr/lib/python3"]
