"""The run that fills the page of figures: nothing forgotten, nothing lost when one step hangs, in time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import probes_h200
from probes import catalogue, train


def test_the_plan_holds_every_probe_and_every_training_setup() -> None:
    probes = [step for step in probes_h200.PLAN if step.kind == "probe"]
    assert {step.probe for step in probes} == {info.name for info in catalogue.PROBES}
    setups = [setup for step in probes if step.probe == "train" for setup in train.parse_size(step.size)]
    assert sorted(setups) == sorted(train.SETUPS["cuda"])
    assert {step.kind for step in probes_h200.PLAN} == {"probe", "selftest", "compare"}
    assert len({step.key for step in probes_h200.PLAN}) == len(probes_h200.PLAN)
    assert sum(step.usual_s for step in probes_h200.PLAN) < 600
    assert max(step.usual_s for step in probes_h200.PLAN[-6:]) < 30, "what is left out is to be had soon by --have"


def gone(pid: int) -> bool:
    """It has ended; whether somebody has collected it is not ours."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


class Bench:
    """The script with stand-ins for the programs that it starts."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = tmp_path / "out.json"
        self.argv = ["probes_h200.py", "--out", str(self.out), "--direct"]
        self._monkeypatch = monkeypatch
        folder = tmp_path / "probes"
        folder.mkdir()
        self.program = folder / "__main__.py"
        monkeypatch.setattr(probes_h200, "PROBES", folder)
        monkeypatch.setattr(probes_h200, "has_gpuwatch", lambda: False)

    def run(self, *options: str) -> dict[str, Any]:
        self._monkeypatch.setattr(sys, "argv", [*self.argv, *options])
        code = probes_h200.main()
        answer = json.loads(self.out.read_text())
        assert answer["exit_code"] == code
        return dict(answer)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


ANSWERS = (
    "import json, os, sys, time\n"
    'answer = {"probe": sys.argv[1], "status": "ok", "values": [], "settings": {}, "duration_s": 1.0, "message": ""}\n'
)


def test_a_step_that_hangs_or_crashes_costs_its_own_figures_alone_and_leaves_nobody_behind(bench: Bench) -> None:
    worker = bench.out.parent / "worker"
    bench.program.write_text(
        f"{ANSWERS}"
        'if sys.argv[1] == "conv": os.abort()\n'
        'if sys.argv[1] == "allreduce":\n'
        f"    pid = os.fork()\n    if pid: open({str(worker)!r}, 'w').write(str(pid))\n    time.sleep(60)\n"
        "print(json.dumps(answer))\n"
    )
    answer = bench.run("--tiny", "--limit-s", "4")
    told = {result["probe"]: (result["status"], result["message"]) for result in answer["results"]}
    assert told["matmul"] == ("ok", "")
    assert told["conv"] == ("failed", "no result, exit code -6")
    assert "allreduce" not in told
    late = {one["step"]: one["why"] for one in answer["left_out"]}
    assert late["probe allreduce"].endswith("no time left")
    assert "probe allreduce" not in answer["done"], "it can be run later"
    assert gone(int(worker.read_text()))
    assert answer["exit_code"] == 1


def test_what_does_not_fit_into_the_time_is_named_and_can_be_run_later(bench: Bench) -> None:
    bench.program.write_text(f"{ANSWERS}print(json.dumps(answer))\n")
    first = bench.run("--limit-s", "30")
    assert "probe launch" in first["done"]
    left = {one["step"] for one in first["left_out"]}
    assert "probe train resnet50:256x224" in left
    had = bench.out.rename(bench.out.with_name("first.json"))
    second = bench.run("--limit-s", "500", "--have", str(had))
    assert sorted(first["done"] + second["done"]) == sorted(s.key for s in probes_h200.PLAN if s.kind == "probe")
    assert [one["why"] for one in second["left_out"]] == ["this Python cannot import gpuwatch"] * 2
