"""History and control of a recording, through the real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from daemon_parts import ScriptedSource, inventory, runtime_dir, sample, serving, until

from gpuwatch import wire
from gpuwatch.client.connection import Connection
from gpuwatch.client.state import Link, NodeState
from gpuwatch.replay.format import Writer
from gpuwatch.replay.player import ReplaySource

S = 10**9


def recording(path: Path) -> Path:
    with Writer(path, 1_700_000_000 * S) as writer:
        writer.write(inventory())
        for second in range(60):
            writer.write(sample(0, 100 * S + second * S, busy_pct=float(second)))
    return path


def shown_s(state: NodeState) -> float:
    return state.tick_mono_ns / S - 100


def test_the_past_of_a_gpu_comes_on_demand() -> None:
    with runtime_dir() as directory, serving(ScriptedSource(), directory) as service:
        source = cast("ScriptedSource", service._source)
        with Connection(str(directory)) as connection:
            source.emit(sample(0, source.now_ns(), busy_pct=42.0))
            until(connection, lambda s: bool(s.devices))
            connection.request(wire.GetHistory(0, 0, 3600.0))
            state = until(connection, lambda s: s.past is not None)
            assert state.past is not None
            busy = next(series for series in state.past.series if series.name == "busy_pct")
            assert busy.mean[-1] == 420
            assert state.notice == ""
            connection.request(wire.GetHistory(0, 5, 3600.0))
            assert until(connection, lambda s: bool(s.past_refusal)).past_refusal == "no reading of GPU 5 yet"


def test_a_recording_is_moved_and_the_charts_follow(tmp_path: Path) -> None:
    source = ReplaySource(recording(tmp_path / "x.gwrec"))
    with runtime_dir() as directory, serving(cast("Any", source), directory), Connection(str(directory)) as connection:
        until(connection, lambda s: s.recorded and bool(s.devices))
        connection.request(wire.ReplayControl(0, "pause"))
        until(connection, lambda s: s.replay is not None and s.replay.paused)
        connection.request(wire.ReplayControl(0, "seek", 40))
        state = until(connection, lambda s: shown_s(s) >= 39)
        assert state.replay is not None
        assert state.replay.duration_s == 59
        assert len(state.history[0].samples) >= 39
        connection.request(wire.ReplayControl(0, "seek", 10))
        state = until(connection, lambda s: shown_s(s) < 12)
        state = until(connection, lambda s: 9 <= shown_s(s) < 12)
        assert max(s.mono_ns for s in state.history[0].samples) <= 111 * S, "the future is not in the chart"
        assert state.link is Link.LIVE


def test_a_live_machine_cannot_be_moved() -> None:
    with runtime_dir() as directory, serving(ScriptedSource(), directory), Connection(str(directory)) as connection:
        until(connection, lambda s: s.link is Link.LIVE)
        connection.request(wire.ReplayControl(0, "seek", 10))
        state = until(connection, lambda s: bool(s.notice))
        assert "only a recording" in state.notice
