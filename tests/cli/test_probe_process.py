"""``gpuwatch probe`` at the edge of its process: which interpreter it starts, and streams that nobody reads."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest
from probe_stage import ANSWER, command

from gpuwatch.cli.main import run
from gpuwatch.cli.probe_measuring import Session
from gpuwatch.daemon import probe_process, probing
from gpuwatch.daemon.probe_process import Launch, ProbeProcess
from gpuwatch.daemon.probing import Runner
from gpuwatch.model import ProbeResult, ProbeStatus

TALKS = "import sys; print('warming up', file=sys.stderr, flush=True)\n" + ANSWER


def wrapper(path: Path, environment: str) -> Path:
    """A Python of another environment."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexport ENVIRONMENT={environment}\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return path


# --------------------------------------------------------------------------- which interpreter


@pytest.fixture
def two_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``python`` in PATH, and another one in the working directory."""
    probes = tmp_path / "gpuwatch_probes"
    probes.mkdir()
    (probes / "__main__.py").write_text(ANSWER)
    wrapper(tmp_path / "bin" / "python", "path")
    wrapper(tmp_path / "here" / "python", "here")
    wrapper(tmp_path / "here" / "venv" / "python", "venv")
    monkeypatch.setattr(probing, "probes_folder", lambda: probes)
    monkeypatch.setattr(probing, "lock_folder", lambda env: tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "measured"),
    [
        ("./python", "here"),
        ("../here/python", "here"),
        ("~/python", "here"),
        ("venv/python", "venv"),
        ("./venv/../python", "here"),
        ("python", "path"),
    ],
)
def test_the_interpreter_that_is_measured_is_the_one_that_was_typed(
    two_pythons: Path, capsys: pytest.CaptureFixture[str], typed: str, measured: str
) -> None:
    assert run(["probe", "run", "copies", "--device", "cpu", "--json", "--python", typed]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["settings"]["python"] == measured


def test_a_comparison_names_the_interpreters_that_it_has_measured(
    two_pythons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["probe", "compare", "copies", "--device", "cpu", "--pairs", "3", "--a", "python", "--b", "./python"]
    run([*arguments, "--json"])
    answer = json.loads(capsys.readouterr().out)
    sides = dict(zip(answer["sides"], (result["settings"]["python"] for result in answer["results"]), strict=True))
    assert sides == {"A": "path", "B": "here"}
    title = f"probe compare: A {two_pythons}/bin/python, B {two_pythons}/here/python"
    assert answer["title"] == title
    run([*arguments, "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[-2:] == [title, "seed: 1"]


def test_a_python_of_nobodys_home_is_not_there(two_pythons: Path) -> None:
    assert probing.interpreter("~nobody-of-this-name/python") == ""


# --------------------------------------------------------------------------- stderr that cannot be written


@pytest.mark.parametrize("stderr", ["full", "gone", "closed"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("probe", "run", "copies"),
        ("probe", "compare", "copies", "--a", sys.executable, "--b", sys.executable, "--pairs", "3"),
    ],
    ids=["run", "compare"],
)
def test_progress_that_cannot_be_written_does_not_take_the_result(
    tmp_path: Path, stderr: str, arguments: tuple[str, ...]
) -> None:
    argv = command(tmp_path, *arguments, "--device", "cpu", "--json", probe=TALKS)
    assert _with_stderr(argv, stderr) in (0, 1)


@pytest.mark.parametrize("stderr", ["full", "gone", "closed"])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(tmp_path: Path, stderr: str) -> None:
    assert _with_stderr(command(tmp_path, "probe", "run", "matmull"), stderr, answers=False) == 64
    assert _with_stderr(command(tmp_path, "probe", "run", "--nonsense"), stderr, answers=False) == 64


def _with_stderr(argv: list[str], stderr: str, answers: bool = True) -> int:
    """Run with a stderr that takes nothing; its exit code."""
    shell = {"full": 'exec "$@" 2>/dev/full', "closed": 'exec "$@" 2>&-', "gone": 'exec "$@"'}[stderr]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", shell, "sh", *argv], stdout=subprocess.PIPE, stderr=writing, timeout=60, check=False
        )
    finally:
        os.close(writing)
    if answers:
        assert json.loads(done.stdout)["results"][0]["status"] == "ok"
    return done.returncode


def test_a_follower_that_fails_is_asked_no_more_and_the_result_comes() -> None:
    results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
    told: list[str] = []

    def follower(line: str) -> None:
        told.append(line)
        raise OSError(28, "No space left on device")

    script = "import sys; print('one', file=sys.stderr); print('two', file=sys.stderr)\n" + ANSWER
    process = ProbeProcess(
        Launch("copies", (sys.executable, "-c", script, "copies"), dict(os.environ), 30.0), results.put, follower
    )
    process.start()
    assert results.get(timeout=20).status is ProbeStatus.OK
    assert told == ["one"]


def test_a_reader_that_breaks_still_ends_the_child_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProbeProcess, now: float) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ProbeProcess, "_keep_time", broken)
    results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    process = ProbeProcess(Launch("copies", sleeps, dict(os.environ), 30.0), results.put)
    process.start()
    result = results.get(timeout=20)
    assert result.status is ProbeStatus.FAILED
    assert "Too many open files" in result.message
    assert not Path(f"/proc/{process.pid}").exists()


def test_the_time_limit_holds_when_no_result_ever_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = tmp_path / "gpuwatch_probes"
    probes.mkdir()
    (probes / "__main__.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(probe_process.ProbeProcess, "_result", lambda self, *_about: 1 / 0)
    monkeypatch.setattr("threading.excepthook", lambda _about: None)
    runner = Runner(sys.executable, folder=probes, locks=tmp_path)
    result = Session(runner, timeout_s=0.5).run("copies", None, None)
    assert result.message == "not finished within --timeout 0.5 s"
