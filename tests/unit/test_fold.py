"""What is published once a second stands for everything that was read in it."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.collect.fold import fold_samples
from gpuwatch.collect.nvml_fields import blank_sample
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, DeviceProcess, DeviceSample, Reason

MS = 1_000_000


def window(mono_ms: int, window_ms: int, sm: float | Absent) -> DeviceSample:
    return DeviceSample(0, mono_ms * MS, gpm_window_ns=window_ms * MS, sm_active_pct=sm, nvml_ns=10)


def test_a_short_burst_between_two_publishes_is_not_lost() -> None:
    folded = fold_samples([window(100, 100, 0.0), window(200, 100, 90.0), window(500, 300, 10.0)])
    assert folded.sm_active_pct == pytest.approx((0 + 90 + 30) / 5)
    assert folded.gpm_window_ns == 500 * MS
    assert folded.mono_ns == 500 * MS
    assert folded.nvml_ns == 30


def test_a_window_without_a_value_does_not_pull_the_average_to_zero() -> None:
    folded = fold_samples([window(100, 100, 80.0), window(150, 0, NOT_READ), window(300, 100, Absent(Reason.TIMEOUT))])
    assert folded.sm_active_pct == 80.0


def test_without_any_value_the_reason_is_kept() -> None:
    folded = fold_samples([window(100, 0, NOT_SUPPORTED), window(200, 0, NOT_READ)])
    assert folded.sm_active_pct == NOT_SUPPORTED
    assert fold_samples([window(100, 0, NOT_READ), window(200, 0, NOT_READ)]).sm_active_pct == NOT_READ


def test_what_cheap_readings_leave_out_comes_from_the_last_full_one() -> None:
    full = DeviceSample(0, 100 * MS, gpu_util_pct=97, temp_c=61, power_w=600.0)
    newer = DeviceSample(0, 150 * MS, gpu_util_pct=20, temp_c=62, power_w=610.0)
    cheap = DeviceSample(0, 200 * MS, power_w=650.0, processes=(DeviceProcess(1, 2, "C"),), processes_absent=None)
    folded = fold_samples([full, newer, cheap])
    assert (folded.gpu_util_pct, folded.temp_c, folded.power_w) == (20, 62, 650.0)
    assert folded.processes == (DeviceProcess(1, 2, "C"),)
    assert folded.processes_absent is None


def test_a_reading_that_failed_last_is_not_replaced_by_an_older_value() -> None:
    folded = fold_samples([DeviceSample(0, 1, power_w=600.0), DeviceSample(0, 2, power_w=Absent(Reason.NO_PERMISSION))])
    assert folded.power_w == Absent(Reason.NO_PERMISSION)


def test_a_gpu_lost_since_is_lost_whatever_it_did_before() -> None:
    lost = blank_sample(0, 200 * MS, Absent(Reason.LOST))
    folded = fold_samples([window(100, 100, 80.0), lost])
    assert folded.sm_active_pct == Absent(Reason.LOST)
    assert folded.power_w == Absent(Reason.LOST)


def test_a_single_sample_is_published_as_it_is() -> None:
    sample = window(100, 100, 80.0)
    assert fold_samples([sample]) is sample


def test_every_counter_of_the_model_is_folded() -> None:
    names = [field.name for field in msgspec.structs.fields(DeviceSample)]
    counters = names[names.index("busy_pct") : names.index("processes")]
    samples = [
        DeviceSample(0, ms * MS, gpm_window_ns=100 * MS, **dict.fromkeys(counters, float(ms)))  # type: ignore[arg-type]
        for ms in (100, 200)
    ]
    folded = fold_samples(samples)
    assert {name: getattr(folded, name) for name in counters} == dict.fromkeys(counters, 150.0)


def test_nothing_cannot_be_folded() -> None:
    with pytest.raises(ValueError, match="no samples"):
        fold_samples([])
