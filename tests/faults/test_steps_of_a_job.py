"""A job that uses ``gpuwatch.hook``, a real daemon on the fake library, and what a watcher is told of the two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakenvml.build import fake_env
from fault_daemon import Watched, watched

from gpuwatch.client.state import NodeState
from gpuwatch.model import StepReport, StepTimes

JOB = """
import os, select, sys, threading
import gpuwatch.hook as hook

def loader():
    while True:
        select.select([], [], [], 0.03)
        yield 1

def loop():
    for _ in hook.watch(loader()):
        select.select([], [], [], 0.01)
        if "marks" in sys.argv:
            hook.step()

first = os.getpid()
if "ranks" in sys.argv:
    os.fork()
    os.fork()
if os.getpid() == first:
    print("running", flush=True)
if "thread" in sys.argv:
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    sys.stdin.read()
else:
    loop()
"""
"""Three quarters of a step of 40 ms wait for data. It ends when it is killed."""


@contextmanager
def job(endpoint: Path, *modes: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job that tells whoever listens at ``endpoint``; with those it has forked it is killed at the end."""
    env = {**os.environ, "GPUWATCH_ENDPOINT": str(endpoint)}
    argv = [sys.executable, "-W", "error", "-c", JOB, *modes]
    child = subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        assert child.stdout.readline() == b"running\n"
        yield child
        assert child.poll() is None, "the job ended"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        said = child.stderr.read()
        child.communicate()
    assert said == b""


def on_gpus(*pids: int) -> str:
    """A scenario with one process on each GPU."""
    lines = [f"gpu {index} procs={pid}:1073741824:C gpm.2=20 gpm.1=20" for index, pid in enumerate(pids)]
    return "\n".join([f"gpus={len(pids)}", *lines])


def told(state: NodeState, pid: int) -> StepReport | None:
    reports = state.steps.get(pid, ())
    return next((r for r in reports if r.loop), reports[0] if reports else None)


def until_told(node: Watched, pid: int) -> StepReport:
    report = told(node.until(lambda s: told(s, pid) is not None, f"steps of {pid}"), pid)
    assert report is not None
    return report


@pytest.fixture
def runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as short:
        yield Path(short) / "run"


@pytest.mark.parametrize("modes", [(), ("thread",)])
def test_step_time_and_data_wait_reach_the_watcher(tmp_path: Path, runtime: Path, modes: tuple[str, ...]) -> None:
    with job(runtime, *modes) as child, watched(tmp_path, on_gpus(child.pid), runtime=runtime) as node:
        report = until_told(node, child.pid)
        assert report.pid == child.pid
        assert report.steps * 40_000_000 <= report.step_ns <= report.span_ns
        assert report.steps * 30_000_000 <= report.wait_ns < report.step_ns  # type: ignore[operator]
        assert (report.thread == child.pid) == (not modes)


def test_the_job_goes_on_when_the_daemon_dies_and_is_heard_again_by_the_next(tmp_path: Path, runtime: Path) -> None:
    """The first is killed, so its socket stays behind; the job keeps its own pace and says no word about it."""
    with job(runtime) as child:
        scenario = on_gpus(child.pid)
        env = fake_env(tmp_path, scenario)
        argv = [sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(runtime)]
        with (tmp_path / "log").open("wb") as log:
            first = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stderr=log)
        node = Watched(first, runtime, tmp_path)
        try:
            until_told(node, child.pid)
        finally:
            node.close()
            first.kill()
            first.wait()
        assert (runtime / "steps.sock").is_socket()
        with watched(tmp_path, scenario, runtime=runtime) as second:
            assert until_told(second, child.pid).steps > 0


def test_each_rank_of_a_launcher_speaks_for_itself(tmp_path: Path, runtime: Path) -> None:
    with job(runtime, "ranks") as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        pids = (child.pid, *map(int, children.read_text().split()))
        assert len(pids) == 3
        with watched(tmp_path, on_gpus(*pids), runtime=runtime) as node:
            assert {until_told(node, pid).pid for pid in pids} == set(pids)


def test_the_diagnosis_of_the_daemon_rests_on_what_the_job_measured(tmp_path: Path, runtime: Path) -> None:
    with job(runtime, "marks") as child, watched(tmp_path, on_gpus(child.pid), runtime=runtime) as node:
        until_told(node, child.pid)
        node.diagnose(child.pid, 3.0)
        state = node.until(lambda s: s.diagnosis_of(child.pid) is not None, "a diagnosis")
        diagnosis = state.diagnosis_of(child.pid)
        assert diagnosis is not None
        steps = diagnosis.steps
        assert isinstance(steps, StepTimes)
        assert 0.04 <= steps.step_s < 0.4
        assert 0.03 <= steps.wait_s <= steps.step_s  # type: ignore[operator]
        assert 0.5 < steps.wait_share <= 1.0  # type: ignore[operator]
        assert {"step", "data wait per step"} <= {row.name for row in diagnosis.verdict.evidence}


def test_a_recording_of_the_job_diagnoses_with_its_word(tmp_path: Path, runtime: Path) -> None:
    case = tmp_path / "case.gwrec"
    runtime.mkdir()
    with job(runtime) as child:
        env = {**fake_env(tmp_path, on_gpus(child.pid)), "GPUWATCH_ENDPOINT": str(runtime)}
        gpuwatch = [sys.executable, "-m", "gpuwatch"]
        recorded = subprocess.run(
            [*gpuwatch, "record", str(case), "--for", "7s", "--pid", str(child.pid)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert recorded.returncode == 0, recorded.stderr
    assert list(runtime.iterdir()) == [], "no socket stays behind"
    said = subprocess.run([*gpuwatch, "diagnose", "--replay", str(case)], capture_output=True, text=True, check=False)
    assert "data wait per step" in said.stdout
    assert "measured by the job itself" in " ".join(said.stdout.split())
