"""A look at native frames: what it reads, and that the job runs on whoever dies in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.collect import native_look
from gpuwatch.collect.native_look import Look, NativeSpy, parse_collapsed
from gpuwatch.collect.py_spy import Failure, PySpy
from gpuwatch.model import Frame, ThreadStack

PATIENCE_S = 20.0

FAKE = """#!{python}
import ctypes, os, signal, sys
with open("{folder}/asked", "a") as asked:
    asked.write(" ".join(sys.argv[1:]) + "\\n")
if "--version" in sys.argv:
    print("py-spy {version}")
    sys.exit()
pid = int(sys.argv[sys.argv.index("--pid") + 1])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT, ATTACH, ALL = 0x4206, 0x4207, 16, 0x40000000
for request in ({requests}):
    if ptrace(request, pid, 0, 0):
        sys.exit("Permission Denied: " + os.strerror(ctypes.get_errno()))
signal.pause()
"""
"""A py-spy that holds the job's main thread and then hangs, by the requests of the new ones or of the old."""
NEW, OLD = ("0.4.3", "SEIZE, INTERRUPT"), ("0.3.14", "ATTACH,")

DAEMON = """
import sys
from pathlib import Path
from gpuwatch.collect import native_look
from gpuwatch.collect.py_spy import PySpy
native_look.TIMEOUT_S, native_look.GUARD_S = 60.0, 1
program = Path(sys.argv[2]) if sys.argv[2] else None
print(native_look.NativeSpy(PySpy(program)).look(int(sys.argv[1])), flush=True)
"""
"""Stands in for the daemon: one look, with nobody else in the process."""


class Job:
    """A Python process that computes for ever, and what the kernel says about it."""

    def __init__(self) -> None:
        code = "print('ready', flush=True)\nwhile True: sum(range(1000))"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def state(self) -> str:
        return self._stat()[0]

    def cpu_ticks(self) -> int:
        return int(self._stat()[11]) + int(self._stat()[12])

    def holder(self) -> int:
        """Pid of the process that holds it; waits for one."""
        found = [0]

        def look() -> bool:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            found[0] = next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
            return found[0] > 0

        wait_for(look, "it was never held")
        return found[0]

    def held(self) -> bool:
        return self.state() == "t"

    def assert_runs(self) -> None:
        before = self.cpu_ticks()
        wait_for(lambda: self.cpu_ticks() > before, f"the job does not run, its state is {self.state()}")
        assert self.state() in "RS"

    def _stat(self) -> list[str]:
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()


def wait_for(condition: Callable[[], object], what: str) -> None:
    ends, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, what
        pause.wait(0.0005)


def fake(folder: Path, version: str, requests: str) -> Path:
    path = folder / f"py-spy-{version}"
    path.write_text(FAKE.format(python=sys.executable, folder=folder, version=version, requests=requests))
    path.chmod(0o755)
    return path


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # The latter when it ends between open and read.
        return True


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    try:
        yield job
    finally:
        job.process.kill()
        job.process.communicate()


@pytest.fixture
def traceable(job: Job, tmp_path: Path) -> Job:
    """A job that we may hold; skips where the kernel or a container forbids it."""
    program = fake(tmp_path, *NEW)
    with subprocess.Popen([str(program), "--pid", str(job.pid)], stderr=subprocess.PIPE, text=True) as probe:
        wait_for(lambda: job.held() or probe.poll() is not None, "neither held nor refused")
        refused = probe.poll() is not None
        probe.kill()
        assert probe.stderr is not None
        reason = probe.stderr.read()
    if refused:
        pytest.skip(f"ptrace is denied here: {reason.strip()}")
    (tmp_path / "asked").unlink()
    return job


@pytest.fixture(params=["the real py-spy", "a py-spy that hangs"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "" if request.param == "the real py-spy" else str(fake(tmp_path, *NEW))


def test_a_look_shows_c_functions_below_the_python_line_that_calls_them(traceable: Job) -> None:
    look = NativeSpy().look(traceable.pid)
    assert look.error == ""
    assert len(look.stacks) >= 10
    stack = look.stacks[0]
    assert (stack.os_tid, stack.active) == (traceable.pid, True)
    assert any(frame.file == "<string>" and frame.line == 2 for frame in stack.frames), stack.frames
    natives = [frame for frame in stack.frames if frame.line == 0]
    assert natives
    assert all("/" not in frame.file for frame in natives), "a library is named as in the model, without its folder"
    traceable.assert_runs()


def test_the_job_runs_on_when_py_spy_is_killed_while_it_holds_it(
    traceable: Job, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_look, "TIMEOUT_S", 60.0)
    looks: list[Look] = []
    spy = NativeSpy(PySpy(Path(program) if program else None))
    looking = threading.Thread(target=lambda: looks.append(spy.look(traceable.pid)))
    looking.start()
    os.kill(traceable.holder(), signal.SIGKILL)
    looking.join(PATIENCE_S)
    traceable.assert_runs()
    assert [look.error for look in looks] == ["native frames: py-spy was killed"]


@pytest.mark.parametrize("who", ["the daemon", "its whole control group"])
def test_the_job_runs_on_when_the_daemon_is_killed_while_py_spy_holds_it(
    traceable: Job, program: str, who: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON, str(traceable.pid), program]) as daemon:
        spy, guards = traceable.holder(), children_of(daemon.pid)
        assert len(guards) == 1
        for pid in [daemon.pid] if who == "the daemon" else [daemon.pid, *guards, spy]:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: ended(spy), "py-spy outlives the daemon for ever")
    traceable.assert_runs()


def test_a_py_spy_that_hangs_is_killed_in_time_and_lets_go_of_the_job(
    traceable: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_look, "TIMEOUT_S", 0.5)
    look = NativeSpy(PySpy(fake(tmp_path, *NEW))).look(traceable.pid)
    assert look == Look((), Failure.TIMEOUT, "native frames: py-spy did not finish within 0.5 s; not tried again")
    traceable.assert_runs()


def test_a_look_that_is_not_wanted_any_more_lets_go_of_the_job(traceable: Job, tmp_path: Path) -> None:
    stop = threading.Event()
    looks: list[Look] = []
    spy = NativeSpy(PySpy(fake(tmp_path, *NEW)))
    looking = threading.Thread(target=lambda: looks.append(spy.look(traceable.pid, stop)))
    looking.start()
    wait_for(traceable.held, "it was never held")
    stop.set()
    looking.join(PATIENCE_S)
    traceable.assert_runs()
    assert [look.failure for look in looks] == [Failure.STOPPED]


def test_a_job_that_its_user_stopped_stays_stopped_and_is_not_looked_at(traceable: Job, tmp_path: Path) -> None:
    os.kill(traceable.pid, signal.SIGSTOP)
    wait_for(lambda: traceable.state() == "T", "it did not stop")
    look = NativeSpy(PySpy(fake(tmp_path, *NEW))).look(traceable.pid)
    assert look.failure is Failure.STOPPED
    assert (tmp_path / "asked").read_text() == "--version\n"
    assert traceable.state() == "T"


def test_a_job_that_its_user_stops_while_it_is_held_stays_stopped(traceable: Job, tmp_path: Path) -> None:
    looking = threading.Thread(target=NativeSpy(PySpy(fake(tmp_path, *NEW))).look, args=(traceable.pid,))
    looking.start()
    holder = traceable.holder()
    os.kill(traceable.pid, signal.SIGSTOP)
    os.kill(holder, signal.SIGKILL)
    looking.join(PATIENCE_S)
    wait_for(lambda: traceable.state() == "T", "somebody resumed what its user had stopped")


def test_an_old_py_spy_which_leaves_jobs_stopped_never_gets_to_hold_one(traceable: Job, tmp_path: Path) -> None:
    program = fake(tmp_path, *OLD)
    look = NativeSpy(PySpy(program)).look(traceable.pid)
    assert look.failure is Failure.VERSION
    assert look.error == (
        f"native frames: {program} is 0.3.14; before 0.4.0 it can leave a job stopped: pip install -U py-spy"
    )
    assert (tmp_path / "asked").read_text() == "--version\n"
    # What it would have done: the kernel delivers the SIGSTOP that its PTRACE_ATTACH sent.
    with subprocess.Popen([str(program), "--pid", str(traceable.pid)]) as old:
        wait_for(traceable.held, "it was never held")
        old.kill()
    wait_for(lambda: traceable.state() == "T", "then the gate is not needed")


def script(folder: Path, text: str) -> Path:
    path = folder / "py-spy"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "py-spy 0.4.3" && exit\n{text}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "failure", "words"),
    [
        ("echo 'Error: Operation not permitted (os error 1)' >&2; exit 1", Failure.PERMISSION, "permission denied ("),
        ("echo 'py-spy> Wrote raw flamegraph data'", Failure.TORN, "no thread was on a CPU"),
        ("exit 137", Failure.TORN, "py-spy was killed"),
    ],
)
def test_a_failure_says_that_only_native_frames_are_missing(
    tmp_path: Path, text: str, failure: Failure, words: str
) -> None:
    look = NativeSpy(PySpy(script(tmp_path, text))).look(os.getpid())
    assert look.failure is failure
    assert look.error.startswith(f"native frames: {words}")


def test_without_py_spy_or_timeout_there_is_one_line_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    assert "no version in b''" in NativeSpy(PySpy(silent)).look(os.getpid()).error
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    look = NativeSpy(PySpy(script(tmp_path, "exit"))).look(os.getpid())
    assert (look.failure, look.error.rpartition(": ")[2]) == (Failure.MISSING, "install coreutils")
    spy = PySpy(script(tmp_path, "exit"))
    spy.executable = None
    assert NativeSpy(spy).look(os.getpid()).error.endswith("pip install py-spy")


def test_collapsed_stacks_become_one_stack_a_sample_from_the_inside_out() -> None:
    output = (
        b"py-spy> Sampling process 20 times a second for 2 seconds. Press Control-C to exit.\n"
        b"thread (40): MainThread;<module> (/home/a/fit.py:9);step (/home/a/my (old) model.py:3);"
        b"at::native::(anonymous namespace)::copy(at::Tensor&) (/x/lib/libtorch_cpu.so);0x7f00 (/x/libgomp.so.1) 2\n"
        b"thread (41);run (threading.py:5);odd 1\n"
        b"thread (42): half a line;run (threading.py:5)\n"
    )
    frames = (
        Frame("0x7f00", "libgomp.so.1"),
        Frame("at::native::(anonymous namespace)::copy(at::Tensor&)", "libtorch_cpu.so"),
        Frame("step", "/home/a/my (old) model.py", 3),
        Frame("<module>", "/home/a/fit.py", 9),
    )
    main = ThreadStack(40, "MainThread", True, False, frames)
    other = ThreadStack(41, "", True, False, (Frame("odd", ""), Frame("run", "threading.py", 5)))
    assert parse_collapsed(output) == (main, main, other)
