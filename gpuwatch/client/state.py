"""The client's picture of a node, and the pure reducer that keeps it.

Owns: NodeState and what each stream event does to it. Refuses: sockets, clocks (``now_ns`` is passed in), widgets.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gpuwatch.model import (
    CgroupSample,
    Device,
    DeviceSample,
    Diagnosis,
    HostSample,
    Inventory,
    ProbeResult,
    ProcessInfo,
    ProcessSample,
    SourceKind,
)
from gpuwatch.wire import (
    DiagnosisMessage,
    DiagnosisProgress,
    Goodbye,
    Heartbeat,
    InventoryMessage,
    ProbeMessage,
    ProcessesMessage,
    Snapshot,
    StreamMessage,
    Tick,
)

STALE_AFTER_PERIODS = 3.0
"""Ticks that may be missing before the screen says stale: one late tick is jitter, three are news."""
LOST_AFTER_S = 10.0
"""Silence (heartbeats included) after which the daemon counts as gone."""
HISTORY_TICKS = 600


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

    def append(self, sample: DeviceSample) -> DeviceHistory:
        """With one more sample; a repeated reading (hung GPU) is not one."""
        if self.samples and sample.mono_ns <= self.samples[-1].mono_ns:
            return self
        return DeviceHistory((*self.samples[-HISTORY_TICKS + 1 :], sample))


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
    notice: str = ""
    """Answer to our last request, one line: accepted or why not."""

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
    )
    for tick in snapshot.history:
        fresh = _with_history(fresh, tick.devices)
    return _with_tick(fresh, snapshot.tick, now_ns) if snapshot.tick is not None else fresh


def fold(state: NodeState, message: StreamMessage, now_ns: int) -> NodeState:
    """The state after one stream message. The connection has checked epoch and seq before."""
    state = msgspec.structs.replace(state, seq=message.seq, heard_ns=now_ns)
    match message:
        case Tick():
            return _with_tick(state, message, now_ns)
        case InventoryMessage():
            return msgspec.structs.replace(state, inventory=message.inventory)
        case ProcessesMessage():
            infos = {pid: info for pid, info in state.infos.items() if pid not in message.gone}
            infos.update((info.pid, info) for info in message.infos)
            return msgspec.structs.replace(state, infos=infos)
        case DiagnosisMessage():
            new = message.diagnosis
            others = tuple(d for d in state.diagnoses if _subject(d) != _subject(new))
            return msgspec.structs.replace(state, diagnoses=(new, *others), progress=None)
        case DiagnosisProgress():
            return msgspec.structs.replace(state, progress=message if message.done_s >= 0 else None)
        case ProbeMessage():
            result = message.result
            rest = tuple(p for p in state.probes if (p.probe, p.device) != (result.probe, result.device))
            return msgspec.structs.replace(state, probes=(result, *rest))
        case Goodbye():
            return msgspec.structs.replace(state, link=Link.LOST, detail="the daemon stopped")
        case Heartbeat():
            return state


def aged(state: NodeState, now_ns: int) -> NodeState:
    """The state after time has passed without a message: live becomes stale, stale becomes lost."""
    if state.link not in (Link.LIVE, Link.STALE):
        return state
    silent_s = (now_ns - state.heard_ns) / 1e9
    tick_age_s = (now_ns - state.ticked_ns) / 1e9
    ended = state.inventory is not None and state.inventory.source.ended
    if silent_s > max(LOST_AFTER_S, STALE_AFTER_PERIODS * state.period_s):
        return msgspec.structs.replace(state, link=Link.LOST, detail=f"nothing heard for {silent_s:.0f} s")
    if tick_age_s > STALE_AFTER_PERIODS * state.period_s and not ended:
        return msgspec.structs.replace(state, link=Link.STALE, detail=f"last sample {tick_age_s:.0f} s ago")
    return msgspec.structs.replace(state, link=Link.LIVE, detail="") if state.link is Link.STALE else state


def missed(state: NodeState, count: int) -> NodeState:
    """Some messages never came."""
    return msgspec.structs.replace(state, dropped=state.dropped + count)


def _subject(diagnosis: Diagnosis) -> tuple[int, tuple[int, ...]]:
    return diagnosis.pid, diagnosis.device_indices


def _with_history(state: NodeState, samples: Iterable[DeviceSample]) -> NodeState:
    history = dict(state.history)
    for sample in samples:
        history[sample.device_index] = history.get(sample.device_index, DeviceHistory()).append(sample)
    return msgspec.structs.replace(state, history=history)


def _with_tick(state: NodeState, tick: Tick, now_ns: int) -> NodeState:
    state = _with_history(state, tick.devices)
    return msgspec.structs.replace(
        state,
        link=Link.LIVE,
        detail="",
        devices={sample.device_index: sample for sample in tick.devices},
        host=tick.host if tick.host is not None else state.host,
        processes={p.pid: p for p in tick.processes},
        cgroups={c.root_pid: c for c in tick.cgroups},
        tick_mono_ns=tick.mono_ns,
        tick_wall_ns=tick.wall_ns,
        heard_ns=now_ns,
        ticked_ns=now_ns,
    )
