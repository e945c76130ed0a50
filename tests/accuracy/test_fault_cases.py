"""The table of labelled jobs: complete, consistent, and silent about what is wrong with each."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from bench.accuracy.labels import FAMILY_OF
from probes.faults import cases, run
from probes.faults.plan import NAMES, Plan, effective, encode, plan_of
from probes.faults.stage import Mark, whole_periods

FOLDER = Path(cases.__file__).parent
TABLE = cases.table()
REPAIRS = cases.repairs()


def of_kind(kind: str) -> list[cases.Case]:
    return [case for case in TABLE.values() if case.kind == kind]


def test_there_are_enough_causes_controls_decoys_and_mixtures_to_score_with() -> None:
    causes = of_kind("cause")
    assert len(causes) >= 24
    assert len({case.causes[0] for case in causes}) >= 24
    assert len(of_kind("control")) == 3
    assert len(of_kind("decoy")) >= 10
    assert len(of_kind("several")) >= 6
    assert {case.kind for case in TABLE.values()} == set(cases.KINDS)


@pytest.mark.parametrize("case", TABLE.values(), ids=lambda case: case.name)
def test_every_case_has_three_severities_and_plans_that_a_job_understands(case: cases.Case) -> None:
    assert tuple(case.levels) == cases.LEVELS
    for level in cases.LEVELS:
        plan = cases.plan_for(case, level, 0, {"conv": 30, "gpt": 24, "decode_ms": 2.5, "step_ms": 40.0})
        assert plan_of(json.loads(encode(plan))).batch == plan.batch
        assert plan.depth >= 1


@pytest.mark.parametrize("case", TABLE.values(), ids=lambda case: case.name)
def test_a_label_is_a_known_cause_and_its_repair_changes_the_job(case: cases.Case) -> None:
    assert all(cause in FAMILY_OF for cause in (*case.causes, *case.also))
    assert bool(case.causes) == (case.kind in ("cause", "several"))
    plan = cases.plan_for(case, "severe", 0, {})
    for name in case.fixes:
        assert effective(plan, REPAIRS[name]), name
    if case.kind == "cause" and case.measured:
        assert len(case.fixes) == 1
        assert 3 <= len(case.look_alikes) <= 6
        assert not set(case.fixes) & set(case.look_alikes)
        assert all(name in REPAIRS for name in case.look_alikes)
    if case.kind == "several":
        assert len(case.fixes) == len(case.causes) == 2


@pytest.mark.parametrize("case", of_kind("cause"), ids=lambda case: case.name)
def test_the_advice_of_the_right_cause_is_a_repair_that_was_measured(case: cases.Case) -> None:
    if not case.measured:
        assert cases.remedy(case.causes[0]) == {}
        return
    plan = cases.plan_for(case, "medium", 0, {})
    assert effective(plan, cases.remedy(case.causes[0])), "the advice would change nothing"


def test_the_advised_number_of_workers_is_tried_and_not_ours() -> None:
    assert cases.remedy("loader_too_few_workers", workers=7) == {"workers": 7}
    assert cases.remedy("loader_too_few_workers", cpus=16) == {"workers": 12}
    assert cases.remedy("healthy") == {}


def test_a_misspelt_field_is_an_error_and_not_a_job_without_a_fault() -> None:
    with pytest.raises(ValueError, match="no field 'wokers'"):
        plan_of({"wokers": 1})


def test_what_the_runner_arranges_is_not_told_to_the_job() -> None:
    told = json.loads(encode(plan_of({"quota_cores": 1.5, "neighbour": 1, "crowd": 2, "delay_ms": 8.0})))
    assert set(NAMES) - set(told) == {"quota_cores", "neighbour", "crowd", "delay_ms"}


def test_unseen_draws_differ_from_the_fitted_ones_and_are_the_same_on_every_machine() -> None:
    case = TABLE["slow_storage"]
    draws = [cases.draw(case, "medium", seed)["read_kib"] for seed in (0, 1, 100, 101)]
    assert draws[0] == case.levels["medium"]["read_kib"]
    assert len(set(draws)) == 4
    assert all(0.8 <= drawn / draws[0] <= 1.2 for drawn in draws)
    assert cases.draw(case, "medium", 100) == cases.draw(case, "medium", 100)


def test_a_loader_that_is_just_in_time_gets_a_network_to_match() -> None:
    sizes = {"conv": 30.0, "decode_ms": 2.5, "step_ms": 40.0}
    plan = cases.plan_for(TABLE["just_in_time"], "medium", 0, sizes)
    loader_ms = 64 * 2.5 / plan.workers
    assert plan.depth / 30.0 * 40.0 == pytest.approx(1.12 * loader_ms, rel=0.05)


def test_no_name_in_the_job_tells_what_is_wrong_with_it() -> None:
    telling = re.compile(
        r"slow|fault|bad|bottleneck|starv|thrash|stall|leak|oversub|throttl|unpinned|few_|(?<!c)hang|hung|broken", re.I
    )
    for name in ("train.py", "data.py", "nets.py", "store.py", "files.py", "plan.py"):
        tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
        names = [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        names += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
        assert not [n for n in names if telling.search(n)], name


def test_no_wait_stands_in_for_storage_or_decoding() -> None:
    for name in ("train.py", "data.py", "nets.py"):
        assert "sleep(" not in (FOLDER / name).read_text(encoding="utf-8")


def test_the_job_and_its_runner_import_nothing_from_gpuwatch() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in imported if name.split(".")[0] == "gpuwatch"], path.name


def test_batches_share_the_cases_without_losing_or_repeating_one() -> None:
    def names(part: str) -> list[str]:
        return [case.name for case, _, _ in run.choose(run.parse(["--batch", part, "--seed", "3"]), 16)]

    whole = names("1/1")
    assert sorted(whole) == sorted(TABLE)
    assert sorted(names("1/3") + names("2/3") + names("3/3")) == sorted(whole)
    kinds = [TABLE[name].kind for name in whole]
    assert kinds.index("decoy") > max(i for i, kind in enumerate(kinds) if kind in ("cause", "control"))


def test_a_case_may_be_asked_for_at_one_level_and_another_at_those_of_the_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = run.parse(["--cases", "new_shapes:mild,unpinned", "--levels", "medium,severe"])
    found = {(case.name, level) for case, level, _ in run.choose(options, 16)}
    assert found == {("new_shapes", "mild"), ("unpinned", "medium"), ("unpinned", "severe")}
    assert run.main(["--cases", "new_shapes:gentle"]) == run.EXIT_USAGE
    assert "new_shapes:gentle: the levels are mild, medium, severe" in capsys.readouterr().err


def test_a_batch_goes_on_where_an_earlier_one_ran_out_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run.choose(run.parse(["--seed", "3"]), 16)
    entries = [{"case": case.name, "level": level, "seed": seed} for case, level, seed in whole[:5]]
    entries[2]["error"] = "not run: the time limit of the batch"
    results = tmp_path / "results-1.json"
    results.write_text(json.dumps({"runs": entries}), encoding="utf-8")
    left = run.choose(run.parse(["--seed", "3", "--resume", str(results)]), 16)
    assert left == [whole[2], *whole[5:]]
    results.write_text("{", encoding="utf-8")
    assert run.main(["--resume", str(results)]) == run.EXIT_USAGE
    assert str(results) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--batch", "3/2"], ["--batch", "0/1"], ["--levels", "hard"], ["--kinds", "cause,other"]]
)
def test_a_wrong_argument_is_refused_before_anything_runs(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.parse(arguments)
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_case_is_one_line_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--cases", "few_workrs"]) == run.EXIT_USAGE
    message = capsys.readouterr().err
    assert "'few_workrs'" in message
    assert "few_workers" in message
    assert message.count("\n") == 1


def test_the_plan_of_a_healthy_job_is_what_a_plan_is_without_words() -> None:
    assert cases.plan_for(TABLE["conv_resident"], "medium", 0, {"conv": 4}) == Plan(net="conv", depth=4)


def marks(stalls: dict[int, float], steps: int, step_s: float = 0.05, told_every_s: float = 0.25) -> list[Mark]:
    """What a job with 10 samples a step says of itself, with pauses behind some steps."""
    found, now, told = [], 0.0, -1.0
    for step in range(1, steps + 1):
        now += step_s + stalls.get(step, 0.0)
        if now - told >= told_every_s:
            told = now
            found.append((now, 10 * step, step))
    return found


@pytest.mark.parametrize(("period", "step_s", "phase"), [(40, 0.05, 0), (8, 0.04, 0), (15, 0.03, 11), (11, 0.03, 5)])
@pytest.mark.parametrize("first", [1, 7, 13, 23, 33, 39])
@pytest.mark.parametrize("periods", [4.0, 4.4, 5.9])
def test_what_comes_now_and_then_is_in_a_speed_as_often_as_it_should_be(
    period: int, step_s: float, phase: int, first: int, periods: float
) -> None:
    # It costs as much as the steps themselves: half of the time, wherever the measure began and ended.
    steps = first + round(periods * period)
    said = marks(dict.fromkeys(range(phase, steps, period), period * step_s), steps, step_s)
    (t0, n0, _), *_, (t1, n1, _) = whole_periods([mark for mark in said if mark[2] >= first], period)
    assert (n1 - n0) / (t1 - t0) == pytest.approx(5.0 / step_s, rel=0.02)


def test_less_than_a_period_and_no_period_are_measured_as_they_are() -> None:
    said = marks({}, 30)
    assert whole_periods(said, 0) == whole_periods(said, 800) == said
    assert whole_periods([], 40) == []


def test_the_queue_of_a_loader_is_what_its_workers_may_have_ready() -> None:
    loader = plan_of({"source": "loader", "workers": 12, "prefetch": 8})
    assert run.queued(loader) == 98
    assert run.queued(plan_of({"source": "loader", "workers": 0})) == run.queued(plan_of({"source": "pool"})) == 0
    assert run.queued(plan_of({"source": "loader", "workers": 4, "guard": True})) == 0, "a hung loader makes none"


@pytest.mark.parametrize(
    ("change", "steps"),
    [({}, 0), ({"save_every": 60}, 60), ({"shapes": 200, "shape_steps": 110}, 110), ({"shape_steps": 50}, 0)],
)
def test_the_period_of_a_job_is_that_of_its_rarest_event(change: dict[str, int], steps: int) -> None:
    assert run.period(plan_of(change)) == steps
