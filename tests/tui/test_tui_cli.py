"""``gpuwatch tui``: what it decides to watch, and its errors in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tui_states import live

from gpuwatch.cli import main, status
from gpuwatch.cli import tui as cli
from gpuwatch.errors import EXIT_CRITICAL, EXIT_UNKNOWN
from gpuwatch.export.reading import NodeView


def run(*arguments: str) -> int:
    return main.run(["tui", *arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--connect", "ipc:///a", "--connect", "ipc:///b"], 64, "without a terminal one at a time"),
        (["--connect", "ipc:///a", "--connect", "ipc:///a"], 64, "ipc:///a is given twice"),
        (["--partial"], 64, "--partial goes with --replay"),
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


def names(recording: cli.Recording | None = None, endpoints: tuple[str, ...] = ()) -> list[str]:
    return [name for name, _ in cli._choose_all(recording, endpoints, 1.0)]


@pytest.mark.usefixtures("nobody_serves")
def test_without_a_driver_the_bundled_recording_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: False)
    assert names() == ["starved-loader.gwrec"]


@pytest.mark.usefixtures("nobody_serves")
def test_with_a_driver_no_recording_is_passed_off_as_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: True)
    assert names() == ["an embedded daemon"]


@pytest.mark.usefixtures("nobody_serves")
def test_a_named_daemon_is_waited_for_and_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "has_driver", lambda: False)
    assert names(None, (f"ipc://{tmp_path}",)) == [f"ipc://{tmp_path}"]
    monkeypatch.setenv("GPUWATCH_ENDPOINT", f"ipc://{tmp_path}/other")
    assert names() == [f"ipc://{tmp_path}/other"]


def test_many_hosts_are_watched_in_the_order_given(tmp_path: Path) -> None:
    assert names(None, ("ssh://gpu7", str(tmp_path))) == ["ssh://gpu7", f"ipc://{tmp_path}"]


def test_a_running_daemon_is_preferred_to_an_own_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    monkeypatch.setattr("gpuwatch.client.endpoints.find", lambda flag=None, env=None: f"ipc://{tmp_path}")
    assert names() == [f"ipc://{tmp_path}"]


def test_a_damaged_recording_is_played_by_a_daemon_that_was_told_so(tmp_path: Path) -> None:
    recording = cli.Recording(tmp_path / "x.gwrec", 2.0, partial=True)
    assert recording.arguments() == ["--replay", str(tmp_path / "x.gwrec"), "--speed", "2", "--partial"]


RECORDING = Path(__file__).parents[2] / "gpuwatch" / "data" / cli.BUNDLED_RECORDING


def test_not_on_a_terminal_status_and_diagnosis_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--replay", str(RECORDING)) == EXIT_CRITICAL
    text = capsys.readouterr().out
    assert text.index("BUSY") < text.index("CRITICAL loader_too_few_workers")


def test_a_damaged_recording_is_printed_with_partial_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "x.gwrec"
    damaged.write_bytes(RECORDING.read_bytes()[:-200])
    assert run("--replay", str(damaged)) == 65
    assert "--partial" in capsys.readouterr().err
    assert run("--replay", str(damaged), "--partial") in (EXIT_CRITICAL, EXIT_UNKNOWN)
    assert "BUSY" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["stdin", "stdout", "TERM=dumb"])
def test_a_screen_needs_a_terminal_at_both_ends(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self, tty: bool) -> None:
            self.tty = tty

        def isatty(self) -> bool:
            return self.tty

        def write(self, _text: str) -> int:
            return 0

        def flush(self) -> None:
            return None

    asked: list[object] = []

    def as_text(recording: object, connect: object) -> int:
        asked.append((recording, connect))
        return 0

    monkeypatch.setenv("TERM", "dumb" if which == "TERM=dumb" else "xterm-256color")
    monkeypatch.setattr("sys.stdin", Stream(which != "stdin"))
    monkeypatch.setattr("sys.stdout", Stream(which != "stdout"))
    monkeypatch.setattr(cli, "_as_text", as_text)
    assert run("--connect", "/nowhere") == 0
    assert asked == [(None, "/nowhere")]


def test_through_a_daemon_its_own_diagnoses_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = live(1)
    assert state.inventory is not None
    inventory = state.inventory
    seen: list[tuple[object, object]] = []

    def read(replay: Path | None, connect: str | None, *, partial: bool = False) -> NodeView:
        seen.append((replay, connect))
        return status.view_of_state(state, inventory)

    monkeypatch.setattr(status, "read", read)
    monkeypatch.setattr("gpuwatch.cli.diagnose.run_text", lambda **_: pytest.fail("diagnosed the wrong machine"))
    assert run("--connect", "/run/there") == EXIT_CRITICAL
    assert seen == [(None, "/run/there")]
    assert "Raise num_workers from 1 to 8" in capsys.readouterr().out
    state = replace(state, diagnoses=())
    assert run("--connect", "/run/there") == EXIT_UNKNOWN
    assert "no diagnosis by that daemon yet" in capsys.readouterr().out


def test_textual_reads_a_quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEXTUAL_ANIMATIONS", "TEXTUAL_FPS", "TEXTUAL_SMOOTH_SCROLL", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.setenv(name, "before")
    cli._set_textual_environment("16")
    assert os.environ["TEXTUAL_ANIMATIONS"] == "none"
    assert os.environ["TEXTUAL_FPS"] == "30"
    assert os.environ["TEXTUAL_COLOR_SYSTEM"] == "standard"
