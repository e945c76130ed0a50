"""Diagnoses over the wire: asked for, automatic, of a recording."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import pytest
from daemon_parts import (
    QUIET,
    S,
    ScriptedSource,
    info,
    inventory,
    processes,
    runtime_dir,
    sample,
    serving,
    until,
    verdict,
)

from gpuwatch import wire
from gpuwatch.client.connection import Connection
from gpuwatch.client.state import Link
from gpuwatch.config import Config, DiagnosisConfig
from gpuwatch.daemon import diagnosing
from gpuwatch.model import AccountShare, Diagnosis, Observation, ProcessTick, Source, SourceKind


class Judged:
    """A judge that keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[list[Observation], int, tuple[int, ...]]] = []

    def __call__(self, observations: Sequence[Observation], pid: int, indices: tuple[int, ...]) -> Diagnosis:
        self.given.append((list(observations), pid, indices))
        return verdict(observations, pid, indices)


def test_a_diagnosis_that_was_asked_for_looks_closely_and_reaches_everyone() -> None:
    source, judge = ScriptedSource(inventory(2)), Judged()
    with runtime_dir() as path, serving(source, path, judge=judge), Connection(str(path)) as client:
        now = source.now_ns()
        source.emit(processes(now, info(17, indices=(0, 1))), sample(0, now, pids=(17,)), sample(1, now, pids=(17,)))
        until(client, lambda s: 17 in s.infos and len(s.devices) == 2)
        client.request(wire.StartDiagnosis(0, pid=17, seconds=2.0))
        state = until(client, lambda s: s.progress is not None and bool(s.notice))
        assert state.notice == "diagnosing pid 17"
        assert isinstance(client.last_reply, wire.Accepted)
        client.request(wire.StartDiagnosis(0, pid=17))
        state = until(client, lambda s: "is running" in s.notice)
        assert state.notice.startswith("a diagnosis of pid 17 is running, ")
        state = until(client, lambda s: s.diagnosis_of(17) is not None)
        assert state.progress is None
        found = state.diagnosis_of(17)
        assert found is not None
        assert (found.device_indices, found.command) == ((0, 1), "python train_17.py")
        assert found.end_wall_ns > 0
        focus = source.focused[0]
        assert focus is not None
        assert (focus.root_pid, focus.device_indices, focus.seconds) == (17, (0, 1), 2.0)
        observations, pid, indices = judge.given[0]
        assert (pid, indices) == (17, (0, 1))
        assert observations[0] == source.first
        first = next(o for o in observations if isinstance(o, ProcessTick))
        assert [i.pid for i in first.infos] == [17]
        with Connection(str(path)) as late:
            assert until(late, lambda s: s.link is Link.LIVE).diagnosis_of(17) is not None


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (wire.StartDiagnosis(0, pid=1), "process 1 is not on a GPU; GPU processes: 17 (python)"),
        (wire.StartDiagnosis(0, pid=2**22 + 1), "no process 4194305; GPU processes: 17 (python)"),
        (wire.StartDiagnosis(0, device_index=3), "no GPU 3; GPUs here: 0"),
        (wire.StartDiagnosis(0), "name a process with its pid or a GPU with its index"),
        (wire.StartDiagnosis(0, pid=17, seconds=500), "a diagnosis takes 2 to 50 s, not 500"),
        (wire.StartDiagnosis(0, pid=17, seconds=-1), "a diagnosis takes 2 to 50 s, not -1"),
        (wire.StartDiagnosis(0, pid=17, seconds=float("nan")), "a diagnosis takes 2 to 50 s, not nan"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(request_: wire.StartDiagnosis, said: str) -> None:
    source = ScriptedSource()
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client:
        source.emit(processes(source.now_ns(), info(17)))
        until(client, lambda s: 17 in s.infos)
        client.request(request_)
        state = until(client, lambda s: bool(s.notice))
        assert state.notice == said
        assert isinstance(client.last_reply, wire.Refused)
        assert source.focused == []


def test_a_starved_job_is_diagnosed_by_itself_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosing, "INQUIRY_S", 0.5)
    caplog.set_level(logging.INFO, "gpuwatch")
    source = ScriptedSource()
    config = Config(period_s=0.1, diagnosis=DiagnosisConfig(after_s=1.0))
    with runtime_dir() as path, serving(source, path, config), Connection(str(path)) as client:
        start = source.now_ns()
        source.emit(processes(start, info(17)))
        for tenth in range(20):
            source.emit(sample(0, start + tenth * S // 10, busy_pct=9.0, pids=(17,)))
            newest = start + tenth * S // 10
            until(client, lambda s, newest=newest: 0 in s.devices and s.devices[0].mono_ns == newest)  # type: ignore[misc]
        until(client, lambda s: s.diagnosis_of(17) is not None)
        (focus,) = [f for f in source.focused if f is not None]
        assert focus.seconds == 0.5
        assert focus.undecided is not None
        for answer in (True, False):
            monkeypatch.setattr("gpuwatch.diagnose.undecided.undecided", lambda _stacks, _texts, say=answer: say)
            assert focus.undecided((), {}) is answer, "the rules of the diagnosis decide"
    lines = [r.getMessage() for r in caplog.records if "pid 17" in r.getMessage()]
    assert lines == ["pid 17: loader_too_few_workers"]


def test_a_job_is_not_held_for_native_frames_where_that_was_switched_off() -> None:
    source = ScriptedSource()
    config = Config(period_s=0.1, diagnosis=DiagnosisConfig(automatic=False, native_stacks="never"))
    with runtime_dir() as path, serving(source, path, config), Connection(str(path)) as client:
        now = source.now_ns()
        source.emit(processes(now, info(17)), sample(0, now, pids=(17,)))
        until(client, lambda s: 17 in s.infos and 0 in s.devices)
        client.request(wire.StartDiagnosis(0, pid=17, seconds=2.0))
        until(client, lambda s: s.progress is not None)
        assert [(f.stacks, f.undecided) for f in source.focused if f is not None] == [(True, None)]


def recording(ended: bool = False) -> Source:
    return Source(SourceKind.RECORDED, "a.gwrec", 1, speed=0.0, ended=ended)


def test_a_recording_is_cut_into_ticks_and_judged_without_waiting() -> None:
    source, judge = ScriptedSource(inventory(1, recording())), Judged()
    source.recorded_ns = 1000 * S
    config = msgspec.structs.replace(QUIET, period_s=1.0, diagnosis=DiagnosisConfig())
    with runtime_dir() as path, serving(source, path, config, judge), Connection(str(path)) as client:
        source.emit(processes(1000 * S, info(17)))
        for tenth in range(200):  # Twenty recorded seconds at once, at 10 Hz.
            source.emit(sample(0, 1000 * S + tenth * S // 10, pids=(17,)))
        source.recorded_ns = 1020 * S
        source.emit(inventory(1, recording(ended=True)))
        state = until(client, lambda s: s.diagnosis_of(17) is not None and s.recorded)
        assert state.inventory is not None
        assert state.inventory.source.ended
        assert 20 <= len(state.history[0].samples) <= 22, "one point a second of the recording"
        assert source.focused == [], "a recording cannot be watched more closely"
        observations, _, _ = judge.given[-1]
        assert sum(1 for o in observations if not isinstance(o, ProcessTick)) >= 200
        ticks = client.state.tick_mono_ns
        before = client.state.seq
        state = until(client, lambda s: s.seq > before)
        assert state.tick_mono_ns == ticks, "after its end only heartbeats"
        assert state.link is Link.LIVE


def test_whoever_joins_late_sees_the_course_of_each_job_and_no_job_grows_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "KEEP_ACCOUNTS", 1)
    source = ScriptedSource()

    def judge(observations: Sequence[Observation], pid: int, indices: tuple[int, ...]) -> Diagnosis:
        found = verdict(observations, pid, indices)
        account = (AccountShare("computing", 0.25), AccountShare("idle", 0.75))
        return msgspec.structs.replace(found, account=account)

    with runtime_dir() as path, serving(source, path, judge=judge), Connection(str(path)) as client:
        source.emit(processes(source.now_ns(), info(17)), sample(0, source.now_ns(), pids=(17,)))
        until(client, lambda s: 17 in s.infos)
        ends: list[int] = []
        for _ in range(2):
            client.request(wire.StartDiagnosis(0, pid=17, seconds=2.0))
            state = until(client, lambda s: any(d.end_wall_ns not in ends for d in s.diagnoses))
            ends.append(state.diagnoses[0].end_wall_ns)
        with Connection(str(path)) as late:
            points = until(late, lambda s: bool(s.accounts)).accounts[17, (0,)]
            assert [point.wall_ns for point in points] == ends[1:]
            assert points[-1] == wire.AccountPoint(ends[-1], "loader_too_few_workers", {"computing": 250, "idle": 750})
            assert state.accounts[17, (0,)] == points, "one who was there all the time sees the same"
