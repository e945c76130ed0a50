"""What a policy demands is met, below or missing, whatever was measured; a rule that holds for nothing is told."""

from __future__ import annotations

import pytest

from gpuwatch.errors import ConfigError
from gpuwatch.model import ProbeStatus
from gpuwatch.verdict import report_nagios
from gpuwatch.verdict.check import Settings, check
from gpuwatch.verdict.policy import Policy, parse
from gpuwatch.verdict.verdicts import Judgement, Level, Verdict
from verdict.parts import result, runs, value

QUIET = [700.0, 700.7, 699.3, 700.1, 699.9]
NAME = "bf16_8192_sustained"


def demand(text: str, figure: float = 700.0, base: bool = True) -> Judgement:
    policy = parse(f"[probe.matmul.bf16_8192_sustained]\n{text}", "p.toml")
    return check(runs(QUIET) if base else [], runs([figure], start=100), Settings(policy))


def test_a_demand_of_the_policy_is_met_or_critical() -> None:
    assert demand('expect_min = "600 TFLOP/s"').exit_code == 0
    judged = demand('expect_min = "0.75 PFLOP/s"\nsource = "acceptance"')
    below = next(row for row in judged.rows if row.verdict is Verdict.BELOW)
    assert below.reason == "700 TFLOP/s, at least 0.75 PFLOP/s demanded (acceptance)"
    assert judged.exit_code == 2


def test_a_demand_needs_no_baseline_and_must_be_measured() -> None:
    assert {row.verdict for row in demand('expect_min = "800 TFLOP/s"', base=False).rows} == {
        Verdict.NEW,
        Verdict.BELOW,
    }
    policy = parse('[probe.matmul.fp8_8192_sustained]\nexpect_min = "1 PFLOP/s"', "p.toml")
    judged = check(runs(QUIET), runs([700.0], start=100), Settings(policy))
    assert Verdict.MISSING in {row.verdict for row in judged.rows}


@pytest.mark.parametrize(
    ("text", "says"),
    [("700 GFLOP/s", "cannot be meant"), ("4 PFLOP/s", "cannot be meant"), ("3 GB/s", "is no TFLOP/s")],
)
def test_a_slip_of_the_unit_in_a_demand_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        demand(f'expect_min = "{text}"')


def test_an_upper_demand_is_for_times() -> None:
    policy = parse('[probe.launch.enqueue]\nexpect_max = "6 us"', "p.toml")
    slow = result(value("enqueue", 8.0, "µs", higher=False), probe="launch")
    assert Verdict.BELOW in {row.verdict for row in check([], [slow], Settings(policy)).rows}
    assert Policy().demanded() == []


# --------------------------------------------------------------------------- met


def test_a_policy_alone_whose_demands_are_all_met_passes() -> None:
    judged = demand('expect_min = "600 TFLOP/s"', base=False)
    met = next(row for row in judged.rows if row.verdict is Verdict.MET)
    assert (met.level, met.before, met.after, met.device_uuid) == (Level.OK, 600.0, 700.0, "GPU-11")
    assert (judged.level, judged.exit_code) == (Level.OK, 0)
    assert judged.exit_reason == "one quantity, as it should be"


def test_a_quantity_with_a_baseline_and_a_demand_counts_once_and_has_one_label() -> None:
    judged = demand('expect_min = "600 TFLOP/s"')
    assert judged.exit_reason == "one quantity, as it should be"
    assert report_nagios.report(judged).count(f"matmul.{NAME}_cuda:0") == 1
    alone = report_nagios.report(demand('expect_min = "800 TFLOP/s"', base=False))
    assert alone.endswith(f"| 'matmul.{NAME}_cuda:0'=700.0;;800.0:")


def test_both_ends_of_a_demand_are_judged() -> None:
    judged = demand('expect_min = "600 TFLOP/s"\nexpect_max = "650 TFLOP/s"', base=False)
    assert {row.verdict for row in judged.rows} == {Verdict.NEW, Verdict.MET, Verdict.BELOW}


# --------------------------------------------------------------------------- not measured

TRIAD = '[probe.memory.triad]\nexpect_min = "3.6 TB/s"\n'


def missing(judged: Judgement) -> list[tuple[str, str, Level]]:
    return [(row.name, row.device_uuid, row.level) for row in judged.rows if row.verdict is Verdict.MISSING]


def test_a_demand_whose_probe_was_not_run_is_critical_and_not_silence() -> None:
    judged = check(runs(QUIET), runs([700.0], start=100), Settings(parse(TRIAD, "p.toml")))
    assert missing(judged) == [("memory.triad", "", Level.CRITICAL)]
    assert judged.exit_code == 2
    assert check([], [], Settings(parse(TRIAD, "p.toml"))).exit_code == 2


def test_a_demand_that_may_be_missing_is_told_and_no_fault() -> None:
    allowed = parse(TRIAD + '[probe.memory]\nmissing = "ok"\n', "p.toml")
    judged = check(runs(QUIET), runs([700.0], start=100), Settings(allowed))
    assert missing(judged) == [("memory.triad", "", Level.OK)]
    assert judged.exit_code == 0
    other = result(value("copy", 4000.0, "GB/s"), probe="memory")
    assert missing(check([], [other], Settings(allowed))) == [("memory.triad", "GPU-11", Level.OK)]


def test_a_card_of_several_that_was_left_out_is_missing() -> None:
    policy = parse(f'[probe.matmul.{NAME}]\nexpect_min = "600 TFLOP/s"', "p.toml")
    other = result(value("enqueue", 5.0, "µs", higher=False), probe="launch", uuid="GPU-22", device="cuda:1")
    cpu = result(value("enqueue", 5.0, "µs", higher=False), probe="launch", uuid="", name="EPYC", device="cpu")
    judged = check([], [*runs([700.0]), other, cpu], Settings(policy))
    assert missing(judged) == [(f"matmul.{NAME}", "GPU-22", Level.CRITICAL)]


def test_a_probe_that_failed_is_its_own_row_and_not_missing_too() -> None:
    failed = result(status=ProbeStatus.FAILED, message="signal 11")
    judged = check([], [failed], Settings(parse(f'[probe.matmul.{NAME}]\nexpect_min = "600 TFLOP/s"', "p.toml")))
    assert [row.verdict for row in judged.rows] == [Verdict.ERROR]
    assert judged.exit_code == 3


def test_what_needs_several_gpus_is_not_missing_on_one_card() -> None:
    policy = parse('[probe.allreduce.all_reduce_1024MiB_busbw]\nexpect_min = "300 GB/s"', "p.toml")
    assert check([], runs([700.0]), Settings(policy)).exit_code == 3, "a note, which is no pass either"
    two = [*runs([700.0]), *runs([700.0], uuid="GPU-22")]
    assert check([], two, Settings(policy)).exit_code == 2


def test_a_mistyped_quantity_that_is_demanded_names_the_nearest() -> None:
    policy = parse('[probe.launch.enque]\nexpect_max = "6 us"', "p.toml")
    judged = check([], [result(value("enqueue", 5.0, "µs", higher=False), probe="launch")], Settings(policy))
    reasons = [row.reason for row in judged.rows if row.verdict is Verdict.MISSING]
    assert reasons == ["the policy demands it, not measured; did you mean enqueue?"]


# --------------------------------------------------------------------------- rules that hold for nothing


def test_a_rule_that_holds_for_nothing_is_told_with_the_nearest_name() -> None:
    text = (
        '[probe.launch.enque]\nmax_regression = "3%"\n[probe.conv]\nmissing = "critical"\n'
        f'[probe.matmul.{NAME}]\nmax_regression = "3%"\n[probe.matmul]\nslower = "critical"\n'
    )
    launch = result(value("enqueue", 5.0, "µs", higher=False), probe="launch")
    judged = check(runs(QUIET), [launch, *runs([700.0], start=100)], Settings(parse(text, "p.toml")))
    assert judged.notes == (
        "policy: probe.launch.enque: launch has no such quantity to judge; did you mean enqueue?",
        "policy: probe.conv: no such probe was run, and none is in the baseline",
    )


def test_a_check_of_some_probes_uses_their_rules_alone() -> None:
    policy = parse(TRIAD + '[default]\nslower = "critical"\n[probe.launch]\nmissing = "ok"\n', "p.toml")
    assert set(policy.only(["launch"]).rules) == {"", "launch"}


def test_a_demand_that_was_left_out_on_purpose_is_told() -> None:
    assert parse(TRIAD, "p.toml").without(["launch"]) == ["policy: memory.triad is demanded and was left out"]
