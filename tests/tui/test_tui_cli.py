"""``gpuwatch tui``: what it decides to watch, and its errors in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.cli import main
from gpuwatch.cli import tui as cli


def run(*arguments: str) -> int:
    return main.run(["tui", *arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--connect", "ipc:///a", "--connect", "ipc:///b"], 64, "one endpoint at a time"),
        (["--connect", "ipc:///a", "--replay", "x.gwrec"], 64, "exclude each other"),
        (["--replay", "/nowhere/x.gwrec"], 66, "/nowhere/x.gwrec: no such recording"),
        (["--speed", "-1"], 64, "--speed -1"),
        (["--colors", "7"], 64, "--colors"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.fixture
def nobody_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    monkeypatch.setattr("gpuwatch.client.endpoints.find", lambda flag=None, env=None: None)
    recording = tmp_path / cli.BUNDLED_RECORDING
    recording.touch()
    monkeypatch.setattr(cli, "bundled_recording", lambda: recording)


@pytest.mark.usefixtures("nobody_serves")
def test_without_a_driver_the_bundled_recording_is_played_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: False)
    name, _, note = cli._choose(None, None, 1.0)
    assert (name, note) == ("starved-loader.gwrec", cli.NO_DRIVER_NOTE)


@pytest.mark.usefixtures("nobody_serves")
def test_with_a_driver_no_recording_is_passed_off_as_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: True)
    name, _, note = cli._choose(None, None, 1.0)
    assert (name, note) == ("an embedded daemon", "")


@pytest.mark.usefixtures("nobody_serves")
def test_a_named_daemon_is_waited_for_and_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: False)
    assert cli._choose(None, f"ipc://{tmp_path}", 1.0)[0] == f"ipc://{tmp_path}"
    monkeypatch.setenv("GPUWATCH_ENDPOINT", f"ipc://{tmp_path}/other")
    assert cli._choose(None, None, 1.0)[0] == f"ipc://{tmp_path}/other"


def test_a_running_daemon_is_preferred_to_an_own_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    monkeypatch.setattr("gpuwatch.client.endpoints.find", lambda flag=None, env=None: f"ipc://{tmp_path}")
    assert cli._choose(None, None, 1.0)[0] == f"ipc://{tmp_path}"


def test_not_on_a_terminal_status_and_diagnosis_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording = tmp_path / "x.gwrec"
    recording.touch()
    seen: list[str] = []

    def status(*, replay: Path | None, connect: str | None) -> int:
        seen.append(f"status {replay} {connect}")
        return 0

    def diagnose(*, replay: Path | None) -> int:
        seen.append(f"diagnose {replay}")
        return 2

    monkeypatch.setattr("gpuwatch.cli.status.run_text", status)
    monkeypatch.setattr("gpuwatch.cli.diagnose.run_text", diagnose)
    assert run("--replay", str(recording)) == 2
    assert seen == [f"status {recording} None", f"diagnose {recording}"]


def test_textual_reads_a_quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEXTUAL_ANIMATIONS", "TEXTUAL_FPS", "TEXTUAL_SMOOTH_SCROLL", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.setenv(name, "before")
    cli._set_textual_environment("16")
    assert os.environ["TEXTUAL_ANIMATIONS"] == "none"
    assert os.environ["TEXTUAL_COLOR_SYSTEM"] == "standard"
