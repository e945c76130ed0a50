"""The client's picture of a node, and the pure reducer that keeps it.

Owns: NodeState and what each stream event does to it. Refuses: sockets, clocks (``now_ns`` is passed in), widgets.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gpuwatch.client.events import KEEP_EVENTS, Event, between
from gpuwatch.client.rates import IoRate, io_rates
from gpuwatch.model import (
    BurstSummary,
    CgroupSample,
    Device,
    DeviceHealth,
    DeviceSample,
    Diagnosis,
    EventRecord,
    FindingSpan,
    HostSample,
    Inventory,
    ProbeResult,
    ProcessInfo,
    ProcessSample,
    SourceKind,
    StepReport,
)
from gpuwatch.wire import (
    AccountPoint,
    AccountsMessage,
    DiagnosisMessage,
    DiagnosisProgress,
    FindingsMessage,
    Goodbye,
    Heartbeat,
    History,
    InventoryMessage,
    ProbeMessage,
    ProbeProgress,
    ProbeVerdict,
    ProbeVerdictMessage,
    ProcessesMessage,
    ReplayPosition,
    Snapshot,
    StepsMessage,
    StreamMessage,
    Telemetry,
    Tick,
    with_account,
)

STALE_AFTER_PERIODS = 3.0
"""Ticks that may be missing before the screen says stale: one late tick is jitter, three are news."""
LOST_AFTER_S = 10.0
"""Silence (heartbeats included) after which the daemon counts as gone."""
HISTORY_TICKS = 600
KEEP_BURSTS = 60
"""Ticks of sub-second samples that are kept for each device: a minute, as much as a wide chart has dots for."""
KEEP_LOOPS = 8
"""Loops of one job whose last report is kept."""
KEEP_JOBS = 64
"""Jobs whose accounts are kept."""
REWOUND_NS = 1_000_000_000
"""A tick so much older than the last one of the same daemon: a recording went back."""


Subject = tuple[int, tuple[int, ...]]
"""What a diagnosis is of: pid and devices."""


class Link(enum.StrEnum):
    """How we stand with the daemon."""

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    """Connected, but no fresh sample for several periods."""
    LOST = "lost"
    """No sign of life; we keep trying."""
    INCOMPATIBLE = "incompatible"
    """The daemon speaks another major protocol."""


class DeviceHistory(Struct, frozen=True):
    """Recent samples of one device, oldest first, at most ``HISTORY_TICKS``."""

    samples: tuple[DeviceSample, ...] = ()

    def append(self, sample: DeviceSample, keep: int = HISTORY_TICKS) -> DeviceHistory:
        """With one more sample, ``keep`` in all; a repeated reading (hung GPU) is not one."""
        if self.samples and sample.mono_ns <= self.samples[-1].mono_ns:
            return self
        return DeviceHistory((*self.samples[-keep + 1 :], sample))


class TimedBurst(Struct, frozen=True):
    """What the driver sampled by itself in the tick that ended at ``mono_ns``."""

    mono_ns: int
    """The daemon's clock at the tick."""
    burst: BurstSummary


class NodeState(Struct, frozen=True):
    """Everything a screen needs to draw one node."""

    endpoint: str
    link: Link = Link.CONNECTING
    detail: str = ""
    """One line about ``link``: the refusal, the age, the endpoint tried."""
    inventory: Inventory | None = None
    devices: dict[int, DeviceSample] = {}
    history: dict[int, DeviceHistory] = {}
    host: HostSample | None = None
    infos: dict[int, ProcessInfo] = {}
    processes: dict[int, ProcessSample] = {}
    cgroups: dict[int, CgroupSample] = {}
    diagnoses: tuple[Diagnosis, ...] = ()
    """Newest of each job, newest first."""
    progress: DiagnosisProgress | None = None
    probes: tuple[ProbeResult, ...] = ()
    """Newest of each probe and device, newest first."""
    epoch: int = 0
    seq: int = 0
    dropped: int = 0
    """Messages that this client missed since it connected (slow link): shown, never hidden."""
    tick_mono_ns: int = 0
    """The daemon's clock at its last tick."""
    tick_wall_ns: int = 0
    heard_ns: int = 0
    """Our clock when we last heard anything."""
    ticked_ns: int = 0
    """Our clock when the last tick came."""
    period_s: float = 1.0
    spans: tuple[FindingSpan, ...] = ()
    """Findings in time as the daemon remembers them: resolved ones first, then those that last."""
    notice: str = ""
    """Answer to our last request, one line: accepted or why not."""
    past: History | None = None
    """The daemon's answer to our last question about one GPU's past."""
    past_refusal: str = ""
    """Why there is none: a daemon too old to be asked, or without a reading yet."""
    replay: ReplayPosition | None = None
    """How the recording is being played, when the daemon has told."""
    events: tuple[Event, ...] = ()
    """What happened since we connected, newest first, and what the snapshot told."""
    keep_ticks: int = HISTORY_TICKS
    """Length of each device's history."""
    health: dict[int, DeviceHealth] = {}
    """Slow readings of each device."""
    bursts: dict[int, BurstSummary] = {}
    """What the driver sampled by itself in the last tick."""
    device_events: tuple[EventRecord, ...] = ()
    """XIDs and the like, newest first."""
    io_rates: dict[int, IoRate] = {}
    """What each process has read and written since the tick before."""
    accounts: dict[Subject, tuple[AccountPoint, ...]] = {}
    """Where the wall time of each job went, diagnosis by diagnosis, oldest first."""
    probing: dict[int, ProbeProgress] = {}
    """Probes under way, by device index."""
    baseline: str = ""
    """File that the daemon judges probes against; empty: none."""
    baseline_note: str = ""
    """Why that file is of no use."""
    verdicts: tuple[ProbeVerdict, ...] = ()
    """Of results against the baseline, newest first."""
    burst_history: dict[int, tuple[TimedBurst, ...]] = {}
    """The bursts of each device's last ticks, oldest first, at most ``KEEP_BURSTS``."""
    steps: dict[int, tuple[StepReport, ...]] = {}
    """What each job said last of each of its loops, by pid; only jobs that use ``gpuwatch.hook``."""

    @property
    def recorded(self) -> bool:
        """The readings come from a recording."""
        return self.inventory is not None and self.inventory.source.kind is SourceKind.RECORDED

    def device(self, index: int) -> Device | None:
        """Identity of the device with this index."""
        if self.inventory is None:
            return None
        return next((d for d in self.inventory.devices if d.index == index), None)

    def age_ns(self, sample: DeviceSample) -> int:
        """How old a sample was at the daemon's last tick: large when that GPU's driver call hangs."""
        return max(0, self.tick_mono_ns - sample.mono_ns)

    def diagnosis_of(self, pid: int) -> Diagnosis | None:
        """The newest diagnosis of this job."""
        return next((d for d in self.diagnoses if d.pid == pid), None)


def connecting(endpoint: str, detail: str = "") -> NodeState:
    """The state before anything was heard."""
    return NodeState(endpoint, Link.CONNECTING, detail)


def from_snapshot(state: NodeState, snapshot: Snapshot, now_ns: int) -> NodeState:
    """Start again from a full snapshot; what we knew is replaced, dropped counts stay."""
    fresh = NodeState(
        endpoint=state.endpoint,
        link=Link.LIVE,
        inventory=snapshot.inventory,
        infos={info.pid: info for info in snapshot.infos},
        diagnoses=snapshot.diagnoses,
        probes=snapshot.probes,
        epoch=snapshot.epoch,
        seq=snapshot.seq,
        dropped=state.dropped,
        heard_ns=now_ns,
        ticked_ns=now_ns,
        period_s=snapshot.period_s,
        past=state.past,
        replay=state.replay if state.epoch == snapshot.epoch else None,
        events=state.events,
        keep_ticks=state.keep_ticks,
        accounts=state.accounts if state.epoch == snapshot.epoch else {},
        burst_history=state.burst_history if state.epoch == snapshot.epoch else {},
    )
    for diagnosis in snapshot.diagnoses:
        fresh = _with_account(fresh, diagnosis)
    for tick in snapshot.history[-state.keep_ticks :]:
        fresh = _with_history(fresh, tick.devices)
    if snapshot.tick is not None:
        fresh = _with_tick(fresh, snapshot.tick, now_ns)
    return _noted(state, fresh, fresh.tick_wall_ns)


def fold(state: NodeState, message: StreamMessage, now_ns: int) -> NodeState:
    """The state after one stream message. The connection has checked epoch and seq before."""
    after = _folded(state, message, now_ns)
    return _noted(state, after, after.tick_wall_ns)


def _noted(before: NodeState, after: NodeState, wall_ns: int) -> NodeState:
    """``after`` with what happened since ``before``."""
    if not before.tick_wall_ns and after.tick_wall_ns and after.events:
        # A daemon that had read nothing yet when we connected: this is its first time of day.
        timed = tuple(msgspec.structs.replace(e, wall_ns=e.wall_ns or after.tick_wall_ns) for e in after.events)
        after = msgspec.structs.replace(after, events=timed)
    news = between(before, after, wall_ns)
    if not news:
        return after
    return msgspec.structs.replace(after, events=(*reversed(news), *after.events)[:KEEP_EVENTS])


def _folded(state: NodeState, message: StreamMessage, now_ns: int) -> NodeState:
    state = msgspec.structs.replace(state, seq=message.seq, heard_ns=now_ns)
    match message:
        case Tick():
            return _with_tick(state, message, now_ns)
        case InventoryMessage():
            return msgspec.structs.replace(state, inventory=message.inventory)
        case ProcessesMessage():
            infos = {pid: info for pid, info in state.infos.items() if pid not in message.gone}
            infos.update((info.pid, info) for info in message.infos)
            steps = {pid: said for pid, said in state.steps.items() if pid in infos}
            return msgspec.structs.replace(state, infos=infos, steps=steps)
        case DiagnosisMessage() | DiagnosisProgress() | FindingsMessage() | AccountsMessage():
            return _with_diagnoses(state, message)
        case ProbeMessage():
            result = message.result
            rest = tuple(p for p in state.probes if (p.probe, p.device) != (result.probe, result.device))
            probing = {i: p for i, p in state.probing.items() if not _is_of(state.device(i), p, result)}
            return msgspec.structs.replace(state, probes=(result, *rest), probing=probing)
        case ProbeProgress():
            return msgspec.structs.replace(state, probing=state.probing | {message.device_index: message})
        case ProbeVerdictMessage():
            return _with_verdicts(state, message)
        case ReplayPosition():
            return msgspec.structs.replace(state, replay=message)
        case Telemetry():
            return _with_telemetry(state, message)
        case StepsMessage():
            return msgspec.structs.replace(state, steps=_with_steps(state.steps, message.reports))
        case Goodbye():
            return msgspec.structs.replace(state, link=Link.LOST, detail="the daemon stopped")
        case Heartbeat():
            return state


def _with_diagnoses(
    state: NodeState, message: DiagnosisMessage | DiagnosisProgress | FindingsMessage | AccountsMessage
) -> NodeState:
    match message:
        case DiagnosisMessage():
            new = message.diagnosis
            others = tuple(d for d in state.diagnoses if _subject(d) != _subject(new))
            return msgspec.structs.replace(_with_account(state, new), diagnoses=(new, *others), progress=None)
        case DiagnosisProgress():
            return msgspec.structs.replace(state, progress=message if message.done_s >= 0 else None)
        case FindingsMessage():
            return msgspec.structs.replace(state, spans=message.spans)
        case AccountsMessage():
            told = {(message.pid, message.device_indices): message.points}
            return msgspec.structs.replace(state, accounts=state.accounts | told)


def aged(state: NodeState, now_ns: int) -> NodeState:
    """The state after time has passed without a message: live becomes stale, stale becomes lost."""
    after = _aged(state, now_ns)
    return after if after is state else _noted(state, after, state.tick_wall_ns + now_ns - state.ticked_ns)


def _aged(state: NodeState, now_ns: int) -> NodeState:
    if state.link not in (Link.LIVE, Link.STALE):
        return state
    silent_s = (now_ns - state.heard_ns) / 1e9
    tick_age_s = (now_ns - state.ticked_ns) / 1e9
    # A recording that has ended, or that somebody holds, is as fresh as it can be.
    ended = state.inventory is not None and state.inventory.source.ended
    held = ended or (state.recorded and state.replay is not None and state.replay.paused)
    if silent_s > max(LOST_AFTER_S, STALE_AFTER_PERIODS * state.period_s):
        return msgspec.structs.replace(state, link=Link.LOST, detail=f"nothing heard for {silent_s:.0f} s")
    if tick_age_s > STALE_AFTER_PERIODS * state.period_s and not held:
        return msgspec.structs.replace(state, link=Link.STALE, detail=f"last sample {tick_age_s:.0f} s ago")
    return msgspec.structs.replace(state, link=Link.LIVE, detail="") if state.link is Link.STALE else state


def missed(state: NodeState, count: int) -> NodeState:
    """Some messages never came."""
    return msgspec.structs.replace(state, dropped=state.dropped + count)


def _subject(diagnosis: Diagnosis) -> Subject:
    return diagnosis.pid, diagnosis.device_indices


def _with_account(state: NodeState, diagnosis: Diagnosis) -> NodeState:
    """The newest last, also among the jobs: the oldest are forgotten."""
    subject = _subject(diagnosis)
    points = with_account(state.accounts.get(subject, ()), diagnosis)
    if not points:
        return state
    others = [(key, value) for key, value in state.accounts.items() if key != subject]
    return msgspec.structs.replace(state, accounts=dict([*others, (subject, points)][-KEEP_JOBS:]))


def _is_of(device: Device | None, progress: ProbeProgress, result: ProbeResult) -> bool:
    """Whether the result is that of the probe under way on this device; a device that is gone has none under way."""
    return device is None or (progress.probe, device.uuid) == (result.probe, result.device_uuid)


def _with_verdicts(state: NodeState, message: ProbeVerdictMessage) -> NodeState:
    about = {(v.probe, v.device_uuid) for v in message.verdicts}
    rest = () if message.complete else (v for v in state.verdicts if (v.probe, v.device_uuid) not in about)
    return msgspec.structs.replace(
        state, baseline=message.baseline, baseline_note=message.note, verdicts=(*message.verdicts, *rest)
    )


def _with_history(state: NodeState, samples: Iterable[DeviceSample]) -> NodeState:
    history = dict(state.history)
    for sample in samples:
        history[sample.device_index] = history.get(sample.device_index, DeviceHistory()).append(
            sample, state.keep_ticks
        )
    return msgspec.structs.replace(state, history=history)


def _with_telemetry(state: NodeState, message: Telemetry) -> NodeState:
    known = set(state.device_events) if message.complete else set()
    news = tuple(event for event in reversed(message.events) if event not in known)
    return msgspec.structs.replace(
        state,
        health=state.health | {h.device_index: h for h in message.health},
        bursts=state.bursts | {b.device_index: b for b in message.bursts},
        device_events=(*news, *state.device_events)[:KEEP_EVENTS],
        # What follows a snapshot repeats each device's newest burst, which may be of any earlier tick.
        burst_history=state.burst_history if message.complete else _with_bursts(state, message.bursts),
    )


def _with_steps(
    known: dict[int, tuple[StepReport, ...]], reports: Iterable[StepReport]
) -> dict[int, tuple[StepReport, ...]]:
    """The newest of each loop; the last ones first, so that a job with ever new loops keeps its newest."""
    steps = dict(known)
    for new in reports:
        others = (old for old in steps.get(new.pid, ()) if (old.thread, old.loop) != (new.thread, new.loop))
        steps[new.pid] = (new, *others)[:KEEP_LOOPS]
    return steps


def _with_bursts(state: NodeState, bursts: Iterable[BurstSummary]) -> dict[int, tuple[TimedBurst, ...]]:
    """Telemetry follows the tick in which it was collected, so that tick's time is theirs."""
    history, keep = dict(state.burst_history), min(KEEP_BURSTS, state.keep_ticks)
    for burst in bursts:
        before = history.get(burst.device_index, ())
        if not before or before[-1].mono_ns < state.tick_mono_ns:
            history[burst.device_index] = (*before[-keep + 1 :], TimedBurst(state.tick_mono_ns, burst))
    return history


def _with_tick(state: NodeState, tick: Tick, now_ns: int) -> NodeState:
    if tick.mono_ns < state.tick_mono_ns - REWOUND_NS:
        state = msgspec.structs.replace(state, history={}, burst_history={}, steps={})
    state = _with_history(state, tick.devices)
    return msgspec.structs.replace(
        state,
        link=Link.LIVE,
        detail="",
        devices={sample.device_index: sample for sample in tick.devices},
        host=tick.host if tick.host is not None else state.host,
        processes={p.pid: p for p in tick.processes},
        io_rates=io_rates(state.processes, state.io_rates, tick.processes),
        cgroups={c.root_pid: c for c in tick.cgroups},
        tick_mono_ns=tick.mono_ns,
        tick_wall_ns=tick.wall_ns,
        heard_ns=now_ns,
        ticked_ns=now_ns,
    )
