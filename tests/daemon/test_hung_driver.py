"""A driver call that never returns: seen, said once, and never waited for."""

from __future__ import annotations

import logging
import threading

import pytest
from daemon_parts import ScriptedSource, inventory, runtime_dir, sample, serving, until

from gpuwatch.client.connection import Connection
from gpuwatch.client.state import Link
from gpuwatch.daemon import service


def test_a_gpu_that_hangs_is_logged_once_and_once_more_when_it_answers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HUNG_SLACK_NS", 0)
    caplog.set_level(logging.INFO, "gpuwatch")
    source = ScriptedSource(inventory(2))

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("GPU 1")]

    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client:
        source.emit(sample(0, source.now_ns()), sample(1, source.now_ns()))
        until(client, lambda _: bool(said()))
        seen = client.state.seq
        until(client, lambda s: s.seq > seen + 3)
        assert said() == ["GPU 1 does not answer; its last reading stands"]
        source.emit(sample(1, source.now_ns()))
        until(client, lambda _: len(said()) > 1)
        assert said()[1] == "GPU 1 answers again"


class _NeverStops(ScriptedSource):
    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def stop(self) -> None:
        self.release.wait(50)
        super().stop()


def test_a_hung_call_does_not_hold_up_the_goodbye_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_SOURCE_S", 0.1)
    caplog.set_level(logging.INFO, "gpuwatch")
    source = _NeverStops()
    with runtime_dir() as path, Connection(str(path)) as client:
        with serving(source, path):
            until(client, lambda s: s.link is Link.LIVE)
        assert not source.stopped.is_set(), "it left without the call that hangs"
        assert until(client, lambda s: s.link is Link.LOST).detail == "the daemon stopped"
        assert sorted(p.name for p in path.iterdir()) == ["lock"]
    assert "a driver call does not return; leaving without it" in [r.getMessage() for r in caplog.records]
    source.release.set()
