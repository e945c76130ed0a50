"""Lines of the job's code: the right ones, once each, and never with more rights than the job has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.collect import source_lines
from gpuwatch.collect.source_lines import SourceLines
from gpuwatch.model import Frame, Observation, SourceLine, StackSample, ThreadStack


def stack(*frames: Frame, pid: int = 7) -> StackSample:
    return StackSample(pid, pid, 5, (ThreadStack(pid, "MainThread", True, False, frames),))


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A /proc/7 whose root is a folder of ours."""
    (tmp_path / "7" / "root" / "home").mkdir(parents=True)
    (tmp_path / "7" / "root" / "home" / "fit.py").write_text("import x\nloss = f()\n    loss.item()\n")
    (tmp_path / "7" / "cwd").symlink_to(tmp_path / "7" / "root" / "home")
    return tmp_path


def told(root: Path, *stacks: StackSample) -> list[SourceLine]:
    out: list[Observation] = []
    lines = SourceLines(out.append, root)
    for sample in stacks:
        lines.emit(sample)
    return [o for o in out if isinstance(o, SourceLine)]


def test_the_innermost_line_of_the_users_code_is_told_once(process: Path) -> None:
    torch = Frame("forward", "/x/site-packages/torch/nn/a.py", 3)
    sample = stack(torch, Frame("fit", "/home/fit.py", 3), Frame("main", "/home/fit.py", 2))
    assert told(process, sample, sample) == [SourceLine(7, 5, "/home/fit.py", 3, "loss.item()")]


def test_a_library_s_line_is_told_where_it_may_do_anything(process: Path) -> None:
    """A trainer's own loop waits for the GPU too; torch's and numpy's functions are told apart by their names."""
    site = process / "7" / "root" / "site-packages"
    site.mkdir()
    (site / "trainer.py").write_text("pass\nif torch.isnan(loss):\n")
    user = Frame("main", "/home/fit.py", 2)
    lines = told(process, stack(Frame("_inner_loop", "/site-packages/trainer.py", 2), user))
    assert {line.text for line in lines} == {"loss = f()", "if torch.isnan(loss):"}
    outer = stack(Frame("sum", "/site-packages/numpy/core.py", 2), Frame("_inner_loop", "/site-packages/trainer.py", 2))
    assert told(process, outer) == []


def test_a_relative_path_is_looked_up_where_the_job_runs(process: Path) -> None:
    assert [line.text for line in told(process, stack(Frame("fit", "fit.py", 2)))] == ["loss = f()"]


def test_a_line_beyond_the_end_or_a_missing_file_is_silence(process: Path) -> None:
    assert told(process, stack(Frame("f", "/home/fit.py", 99)), stack(Frame("f", "/home/gone.py", 1))) == []


def test_neither_fifos_nor_huge_files_are_read(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(process / "7" / "root" / "home" / "pipe.py")
    assert told(process, stack(Frame("f", "/home/pipe.py", 1))) == []
    monkeypatch.setattr(source_lines, "MAX_FILE_BYTES", 10)
    assert told(process, stack(Frame("f", "/home/fit.py", 1))) == []


def test_a_file_that_the_job_could_not_open_is_not_read_for_it(process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = process / "7" / "root" / "home" / "fit.py"
    secret.chmod(0o600)
    real = os.fstat

    def owned_by_another(fd: int) -> os.stat_result:
        facts = list(real(fd))
        facts[4] = 12345
        return os.stat_result(facts)

    class NotRoot:
        st_uid = 1000

    monkeypatch.setattr(os, "fstat", owned_by_another)
    monkeypatch.setattr(Path, "stat", lambda self, **_: NotRoot())
    assert told(process, stack(Frame("f", "/home/fit.py", 1))) == []
