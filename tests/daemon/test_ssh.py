"""A daemon behind ssh, with a program in the place of ssh that forwards by a symbolic link."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_parts import ScriptedSource, runtime_dir, sample, serving

from gpuwatch.client.ssh import SshFeed, Target, target
from gpuwatch.client.state import Link, NodeState
from gpuwatch.errors import UsageError

FAKE = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
open({log!r}, "a").write(" ".join(arguments) + chr(10))
assert "BatchMode=yes" in arguments
place = arguments.index("--")
host, command = arguments[place + 1], arguments[place + 2]
if host == "locked":
    print("ada@locked: Permission denied (publickey).", file=sys.stderr)
    sys.exit(255)
links = []
for k, argument in enumerate(arguments):
    if argument == "-L":
        here, there = arguments[k + 1].split(":")
        os.symlink(there, here)
        links.append(here)
try:
    code = subprocess.call(["sh", "-c", command], stdout=None if not links else subprocess.DEVNULL)
finally:
    for link in links:
        os.unlink(link)
sys.exit(code)
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program, log = folder / "ssh", tmp_path / "ssh.log"
    program.write_text(FAKE.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def until(feed: SshFeed, wanted: Callable[[NodeState], bool]) -> NodeState:
    deadline = time.monotonic() + 15
    while True:
        state = feed.step(0.05)
        if wanted(state):
            return state
        assert time.monotonic() < deadline, f"never came: {state.link} {state.detail!r}"


def test_the_daemon_is_found_there_and_its_sockets_are_forwarded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime_dir() as base:
        directory = base / "gpuwatch"
        base.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        source = ScriptedSource()
        with serving(source, directory):
            feed = SshFeed("ssh://ada@gpu7:2222")
            try:
                source.emit(sample(0, source.now_ns(), busy_pct=42.0))
                state = until(feed, lambda s: bool(s.devices))
                assert state.endpoint == "ssh://ada@gpu7:2222"
                assert state.devices[0].busy_pct == 42.0
                lines = log.read_text().splitlines()
                assert all("-p 2222" in line for line in lines)
                assert all("ada@gpu7" in line for line in lines)
                assert len(lines) == 2
                process = feed._process
                assert process is not None
            finally:
                feed.close()
            assert process.poll() is not None, "no ssh outlives us"
            assert not feed._directory.exists()


def test_when_ssh_ends_the_host_is_lost_with_the_values_and_comes_back(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runtime_dir() as base:
        base.mkdir()
        now = [0.0]
        source = ScriptedSource()
        with serving(source, base / "run"):
            feed = SshFeed(f"ssh://gpu7{base / 'run'}", clock=lambda: now[0])
            try:
                source.emit(sample(0, source.now_ns(), busy_pct=42.0))
                until(feed, lambda s: bool(s.devices))
                assert feed._process is not None
                feed._process.terminate()
                state = until(feed, lambda s: s.link is Link.LOST)
                assert "gpu7: ssh ended" in state.detail
                assert state.devices, "the last values stand"
                now[0] += 3
                until(feed, lambda s: s.link is Link.LIVE)
            finally:
                feed.close()


@pytest.mark.usefixtures("log")
def test_the_reason_why_ssh_gives_nothing_is_on_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for host, words in (("locked", "Permission denied"), ("empty", "no daemon is running there")):
        feed = SshFeed(f"ssh://{host}")
        state = until(feed, lambda s, words=words: words in s.detail)  # type: ignore[misc]
        assert state.link is Link.CONNECTING
        feed.close()


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("ssh://gpu7", Target("gpu7")),
        ("ssh://ada@gpu7.cluster:22/run/gpuwatch/", Target("ada@gpu7.cluster", "22", "/run/gpuwatch")),
    ],
)
def test_endpoints_that_are_understood(endpoint: str, expected: Target) -> None:
    assert target(endpoint) == expected


@pytest.mark.parametrize(
    "endpoint", ["ssh://", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://a:b", "ssh://a/x:y", "gpu7"]
)
def test_what_could_be_an_option_of_ssh_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is no ssh endpoint"):
        target(endpoint)
