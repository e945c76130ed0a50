"""Every mistake and every broken machine that a user meets: one clear line, the right exit code, never a traceback."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakenvml.build import fake_env

RECORDING = Path(__file__).parent.parent / "recordings" / "one_worker_jpeg.gwrec"
ONE_GPU = "gpus=1\ngpu 0 util=50 procs=none\n"


def gpuwatch(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuwatch", *arguments], env=env, capture_output=True, text=True, timeout=50, check=False
    )


def one_line(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("gpuwatch: ")
    for part in parts:
        assert part in lines[0]


def test_an_unknown_config_key_names_file_key_and_the_nearest_one(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("perod_s = 1.0\n")
    one_line(gpuwatch("config", "check", str(config)), 78, str(config), "perod_s", "period_s")
    one_line(gpuwatch("daemon", "--config", str(config)), 78, "perod_s")


def test_a_recording_that_is_not_there_or_not_one_or_cut(tmp_path: Path) -> None:
    one_line(gpuwatch("diagnose", "--replay", str(tmp_path / "no.gwrec")), 66, "no such recording")
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    one_line(gpuwatch("status", "--replay", str(foreign)), 65, "not a gpuwatch recording")
    cut = tmp_path / "cut.gwrec"
    cut.write_bytes(RECORDING.read_bytes()[:4000])
    one_line(gpuwatch("diagnose", "--replay", str(cut)), 65, "damaged after", "--partial")


def test_a_recording_is_never_written_over_an_existing_file(tmp_path: Path) -> None:
    there = tmp_path / "there.gwrec"
    there.write_text("precious")
    one_line(gpuwatch("record", str(there)), 73, "exists", "--force")
    assert there.read_text() == "precious"


def test_an_endpoint_that_another_daemon_holds(tmp_path: Path) -> None:
    runtime = tmp_path / "gw"
    runtime.mkdir()
    with (runtime / "lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = gpuwatch("daemon", "--runtime-dir", str(runtime), "--replay", str(RECORDING))
    one_line(result, 75, str(runtime), str(os.getpid()))


def test_an_endpoint_without_a_daemon(tmp_path: Path) -> None:
    one_line(gpuwatch("status", "--connect", str(tmp_path / "nobody")), 69, "nobody")


@pytest.mark.parametrize("command", [["status"], ["diagnose", "--for", "4s"], ["record", "x.gwrec"]])
def test_no_driver(command: list[str], tmp_path: Path) -> None:
    arguments = [a if a != "x.gwrec" else str(tmp_path / a) for a in command]
    env = fake_env(tmp_path, "gpus=1\nrc.nvmlInitWithFlags=9\n")
    one_line(gpuwatch(*arguments, env={**env, "GPUWATCH_ENDPOINT": ""}), 69, "kernel module is not loaded", "modprobe")


def test_a_library_that_does_not_match_the_kernel_module(tmp_path: Path) -> None:
    env = fake_env(tmp_path, "gpus=1\nrc.nvmlInitWithFlags=18\n")
    one_line(gpuwatch("status", env={**env, "GPUWATCH_ENDPOINT": ""}), 69, "reboot")


def test_a_pid_that_is_not_there_or_not_on_a_gpu(tmp_path: Path) -> None:
    env = {**fake_env(tmp_path, ONE_GPU), "GPUWATCH_ENDPOINT": ""}
    one_line(gpuwatch("diagnose", "--pid", str(os.getpid()), env=env), 66, str(os.getpid()), "not a process on a GPU")


def test_a_probe_in_an_environment_without_torch(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    result = gpuwatch("probe", "run", "matmul", "--device", "cpu", "--python", str(python))
    assert result.returncode == 3
    assert "torch" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_an_unknown_command_option_and_probe() -> None:
    one_line(gpuwatch("statsu"), 64, "statsu")
    one_line(gpuwatch("status", "--jsn"), 64, "--jsn")
    one_line(gpuwatch("probe", "run", "matmull"), 64, "matmull", "matmul")
