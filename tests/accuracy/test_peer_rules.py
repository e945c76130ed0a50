"""The published rules of other tools, and the page that compares on the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.accuracy import peers
from bench.accuracy.__main__ import main
from bench.accuracy.peers import Readings

RECORDINGS = Path(__file__).parent.parent / "recordings"


@pytest.mark.parametrize(
    ("rule", "read", "said"),
    [
        (peers.low_utilization, Readings(util=29), "data loader"),
        (peers.low_utilization, Readings(util=30), "fine"),
        (peers.low_utilization, Readings(), "no reading"),
        (peers.nvsonar, Readings(util=39, memory=51), "DATA_STARVED"),
        (peers.nvsonar, Readings(util=39, memory=50), "BALANCED"),
        (peers.nvsonar, Readings(util=4), "IDLE"),
        (peers.nvsonar, Readings(util=100), "COMPUTE_BOUND"),
        (peers.torch_tb, Readings(util=90, loader=5.1), "DataLoader"),
        (peers.torch_tb, Readings(util=49, loader=5.0), "low utilization: larger batch"),
        (peers.torch_tb, Readings(util=90, loader=0.0, tensor=0.0), "tensor cores unused"),
        (peers.torch_tb, Readings(util=90, loader=0.0, tensor=20.0), "no advice"),
        (peers.kempner_pulse, Readings(busy=4, sm=1, dram=1, util=3), "idle"),
        (peers.kempner_pulse, Readings(busy=95, sm=60, tensor=50), "tensor heavy"),
        (peers.kempner_pulse, Readings(busy=95, sm=40, tensor=15), "tensor"),
        (peers.kempner_pulse, Readings(busy=95, sm=50, fp64=20), "FP64"),
        (peers.kempner_pulse, Readings(busy=50, sm=29, pcie_bytes_per_s=1e9), "I/O or data loading"),
        (peers.kempner_pulse, Readings(busy=50, sm=49, dram=50), "memory bound"),
        (peers.kempner_pulse, Readings(busy=95, sm=80), "compute heavy"),
        (peers.kempner_pulse, Readings(busy=40, sm=24), "busy, low SM"),
        (peers.kempner_pulse, Readings(busy=14, sm=10), "low"),
        (peers.kempner_pulse, Readings(busy=30, sm=30), "mixed"),
        (peers.kempner_pulse, Readings(util=50), "no DCGM profiling fields"),
        (peers.gpmtop, Readings(sm=4), "idle"),
        (peers.gpmtop, Readings(sm=49), "launch- or input-bound"),
        (peers.gpmtop, Readings(sm=90, dram=60), "memory"),
    ],
)
def test_another_tools_published_threshold_decides_where_it_says_it_does(
    rule: object, read: Readings, said: str
) -> None:
    assert callable(rule)
    assert rule(read).said == said


def test_a_reading_that_is_missing_is_no_answer_and_not_zero() -> None:
    for rule in peers.PEERS.values():
        assert rule(Readings()).may_mean <= {"healthy"}


def scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main([str(folder), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_recordings_in_the_repository_are_all_labelled_and_scored(capsys: pytest.CaptureFixture[str]) -> None:
    found = scores(RECORDINGS, capsys)
    runs = found["runs"]
    assert isinstance(runs, list)
    assert {run["file"] for run in runs} >= {path.name for path in RECORDINGS.glob("*.gwrec")}
    for run in runs:
        assert run["by_seconds"], run["case"]
        assert run["peers"].keys() == peers.PEERS.keys()


@pytest.fixture
def trio(tmp_path: Path) -> Path:
    """A cause with measured twins, a control, and a cause labelled as another one."""
    for name in ("one_worker_jpeg", "resnet_on_device", "save_often"):
        shutil.copy(RECORDINGS / f"{name}.gwrec", tmp_path)
    plan = {"workers": 1, "batch": 64}
    own = {"role": "own", "name": "more_workers", "change": {"workers": 12}, "rate": 900.0}
    other = {"role": "look_alike", "name": "larger_batch", "change": {"batch": 128}, "rate": 105.0}
    common = {"level": "medium", "cpus": 16, "plan": plan, "fault": {"rate": 100.0}}
    runs = [
        {"case": "a", "kind": "cause", "causes": ["loader_too_few_workers"], "file": "one_worker_jpeg.gwrec",
         "seed": 100, "twins": [own, other], **common},
        {"case": "b", "kind": "control", "file": "resnet_on_device.gwrec", "seed": 100, **common},
        {"case": "c", "kind": "cause", "causes": ["gc_pauses"], "file": "save_often.gwrec", "seed": 7,
         "twins": [own], **common},
    ]  # fmt: skip
    (tmp_path / "results-0.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    return tmp_path


def test_a_goal_that_is_missed_is_printed_as_missed(trio: Path) -> None:
    page = trio / "page.md"
    assert main([str(trio), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    present = text.split("## With the present rules")[1]
    assert "| macro-F1 by cause | ≥ 0.95 | 0.50 | **not reached** |" in present
    assert "0 of 1 (95 % bound: 100 %)" in present
    assert "c medium #7: gc_pauses, said checkpoint_stall" in present
    assert "KempnerPulse" in present


def test_what_was_said_at_first_sight_stays_whatever_the_rules_learn_from_it(
    trio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trio), "--first-sight", "abc1234"]) == 0
    assert "3 first sights written" in capsys.readouterr().out
    # The rules change: another revision says something else of the same recordings.
    results = trio / "results-0.json"
    document = json.loads(results.read_text(encoding="utf-8"))
    document["runs"][0]["first"]["answer"] = "launch_bound"
    results.write_text(json.dumps(document), encoding="utf-8")
    assert main([str(trio), "--first-sight", "def5678"]) == 0
    assert "0 first sights written" in capsys.readouterr().out
    page = trio / "page.md"
    assert main([str(trio), "--out", str(page)]) == 0
    first, present = page.read_text(encoding="utf-8").split("## With the present rules")
    assert "Rules of abc1234" in first
    assert "def5678" not in first
    assert "a medium #100: loader_too_few_workers, said launch_bound" in first
    assert "a medium #100: loader_too_few_workers, said" not in present


def test_the_unseen_draws_are_told_together_as_well_and_the_one_that_rules_were_fitted_on_is_not_among_them(
    trio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trio), "--first-sight", "abc1234"]) == 0
    results = trio / "results-0.json"
    document = json.loads(results.read_text(encoding="utf-8"))
    for run, seed, rules in zip(document["runs"], (100, 101, 102), ("abc1234", "abc1234", "def5678"), strict=True):
        run["seed"], run["first"]["rules"] = seed, rules
    results.write_text(json.dumps(document), encoding="utf-8")
    capsys.readouterr()
    assert main([str(trio)]) == 0
    first = capsys.readouterr().out.split("## With the present rules")[0]
    titles = [line for line in first.splitlines() if line.startswith("### ")]
    assert titles == [
        "### The unseen draws together: seeds 101, 102, each by the rules of its day",
        "### Rules of abc1234",
        "### Rules of def5678",
    ]
    counts = [line.partition(" jobs: ")[0] for line in first.splitlines() if " jobs: " in line]
    assert [int(count) for count in counts] == [2, 2, 1]


def test_advice_is_worth_what_its_repair_was_measured_to_gain(trio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scores(trio, capsys)
    runs = found["runs"]
    assert isinstance(runs, list)
    by_case = {run["case"]: run for run in runs}
    # 15 workers are advised and 12 were tried: one repair. Saving rarely is no change of a job that does not save.
    assert (by_case["a"]["advised_rate"], by_case["a"]["best_rate"]) == (900.0, 900.0)
    assert (by_case["c"]["advised_rate"], by_case["c"]["best_rate"]) == (None, 900.0)


def test_an_outdated_page_is_noticed(trio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = trio / "page.md"
    assert main([str(trio), "--check", str(page)]) == 1
    assert "out of date" in capsys.readouterr().err
    assert main([str(trio), "--out", str(page)]) == 0
    assert main([str(trio), "--check", str(page)]) == 0


def test_the_page_in_the_repository_says_what_the_rules_say() -> None:
    assert main(["--check", str(RECORDINGS.parents[1] / "docs" / "accuracy.md")]) == 0
