"""A screen must never end what is not its owner's, nor another process that got the pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent / "tui"))

from tui_states import MAIN, STATES, live

from gpuwatch.client.state import NodeState
from gpuwatch.tui.signals import _start_ticks, obstacle, send


def local(**changes: object) -> NodeState:
    state = live(1)
    return replace(state, endpoint="ipc:///run/gpuwatch", **changes)


def why(state: NodeState, pid: int = MAIN, *, readonly: bool = False, uid: int = 1000) -> str:
    return obstacle(state, pid, readonly=readonly, boot_id="boot", uid=uid)


def test_ones_own_process_on_this_machine_may_be_ended() -> None:
    assert why(local()) == ""


@pytest.mark.parametrize(
    ("state", "options", "words"),
    [
        (local(), {"readonly": True}, "--readonly"),
        (local(), {"uid": 1001}, "belongs to ada"),
        (local(), {"pid": 9}, "not visible"),
        (replace(live(1), endpoint="ssh://gpu7"), {}, "another machine"),
        (STATES["recorded"], {}, "a recording"),
        (STATES["lost"], {}, "no fresh readings"),
    ],
)
def test_nothing_else_may(state: NodeState, options: dict[str, int], words: str) -> None:
    assert words in why(state, **options)  # type: ignore[arg-type]


def test_another_boot_is_another_machine() -> None:
    assert "another machine" in obstacle(local(), MAIN, readonly=False, boot_id="other", uid=1000)


def test_the_signal_reaches_that_process_and_no_successor_of_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        ticks = _start_ticks(child.pid)
        assert "its pid is another process now" in send(child.pid, ticks + 1, signal.SIGTERM)
        assert child.poll() is None
        assert send(child.pid, ticks, signal.SIGTERM) == f"sent SIGTERM to {child.pid}"
        assert child.wait(10) == -signal.SIGTERM
        assert "has ended already" in send(child.pid, ticks, signal.SIGTERM)
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def test_start_ticks_are_the_kernels() -> None:
    assert _start_ticks(os.getpid()) > 0
    assert _start_ticks(2**22 + 1) == -1
