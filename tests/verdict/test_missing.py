"""What the baseline has and nobody measured now is MISSING, on the device where it should be; a failure is not that."""

from __future__ import annotations

import pytest

from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict.check import Settings, check
from gpuwatch.verdict.verdicts import Judgement, Verdict
from verdict.parts import result, runs, value

QUIET = [700.0, 700.7, 699.3, 700.1, 699.9]


def on_cpu(probe: str, name: str = "EPYC", at: int = 0) -> ProbeResult:
    return result(value("rate", 50.0, "GB/s"), probe=probe, uuid="", name=name, device="cpu", at=at)


def failed_on_cpu(probe: str) -> ProbeResult:
    """As the runner makes it: a child that gave no answer has not told the CPU's name."""
    return ProbeResult(probe, ProbeStatus.FAILED, "cpu", message="the probe ended with signal 11 and no result")


def missing(judged: Judgement) -> list[tuple[str, str]]:
    return [(row.probe, row.device_uuid or row.device) for row in judged.rows if row.verdict is Verdict.MISSING]


CPU_BASE = [on_cpu(probe, at=i) for i in range(5) for probe in ("copies", "launch", "conv")]


def test_a_crash_on_a_cpu_is_could_not_tell_and_not_missing_besides() -> None:
    judged = check(CPU_BASE, [on_cpu("copies"), failed_on_cpu("launch"), on_cpu("conv")], Settings())
    assert missing(judged) == []
    assert judged.exit_code == 3
    assert judged.exit_reason.startswith("launch on cpu ERROR: the probe ended with signal 11")


def test_a_probe_that_was_left_out_on_a_cpu_is_missing_also_beside_a_crash() -> None:
    assert missing(check(CPU_BASE, [on_cpu("copies"), failed_on_cpu("launch")], Settings())) == [("conv", "cpu")]
    assert missing(check(CPU_BASE, [failed_on_cpu("launch")], Settings())) == [("copies", "cpu"), ("conv", "cpu")]


def test_another_cpu_is_not_comparable_and_lacks_nothing() -> None:
    judged = check(CPU_BASE, [on_cpu("copies", name="Xeon")], Settings())
    assert {row.verdict for row in judged.rows} == {Verdict.NOT_COMPARABLE}


@pytest.mark.parametrize("its", ["GPU-11", "GPU-22"])
def test_a_probe_that_was_left_out_is_missing_with_a_baseline_of_another_card_too(its: str) -> None:
    base = [*runs(QUIET, uuid=its), *runs(QUIET, uuid=its, probe="conv")]
    judged = check(base, runs([700.0], start=100), Settings())
    assert missing(judged) == [("conv", "GPU-11")]
    assert judged.exit_code == 2


def test_a_card_that_is_in_the_baseline_itself_is_not_asked_for_what_its_neighbour_had() -> None:
    base = [*runs(QUIET), *runs(QUIET, uuid="GPU-22"), *runs(QUIET, uuid="GPU-22", probe="conv")]
    assert missing(check(base, runs([700.0], start=100), Settings())) == []


def test_a_cpu_in_the_baseline_is_not_lost_when_all_gpus_are_checked() -> None:
    judged = check([*runs(QUIET), *CPU_BASE], runs([700.0], start=100), Settings(whole_host=True))
    assert missing(judged) == []
