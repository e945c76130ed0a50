"""The arithmetic behind docs/accuracy.md, on inputs small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.accuracy import metrics
from bench.accuracy.__main__ import main
from bench.accuracy.labels import Run, Speed, Standing, Twin, label, read, severity
from bench.accuracy.score import leading_cause
from gpuwatch.errors import EXIT_HEALTHY
from probes.faults import cases

RECORDINGS = Path(__file__).parent.parent / "recordings"


def a_run(kind: str = "cause", fault: float = 100.0, twins: tuple[Twin, ...] = (), measured: bool = True) -> Run:
    return Run(
        case="x",
        kind=kind,
        causes=("host_sync",) if kind == "cause" else (),
        file="x.gwrec",
        fault=Speed(fault),
        twins=twins,
        measured=measured,
    )


def twin(role: str, rate: float | None, name: str = "n") -> Twin:
    return Twin(role, name, {"workers": 4}, rate)


def test_macro_f1_counts_a_rare_cause_as_much_as_a_common_one() -> None:
    pairs = [("a", "a"), ("a", "a"), ("a", "a"), ("b", "a")]
    assert metrics.f1_by_class(pairs) == {"a": pytest.approx(6 / 7), "b": 0.0}
    assert metrics.macro_f1(pairs) == pytest.approx(3 / 7)


def test_a_cause_that_was_never_true_costs_and_no_answer_only_costs_its_truth() -> None:
    assert metrics.macro_f1([("a", "a"), ("b", "c")]) == pytest.approx(1 / 3)
    assert metrics.macro_f1([("a", "a"), ("b", "?")], ("?",)) == pytest.approx(1 / 2)
    assert metrics.macro_f1([]) is None


def test_the_confusion_matrix_keeps_every_answer() -> None:
    table = metrics.confusion([("b", "a"), ("a", "a"), ("b", "a"), ("b", "b")])
    assert {truth: dict(row) for truth, row in table.items()} == {"a": {"a": 1}, "b": {"a": 2, "b": 1}}
    assert list(table) == ["a", "b"]


def test_an_id_that_cannot_be_told_apart_counts_as_the_label() -> None:
    assert metrics.credited(("batch_too_small",), ("launch_bound",), "launch_bound") == ("batch_too_small",) * 2
    assert metrics.credited(("batch_too_small",), (), "launch_bound") == ("batch_too_small", "launch_bound")


def test_sets_of_causes_are_compared_as_sets() -> None:
    assert metrics.set_f1(("a", "b"), ("b", "a")) == 1.0
    assert metrics.set_f1(("a", "b"), ("a",)) == pytest.approx(2 / 3)
    assert metrics.set_f1((), ()) == 1.0
    assert metrics.set_f1(("a",), ()) == 0.0


def test_a_verdict_is_stable_only_from_its_last_change_on() -> None:
    assert metrics.stable_from([(2, "a"), (3, "b"), (4, "b"), (5, "b")]) == 3
    assert metrics.stable_from([(2, "a"), (3, "a")]) == 2
    assert metrics.stable_from([(2, "a"), (3, "b")]) is None
    assert metrics.stable_from([(2, "a")]) is None


def test_advice_that_changes_nothing_gains_nothing_and_untried_advice_is_not_guessed() -> None:
    plan = {"workers": 2, "pinned": True}
    twins: list[tuple[dict[str, object], float]] = [({"workers": 12}, 500.0), ({"pinned": False}, 90.0)]
    assert metrics.rate_after({"pinned": True}, plan, 100.0, twins) == 100.0
    assert metrics.rate_after({}, plan, 100.0, twins) == 100.0
    assert metrics.rate_after({"workers": 12, "pinned": True}, plan, 100.0, twins) == 500.0
    assert metrics.rate_after({"workers": 10}, plan, 100.0, twins) == 500.0
    assert metrics.rate_after({"workers": 4}, plan, 100.0, twins) is None
    assert metrics.rate_after({"batch": 64}, plan, 100.0, twins) is None


def test_the_worker_count_is_read_from_the_remedy() -> None:
    assert cases.advised_workers("num_workers=15 (now 1). Because") == 15
    assert cases.advised_workers("Use CUDA graphs.") == 0


def test_no_alarm_in_a_few_runs_proves_little() -> None:
    assert metrics.rule_of_three(50) == pytest.approx(0.06)
    assert metrics.rule_of_three(1) == 1.0


@pytest.mark.parametrize(
    ("run", "standing", "says"),
    [
        (a_run(twins=(twin("own", 200.0),)), Standing.CAUSE, "2.00x"),
        (a_run(twins=(twin("own", 200.0), twin("look_alike", 109.0))), Standing.CAUSE, "2.00x"),
        (a_run(twins=(twin("own", 200.0), twin("look_alike", 110.0, "pin"))), Standing.APART, "pin helps"),
        (a_run(twins=(twin("own", 112.0),)), Standing.APART, "too mild"),
        (a_run(twins=(twin("own", 103.0),)), Standing.QUIET, "costs nothing"),
        (a_run(twins=(twin("own", None),)), Standing.APART, "not measured"),
        (a_run(fault=0.0, twins=(twin("own", 50.0),)), Standing.CAUSE, "move at all"),
        (a_run(measured=False), Standing.CAUSE, "by construction"),
        (a_run("control"), Standing.QUIET, "nothing is wrong"),
        (a_run("decoy", twins=(twin("own", 104.0),)), Standing.QUIET, "nothing is wrong"),
        (a_run("decoy", twins=(twin("own", 106.0),)), Standing.APART, "not a decoy"),
        (a_run("several", twins=(twin("own", 104.0), twin("own", 180.0))), Standing.SEVERAL, "1.80x"),
        (a_run("several", twins=(twin("own", 104.0),)), Standing.APART, "1.04x"),
    ],
)
def test_a_label_counts_only_when_the_intervention_supports_it(run: Run, standing: Standing, says: str) -> None:
    found = label(run)
    assert found.standing is standing
    assert says in found.reason


def test_of_several_causes_the_one_whose_repair_gained_most_should_come_first() -> None:
    def run(*twins: Twin) -> Run:
        causes = ("loader_too_few_workers", "checkpoint_stall")
        return Run("few_and_saved", "several", causes=causes, fault=Speed(100.0), twins=twins)

    few, saved = twin("own", 120.0, "more_workers"), twin("own", 190.0, "save_rarely")
    assert leading_cause(run(few, saved)) == "checkpoint_stall"
    assert leading_cause(run(few)) is None


def test_severity_is_what_the_fault_costs_and_not_what_was_intended() -> None:
    assert [severity(gain) for gain in (1.2, 1.5, 3.0, float("inf"), 1.0, None)] == [
        "mild", "medium", "severe", "severe", "none", "none",
    ]  # fmt: skip


def test_a_case_that_was_not_run_is_listed_and_not_scored(tmp_path: Path) -> None:
    document = {"schema": "gpuwatch.faults/1", "runs": [{"case": "x", "kind": "cause", "error": "not run: time"}]}
    (tmp_path / "results-0-1of1.json").write_text(json.dumps(document), encoding="utf-8")
    page = tmp_path / "page.md"
    assert main([str(tmp_path), "--out", str(page)]) == EXIT_HEALTHY
    assert "- x (): not run: time" in page.read_text(encoding="utf-8")
    assert [label(run).standing for run in read([tmp_path])] == [Standing.APART]


def test_a_later_recording_of_the_same_draw_counts_and_a_failed_one_does_not(tmp_path: Path) -> None:
    entries = ({"file": "new.gwrec"}, {"error": "not run again"}, {"file": "old.gwrec"}, {"error": "not run"})
    for number, entry in enumerate(entries):
        document = {"begun": 9 - number, "runs": [{"case": "x", "kind": "cause", "level": "medium", **entry}]}
        (tmp_path / f"results-{number}.json").write_text(json.dumps(document), encoding="utf-8")
    assert [run.file for run in read([tmp_path])] == ["new.gwrec"]


def test_a_speed_taken_while_ready_batches_lasted_supports_no_label() -> None:
    plan = {"source": "loader", "workers": 8}
    twins = (Twin("own", "packed", {}, 1580.0),)
    run = Run("x", "cause", causes=("loader_small_files",), file="x.gwrec", plan=plan, twins=twins)
    doubtful = msgspec.structs.replace(run, fault=Speed(1560.0, 780.0))
    assert label(doubtful).standing is Standing.APART
    assert "0.50 of that" in label(doubtful).reason
    assert label(doubtful, as_first_measured=True).standing is Standing.QUIET, "what it was taken for is still told"
    # A run that waited, a job without a queue, and one that was as fast as watched are what they were.
    assert label(msgspec.structs.replace(doubtful, past_queue=True)).standing is Standing.QUIET
    assert (
        label(msgspec.structs.replace(doubtful, plan={"source": "resident", "workers": 8})).standing is Standing.QUIET
    )
    assert label(msgspec.structs.replace(run, fault=Speed(790.0, 780.0))).standing is Standing.CAUSE


def repaired(role: str, name: str, rate: float | None) -> dict[str, Any]:
    return {"role": role, "name": name, "change": {}, "rate": rate}


def measured_twice(tmp_path: Path, first_rate: float, *later: dict[str, Any]) -> Run:
    """A job fed by workers, recorded at 147 samples a second, whose repairs another run measured on a slower day."""
    own, advice = repaired("own", "one_thread", 1500.0), repaired("advice", "advice", 1470.0)
    recorded: dict[str, Any] = {
        "file": "x.gwrec",
        "plan": {"source": "loader", "workers": 8},
        "fault": {"rate": first_rate, "watched": 147.0},
        "twins": [own, advice],
    }
    again: dict[str, Any] = {
        "past_queue": True,
        "fault": {"rate": 120.0},
        "twins": [repaired("own", "one_thread", 1200.0), repaired("look_alike", "pinned", 126.0)],
    }
    for number, entry in enumerate((recorded, again, *later, {"error": "not run"})):
        document = {"begun": number, "runs": [{"case": "x", "kind": "cause", "level": "mild", **entry}]}
        (tmp_path / f"results-{number}.json").write_text(json.dumps(document), encoding="utf-8")
    (run,) = read([tmp_path])
    assert run.file == "x.gwrec"
    return run


def test_a_repair_that_was_measured_on_another_day_is_held_against_the_ailing_job_of_that_day(tmp_path: Path) -> None:
    run = measured_twice(tmp_path, 147.0)
    assert run.fault == Speed(147.0, 147.0)
    gains = {"one_thread": 1500.0 / 147.0, "pinned": 1.05, "advice": 10.0}
    assert {twin.name: run.gain(twin) for twin in run.twins} == pytest.approx(gains), "beside its recording comes first"
    assert {twin.name: run.speed(twin) for twin in run.twins} == pytest.approx(
        {"one_thread": 1500.0, "pinned": 154.35, "advice": 1470.0}
    )


def test_a_speed_of_ready_batches_is_replaced_and_what_was_held_against_it_goes(tmp_path: Path) -> None:
    run = measured_twice(tmp_path, 656.0)
    assert (run.fault, run.past_queue) == (Speed(120.0), True)
    assert {twin.name: run.gain(twin) for twin in run.twins} == {"one_thread": 10.0, "pinned": 1.05}
    assert "gains 10.00x" in label(run).reason
    assert "gains 2.29x" in label(run, as_first_measured=True).reason, "what it was taken for is still told"


@pytest.mark.parametrize("first_rate", [147.0, 656.0])
@pytest.mark.parametrize(
    "later",
    [
        # A burst of its workers, a job that stood still, and repairs that could not be measured: none tells anything.
        {"past_queue": True, "fault": {"rate": 907.0}, "twins": [repaired("own", "one_thread", 1500.0)]},
        {"past_queue": True, "fault": {"rate": 0.0}, "twins": [repaired("look_alike", "pinned", 100.0)]},
        {"past_queue": True, "fault": {"rate": 120.0}, "twins": [repaired("own", "one_thread", None)]},
    ],
)
def test_what_a_later_run_could_not_measure_costs_nothing_that_was_measured(
    tmp_path: Path, first_rate: float, later: dict[str, Any]
) -> None:
    recorded = {"one_thread": 1500.0 / 147.0, "advice": 10.0} if first_rate == 147.0 else {"one_thread": 10.0}
    run = measured_twice(tmp_path, first_rate, later)
    assert {twin.name: run.gain(twin) for twin in run.twins} == pytest.approx({**recorded, "pinned": 1.05})


@pytest.mark.parametrize(("name", "body"), [("results-0.json", "{"), ("labels.json", '{"runs": 3}')])
def test_broken_results_are_one_line_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, body: str
) -> None:
    (tmp_path / name).write_text(body, encoding="utf-8")
    assert main([str(tmp_path)]) != 0
    message = capsys.readouterr().err
    assert name in message
    assert message.count("\n") == 1


def test_a_missing_folder_is_named_with_the_command_that_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")]) != 0
    assert "make faults" in capsys.readouterr().err


def test_one_damaged_recording_does_not_cost_the_scores_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (RECORDINGS / "resnet_on_device.gwrec").read_bytes()
    (tmp_path / "good.gwrec").write_bytes(good)
    (tmp_path / "cut.gwrec").write_bytes(good[: len(good) // 2])
    runs = [{"case": name, "kind": "control", "file": f"{name}.gwrec"} for name in ("good", "cut", "gone")]
    (tmp_path / "labels.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    assert main([str(tmp_path)]) == EXIT_HEALTHY
    page = capsys.readouterr().out
    assert "| good | healthy | quiet | nothing is wrong | none | healthy |" in page
    assert "- cut (): cut.gwrec: " in page
    assert "- gone (): gone.gwrec: " in page
    assert str(tmp_path) not in page
