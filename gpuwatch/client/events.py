"""What happened on a node, read off two pictures of it.

Owns: which change is an event, and its words. Refuses: clocks (times are the daemon's), sockets, drawing.

Most events are seen only while somebody is connected; findings, XIDs and probes also come from the daemon's memory. A
power cap is no event: a busy card goes in and out of it every second.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuwatch import units
from gpuwatch.model import (
    Absent,
    ClocksEvent,
    DeviceSample,
    Diagnosis,
    DriverState,
    EventOrigin,
    EventRecord,
    FindingSpan,
    ProbeStatus,
    Reason,
    Role,
    Severity,
)

if TYPE_CHECKING:
    from gpuwatch.client.state import NodeState

KEEP_EVENTS = 500
OLD_PERIODS = 3.0
HELD_DOWN: tuple[tuple[ClocksEvent, str], ...] = (
    (ClocksEvent.HW_SLOWDOWN, "hardware slowdown"),
    (ClocksEvent.HW_THERMAL, "too hot (hardware)"),
    (ClocksEvent.SW_THERMAL, "too hot (driver)"),
    (ClocksEvent.HW_POWER_BRAKE, "power brake"),
)
"""Heat and faults that hold the clocks down, and their names on a screen."""


class EventKind(enum.StrEnum):
    """What an event is about: the filter of the view."""

    FINDING = "finding"
    THROTTLE = "throttle"
    PROBE = "probe"
    JOB = "job"
    GPU = "gpu"
    XID = "xid"
    """What the driver reports by itself: XIDs, memory errors."""
    LINK = "link"


class Event(Struct, frozen=True):
    """Something that happened."""

    wall_ns: int
    """The daemon's clock; ours for what only we can see, such as a lost daemon."""
    kind: EventKind
    severity: Severity
    text: str
    device_index: int = -1
    pid: int = 0
    """Of a finding, as ``cause``."""
    cause: str = ""


def timeline(state: NodeState) -> tuple[Event, ...]:
    """All events that are known, newest first: what this client saw, and what the daemon remembers of before.

    A finding that the daemon has in time is told when it began and when it was over, and not again for each diagnosis
    that has it as its verdict."""
    spans = state.spans
    of_cause: dict[tuple[int, str], list[FindingSpan]] = {}
    for span in spans:
        of_cause.setdefault((span.pid, span.cause), []).append(span)
    seen = [
        event
        for event in state.events
        if event.kind is not EventKind.FINDING
        or not any(_covers(span, event) for span in of_cause.get((event.pid, event.cause), ()))
    ]
    known = set(seen)
    told = [event for event in map(_driver_event, state.device_events) if event not in known]
    found = [event for span in spans for event in _span_events(state, span)]
    return tuple(sorted((*seen, *told, *found), key=lambda event: -event.wall_ns))


def remembered(state: NodeState) -> bool:
    """The daemon has told something of before we connected."""
    return bool(state.spans or state.device_events)


def opened_ns(state: NodeState) -> int:
    """The daemon's time when this client first heard of it; 0 when that is forgotten."""
    first = next((event for event in reversed(state.events) if event.kind is EventKind.LINK), None)
    return first.wall_ns if first is not None else 0


def _covers(span: FindingSpan, event: Event) -> bool:
    return span.since_wall_ns <= event.wall_ns and (not span.resolved_wall_ns or event.wall_ns <= span.resolved_wall_ns)


def _span_events(state: NodeState, span: FindingSpan) -> list[Event]:
    """When it began, in the words of the newest diagnosis if that still has it, and when it was over."""
    index = span.device_indices[0] if span.device_indices else -1
    name = f"{span.pid}: {span.cause}" if span.pid else span.cause
    cost = f", at worst {units.pct_text(100 * span.worst_lost_share)} lost" if span.worst_lost_share > 0 else ""
    newest = next((d for d in state.diagnoses if (d.pid, d.device_indices) == (span.pid, span.device_indices)), None)
    finding = next((f for f in newest.findings if f.cause == span.cause), None) if newest is not None else None
    said = finding.summary if finding is not None and not span.resolved_wall_ns else span.command
    text = f"{name}{cost}: {said}" if said else f"{name}{cost}"
    began = Event(span.since_wall_ns, EventKind.FINDING, span.severity, text, index, span.pid, span.cause)
    if not span.resolved_wall_ns:
        return [began]
    lasted = units.seconds_text((span.resolved_wall_ns - span.since_wall_ns) / 1e9)
    text = f"{name}: over after {lasted}" + (f", {span.resolution}" if span.resolution else "")
    return [began, Event(span.resolved_wall_ns, EventKind.FINDING, Severity.INFO, text, index, span.pid, span.cause)]


def between(before: NodeState, after: NodeState, wall_ns: int) -> tuple[Event, ...]:
    """What happened from one picture to the next, oldest first. ``wall_ns`` is when."""
    out: list[Event] = []
    if before.link != after.link:
        out.append(_link(after, wall_ns))
    if before.inventory is not None and after.inventory is not None and before.inventory is not after.inventory:
        out += _inventory(before, after, wall_ns)
    if before.infos is not after.infos and before.inventory is not None:
        out += _jobs(before, after, wall_ns)
    if before.devices is not after.devices:
        for index, sample in after.devices.items():
            out += _device(before, after, index, sample, wall_ns)
    if before.device_events is not after.device_events:
        records = [record for record in reversed(after.device_events) if record not in before.device_events]
        # After a resync they are all told again; their own time tells them apart.
        out += [event for event in map(_driver_event, records) if event not in after.events]
    if before.diagnoses is not after.diagnoses:
        out += [_finding(found) for found in reversed(after.diagnoses) if _is_news(before, found)]
    if before.probes is not after.probes:
        for result in reversed(after.probes):
            if result not in before.probes:
                ok = result.status is ProbeStatus.OK
                end_ns = result.started_wall_ns + int(result.duration_s * 1e9) if result.started_wall_ns else wall_ns
                text = f"probe {result.probe} on {result.device_name or result.device}: {result.status.value}"
                text += f", {result.message}" if result.message else ""
                out.append(Event(end_ns, EventKind.PROBE, Severity.INFO if ok else Severity.WARNING, text))
    return tuple(out)


def _link(after: NodeState, wall_ns: int) -> Event:
    severity = {"lost": Severity.CRITICAL, "incompatible": Severity.CRITICAL, "stale": Severity.WARNING}
    words = {"live": "readings come", "stale": "no new reading", "lost": "lost the daemon"}
    text = words.get(after.link.value, after.link.value)
    return Event(
        wall_ns,
        EventKind.LINK,
        severity.get(after.link.value, Severity.INFO),
        f"{text}: {after.detail}" if after.detail else text,
    )


def _inventory(before: NodeState, after: NodeState, wall_ns: int) -> list[Event]:
    assert before.inventory is not None
    assert after.inventory is not None
    out = []
    if before.inventory.driver is not after.inventory.driver:
        good = after.inventory.driver in (DriverState.OK, DriverState.ASLEEP)
        text = (
            "the driver works again"
            if after.inventory.driver is DriverState.OK
            else after.inventory.driver_hint or after.inventory.driver.value
        )
        out.append(Event(wall_ns, EventKind.GPU, Severity.INFO if good else Severity.CRITICAL, text))
    old = {device.uuid: device for device in before.inventory.devices}
    new = {device.uuid: device for device in after.inventory.devices}
    for uuid in old.keys() - new.keys():
        text = f"GPU {old[uuid].index} is not there any more"
        out.append(Event(wall_ns, EventKind.GPU, Severity.CRITICAL, text, old[uuid].index))
    for uuid in new.keys() - old.keys():
        out.append(Event(wall_ns, EventKind.GPU, Severity.INFO, f"GPU {new[uuid].index} appeared", new[uuid].index))
    if after.inventory.source.ended and not before.inventory.source.ended:
        out.append(Event(wall_ns, EventKind.LINK, Severity.INFO, "the recording has ended"))
    return out


def _jobs(before: NodeState, after: NodeState, wall_ns: int) -> list[Event]:
    out = []
    for verb, ours, others in (("began", after, before), ("ended", before, after)):
        for pid, info in ours.infos.items():
            same = others.infos.get(pid)
            if info.role is Role.MAIN and (same is None or same.start_ticks != info.start_ticks):
                index = info.device_indices[0] if info.device_indices else -1
                where = f" on GPU {','.join(map(str, info.device_indices))}" if info.device_indices else ""
                text = f"{pid} {info.command} of {info.user} {verb}{where}"
                out.append(Event(wall_ns, EventKind.JOB, Severity.INFO, text, index))
    return out


def _device(before: NodeState, after: NodeState, index: int, sample: DeviceSample, wall_ns: int) -> list[Event]:
    out = []
    old = before.devices.get(index)
    new_bits, old_bits = _bits(sample), _bits(old)
    for bit, name in HELD_DOWN:
        if new_bits & bit and not old_bits & bit:
            out.append(Event(wall_ns, EventKind.THROTTLE, Severity.WARNING, f"clocks held down: {name}", index))
        elif old_bits & bit and not new_bits & bit:
            out.append(Event(wall_ns, EventKind.THROTTLE, Severity.INFO, f"clocks free again: {name} over", index))
    if _lost(sample) and old is not None and not _lost(old):
        out.append(Event(wall_ns, EventKind.GPU, Severity.CRITICAL, "the GPU is lost: reset or reboot", index))
    if old is not None:
        limit_ns = int(OLD_PERIODS * after.period_s * 1e9)
        is_old, was_old = after.age_ns(sample) > limit_ns, before.age_ns(old) > limit_ns
        if is_old and not was_old:
            out.append(Event(wall_ns, EventKind.GPU, Severity.CRITICAL, "its driver call does not return", index))
        elif was_old and not is_old:
            out.append(Event(wall_ns, EventKind.GPU, Severity.INFO, "answers again", index))
    return out


def _driver_event(record: EventRecord) -> Event:
    """A fault of the job is a warning to its owner, anything else is one of the machine."""
    fault = record.origin is not EventOrigin.APPLICATION
    name = f"XID {record.xid}" if record.xid else record.kind.value.replace("_", " ")
    text = f"{name}: {record.text}" if record.text else name
    text += f" ({record.repeats} more of the same)" if record.repeats else ""
    severity = Severity.CRITICAL if fault else Severity.WARNING
    return Event(record.wall_ns, EventKind.XID, severity, text, record.device_index)


def _bits(sample: DeviceSample | None) -> int:
    if sample is None or isinstance(sample.clocks_event_reasons, Absent):
        return 0
    return sample.clocks_event_reasons


def _lost(sample: DeviceSample) -> bool:
    return any(
        isinstance(reading, Absent) and reading.reason is Reason.LOST
        for reading in (sample.gpu_util_pct, sample.mem_used_bytes)
    )


def _is_news(before: NodeState, found: Diagnosis) -> bool:
    """Another verdict than before of the same job; the same one again is no event."""
    old = next((d for d in before.diagnoses if (d.pid, d.device_indices) == (found.pid, found.device_indices)), None)
    return old is None or old.verdict.cause != found.verdict.cause


def _finding(found: Diagnosis) -> Event:
    verdict = found.verdict
    who = f"{found.pid}: " if found.pid else ""
    index = found.device_indices[0] if found.device_indices else -1
    text = f"{who}{verdict.cause}: {verdict.summary}"
    return Event(found.end_wall_ns, EventKind.FINDING, verdict.severity, text, index, found.pid, verdict.cause)
