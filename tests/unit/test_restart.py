"""A daemon that replaces itself: not more than once a minute, and as what it was started."""

from __future__ import annotations

import os
import sys

import pytest

from gpuwatch.daemon.restart import MIN_INTERVAL_NS, Restart


class Clock:
    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns


class ExecutedError(Exception):
    """Instead of another program in this process."""


def executed(path: str, argv: list[str]) -> None:
    raise ExecutedError(path, argv)


def test_it_is_due_when_it_is_wanted() -> None:
    wanted = [False]
    restart = Restart(lambda: wanted[0], {}, Clock())
    assert not restart.due()
    wanted[0] = True
    assert restart.due()


def test_a_library_that_still_does_not_fit_does_not_make_the_daemon_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, env = Clock(), {"HOME": "/root"}
    monkeypatch.setattr(os, "execv", executed)
    with pytest.raises(ExecutedError):
        Restart(lambda: True, env, clock).replace_process()
    after = Restart(lambda: True, env, clock)
    clock.ns += MIN_INTERVAL_NS - 1
    assert not after.due()
    clock.ns += 1
    assert after.due()


def test_it_starts_what_was_started_with_the_same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execv", executed)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-P", "-m", "gpuwatch", "daemon", "--runtime-dir", "/run/x"])
    with pytest.raises(ExecutedError) as caught:
        Restart(lambda: True, {}, Clock()).replace_process()
    path, argv = caught.value.args
    assert (path, argv) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
