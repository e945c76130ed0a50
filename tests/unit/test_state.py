"""The reducer: what a screen is told after each message, and after silence."""

from __future__ import annotations

import msgspec

from gpuwatch import wire
from gpuwatch.client.events import KEEP_EVENTS, opened_ns, remembered, timeline
from gpuwatch.client.rates import IoRate
from gpuwatch.client.state import (
    HISTORY_TICKS,
    KEEP_BURSTS,
    KEEP_LOOPS,
    DeviceHistory,
    Link,
    NodeState,
    aged,
    connecting,
    fold,
    from_snapshot,
)
from gpuwatch.model import (
    Absent,
    AccountShare,
    BurstSummary,
    ClocksEvent,
    Confidence,
    Device,
    DeviceSample,
    Diagnosis,
    EventOrigin,
    EventRecord,
    Finding,
    FindingSpan,
    Inventory,
    NodeInfo,
    ProbeResult,
    ProbeStatus,
    ProcessInfo,
    ProcessSample,
    Reason,
    Role,
    Severity,
    Source,
    SourceKind,
    StepReport,
)
from gpuwatch.model import EventKind as DriverEvent

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


# --------------------------------------------------------------------------- what happened, and recordings


def heard(state: NodeState) -> list[tuple[str, str]]:
    """Kinds and words of the events, oldest first."""
    return [(event.kind.value, event.text) for event in reversed(state.events)]


def test_a_finding_is_an_event_once_and_again_when_the_cause_changes() -> None:
    state = live()
    for seq, cause in enumerate(("python_bound", "python_bound", "loader_hung"), 11):
        state = fold(state, wire.DiagnosisMessage(7, seq, diagnosis(5, cause)), 0)
    found = [text for kind, text in heard(state) if kind == "finding"]
    assert found == ["5: python_bound: s", "5: loader_hung: s"]


def test_heat_is_an_event_when_it_begins_and_when_it_ends_and_a_power_cap_is_none() -> None:
    state = live()
    bits = [0, ClocksEvent.SW_POWER_CAP, ClocksEvent.SW_THERMAL, ClocksEvent.SW_THERMAL, 0]
    for place, reasons in enumerate(bits):
        second = 101 + place
        message = tick(11 + place, second * S, DeviceSample(0, second * S, clocks_event_reasons=int(reasons)))
        state = fold(state, message, second * S)
    assert [text for kind, text in heard(state) if kind == "throttle"] == [
        "clocks held down: too hot (driver)",
        "clocks free again: too hot (driver) over",
    ]


def test_a_gpu_that_hangs_and_one_that_is_lost_are_events_of_that_gpu() -> None:
    state = live()
    stuck = DeviceSample(1, 101 * S)
    for place in range(8):
        second = 101 + place
        fine = DeviceSample(0, second * S, gpu_util_pct=Absent(Reason.LOST) if place > 5 else 5)
        state = fold(state, tick(11 + place, second * S, fine, stuck), second * S)
    told = [(event.device_index, event.text) for event in reversed(state.events) if event.kind.value == "gpu"]
    assert told == [(1, "its driver call does not return"), (0, "the GPU is lost: reset or reboot")]


def test_jobs_that_begin_and_end_are_events() -> None:
    state = fold(live(), wire.ProcessesMessage(7, 11, (info(5),)), 0)
    state = fold(state, wire.ProcessesMessage(7, 12, (), (5,)), 0)
    assert [text for kind, text in heard(state) if kind == "job"] == [
        "5 python a.py of ada began",
        "5 python a.py of ada ended",
    ]


def test_a_lost_daemon_is_an_event_at_our_own_time_and_events_outlive_it() -> None:
    state = aged(live(now_ns=0), 11 * S)
    assert state.events[0].text.startswith("lost the daemon")
    assert state.events[0].wall_ns == 100 * S + 11 * S
    back = from_snapshot(state, wire.Snapshot(1, 8, 1, wire.PROTOCOL, INVENTORY, None, (), (), ()), 12 * S)
    assert [event.text for event in back.events][:1] == ["readings come"]
    assert len(back.events) == len(state.events) + 1


def test_the_first_event_has_a_time_although_the_daemon_had_read_nothing_yet() -> None:
    """As of every daemon that the screen starts itself."""
    empty = wire.Snapshot(1, 7, 10, wire.PROTOCOL, INVENTORY, None, (), (), ())
    state = from_snapshot(connecting("ipc:///x"), empty, 0)
    assert [event.wall_ns for event in state.events] == [0]
    state = fold(state, tick(11, 101 * S, DeviceSample(0, 101 * S)), S)
    assert [event.wall_ns for event in state.events] == [101 * S]
    assert opened_ns(state) == 101 * S


def test_events_are_bounded() -> None:
    state = live()
    for n in range(KEEP_EVENTS + 20):
        message = wire.DiagnosisMessage(7, 11 + n, diagnosis(5, f"cause_{n}"))
        state = fold(state, message, 0)
    assert len(state.events) == KEEP_EVENTS


def test_a_recording_that_goes_back_takes_its_future_from_the_charts() -> None:
    state = live()
    for second in (101, 102, 103):
        state = fold(state, tick(state.seq + 1, second * S, DeviceSample(0, second * S)), 0)
    state = fold(state, tick(state.seq + 1, 50 * S, DeviceSample(0, 50 * S)), 0)
    assert [s.mono_ns // S for s in state.history[0].samples] == [50]


def test_a_recording_that_is_held_is_not_stale() -> None:
    state = live(now_ns=0)
    assert state.inventory is not None
    recorded = msgspec.structs.replace(INVENTORY, source=Source(SourceKind.RECORDED, "a.gwrec"))
    state = fold(state, wire.InventoryMessage(7, 11, recorded), 0)
    held = fold(state, wire.ReplayPosition(7, 12, 0, 5.0, 40.0, 1.0, paused=True), 5 * S)
    playing = fold(state, wire.ReplayPosition(7, 12, 0, 5.0, 40.0, 1.0, paused=False), 5 * S)
    assert aged(held, 9 * S).link is Link.LIVE
    assert aged(playing, 9 * S).link is Link.STALE


def test_one_of_many_hosts_keeps_a_shorter_past() -> None:
    state = msgspec.structs.replace(live(), keep_ticks=5)
    for second in range(101, 120):
        state = fold(state, tick(state.seq + 1, second * S, DeviceSample(0, second * S)), 0)
    assert len(state.history[0].samples) == 5


def test_an_xid_is_one_event_also_when_it_is_told_again_after_a_gap() -> None:
    record = EventRecord(0, 90 * S, 95 * S, DriverEvent.XID, EventOrigin.APPLICATION, 31, text="bad access")
    state = fold(live(), wire.Telemetry(7, 11, events=(record,)), 0)
    again = wire.Snapshot(1, 7, 20, wire.PROTOCOL, INVENTORY, None, (), (), ())
    state = fold(from_snapshot(state, again, 0), wire.Telemetry(7, 21, events=(record,), complete=True), 0)
    told = [event for event in state.events if event.kind.value == "xid"]
    assert [(event.text, event.severity, event.wall_ns) for event in told] == [
        ("XID 31: bad access", Severity.WARNING, 95 * S)
    ]


def span(cause: str, since_s: int, over_s: int = 0) -> FindingSpan:
    why = "not found any more" if over_s else ""
    return FindingSpan(5, (0,), cause, Severity.CRITICAL, since_s * S, since_s * S, 0.5, over_s * S, "python a.py", why)


def ended(cause: str, second: int, share: float = 0.25) -> Diagnosis:
    account = (AccountShare("computing", share), AccountShare("idle", 1 - share))
    return msgspec.structs.replace(diagnosis(5, cause), end_wall_ns=second * S, account=account)


def test_what_was_found_before_the_screen_was_opened_is_told_once_and_with_its_length() -> None:
    state = from_snapshot(
        connecting("ipc:///x"),
        wire.Snapshot(
            1, 7, 10, wire.PROTOCOL, INVENTORY, tick(10, 100 * S, DeviceSample(0, 100 * S)), (),
            (ended("python_bound", 90),), (),
        ),
        0,
    )  # fmt: skip
    assert not remembered(state)
    state = fold(state, wire.FindingsMessage(7, 11, (span("host_sync", 20, 80), span("python_bound", 60))), 0)
    state = fold(state, wire.DiagnosisMessage(7, 12, ended("python_bound", 110)), 0)
    told = [(event.wall_ns // S, event.text) for event in timeline(state) if event.kind.value == "finding"]
    assert told == [
        (80, "5: host_sync: over after 1 min, not found any more"),
        (60, "5: python_bound, at worst 50 % lost: s"),
        (20, "5: host_sync, at worst 50 % lost: python a.py"),
    ]
    assert remembered(state)
    assert opened_ns(state) == 100 * S


def test_a_verdict_that_is_no_finding_in_time_stays_an_event() -> None:
    state = fold(live(), wire.DiagnosisMessage(7, 11, ended("healthy", 101)), 0)
    state = fold(state, wire.FindingsMessage(7, 12, (span("host_sync", 20, 80),)), 0)
    assert "5: healthy: s" in [event.text for event in timeline(state)]


def test_xids_that_no_longer_are_among_our_own_events_are_still_told() -> None:
    record = EventRecord(0, 90 * S, 95 * S, DriverEvent.XID, EventOrigin.HARDWARE, 79, text="fell off the bus")
    state = fold(live(), wire.Telemetry(7, 11, events=(record,), complete=True), 0)
    once = [event for event in timeline(state) if event.kind.value == "xid"]
    assert len(once) == 1
    assert timeline(msgspec.structs.replace(state, events=())) == tuple(once)


def test_the_course_of_a_job_is_the_daemons_memory_and_each_diagnosis_after_it() -> None:
    told = tuple(wire.AccountPoint(second * S, "idle", {"idle": 1000}) for second in range(60))
    state = fold(live(), wire.AccountsMessage(7, 11, 5, (0,), told), 0)
    state = fold(state, wire.DiagnosisMessage(7, 12, ended("healthy", 70)), 0)
    points = state.accounts[5, (0,)]
    assert len(points) == wire.KEEP_ACCOUNTS
    assert points[-1] == wire.AccountPoint(70 * S, "healthy", {"computing": 250, "idle": 750})
    assert points[0].wall_ns == 1 * S, "the oldest was forgotten"


def test_a_diagnosis_that_comes_twice_is_one_column() -> None:
    snapshot = wire.Snapshot(1, 7, 20, wire.PROTOCOL, INVENTORY, None, (), (ended("healthy", 70),), ())
    state = fold(live(), wire.DiagnosisMessage(7, 11, ended("healthy", 70)), 0)
    assert len(from_snapshot(state, snapshot, 0).accounts[5, (0,)]) == 1
    other = msgspec.structs.replace(snapshot, epoch=8, diagnoses=())
    assert from_snapshot(state, other, 0).accounts == {}, "another daemon's memory is its own"


def moved(seq: int, second: float, read: int | Absent, write: int, start_ticks: int = 5) -> wire.Tick:
    at = round(second * S)
    process = ProcessSample(5, start_ticks, at, read_bytes=read, write_bytes=write)
    return wire.Tick(7, seq, at, at, (), None, (process,))


def test_read_and_write_rates_are_the_differences_of_two_ticks() -> None:
    state = fold(fold(live(), moved(11, 101, 1000, 0), 0), moved(12, 103, 7000, 500), 0)
    assert state.io_rates == {5: IoRate(3000.0, 250.0)}
    again = fold(state, moved(13, 103, 7000, 500), 0)
    assert again.io_rates == state.io_rates, "a reading that is told again has not stood still"


def test_rates_of_a_reused_pid_and_of_a_counter_that_may_not_be_read_are_not_known() -> None:
    state = fold(live(), moved(11, 101, 1000, 0), 0)
    assert fold(state, moved(12, 103, 7000, 500, start_ticks=6), 0).io_rates == {}
    denied = Absent(Reason.NO_PERMISSION)
    assert fold(state, moved(12, 103, denied, 500), 0).io_rates == {5: IoRate(denied, 250.0)}


def test_sub_second_samples_of_the_last_minute_stay_with_the_time_of_their_tick() -> None:
    state = live()
    for second in range(1, KEEP_BURSTS + 10):
        state = fold(state, tick(10 + 2 * second, second * 10**9), 0)
        burst = BurstSummary(0, (second, 0, 0, 0, 100))
        state = fold(state, wire.Telemetry(7, 11 + 2 * second, bursts=(burst,)), 0)
    kept = state.burst_history[0]
    assert len(kept) == KEEP_BURSTS
    assert [entry.burst.util_pct[0] * 10**9 for entry in kept] == [entry.mono_ns for entry in kept]


def test_a_burst_that_is_told_again_after_a_gap_is_not_drawn_at_another_time() -> None:
    state = fold(live(), tick(12, 20 * 10**9), 0)
    burst = BurstSummary(0, (100,))
    state = fold(state, wire.Telemetry(7, 13, bursts=(burst,)), 0)
    state = fold(state, tick(14, 30 * 10**9), 0)
    state = fold(state, wire.Telemetry(7, 15, bursts=(burst,), complete=True), 0)
    assert [entry.mono_ns for entry in state.burst_history[0]] == [20 * 10**9]


def test_a_recording_that_goes_back_has_no_bursts_of_its_future() -> None:
    state = fold(live(), tick(12, 20 * 10**9), 0)
    state = fold(state, wire.Telemetry(7, 13, bursts=(BurstSummary(0, (100,)),)), 0)
    assert fold(state, tick(14, 5 * 10**9), 0).burst_history == {}


def said(loop: int, at_ns: int, pid: int = 5) -> StepReport:
    return StepReport(pid, at_ns, 500, 3, 490, 200, loop=loop)


def test_a_job_shows_what_it_said_last_of_each_loop_until_it_is_gone() -> None:
    state = fold(live(), wire.ProcessesMessage(7, 11, (info(5), info(6))), 0)
    state = fold(state, wire.StepsMessage(7, 12, (said(1, 100), said(2, 150), said(1, 200), said(1, 180, pid=6))), 0)
    assert state.steps == {5: (said(1, 200), said(2, 150)), 6: (said(1, 180, pid=6),)}
    state = fold(state, wire.ProcessesMessage(7, 13, (), (5,)), 0)
    assert set(state.steps) == {6}


def test_a_job_with_ever_new_loops_keeps_its_newest() -> None:
    state = fold(live(), wire.StepsMessage(7, 11, tuple(said(loop, loop) for loop in range(100))), 0)
    assert [report.loop for report in state.steps[5]] == list(range(99, 99 - KEEP_LOOPS, -1))


def test_a_recording_that_goes_back_has_no_steps_of_its_future() -> None:
    state = fold(live(), tick(12, 20 * 10**9), 0)
    state = fold(state, wire.StepsMessage(7, 13, (said(1, 20 * 10**9),)), 0)
    assert fold(state, tick(14, 5 * 10**9), 0).steps == {}
