"""Baseline, check, compare, selftest and outliers as a user runs them, with real processes; only the probe is a script.

Its figures come from a seeded generator and the environment variable of a wrapper Python, never from a clock.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuwatch.cli import probe_compare
from gpuwatch.cli.main import run
from gpuwatch.daemon import probing
from gpuwatch.model import Absent, DeviceSample, Reason
from gpuwatch.verdict.compare import Options

# One file of draws for all processes, so that the noise differs from run to run and is the same in every test run.
PROBE = """
import json, os, random, sys, time
from pathlib import Path
turns = Path(os.environ["TURNS"])
turn = len(turns.read_text()) if turns.exists() else 0
turns.open("a").write("x")
speed = float(os.environ.get("SPEED", "1.0"))
noise = random.Random(turn).gauss(0.0, float(os.environ.get("NOISE", "0.003")))
drift = 1.0 - 0.002 * turn
rate = 50.0 * speed * drift * (1.0 + noise)
value = {"name": "rate", "unit": "GB/s", "median": rate, "p20": rate, "p80": rate, "n": 30}
print(json.dumps({
    "probe": sys.argv[1], "status": "ok", "device": "cpu", "device_name": "Fake CPU", "values": [value],
    "started_wall_ns": 1000 + turn, "settings": {"torch": os.environ.get("TORCH", "2.9.0"), "seconds": sys.argv[-1]},
}))
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU whose probe is the script above."""
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    (folder / "__main__.py").write_text(PROBE)
    monkeypatch.setattr(probing, "probes_folder", lambda: folder)
    monkeypatch.setattr(probing, "lock_folder", lambda env: tmp_path)
    monkeypatch.setenv("TURNS", str(tmp_path / "turns"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wrapper(folder: Path, name: str, **env: str) -> str:
    """A Python of another environment."""
    path = folder / name
    exports = "".join(f"export {key}={value}\n" for key, value in env.items())
    path.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)


# --------------------------------------------------------------------------- compare


def test_a_slowed_environment_is_found_and_what_differs_is_told_first(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = wrapper(machine, "fast"), wrapper(machine, "slow", SPEED="0.85", TORCH="2.0.1")
    code = run(
        ["probe", "compare", "copies", "--device", "cpu", "--a", fast, "--b", slow, "--pairs", "5", "--seed", "7"]
    )
    out = capsys.readouterr().out
    assert code == 1, "beyond the tolerance of a CPU, not beyond twice that"
    assert out.splitlines()[:2] == ["settings that differ:", "  torch 2.9.0 → 2.0.1  (declared)"]
    assert "SLOWER" in out
    assert out.splitlines()[-1] == "seed: 7"
    # Ten runs, and one pair before that is not used.
    assert (machine / "turns").read_text() == "x" * 12


def test_the_same_environment_on_a_drifting_machine_is_not_called_slower(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = wrapper(machine, "one")
    arguments = ["probe", "compare", "copies", "--device", "cpu", "--a", one, "--b", one, "--seed", "1", "--json"]
    assert run(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["rows"]
    assert (answer["schema"], row["verdict"], row["n_after"]) == ("gpuwatch.probe-compare/1", "SAME", 5)
    assert [answer["sides"][i] for i in range(4)] == ["A", "B", "A", "B"]
    assert len(answer["results"]) == 10


def test_a_side_without_the_probe_is_named_and_nothing_compared_is_no_pass(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = wrapper(machine, "one")
    code = run(["probe", "compare", "copies", "--device", "cpu", "--a", one, "--b", "/nowhere/python", "--pairs", "3"])
    assert code == 3
    assert "side B: no Python at '/nowhere/python'" in capsys.readouterr().out


def test_a_selftest_prints_what_this_machine_can_detect(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = wrapper(machine, "one", NOISE="0.05")
    arguments = ["probe", "selftest", "copies", "--device", "cpu", "--python", python, "--pairs", "4", "--seed", "3"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "noise between fresh processes, and the smallest change that 4 pairs find here:" in out
    detected = float(
        next(line for line in out.splitlines() if line.startswith("  copies.rate")).split()[-1].rstrip("%")
    )
    assert detected >= 10.0


def test_sides_are_compared_on_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "compare", "copies", "--device", "all", "--a", "x", "--b", "y"]) == 64
    assert "sides are compared on one device" in capsys.readouterr().err


def test_a_gpu_cools_down_between_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwatch.cli import probe_places
    from gpuwatch.model import Device

    temperatures = [70, 66, 41, 99]
    waited: list[float] = []
    monkeypatch.setattr("gpuwatch.cli.probe_compare.time.sleep", waited.append)
    device = Device(0, "GPU-1", "NVIDIA H200", "")
    gpu = probe_places.Gpu(device, lambda: DeviceSample(0, 0, temp_c=temperatures.pop(0)))
    probe_compare._cool(gpu, 40.0)
    assert (waited, temperatures) == ([1.0, 1.0], [99])
    blind = probe_places.Gpu(device, lambda: DeviceSample(0, 0, temp_c=Absent(Reason.NOT_SUPPORTED)))
    probe_compare._cool(blind, 40.0)
    probe_compare._cool(None, None)
    assert len(waited) == 2
    assert Options().max_regression is None


# --------------------------------------------------------------------------- baseline and check


def baseline(*more: str) -> int:
    return run(["probe", "baseline", "copies", "--device", "cpu", "--out", "base.json", *more])


def test_a_machine_that_still_reaches_its_baseline_passes_and_a_slower_one_does_not(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baseline("--seconds", "0.2") == 0
    assert capsys.readouterr().out == "copies on Fake CPU: 5 run(s)\n"
    check = ["probe", "check", "--baseline", "base.json", "--device", "cpu"]
    assert run(check) == 0, "the probes and their seconds come from the baseline"
    assert "SAME (±10.0%)" in capsys.readouterr().out
    monkeypatch.setenv("SPEED", "0.7")
    assert run([*check, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["rows"][0]["verdict"]) == ("gpuwatch.probe-check/1", "SLOWER")
    assert answer["results"][0]["settings"]["seconds"] == "0.2"
    Path("now.json").write_text(json.dumps(answer))
    assert run([*check, "--results", "now.json", "--nagios"]) == 2
    assert capsys.readouterr().out.startswith("GPUWATCH PROBE CRITICAL - copies.rate cpu SLOWER")
    assert run([*check, "--results", "now.json", "--exit-zero"]) == 0
    assert run([*check, "--max-regression", "80%", "--results", "now.json"]) == 0
    monkeypatch.setenv("SPEED", "0.87")
    assert run([*check, "--fail-on", "critical"]) == 0
    capsys.readouterr()
    assert run([*check, "--fail-on", "critical", "--nagios"]) == 0
    assert capsys.readouterr().out.startswith("GPUWATCH PROBE OK - copies.rate on cpu SLOWER: a warning, let pass | ")
    assert run([*check, "--exit-zero", "--nagios"]) == 0
    assert capsys.readouterr().out.startswith("GPUWATCH PROBE OK - copies.rate on cpu SLOWER | ")
    crashes = "import os, sys\nif sys.argv[1] == 'launch': os.abort()\n" + PROBE
    (machine / "gpuwatch_probes" / "__main__.py").write_text(crashes)
    assert run([*check, "copies", "launch", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "warn"
    assert run([*check, "copies", "launch", "--fail-on", "critical", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["exit_code"], answer["exit_reason"][:35]) == (3, "launch on cpu ERROR: the probe ende")


def test_a_crash_on_a_cpu_says_nothing_about_the_machine(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["copies", "launch", "--device", "cpu", "--runs", "2", "--out", "two.json"]
    assert run(["probe", "baseline", *arguments]) == 0
    crashes = "import os, sys\nif sys.argv[1] == 'launch': os.abort()\n" + PROBE
    (machine / "gpuwatch_probes" / "__main__.py").write_text(crashes)
    capsys.readouterr()
    assert run(["probe", "check", "--baseline", "two.json", "--device", "cpu"]) == 3
    assert "MISSING" not in capsys.readouterr().out


def test_a_baseline_is_never_overwritten_and_grows_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert baseline("--runs", "2") == 0
    assert "2 run(s), provisional: 5 runs tell the noise" in capsys.readouterr().out
    assert baseline() == 73
    assert capsys.readouterr().err == "gpuwatch: base.json: exists already; --append adds to it\n"
    assert baseline("--runs", "3", "--append") == 0
    assert capsys.readouterr().out == "copies on Fake CPU: 5 run(s)\n"
    assert len(json.loads(Path("base.json").read_text())["results"]) == 5


def test_results_that_are_there_already_become_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "copies", "--device", "cpu", "--runs", "3", "--json"]) == 0
    Path("r.json").write_text(capsys.readouterr().out)
    assert run(["probe", "baseline", "--from", "r.json", "--out", "base.json"]) == 0
    assert "3 run(s)" in capsys.readouterr().out
    assert run(["probe", "baseline", "copies", "--from", "r.json", "--out", "b.json"]) == 64


def test_a_baseline_of_nothing_is_not_written(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "gpuwatch_probes" / "__main__.py").write_text("import os; os.abort()")
    assert baseline("--runs", "1") == 3
    captured = capsys.readouterr()
    assert "copies on cpu: left out, failed: the probe ended with signal 6" in captured.err
    assert not Path("base.json").exists()
    assert baseline("--force") == 64


def test_a_policy_alone_is_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text('[probe.copies.rate]\nexpect_min = "60 GB/s"\nsource = "acceptance"\n')
    assert run(["probe", "check", "--policy", "p.toml", "--device", "cpu"]) == 2
    assert "at least 60 GB/s demanded (acceptance)" in capsys.readouterr().out
    Path("p.toml").write_text(
        '[probe.copies.rate]\nexpect_min = "40 GB/s"\n[probe.memory.copy]\nexpect_min = "1 GB/s"\n'
    )
    assert run(["probe", "check", "copies", "--policy", "p.toml", "--device", "cpu"]) == 0
    assert "note: policy: memory.copy is demanded and was left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 64, "nothing to check against: give --baseline FILE, --policy FILE or both"),
        (["--baseline", "none.json"], 66, "none.json: No such file or directory"),
        (["--baseline", "bad.json"], 65, "bad.json: not a result of gpuwatch probe"),
        (["--policy", "bad.toml"], 78, "bad.toml: default.max: unknown key"),
        (["--policy", "latin.toml"], 78, "latin.toml: not UTF-8"),
        (["--policy", "p.toml", "--max-regression", "5"], 64, "--max-regression: '5': expected a percentage"),
    ],
)
def test_a_wrong_file_is_one_line(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text("{")
    Path("bad.toml").write_text("[default]\nmax = 3\n")
    Path("latin.toml").write_bytes(b"# \xe4\n")
    Path("p.toml").write_text("")
    assert run(["probe", "check", *arguments]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["probe", "compare", "copies", "--device", "cpu", "--a", "x", "--b", "y", "--max-regression", "5"],
        ["probe", "selftest", "copies", "--device", "cpu", "--max-regression", "500%"],
        ["probe", "outliers", ".", "--max-regression", "5"],
    ],
    ids=["compare", "selftest", "outliers"],
)
def test_a_wrong_percentage_on_the_command_line_is_a_usage_error(
    machine: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("n.json").write_text("{}")
    assert run(arguments) == 64
    assert "--max-regression: " in capsys.readouterr().err
    assert not (machine / "turns").exists(), "before anything is measured"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--baseline", "none.json"], "none.json: No such file or directory"),
        (["--baseline", "bad.json"], "bad.json: not a result of gpuwatch probe: Input data was truncated"),
        (["--policy", "bad.toml"], "bad.toml: default.max: unknown key"),
        ([], "nothing to check against"),
        (["zzz", "--baseline", "none.json"], "none.json"),
    ],
)
def test_a_monitor_is_told_on_its_one_line_that_a_check_could_not_begin(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text("{")
    Path("bad.toml").write_text("[default]\nmax = 3\n")
    assert run(["probe", "check", "--nagios", *arguments]) == 3
    printed = capsys.readouterr()
    assert printed.out.startswith("GPUWATCH PROBE UNKNOWN - ")
    assert says in printed.out
    assert (printed.out.count("\n"), printed.err) == (1, "")


@pytest.mark.parametrize("out", ["nowhere/base.json", "file/base.json"])
def test_a_baseline_that_cannot_be_written_is_told_before_minutes_of_measuring(
    machine: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert run(["probe", "baseline", "copies", "--device", "cpu", "--out", out]) == 73
    assert capsys.readouterr().err == f"gpuwatch: {out}: no folder {Path(out).parent}\n"
    assert not (machine / "turns").exists()


def test_a_check_of_results_judges_the_probes_that_were_named(capsys: pytest.CaptureFixture[str]) -> None:
    measure = ["copies", "launch", "--device", "cpu"]
    assert run(["probe", "baseline", *measure, "--out", "base.json"]) == 0
    capsys.readouterr()
    run(["probe", "run", *measure, "--json"])
    Path("now.json").write_text(capsys.readouterr().out)

    def judged(*names: str) -> tuple[int, list[tuple[str, str]]]:
        code = run(["probe", "check", *names, "--baseline", "base.json", "--results", "now.json", "--json"])
        answer = json.loads(capsys.readouterr().out)
        return code, [(row["probe"], row["verdict"]) for row in answer["rows"]]

    assert judged() == (0, [("copies", "SAME"), ("launch", "SAME")])
    assert judged("launch") == (0, [("launch", "SAME")])
    assert judged("launch", "conv") == (3, [("launch", "SAME"), ("conv", "NOT_AVAILABLE")]), "nobody has it"
    text = json.loads(Path("now.json").read_text())
    Path("now.json").write_text(json.dumps({**text, "results": text["results"][:1]}))
    assert judged("launch") == (2, [("launch", "MISSING")])
    assert judged("copies") == (0, [("copies", "SAME")])


def test_the_noise_that_a_selftest_has_learned_is_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    selftest = ["probe", "selftest", "copies", "--device", "cpu", "--pairs", "4", "--seed", "3", "--json"]
    assert run(selftest) == 0
    learned = capsys.readouterr().out
    Path("noise.json").write_text(learned)
    assert run(["probe", "check", "--baseline", "noise.json", "--device", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["verdict"], row["n_before"]) == ("SAME", 8)
    assert row["noise"] == pytest.approx(json.loads(learned)["rows"][0]["noise"], rel=1.0)
    assert run(["probe", "baseline", "--from", "noise.json", "--out", "base.json"]) == 0
    assert capsys.readouterr().out == "copies on Fake CPU: 8 run(s)\n"


# --------------------------------------------------------------------------- outliers


def test_the_bad_node_of_a_folder_is_named(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "copies", "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    folder = machine / "fleet"
    folder.mkdir()
    for number, speed in enumerate((1.0, 1.01, 0.99, 1.0, 0.6)):
        document["host"] = f"node{number}"
        document["results"][0]["values"][0]["median"] = 50 * speed
        (folder / f"node{number}.json").write_text(json.dumps(document))
    assert run(["probe", "outliers", str(folder)]) == 2
    out = capsys.readouterr().out
    assert "CRITICAL: copies.rate on node4 cpu OUTLIER: 40.0% worse than the middle of 5" in out
    damaged = {
        "empty.json": b"",
        "cut.json": json.dumps(document).encode()[:200],
        "deep.json": b"[" * 100_000,
        "latin.json": b'{"schema": "\xe4"}',
        "none.json": json.dumps({**document, "results": []}).encode(),
        "other.json": b"{}",
    }
    for name, data in damaged.items():
        (folder / name).write_bytes(data)
    assert run(["probe", "outliers", str(folder), "--json"]) == 2, "the bad node is still named"
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(row["probe"] for row in rows if row["verdict"] == "ERROR") == sorted(damaged)
    assert not any(str(folder) in row["reason"] for row in rows)
    for name in damaged:
        if name != "none.json":
            assert run(["probe", "check", "--baseline", str(folder / name)]) == 65
            assert capsys.readouterr().err.startswith(f"gpuwatch: {folder / name}: ")
        (folder / name).unlink()
    for name in ("node4.json", "node3.json"):
        (folder / name).unlink()
    assert run(["probe", "outliers", str(folder)]) == 3
    assert run(["probe", "outliers", str(machine / "none")]) == 66
