"""``gpuwatch diagnose`` as a script sees it: text, JSON, exit codes, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from diagnose import builders as b
from rich.cells import cell_len

from gpuwatch.cli.diagnose import exit_code
from gpuwatch.cli.main import run
from gpuwatch.cli.options import undecided_or_none
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.undecided import undecided
from gpuwatch.export.diagnosis_text import account_bar, diagnosis_lines, diagnosis_markdown
from gpuwatch.model import AccountShare, Frame, SourceLine
from gpuwatch.replay.format import Writer

RECORDINGS = Path(__file__).parent.parent / "recordings"

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("name", "code"),
    [("resnet_on_device", 0), ("elementwise_chain", 0), ("forgotten_notebook", 1), ("one_worker_jpeg", 2)],
)
def test_the_exit_code_tells_a_script_how_bad_it_is(name: str, code: int, capsys: Capture) -> None:
    assert run(["diagnose", "--replay", str(RECORDINGS / f"{name}.gwrec")]) == code
    assert capsys.readouterr().err == ""


def test_could_not_tell_has_an_exit_code_of_its_own() -> None:
    d = diagnose([b.inventory(), *b.gpu([20.0])], b.PID)
    assert d.verdict.cause == "unattributed"
    assert exit_code([d]) == 3


@pytest.mark.parametrize("name", [p.stem for p in sorted(RECORDINGS.glob("*.gwrec"))])
def test_the_text_fits_eighty_columns(name: str, capsys: Capture) -> None:
    run(["diagnose", "--replay", str(RECORDINGS / f"{name}.gwrec")])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert max(map(len, lines)) <= 80


_LINES = {
    "japanese": "ロス.append(float(損失))  # 損失を毎ステップ読み出して記録する処理です。とても長い説明が続きます" * 2,
    "escapes": "loss.item()  # \x1b]0;title\x07\x1b[2J\x9b31m \u202egnissecorp",
    "emoji and marks": "print('🚀' * 3, loss.item())  # " + "e\u0301🔥" * 60,
    "one long word": "x=float(" + "a+" * 90 + "b)",
}


@pytest.mark.parametrize("name", _LINES)
@pytest.mark.parametrize("folder", ["very_long_directory_name/", "とても長いディレクトリ名/"])
def test_no_line_or_path_of_a_job_breaks_the_columns_or_reaches_the_terminal_as_control(name: str, folder: str) -> None:
    file = "/home/ann/" + folder * 6 + "train.py"
    stand = (Frame("fit", file, 35), Frame("<module>", file, 90))
    seen = [b.inventory(), *b.gpu([40]), *b.ticks(b.process(b.PID, 1.0)), *b.host(), *b.stacks([(stand, True)])]
    d = diagnose([*seen, SourceLine(b.PID, b.times()[0], file, 35, _LINES[name])], b.PID)
    d = msgspec.structs.replace(d, command="python \x1b[31m" + file + " --名前 " + "値" * 40)
    lines = diagnosis_lines(d, b.inventory().devices)
    assert max(map(cell_len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert any("train.py:35" in line for line in lines)
    assert all(line.isprintable() for line in diagnosis_markdown(d).splitlines())


def test_the_text_says_cause_cost_remedy_place_and_account(capsys: Capture) -> None:
    run(["diagnose", "--replay", str(RECORDINGS / "one_worker_jpeg.gwrec")])
    text = capsys.readouterr().out
    for part in (
        "CRITICAL loader_too_few_workers",
        "num_workers=15",
        "cases.py:52",
        "at most 15×",
        "waiting_for_data 92 %",
    ):
        assert part in text


def test_json_has_named_fields_and_the_exit_code(capsys: Capture) -> None:
    run(["diagnose", "--replay", str(RECORDINGS / "one_worker_jpeg.gwrec"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "gpuwatch.diagnose/1"
    assert answer["exit_code"] == 2
    finding = answer["diagnoses"][0]["findings"][0]
    assert finding["cause"] == "loader_too_few_workers"
    assert finding["location"]["line"] == 52
    assert {"name", "value", "unit", "source", "window_s"} <= set(finding["evidence"][0])


def test_markdown_is_a_table_for_a_ticket(capsys: Capture) -> None:
    run(["diagnose", "--replay", str(RECORDINGS / "one_worker_jpeg.gwrec"), "--markdown"])
    assert "| evidence | value | source | window |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--replay", "/nowhere.gwrec"], 66, "/nowhere.gwrec: no such recording"),
        (["--replay", __file__], 65, "not a gpuwatch recording"),
        (["--replay", str(RECORDINGS / "one_worker_jpeg.gwrec"), "--pid", "1"], 66, "pid 1 is not a GPU process"),
        (["--replay", str(RECORDINGS / "one_worker_jpeg.gwrec"), "--gpu", "7"], 66, "no GPU 7"),
        (["--for", "soon"], 64, "'soon' is not a duration"),
        (["--for", "1s"], 64, "outside 4s to 600s"),
        (["--json", "--markdown"], 64, "exclude each other"),
        (["--partial"], 64, "--replay"),
        (["--watch", "--markdown"], 64, "--watch"),
        (["--pid", "many"], 64, "--pid"),
    ],
)
def test_bad_input_is_one_line_with_the_thing_and_the_remedy(
    arguments: list[str], code: int, message: str, capsys: Capture
) -> None:
    assert run(["diagnose", *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("gpuwatch: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_damaged_recording_is_refused_and_partial_uses_what_is_there(tmp_path: Path, capsys: Capture) -> None:
    cut = tmp_path / "cut.gwrec"
    cut.write_bytes((RECORDINGS / "one_worker_jpeg.gwrec").read_bytes()[:-2000])
    assert run(["diagnose", "--replay", str(cut)]) == 65
    assert "--partial" in capsys.readouterr().err
    assert run(["diagnose", "--replay", str(cut), "--partial"]) == 2
    assert "loader_too_few_workers" in capsys.readouterr().out


def test_a_recorded_gpu_without_a_job_is_idle(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "idle.gwrec"
    with Writer(path, 10**18) as writer:
        for observation in [b.inventory(), *b.gpu([0.0], pids=())]:
            writer.write(observation)
    assert run(["diagnose", "--replay", str(path)]) == 0
    assert "Nothing runs on this GPU" in capsys.readouterr().out


def test_the_bar_is_full_and_no_share_is_drawn_twice() -> None:
    shares = (AccountShare("computing", 0.334), AccountShare("copying", 0.333), AccountShare("idle", 0.333))
    bar = account_bar(shares, 40)
    assert len(bar) == 40
    assert {bar.count(mark) for mark in "#=~"} <= {13, 14}


def test_a_long_path_does_not_hide_the_line_number() -> None:
    frames = tuple(type(f)(f.function, "/very" * 20 + f.file, f.line) for f in b.FETCHING)
    d = diagnose(
        [b.inventory(), *b.gpu([0, 0, 0, 90]), *b.ticks(b.process(b.PID, 1.0)), *b.stacks([(frames, True)])], b.PID
    )
    assert any("photos.py:12" in line for line in diagnosis_lines(d))


def test_a_line_of_watch_says_who_what_and_where_the_time_went() -> None:
    import time

    from gpuwatch.cli.diagnose_watch import line

    stacks = b.stacks([(b.FETCHING, True)] * 9 + [(b.LAUNCHING, True)])
    d = diagnose([b.inventory(), *b.gpu([0] * 9 + [90]), *b.ticks(b.process(b.PID, 1.0)), *stacks], b.PID)
    text = line(d, time.struct_time((2026, 1, 1, 18, 4, 11, 0, 0, 0)))
    assert (
        text == "18:04:11 pid 4242 loader_in_main_process 91 % lost; computing 9 %, preparing_data 90 %, launching 1 %"
    )


def test_whoever_switched_native_frames_off_is_not_held_by_diagnose_and_record_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert undecided_or_none() is undecided
    monkeypatch.setenv("GPUWATCH_DIAGNOSIS_NATIVE_STACKS", "never")
    assert undecided_or_none() is None
