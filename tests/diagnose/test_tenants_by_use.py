"""Other processes on the job's GPU, by what the driver says that they use of it: a context alone costs nobody time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diagnose import builders as b
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.process_use import sm_shares
from gpuwatch.model import (
    NOT_SUPPORTED,
    Absent,
    Confidence,
    DeviceHealth,
    Diagnosis,
    Int,
    Observation,
    ProcessInfo,
    ProcessTick,
    ProcessUtil,
    Reason,
    Role,
    Severity,
)

PID = b.PID
TENANT = 7777


def tenant(cores: float) -> list[Observation]:
    info = ProcessInfo(TENANT, 9, 1, TENANT, Role.MAIN, "python", "python nb.py", "bob", 1001, device_indices=(0,))
    return [ProcessTick(s.mono_ns, (s,), (), (info,)) for s in b.process(TENANT, cores)]


def use(*readings: tuple[Int, Int], start_ns: int = 0) -> list[Observation]:
    """(our, the tenant's) SM percent, one reading a second."""
    times = b.times()[::10]
    return [
        DeviceHealth(
            0, start_ns or times[i % len(times)], process_utils=(ProcessUtil(PID, ours), ProcessUtil(TENANT, theirs)),
            process_utils_absent=None,
        )
        for i, (ours, theirs) in enumerate(readings)
    ]  # fmt: skip


def job(*more: Sequence[Observation]) -> Diagnosis:
    """A healthy job beside a process that has a context on its GPU."""
    healthy = [*b.gpu([98], pids=(PID, TENANT)), *b.ticks(b.process(PID, 1.0)), *b.host()]
    return diagnose(
        [b.inventory(), *healthy, *b.stacks([(b.LAUNCHING, True)]), *(o for part in more for o in part)], PID
    )


def test_a_notebook_that_computes_on_the_cpu_costs_the_job_on_the_gpu_nothing() -> None:
    d = job(tenant(1.0), use(*[(98, 0)] * 10))
    assert [f.cause for f in d.findings] == ["healthy"]


def test_a_tenant_costs_what_the_driver_says_and_not_an_equal_turn() -> None:
    verdict = job(tenant(1.0), use(*[(78, 20)] * 10)).verdict
    assert (verdict.cause, verdict.severity, verdict.confidence) == ("gpu_shared", Severity.WARNING, Confidence.HIGH)
    assert verdict.lost_share == pytest.approx(0.98 * 20 / 98)
    assert any((row.name, row.value) == ("their SM use", 20.0) for row in verdict.evidence)
    assert verdict.gain_max >= 1.9, "the driver samples coarsely: the bound must hold for equal turns"


def test_a_tenant_that_feeds_its_gpu_with_hardly_any_cpu_is_found_too() -> None:
    assert job(tenant(0.05), use(*[(50, 50)] * 10)).verdict.cause == "gpu_shared"


def test_a_tenant_that_runs_a_kernel_now_and_then_is_not_named() -> None:
    d = job(tenant(1.0), use(*[(98, 2)] * 10))
    assert [f.cause for f in d.findings] == ["healthy"]


def test_what_a_tenant_did_before_the_window_does_not_count() -> None:
    d = job(tenant(1.0), use(*[(40, 60)] * 2, *[(98, 0)] * 8))
    assert [f.cause for f in d.findings] == ["healthy"], "the first reading is of the time before it"
    d = job(tenant(1.0), use(*[(40, 60)] * 10, start_ns=b.times()[0] - 10**9), use(*[(98, 0)] * 10))
    assert [f.cause for f in d.findings] == ["healthy"]


def test_a_tenants_cpu_alone_is_a_guess_and_said_to_be_one() -> None:
    refused = DeviceHealth(0, b.times()[0], process_utils_absent=NOT_SUPPORTED)
    verdict = job(tenant(1.0), [refused]).verdict
    assert (verdict.cause, verdict.confidence, verdict.alternatives) == ("gpu_shared", Confidence.LOW, ("healthy",))


def test_a_tenant_of_which_nothing_is_known_is_told_and_does_not_fail_a_healthy_job() -> None:
    verdict = job().verdict
    assert (verdict.cause, verdict.severity, verdict.confidence) == ("gpu_shared", Severity.INFO, Confidence.LOW)
    assert (verdict.lost_share, verdict.alternatives) == (0.0, ("healthy",))


def test_a_reading_that_the_driver_garbled_is_none() -> None:
    garbled = Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert job(tenant(1.0), use(*[(98, garbled)] * 10)).verdict.confidence is Confidence.LOW


def test_of_a_tenant_on_several_devices_the_one_where_it_works_most_counts() -> None:
    readings = [
        DeviceHealth(device, 10 + device, process_utils=(ProcessUtil(TENANT, percent),), process_utils_absent=None)
        for device, percent in ((0, 10), (1, 60))
    ]
    assert sm_shares(readings, 0, 100) == {TENANT: pytest.approx(0.6)}


def test_a_tenant_that_left_has_used_the_gpu_for_a_part_of_the_window() -> None:
    both, alone = (ProcessUtil(PID, 50), ProcessUtil(TENANT, 50)), (ProcessUtil(PID, 99),)
    seen = [both, both[::-1], alone, alone]
    readings = [DeviceHealth(0, i, process_utils=utils, process_utils_absent=None) for i, utils in enumerate(seen)]
    assert sm_shares(readings, 0, 10)[TENANT] == pytest.approx(0.5 / 3)
