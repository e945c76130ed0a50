"""The daemon as a process of its own: what systemd, a terminal and the UI do with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_parts import S, info, inventory, processes, runtime_dir, sample, until

from gpuwatch.client.connection import Connection
from gpuwatch.client.embedded import EmbeddedDaemon
from gpuwatch.client.endpoints import serving
from gpuwatch.client.state import Link
from gpuwatch.errors import UnavailableError
from gpuwatch.model import HostSample, Source, SourceKind
from gpuwatch.replay.format import Writer


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Ten seconds of one starved GPU."""
    path = tmp_path / "ten.gwrec"
    with Writer(path, 1_700_000_000_000_000_000) as writer:
        writer.write(inventory(1, Source(SourceKind.RECORDED, "ten.gwrec", 1_700_000_000_000_000_000)))
        writer.write(processes(100 * S, info(17)))
        for tenth in range(101):
            writer.write(sample(0, 100 * S + tenth * S // 10, busy_pct=8.0, pids=(17,)))
            writer.write(HostSample(100 * S + tenth * S // 10))
    return path


def wait_for(condition: object, what: str, timeout_s: float = 20.0) -> None:
    """Bounded polling of a process."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


WITH_HANGUP = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.{}); os.execv(sys.executable, sys.argv[1:])"
"""Becomes the program of its arguments, with SIGHUP as given, whatever it is where the tests run (nohup)."""


@contextmanager
def daemon(
    directory: Path, *args: str, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL,
    hangup: str = "SIG_DFL",
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:  # fmt: skip
    """A daemon that serves; killed at the end if it still runs. With the file of its stderr."""
    directory.parent.mkdir(exist_ok=True)
    log = directory.parent / "log"
    with log.open("wb") as stderr:
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", WITH_HANGUP.format(hangup)),
                *(sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(directory), *args),
            ],
            stdin=stdin,
            stderr=stderr,
            env={**os.environ, **(env or {})},
        )
    try:
        wait_for(lambda: serving(str(directory)) or child.poll() is not None, "it never served")
        yield child, log
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


@pytest.fixture
def terminal() -> Iterator[int]:
    """The side of a terminal that a program has."""
    master, slave = os.openpty()
    yield slave
    os.close(slave)
    os.close(master)


def test_it_ends_with_the_terminal_that_it_was_started_in(recording: Path, terminal: int) -> None:
    with runtime_dir() as path, daemon(path, "--replay", str(recording), stdin=terminal) as (child, _log):
        child.send_signal(signal.SIGHUP)
        assert child.wait(5) == 0


def test_under_nohup_it_outlives_its_terminal(recording: Path, terminal: int) -> None:
    args = ("--replay", str(recording))
    with runtime_dir() as path, daemon(path, *args, stdin=terminal, hangup="SIG_IGN") as (child, _log):
        state = Path(f"/proc/{child.pid}/status").read_text()
        ignored = int(next(line for line in state.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
        assert ignored & 1 << signal.SIGHUP - 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_its_clients_know(recording: Path, number: signal.Signals) -> None:
    with runtime_dir() as path, daemon(path, "--replay", str(recording)) as (child, log):
        with Connection(str(path)) as client:
            until(client, lambda s: s.link is Link.LIVE)
            child.send_signal(number)
            assert until(client, lambda s: s.link is Link.LOST).detail == "the daemon stopped"
        assert child.wait(5) == 0
        assert "Traceback" not in log.read_text()
        assert sorted(p.name for p in path.iterdir()) == ["lock"]


def test_it_speaks_systemd_from_ready_to_stopping(recording: Path, tmp_path: Path) -> None:
    with runtime_dir() as path, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{path.parent}/notify")
        manager.settimeout(20)
        config = tmp_path / "config.toml"
        config.write_text("period_s = 1.0\n")
        env = {"NOTIFY_SOCKET": f"{path.parent}/notify", "WATCHDOG_USEC": "200000"}

        def heard(wanted: str) -> str:
            while True:
                text = manager.recv(4096).decode()
                if wanted in text:
                    return text

        args = ("--replay", str(recording), "--config", str(config), "--json")
        with daemon(path, *args, env=env) as (child, log):
            assert heard("READY=1") == "READY=1\nSTATUS=1 GPU, every 1 s, 0 watching"
            heard("WATCHDOG=1")
            config.write_text("period_s = 0.5\n")
            child.send_signal(signal.SIGHUP)
            heard("RELOADING=1\nMONOTONIC_USEC=")
            assert "every 0.5 s" in heard("READY=1")
            config.write_text("perid_s = 0.5\n")
            child.send_signal(signal.SIGHUP)
            assert "every 0.5 s" in heard("READY=1"), "a broken file leaves the running configuration alone"
            child.terminate()
            heard("STOPPING=1")
            assert child.wait(5) == 0
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            errors = [line["message"] for line in lines if line["level"] == "error"]
            assert errors == [f"configuration not reloaded: {config}: unknown key perid_s; did you mean period_s?"]


def test_a_recording_is_diagnosed_by_the_real_judge(recording: Path) -> None:
    with runtime_dir() as path, daemon(path, "--replay", str(recording), "--speed", "0"):
        with Connection(str(path)) as client:
            state = until(client, lambda s: s.diagnosis_of(17) is not None)
        assert state.recorded
        found = state.diagnosis_of(17)
        assert found is not None
        assert found.device_indices == (0,)
        assert len(state.history[0].samples) >= 10


def test_a_second_daemon_exits_75_with_one_line(recording: Path) -> None:
    with runtime_dir() as path, daemon(path, "--replay", str(recording)) as (child, _):
        second = subprocess.run(
            [sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(path), "--replay", str(recording)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert second.returncode == 75
        assert second.stderr == (
            f"gpuwatch: {path}: served by another daemon, pid {child.pid}; stop it or choose another --runtime-dir\n"
        )


def test_on_a_machine_without_a_gpu_it_serves_and_says_so() -> None:
    env = {"CUDA_VISIBLE_DEVICES": ""}
    with runtime_dir() as path, daemon(path, env=env) as (child, _), Connection(str(path)) as client:
        state = until(client, lambda s: s.link is Link.LIVE and s.host is not None)
        assert state.inventory is not None
        assert state.inventory.source.kind is SourceKind.LIVE
        rss = next(line for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if "VmRSS" in line)
        assert int(rss.split()[1]) <= 45 * 1024, "the memory budget of design.md"


def test_an_embedded_daemon_lives_as_long_as_its_screen(recording: Path) -> None:
    embedded = EmbeddedDaemon(["--replay", str(recording)])
    with embedded:
        directory = Path(embedded.endpoint.removeprefix("ipc://"))
        pid = embedded.pid
        with Connection(embedded.endpoint) as client:
            until(client, lambda s: 0 in s.devices)
        assert embedded.failure() == ""
    assert not Path(f"/proc/{pid}").exists()
    assert not directory.exists()


def test_an_embedded_daemon_ends_when_its_parent_is_killed(recording: Path) -> None:
    code = (
        "import sys, time\nfrom gpuwatch.client.embedded import EmbeddedDaemon\n"
        f"with EmbeddedDaemon(['--replay', {str(recording)!r}]) as e:\n"
        "    print(e.pid, e.endpoint, flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, endpoint = parent.stdout.readline().split()
        assert serving(endpoint)
        parent.kill()
    wait_for(lambda: not serving(endpoint), "the orphan still serves")
    wait_for(lambda: not alive(int(pid)), "the orphan still runs")
    assert not Path(endpoint.removeprefix("ipc://")).exists(), "its directory stays in /tmp"


def test_an_embedded_daemon_hears_jobs_where_they_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own directory has a name that no job can guess."""
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with runtime_dir() as user:
        user.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(user))
        with EmbeddedDaemon() as embedded:
            listens = user / "gpuwatch" / f"steps.{embedded.pid}"
            wait_for(listens.is_socket, "jobs are not heard")
        assert not listens.exists()


def alive(pid: int) -> bool:
    """There and not a zombie that waits for init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_embedded_daemon_does_not_import_what_lies_in_the_users_folder(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zmq.py").write_text("raise SystemExit('the user has a zmq.py')")
    monkeypatch.chdir(tmp_path)
    with EmbeddedDaemon(["--replay", str(recording)]) as embedded:
        assert serving(embedded.endpoint)


def test_an_embedded_daemon_that_cannot_start_is_reported_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.gwrec"
    with pytest.raises(UnavailableError) as caught, EmbeddedDaemon(["--replay", str(missing)]):
        pass
    assert str(caught.value).startswith("the embedded daemon ended with code 66: ")
    assert str(missing) in str(caught.value)
    assert "\n" not in str(caught.value)
