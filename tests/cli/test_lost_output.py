"""Stdout that cannot be written: one line and its own exit code, never a traceback, never the 1 of a warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from probe_stage import command

LIST = [sys.executable, "-m", "gpuwatch", "probe", "list"]
HELP = [sys.executable, "-m", "gpuwatch", "--help"]


def full(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """With stdout on a disk that is full."""
    with Path("/dev/full").open("w") as stdout:
        return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize("argv", [LIST, HELP, [LIST[0], "-u", *LIST[1:]]], ids=["command", "help", "unbuffered"])
def test_a_full_disk_is_one_line_and_73(argv: list[str]) -> None:
    done = full(argv)
    assert (done.returncode, done.stderr) == (73, "gpuwatch: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("form", ["--json", "--nagios", "--csv", "--markdown", "--junit", None])
def test_a_verdict_that_cannot_be_written_is_no_verdict(tmp_path: Path, form: str | None) -> None:
    done = full(command(tmp_path, "probe", "run", "copies", "--device", "cpu", *filter(None, [form])))
    assert done.returncode == 73
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("argv", [LIST, HELP], ids=["command", "help"])
def test_a_reader_that_has_gone_is_141_and_no_warning(argv: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_stdout_keeps_the_verdict(tmp_path: Path) -> None:
    argv = command(tmp_path, "probe", "run", "copies", "--device", "cpu")
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *argv], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_that_is_not_of_stdout_stays_what_it_is(tmp_path: Path) -> None:
    done = full(command(tmp_path, "probe", "check", "--baseline", str(tmp_path / "none.json")))
    assert done.returncode == 66
    assert json.dumps(done.stderr).count("none.json") == 1
