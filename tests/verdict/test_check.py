"""New results against a baseline: what is an alarm, what is none, and what must never look like a pass."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict.check import Settings, check
from gpuwatch.verdict.policy import parse
from gpuwatch.verdict.verdicts import Judgement, Level, Row, Verdict
from verdict.parts import SETTINGS, Machine, result, runs, value

QUIET = (700.0, 700.7, 699.3, 700.35, 699.65, 700.1, 699.9, 700.2, 699.8, 700.0)


def judge(new: Sequence[ProbeResult], policy: str = "", vary: str = "", base: Sequence[float] = QUIET) -> Judgement:
    settings = Settings(parse(policy, "p.toml"), frozenset(filter(None, vary.split(","))))
    return check(runs(base), new, settings)


def only(judgement: Judgement) -> Row:
    (row,) = judgement.rows
    return row


def now(*figures: float, **rest: object) -> list[ProbeResult]:
    return runs(figures, start=1000, **rest)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("figure", "verdict", "level", "code"),
    [
        (700.0, Verdict.SAME, Level.OK, 0),
        (680.0, Verdict.SLOWER, Level.WARN, 1),
        (640.0, Verdict.SLOWER, Level.CRITICAL, 2),
        (740.0, Verdict.FASTER, Level.OK, 0),
    ],
)
def test_one_new_run_against_ten(figure: float, verdict: Verdict, level: Level, code: int) -> None:
    judged = judge(now(figure))
    row = only(judged)
    assert (row.verdict, row.level, judged.exit_code) == (verdict, level, code)
    assert row.improvement == pytest.approx(figure / 700 - 1, abs=0.001)
    assert (row.n_before, row.n_after) == (10, 1)


def test_a_healthy_machine_is_not_reported_in_98_of_100_checks() -> None:
    alarms = 0
    for seed in range(200):
        machine = Machine(seed, 0.01)
        base = [machine.run() for _ in range(10)]
        row = only(check(runs(base), now(machine.run()), Settings()))
        alarms += row.verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert alarms <= 4


def test_a_change_beyond_the_noise_is_found_by_three_runs() -> None:
    found = 0
    for seed in range(100):
        machine = Machine(seed, 0.01)
        base = [machine.run() for _ in range(10)]
        row = only(check(runs(base), now(*(machine.run(0.95) for _ in range(3))), Settings()))
        found += row.verdict is Verdict.SLOWER
    assert found >= 90


def test_noise_that_hides_the_limit_is_ambiguous_with_the_runs_that_would_help() -> None:
    noisy = (700, 650, 745, 690, 720, 668, 733, 701, 676, 715)
    judged = judge(now(690.0), base=noisy)
    row = only(judged)
    assert (row.verdict, row.level) == (Verdict.AMBIGUOUS, Level.WARN)
    assert "too noisy here" in row.reason
    assert row.detectable is not None
    assert row.detectable > 0.02
    assert only(judge(now(690.0), '[default]\nambiguous = "ok"', base=noisy)).level is Level.OK
    some = only(judge(now(697.0), base=(700, 690, 710, 706, 694, 700, 705, 695, 702, 698)))
    assert some.verdict is Verdict.AMBIGUOUS
    assert "runs would tell a change of 2.0%" in some.reason


def test_a_baseline_of_few_runs_says_that_it_is_provisional_and_is_never_critical() -> None:
    row = only(judge(now(500.0), base=(700.0,)))
    assert (row.verdict, row.level) == (Verdict.SLOWER, Level.WARN)
    assert "provisional, with 1 run(s)" in row.reason


def test_one_percent_a_week_does_not_creep_through() -> None:
    history = [700.0, 701.0, 699.0, 700.5, 699.5, *(700 * 0.99**week for week in range(1, 12))]
    row = only(judge(now(700 * 0.99**12), base=history))
    assert row.verdict is Verdict.SLOWER
    assert "below the first accepted runs: a slow drift" in row.reason


def test_a_lower_clock_is_named_as_the_reason() -> None:
    base = [msgspec.structs.replace(run, observed={"sm_clock_mhz": 1755.0}) for run in runs(QUIET)]
    slow = now(630.0, observed={"sm_clock_mhz": 1580.0})
    row = only(check(base, slow, Settings()))
    assert row.verdict is Verdict.SLOWER
    assert row.reason == "the SM clock was 10.0% lower (1580 MHz): power or heat, not the code"
    same_clock = now(630.0, observed={"sm_clock_mhz": 1750.0})
    assert only(check(base, same_clock, Settings())).reason == ""


def test_the_policy_sets_the_limit_of_one_quantity() -> None:
    strict = "[probe.matmul.bf16_8192_sustained]\nmax_regression = '0.5%'\nslower = 'critical'"
    row = only(judge(now(692.0), strict))
    assert (row.verdict, row.level, row.tolerance) == (Verdict.SLOWER, Level.CRITICAL, 0.005)
    assert only(judge(now(650.0), "[probe.matmul]\nmax_regression = '12%'")).verdict is Verdict.SAME


# --------------------------------------------------------------------------- conditions


def test_another_gpu_of_the_same_kind_has_more_room_and_another_kind_none() -> None:
    sibling = only(judge(now(670.0, uuid="GPU-22")))
    assert sibling.verdict is Verdict.SAME
    assert sibling.tolerance == pytest.approx(0.07)
    other = only(judge(now(300.0, uuid="GPU-33", name="NVIDIA A100")))
    assert other.verdict is Verdict.NOT_COMPARABLE
    assert other.reason == "the baseline is of NVIDIA H200, this is NVIDIA A100"


def test_a_lower_power_limit_is_not_compared_unless_it_is_meant() -> None:
    capped = now(600.0, settings={**SETTINGS, "power_limit_w": "500"})
    judged = judge(capped)
    assert only(judged).verdict is Verdict.NOT_COMPARABLE
    assert only(judged).reason == "power_limit_w 700 → 500; if meant so: --vary power_limit_w"
    assert judged.exit_code == 3
    assert only(judge(capped, vary="power_limit_w")).verdict is Verdict.SLOWER


def test_another_torch_needs_to_be_declared() -> None:
    newer = now(700.0, settings={**SETTINGS, "torch": "2.10.0"})
    assert only(judge(newer)).verdict is Verdict.NOT_COMPARABLE
    allowed = judge(newer, vary="torch")
    assert only(allowed).verdict is Verdict.SAME
    assert [change.key for change in allowed.changes] == ["torch"]


def test_the_right_one_of_two_gpus_is_reported_whatever_their_numbers() -> None:
    base = [*runs(QUIET, uuid="GPU-aa"), *runs(QUIET, uuid="GPU-bb")]
    swapped = [*now(700.0, uuid="GPU-bb", device="cuda:0"), *now(600.0, uuid="GPU-aa", device="cuda:1")]
    rows = check(base, swapped, Settings()).rows
    assert {row.device_uuid: row.verdict for row in rows} == {"GPU-aa": Verdict.SLOWER, "GPU-bb": Verdict.SAME}
    assert next(row.device for row in rows if row.verdict is Verdict.SLOWER) == "cuda:1"


# --------------------------------------------------------------------------- never a pass


@pytest.mark.parametrize(
    ("status", "message", "verdict", "code"),
    [
        (ProbeStatus.INVALID, "bf16: 1200 TFLOP/s, cannot do more: the timing is wrong", Verdict.INVALID, 3),
        (ProbeStatus.INVALID, "bf16: wrong result: error 1", Verdict.WRONG_RESULT, 2),
        (ProbeStatus.INVALID, "h2d: 3 byte(s) arrived damaged", Verdict.WRONG_RESULT, 2),
        (ProbeStatus.FAILED, "the probe ended with signal 9 and no result", Verdict.ERROR, 3),
        (ProbeStatus.UNAVAILABLE, "no torch", Verdict.NOT_AVAILABLE, 3),
        (ProbeStatus.BUSY, "GPU 0 is in use", Verdict.BUSY, 75),
    ],
)
def test_what_did_not_measure_has_its_own_exit_code(
    status: ProbeStatus, message: str, verdict: Verdict, code: int
) -> None:
    judged = judge([result(status=status, message=message)])
    assert only(judged).verdict is verdict
    assert only(judged).reason == message
    assert judged.exit_code == code
    assert only(judged).device_uuid == "GPU-11"


@pytest.mark.parametrize(
    "message",
    [
        "bf16_8192: wrong result: error 3 of its size, 0.02 is rounding",
        "bf16_8192: the same input gave two different results",
        "h2d_pinned_1MiB: 3 byte(s) arrived damaged",
        "transfer_1MiB: a tensor arrived damaged",
        "memory returned 1 element(s) that differ from the pattern written",
        "triad: 4 element(s) are wrong",
        "all_reduce_64MiB: 4 element(s) are wrong on some rank",
        "the element was wrong after 1 sample(s): launches were lost",
        "workers_2: the first batch is not what the dataset holds",
        "sequential: block 7 is not what was written",
        "resnet50_b256_224_amp: first loss 5.0000, and 6.9000 in fp32: it computes wrong",
        "resnet50_b256_224_amp: a loss is not finite",
        "bert_b8_128_amp: the step did not change the weights",
    ],
)
def test_wrong_data_and_arithmetic_are_critical_whatever_probe_says_so(message: str) -> None:
    judged = judge([result(status=ProbeStatus.INVALID, message=message)])
    assert [(row.verdict, row.level) for row in judged.rows] == [(Verdict.WRONG_RESULT, Level.CRITICAL)]


@pytest.mark.parametrize(
    "message",
    [
        "bf16_8192: 5000.0 TFLOP/s, and NVIDIA H200 cannot do more than 1009.2 of bf16: the timing is wrong",
        "copy: a sample is missing, zero or not finite",
        "the events read 0.01 ms of 10.00 ms of work: they are not on the stream that works",
        "bf16_8192: the inputs are no random data",
    ],
)
def test_a_measurement_that_cannot_be_true_is_no_fault_of_the_hardware(message: str) -> None:
    judged = judge([result(status=ProbeStatus.INVALID, message=message)])
    assert [(row.verdict, row.level) for row in judged.rows] == [(Verdict.INVALID, Level.UNKNOWN)]


def test_nothing_measured_is_unknown_and_not_ok() -> None:
    assert judge([]).exit_code == 3
    assert judge([]).exit_reason == "nothing was measured and judged"
    new_only = check([], now(700.0), Settings())
    assert only(new_only).verdict is Verdict.NEW
    assert new_only.exit_code == 3


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf")])
def test_a_zero_is_invalid_before_it_is_compared(figure: float) -> None:
    judged = judge(now(figure))
    assert only(judged).verdict is Verdict.INVALID
    assert judged.exit_code == 3


def test_a_result_beside_somebody_else_is_skipped() -> None:
    judged = judge(now(300.0, contaminated=True))
    assert (only(judged).verdict, judged.exit_code) == (Verdict.CONTAMINATED, 75)


def test_strict_makes_a_skipped_probe_outrank_ok() -> None:
    new = [*now(700.0), result(probe="copies", status=ProbeStatus.BUSY, message="in use")]
    assert check(runs(QUIET), new, Settings()).exit_code == 0
    assert check(runs(QUIET), new, Settings(strict=True)).exit_code == 75


def test_a_probe_or_a_quantity_that_vanished_is_critical() -> None:
    base = [*runs(QUIET), *(result(value("triad", 4100.0, "GB/s"), probe="memory", at=i) for i in range(5))]
    judged = check(base, now(700.0), Settings())
    missing = {row.probe: row.verdict for row in judged.rows}
    assert missing == {"matmul": Verdict.SAME, "memory": Verdict.MISSING}
    assert judged.exit_code == 2
    allowed = check(base, now(700.0), Settings(parse("[probe.memory]\nmissing = 'ok'", "p")))
    assert allowed.exit_code == 0
    two = [result(value("bf16_8192_sustained", 700), value("fp8_8192_sustained", 1300), at=i) for i in range(5)]
    gone = check(two, now(700.0), Settings())
    assert {row.value: row.verdict for row in gone.rows}["fp8_8192_sustained"] is Verdict.MISSING


def test_a_gpu_that_fell_off_this_host_is_critical_and_one_of_another_host_is_nothing() -> None:
    base = [*runs(QUIET, uuid="GPU-aa"), *runs(QUIET, uuid="GPU-bb"), *runs(QUIET, uuid="GPU-bb", probe="conv")]
    left = now(700.0, uuid="GPU-aa")
    judged = check(base, left, Settings(whole_host=True))
    lost = [row for row in judged.rows if row.verdict is Verdict.MISSING]
    assert [(row.device_uuid, row.level) for row in lost] == [("GPU-bb", Level.CRITICAL)]
    assert lost[0].reason == "the device is in this host's baseline and not here now"
    assert check(base, left, Settings()).exit_code == 0


def test_another_unit_is_never_compared() -> None:
    judged = judge([result(value("bf16_8192_sustained", 0.7, "PFLOP/s"), at=1000)])
    assert only(judged).verdict is Verdict.INVALID
    assert only(judged).reason == "unit PFLOP/s instead of TFLOP/s"


def test_a_bad_run_never_becomes_a_baseline() -> None:
    throttled = result(value("bf16_8192_sustained", 300.0), observed={"throttled_share": 0.5})
    judged = check([throttled, result(status=ProbeStatus.INVALID)], now(700.0), Settings())
    assert only(judged).verdict is Verdict.NEW
