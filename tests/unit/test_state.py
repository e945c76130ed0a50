"""The reducer: what a screen is told after each message, and after silence."""

from __future__ import annotations

from gpuwatch import wire
from gpuwatch.client.state import HISTORY_TICKS, DeviceHistory, Link, NodeState, aged, connecting, fold, from_snapshot
from gpuwatch.model import (
    Confidence,
    Device,
    DeviceSample,
    Diagnosis,
    Finding,
    Inventory,
    NodeInfo,
    ProbeResult,
    ProbeStatus,
    ProcessInfo,
    Role,
    Severity,
    Source,
    SourceKind,
)

S = 1_000_000_000
NODE = NodeInfo("node1", "6.1", "boot", 64, 1 << 40)
INVENTORY = Inventory(NODE, (Device(0, "GPU-0", "H200", "0000:00:00.0"), Device(1, "GPU-1", "H200", "0000:01:00.0")))


def tick(seq: int, mono_ns: int, *samples: DeviceSample) -> wire.Tick:
    return wire.Tick(7, seq, mono_ns, mono_ns, samples)


def info(pid: int) -> ProcessInfo:
    return ProcessInfo(pid, 5, 1, pid, Role.MAIN, "python", "python a.py", "ada", 1000)


def diagnosis(pid: int, cause: str) -> Diagnosis:
    return Diagnosis(pid, (0,), 8.0, (Finding(cause, "s", Severity.INFO, 0.0, 1.0, "b", Confidence.HIGH),))


def live(now_ns: int = 0) -> NodeState:
    snapshot = wire.Snapshot(
        1, 7, 10, wire.PROTOCOL, INVENTORY, tick(10, 100 * S, DeviceSample(0, 100 * S)), (), (), ()
    )
    return from_snapshot(connecting("ipc:///x"), snapshot, now_ns)


def test_a_snapshot_makes_the_screen_live_and_its_charts_full() -> None:
    history = tuple(tick(n, n * S, DeviceSample(0, n * S)) for n in range(1, 6))
    snapshot = wire.Snapshot(
        1, 7, 10, wire.PROTOCOL, INVENTORY, tick(10, 6 * S, DeviceSample(0, 6 * S)), (info(5),), (), (), history, 0.5
    )
    state = from_snapshot(connecting("ipc:///x"), snapshot, 3 * S)
    assert state.link is Link.LIVE
    assert [s.mono_ns // S for s in state.history[0].samples] == [1, 2, 3, 4, 5, 6]
    assert (state.epoch, state.seq, state.period_s, state.heard_ns) == (7, 10, 0.5, 3 * S)
    assert set(state.infos) == {5}


def test_a_hung_gpu_keeps_its_old_reading_and_shows_its_age() -> None:
    state = live()
    old = DeviceSample(1, 90 * S)
    for second in (101, 102, 103):
        state = fold(state, tick(state.seq + 1, second * S, DeviceSample(0, second * S), old), second * S)
    assert state.age_ns(state.devices[1]) == 13 * S
    assert len(state.history[1].samples) == 1, "a repeated reading is not a new point of the chart"
    assert len(state.history[0].samples) == 4


def test_history_is_bounded() -> None:
    history = DeviceHistory()
    for n in range(HISTORY_TICKS + 50):
        history = history.append(DeviceSample(0, n + 1))
    assert len(history.samples) == HISTORY_TICKS
    assert history.samples[-1].mono_ns == HISTORY_TICKS + 50


def test_three_missing_ticks_are_stale_and_a_tick_makes_live_again() -> None:
    state = live(now_ns=0)
    state = fold(state, wire.Heartbeat(7, 11, 103 * S), 3 * S)
    assert aged(state, 3 * S).link is Link.LIVE
    stale = aged(state, 4 * S)
    assert (stale.link, stale.detail) == (Link.STALE, "last sample 4 s ago")
    assert fold(stale, tick(12, 104 * S, DeviceSample(0, 104 * S)), 4 * S).link is Link.LIVE


def test_ten_silent_seconds_are_lost() -> None:
    state = aged(live(now_ns=0), 11 * S)
    assert (state.link, state.detail) == (Link.LOST, "nothing heard for 11 s")
    assert aged(connecting("ipc:///x"), 99 * S).link is Link.CONNECTING


def test_a_recording_that_has_ended_is_not_called_stale() -> None:
    ended = Inventory(NODE, INVENTORY.devices, source=Source(SourceKind.RECORDED, "a.gwrec", ended=True))
    state = fold(live(now_ns=0), wire.InventoryMessage(7, 11, ended), 0)
    assert state.recorded
    state = fold(state, wire.Heartbeat(7, 12, 0), 60 * S)
    assert aged(state, 60 * S).link is Link.LIVE


def test_processes_come_change_and_go() -> None:
    state = fold(live(), wire.ProcessesMessage(7, 11, (info(5), info(6))), 0)
    assert set(state.infos) == {5, 6}
    state = fold(state, wire.ProcessesMessage(7, 12, (info(6),), gone=(5, 6)), 0)
    assert set(state.infos) == {6}, "a pid that went and came in one message is there"


def test_the_newest_diagnosis_of_each_job_stays_and_ends_the_progress() -> None:
    state = fold(live(), wire.DiagnosisProgress(7, 11, 5, (0,), 3.0, 8.0), 0)
    assert state.progress is not None
    state = fold(state, wire.DiagnosisMessage(7, 12, diagnosis(5, "healthy")), 0)
    state = fold(state, wire.DiagnosisMessage(7, 13, diagnosis(6, "idle")), 0)
    state = fold(state, wire.DiagnosisMessage(7, 14, diagnosis(5, "host_sync")), 0)
    assert state.progress is None
    assert [(d.pid, d.verdict.cause) for d in state.diagnoses] == [(5, "host_sync"), (6, "idle")]
    newest = state.diagnosis_of(5)
    assert newest is not None
    assert newest.verdict.cause == "host_sync"
    assert state.diagnosis_of(99) is None


def test_a_diagnosis_that_was_given_up_is_no_longer_under_way() -> None:
    state = fold(live(), wire.DiagnosisProgress(7, 11, 5, (0,), 3.0, 8.0), 0)
    assert fold(state, wire.DiagnosisProgress(7, 12, 5, (0,), -1.0, 8.0, "process ended"), 0).progress is None


def test_probe_results_replace_those_of_the_same_probe_and_device() -> None:
    first, second = (ProbeResult("copy", status, "cuda:0") for status in (ProbeStatus.BUSY, ProbeStatus.OK))
    state = fold(fold(live(), wire.ProbeMessage(7, 11, first), 0), wire.ProbeMessage(7, 12, second), 0)
    assert state.probes == (second,)


def test_goodbye_says_that_the_daemon_stopped_on_purpose() -> None:
    state = fold(live(), wire.Goodbye(7, 11), 0)
    assert (state.link, state.detail) == (Link.LOST, "the daemon stopped")
