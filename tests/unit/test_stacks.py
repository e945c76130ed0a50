"""Stack bursts: who is sampled when, what it may cost, and that each error says which setting would help."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack_stage import MAIN, MS, STACK, Stage, worker

from gpuwatch.collect import py_spy
from gpuwatch.collect.py_spy import Dump, Failure, PySpy, parse_dump
from gpuwatch.collect.source import Focus
from gpuwatch.collect.stacks import StackSampler
from gpuwatch.model import Frame, ThreadStack


def test_a_burst_samples_the_main_process_at_its_rate_and_ends_in_time() -> None:
    stage = Stage()
    stage.run()
    assert stage.spy.counts() == {MAIN: 50}
    assert stage.now.now_ns <= 5_000 * MS
    assert all(sample.threads == STACK and sample.root_pid == MAIN for sample in stage.emitted)


def test_each_of_few_workers_is_sampled_about_once_a_second_beside_the_main_process() -> None:
    stage = Stage()
    stage.run(worker(1), worker(2))
    counts = stage.spy.counts()
    assert counts[MAIN] >= 48
    assert (counts[1], counts[2]) == (5, 5)


def test_many_workers_take_turns_at_four_a_second() -> None:
    stage = Stage()
    stage.run(*(worker(pid) for pid in range(1, 9)))
    counts = stage.spy.counts()
    assert all(2 <= counts[pid] <= 3 for pid in range(1, 9))
    assert sum(counts.values()) - counts[MAIN] <= 20
    assert len({pid for _, pid in stage.spy.calls[:40]} - {MAIN}) > 4


@pytest.mark.parametrize("cost_ms", [9, 100, 700])
def test_sampling_never_takes_more_than_its_share_of_the_time(cost_ms: int) -> None:
    stage = Stage(cost_ns=cost_ms * MS)
    stage.run(*(worker(pid) for pid in range(1, 9)), focus=Focus(MAIN, (0,), 30.0, stack_hz=100.0, stack_seconds=20.0))
    spent = len(stage.spy.calls) * cost_ms
    # The last dump may end after the burst; its rest would have followed.
    assert spent - cost_ms <= 0.3 * 20_000
    assert stage.spy.counts()[MAIN] > 0
    assert len(stage.spy.counts()) > 1


def test_processes_that_are_not_python_are_never_given_to_the_sampler() -> None:
    stage = Stage()
    stage.spy.not_python = {MAIN}
    stage.run(worker(1), worker(2, python=False))
    assert stage.spy.counts().keys() == {1}
    assert stage.errors() == [(MAIN, f"process {MAIN} is not a Python process")]
    assert stage.sampler.sample(MAIN, MAIN).error == f"process {MAIN} is not a Python process"


def test_a_lasting_error_is_told_once_per_process_and_not_tried_again() -> None:
    stage = Stage()
    stage.spy.answers = dict.fromkeys((MAIN, 1), Dump((), Failure.PERMISSION, "permission denied (ptrace_scope=1)"))
    stage.run(worker(1), worker(2))
    assert stage.errors() == [(MAIN, "permission denied (ptrace_scope=1)"), (1, "permission denied (ptrace_scope=1)")]
    assert stage.spy.counts()[MAIN] == stage.spy.counts()[1] == 1
    assert stage.spy.counts()[2] > 1
    stage.emitted.clear()
    stage.run()
    assert len(stage.errors()) == 1, "the next burst tells it again"


def test_without_py_spy_the_burst_ends_with_one_line() -> None:
    stage = Stage()
    stage.spy.answers = {MAIN: Dump((), Failure.MISSING, "py-spy is not installed")}
    stage.run(worker(1))
    assert (stage.errors(), len(stage.spy.calls)) == ([(MAIN, "py-spy is not installed")], 1)


def test_torn_reads_are_counted_told_once_and_do_not_end_the_sampling() -> None:
    stage = Stage()
    stage.spy.answers = {MAIN: Dump((), Failure.TORN, "py-spy: Failed to copy PyCodeObject")}
    stage.run()
    assert stage.spy.counts()[MAIN] == stage.sampler.torn_reads == 50
    assert stage.errors() == [(MAIN, "py-spy: Failed to copy PyCodeObject (3 times; sampling goes on)")]


def test_a_burst_that_is_stopped_ends_at_once() -> None:
    stage = Stage(stop_at_ns=1_000 * MS)
    stage.run(worker(1))
    assert stage.now.now_ns < 1_200 * MS
    stage = Stage()
    stage.spy.answers = {MAIN: Dump((), Failure.STOPPED, "stopped")}
    stage.run()
    assert (len(stage.spy.calls), stage.emitted) == (1, [])


@pytest.mark.parametrize("focus", [Focus(0, (0,), 20.0), Focus(MAIN, (0,), 20.0, stacks=False)])
def test_a_gpu_without_a_job_or_a_focus_without_stacks_samples_nobody(focus: Focus) -> None:
    stage = Stage()
    stage.run(worker(1), focus=focus)
    assert stage.spy.calls == []


def test_frames_are_innermost_first_with_whole_paths() -> None:
    output = b"""[{"pid": 1, "thread_id": 5, "thread_name": null, "os_thread_id": null, "active": true,
      "owns_gil": true, "frames": [
        {"name": "step", "filename": "/home/a/model.py", "module": null, "short_filename": "model.py", "line": 3},
        {"name": "loop", "filename": "/home/a/train.py", "module": null, "short_filename": "train.py", "line": 7}],
      "process_info": null}]"""
    frames = Frame("step", "/home/a/model.py", 3), Frame("loop", "/home/a/train.py", 7)
    assert parse_dump(output) == (ThreadStack(0, "", True, True, frames),)


def fake_program(folder: Path, script: str) -> Path:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("output", ["", "null", "[1]", '[{"frames": 3}]', "not json"])
def test_odd_output_is_an_error_sample_and_not_an_exception(tmp_path: Path, output: str) -> None:
    sampler = StackSampler(PySpy(fake_program(tmp_path, f"printf '%s' '{output}'")))
    assert sampler.sample(os.getpid(), 1).error.startswith("py-spy's output was not understood: ")


@pytest.mark.parametrize(
    ("stderr", "failure", "words"),
    [
        ("Error: Unsupported version of Python: 3.99.0", Failure.VERSION, "3.99.0: this py-spy does not know it"),
        ("Error: Failed to find python version from target process", Failure.NOT_PYTHON, "not a Python process"),
        ("Error: Failed to copy PyCodeObject", Failure.TORN, "py-spy: Failed to copy PyCodeObject"),
        ("", Failure.TORN, "py-spy: failed without a word"),
        ("Permission Denied: Try running again with elevated permissions", Failure.PERMISSION, "permission denied ("),
        ("Error: Operation not permitted (os error 1)", Failure.PERMISSION, "permission denied ("),
    ],
)
def test_py_spys_messages_become_one_line_with_a_kind(
    tmp_path: Path, stderr: str, failure: Failure, words: str
) -> None:
    dump = PySpy(fake_program(tmp_path, f"echo '{stderr}' >&2; exit 1")).dump(os.getpid())
    assert dump.failure is failure
    assert words in dump.error
    assert "\n" not in dump.error


@pytest.mark.parametrize(
    ("euid", "uid", "scope", "caps", "words"),
    [
        (1000, 1000, "1", 0, "(ptrace_scope=1, not root): sysctl kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE"),
        (1000, 1000, "2", 0, "(ptrace_scope=2, not root): run as root"),
        (1000, 1001, "0", 0, "process of uid 1001, we are uid 1000): run as that user or as root"),
        (0, 1000, "1", 0, "root without CAP_SYS_PTRACE): start the container with --cap-add=SYS_PTRACE"),
        (0, 1000, "3", 1 << 19, "until a reboot"),
        (0, 1000, None, 1 << 19, "(no ptrace_scope here): we have CAP_SYS_PTRACE, so a container's"),
    ],
)
def test_a_refusal_names_the_lock_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, euid: int, uid: int, scope: str | None, caps: int, words: str
) -> None:
    for folder in ("7", "self", "sys/kernel/yama"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "7/status").write_text(
        f"Uid:\t{uid}\t{uid}\nPPid:\t1\nThreads:\t1\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t1\n"
    )
    (tmp_path / "self/status").write_text(f"Name:\tx\nCapEff:\t{caps:016x}\n")
    if scope is not None:
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(scope + "\n")
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    spy = PySpy(fake_program(tmp_path, "echo 'Permission Denied: Try sudo' >&2; exit 1"), tmp_path)
    dump = spy.dump(7)
    assert dump.failure is Failure.PERMISSION
    assert dump.error.startswith("permission denied (")
    assert words in dump.error


def test_a_py_spy_that_hangs_is_killed_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "TIMEOUT_S", 0.05)
    program = fake_program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    dump = PySpy(program).dump(os.getpid())
    assert dump.failure is Failure.TIMEOUT
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_stopping_kills_the_child_that_is_under_way(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    dump = PySpy(fake_program(tmp_path, "exec sleep 60")).dump(os.getpid(), stop=stop)
    assert dump.failure is Failure.STOPPED


def test_a_missing_py_spy_is_one_line_that_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: None)
    assert "pip install" in StackSampler(PySpy()).sample(os.getpid(), 1).error
    dump = PySpy(tmp_path / "gone").dump(os.getpid())
    assert (dump.failure, dump.error) == (
        Failure.MISSING,
        f"{tmp_path}/gone cannot be started: No such file or directory",
    )


def test_py_spy_is_found_beside_our_own_interpreter_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_program(tmp_path, "exit 0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert py_spy.find_py_spy() == program
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    found = py_spy.find_py_spy()
    assert found is not None, "the package's own record knows where its script is"
    assert found.name == "py-spy"


CHILD = """
import sys
def waiting_here():
    print("ready", flush=True)
    sys.stdin.read()
waiting_here()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_real_python_process_shows_its_stack_or_the_reason_why_not(child: subprocess.Popen[str]) -> None:
    sampler = StackSampler()
    deadline = time.monotonic() + 20
    sample = sampler.sample(child.pid, child.pid)
    while sample.error.startswith("py-spy") and time.monotonic() < deadline:
        sample = sampler.sample(child.pid, child.pid)
    if sample.error:
        assert sample.error.startswith("permission denied (")
        assert "ptrace" in sample.error.lower()
        return
    main = next(thread for thread in sample.threads if thread.name == "MainThread")
    assert [frame.function for frame in main.frames] == ["waiting_here", "<module>"]
    assert main.frames[0] == Frame("waiting_here", "<string>", 5)
    assert main.os_tid == (child.pid if sys.version_info >= (3, 11) else 0)


def test_a_process_that_has_ended_or_is_no_python_says_so(child: subprocess.Popen[str]) -> None:
    sampler = StackSampler()
    with subprocess.Popen(["sleep", "60"]) as sleep:
        error = sampler.sample(sleep.pid, 1).error
        sleep.kill()
    assert error == f"process {sleep.pid} is not a Python process"
    child.kill()
    child.wait()
    assert sampler.sample(child.pid, 1).error == f"process {child.pid} has ended"
