"""The scripts of docs/fleet.md drain a node for a fault of its hardware and for nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")


def example(title: str, language: str = "sh") -> str:
    """The first block of that language below a heading."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


class Node:
    """A folder of programs on PATH: a gpuwatch that says what the test wants, and the others, which record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        for name in ("scontrol", "logger"):
            self.program(name, f'echo {name} "$@" >>{self.record}')
        self.program("hostname", "echo node7")

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def gpuwatch(self, code: int, line: str) -> None:
        self.program("gpuwatch", f'echo gpuwatch "$@" >>{self.record}\necho "{line}"\nexit {code}')

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", script],
            env={**os.environ, "PATH": path, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def told(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


LINE = "GPUWATCH PROBE %s - copies.h2d -9 % | 'copies'=1;2:;3:"


@pytest.mark.parametrize(("code", "left"), [(0, 0), (1, 0), (2, 1), (3, 0)])
def test_the_prolog_drains_for_a_critical_result_only(node: Node, code: int, left: int) -> None:
    node.gpuwatch(code, LINE)
    ended = node.run(example("Slurm: prolog"))
    assert (ended.returncode, ended.stdout) == (left, ""), "a prolog's output becomes the job's environment"
    logged = [line for line in node.told() if line.startswith("logger")]
    assert logged == ([] if code == 0 else ["logger -t gpuwatch GPUWATCH PROBE %s - copies.h2d -9 % "])


@pytest.mark.parametrize(("code", "drains"), [(0, False), (1, False), (2, True), (3, False)])
def test_the_health_check_drains_with_the_reason(node: Node, code: int, drains: bool) -> None:
    node.gpuwatch(code, LINE)
    assert node.run(example("Slurm: HealthCheckProgram")).returncode == 0
    drained = [line for line in node.told() if line.startswith("scontrol")]
    reason = "scontrol update NodeName=node7 State=DRAIN Reason=GPUWATCH PROBE %s - copies.h2d -9 % "
    assert drained == ([reason] if drains else [])


def test_the_health_check_has_a_minute_and_so_looks_at_one_gpu_a_day(node: Node) -> None:
    """All eight of a node would run into Slurm's limit every day and never be judged."""
    node.gpuwatch(0, LINE)
    node.program("nvidia-smi", 'for n in 0 1 2 3; do echo "GPU $n: NVIDIA H200 (UUID: GPU-$n)"; done')
    for day in range(8):
        node.program("date", f"echo {20_000 * 86_400 + day * 86_400 + 3600}")
        node.run(example("Slurm: HealthCheckProgram"))
    devices = [line.split(" --device ")[1].split()[0] for line in node.told() if line.startswith("gpuwatch")]
    assert devices == [f"cuda:{number % 4}" for number in range(8)]
    node.program("nvidia-smi", "exit 9")
    node.run(example("Slurm: HealthCheckProgram"))
    assert " --device cuda:0 " in node.told()[-1], "without a driver gpuwatch itself says what is wrong"


@pytest.mark.parametrize(("code", "left"), [(0, 0), (1, 0), (2, 1), (3, 2), (127, 2)])
def test_the_node_problem_detector_gets_its_three_codes(node: Node, code: int, left: int) -> None:
    node.gpuwatch(code, LINE)
    ended = node.run(example("Kubernetes: node-problem-detector"))
    assert ended.returncode == left
    assert ended.stdout == "GPUWATCH PROBE %s - copies.h2d -9 % \n", "performance data would not fit its message"


def test_the_configuration_of_the_plugin_is_json_with_its_script() -> None:
    plugin = json.loads(example("Kubernetes: node-problem-detector", "json"))
    assert plugin["rules"][0]["path"] in example("Kubernetes: node-problem-detector")
    assert plugin["rules"][0]["condition"] == plugin["conditions"][0]["type"]


def test_the_nightly_script_leaves_a_result_of_a_node_that_could_not_measure(node: Node, tmp_path: Path) -> None:
    node.gpuwatch(3, "{}")
    results = tmp_path / "results"
    title = "cron: a night's results of all nodes in one folder"
    assert node.run(example(title), GPUWATCH_RESULTS=str(results)).returncode == 0
    (day,) = results.iterdir()
    assert [path.name for path in day.iterdir()] == ["node7.json"]
    assert (day / "node7.json").read_text() == "{}\n"


def test_what_cron_leaves_is_what_outliers_reads(node: Node, tmp_path: Path) -> None:
    """The page's own lines from the first night to the name of the bad node; only the probe is a stand-in."""
    results = tmp_path / "results"
    title = "cron: a night's results of all nodes in one folder"
    answer = (
        '{"schema":"gpuwatch.probe/1","host":"node%s","results":[{"probe":"launch","status":"ok","device":"cuda:0",'
        '"device_name":"NVIDIA H200","device_uuid":"GPU-%s","values":[{"name":"enqueue","unit":"us","median":%s,'
        '"p20":6.0,"p80":7.0,"n":30,"higher_is_better":false}]}]}'
    )
    for number, median in enumerate((6.0, 6.1, 5.9, 6.05, 9.0)):
        node.program("hostname", f"echo node{number}")
        node.program("gpuwatch", f"cat <<'END'\n{answer % (number, number, median)}\nEND")
        assert node.run(example(title), GPUWATCH_RESULTS=str(results)).returncode == 0
    (day,) = results.iterdir()
    node.program("gpuwatch", f'exec {sys.executable} -m gpuwatch "$@"')
    lines = [line for line in PAGE.splitlines() if line.startswith("gpuwatch probe outliers ")]
    told, as_csv = (line.replace("/shared/gpuwatch/2026-11-30", str(day)) for line in lines)
    found = node.run(told)
    assert found.returncode == 2, found.stderr
    assert "node4" in found.stdout.splitlines()[-1]
    csv = node.run(as_csv)
    assert csv.returncode == 0, "--exit-zero only reports"
    assert sum("OUTLIER" in line for line in csv.stdout.splitlines()) == 1


def test_the_line_of_cron_starts_the_script_that_the_page_installs() -> None:
    section = PAGE.split("\n## cron: ", 1)[1].split("\n## ", 1)[0]
    script = re.search(r"^# (/usr/local/sbin/\S+)$", section, re.MULTILINE)
    assert script is not None
    (line,) = (line for line in section.splitlines() if line.endswith(script[1]) and not line.startswith("#"))
    assert re.fullmatch(r"\d+ \d+ \* \* \*  root  \S+", line), "minute, hour, user: the form of /etc/cron.d"


def test_the_baseline_that_the_page_makes_holds_what_its_checks_measure(node: Node, tmp_path: Path) -> None:
    made = re.search(r"^gpuwatch probe baseline .*$", PAGE, re.MULTILINE)
    assert made is not None
    node.program("gpuwatch", f'exec {sys.executable} -m gpuwatch "$@"')
    base = tmp_path / "baseline.json"
    quick = made[0].replace("/etc/gpuwatch/baseline.json", str(base)).replace("--runs 5", "--runs 1")
    quick = quick.replace("--seconds 0.2", "--seconds 0.01")
    ended = node.run(quick.replace("--device all", "--device cpu"), XDG_RUNTIME_DIR=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert {result["probe"] for result in json.loads(base.read_text())["results"]} == {"copies", "launch"}


def test_the_examples_work_with_the_real_command_and_a_real_probe(node: Node, tmp_path: Path) -> None:
    node.program("gpuwatch", f'exec {sys.executable} -m gpuwatch "$@"')
    base = tmp_path / "base.json"
    env = {"GPUWATCH_BASELINE": str(base), "GPUWATCH_DEVICE": "cpu", "XDG_RUNTIME_DIR": str(tmp_path)}
    make = f"gpuwatch probe baseline launch --device cpu --seconds 0.01 --runs 1 --out {base}"
    made = node.run(make, **env)
    assert made.returncode == 0, made.stderr
    ended = node.run(example("Kubernetes: node-problem-detector"), **env)
    assert ended.stdout.startswith("GPUWATCH PROBE ")
    assert "launch.enqueue" in ended.stdout or "OK - " in ended.stdout
    assert ended.returncode in (0, 1), "a baseline of one run may find this machine slower, but it can tell"
    summary = tmp_path / "summary.md"
    node.run(example("CI"), **env, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("### probe check against ")
