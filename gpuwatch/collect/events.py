"""A thread that waits for what the driver tells without being asked: XIDs, ECC errors, MIG changes.

Owns: which events are asked for, back-off, what an event becomes. Refuses: importing pynvml, judging, which GPUs are in
the set (event_set.py).

A GPU that is lost makes every wait return at once, so that a loop without back-off would use up a core. A set belongs
to one initialisation of NVML: after another one it is dropped, never freed. Events from before the registration are
lost, so the counters of DeviceHealth tell what was before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.collect.event_set import HANGS, EventSet
from gpuwatch.collect.nvml_calls import Calls, Clock
from gpuwatch.collect.nvml_fields import DRIVER_CODES, LOST_CODES, PERMANENT_CODES, TIMEOUT, absent_for
from gpuwatch.collect.xids import xid
from gpuwatch.model import Absent, EventKind, EventOrigin, EventRecord, Reason, Unwatched

EVENTS: Final = "XIDs and other events"
"""What is not watched, in the inventory."""
WAIT_MS: Final = 500
"""One wait; the thread ends within it, and a stop of the daemon takes at most 1.5 s."""
BACK_OFF_S: Final = 1.0
MAX_BACK_OFF_S: Final = 30.0
_REPEAT_NS: Final = 1_000_000_000
_RETRY_NS: Final = 60_000_000_000
"""Between two attempts to register a GPU that did not answer."""
_HANG_NS: Final = 5_000_000_000
"""A turn of the thread takes a second at most; after this long the driver does not answer."""
_WHOLE: Final = 0xFFFFFFFF
_XID: Final = 0x8

_KINDS: Final = {
    0x2: (EventKind.ECC_UNCORRECTED, EventOrigin.HARDWARE, "an ECC error that could not be corrected"),
    _XID: (EventKind.XID, EventOrigin.UNKNOWN, ""),
    0x100: (EventKind.MIG_CONFIG, EventOrigin.DRIVER, "the MIG configuration was changed"),
    0x200: (EventKind.ECC_STORM, EventOrigin.HARDWARE, "corrected ECC errors come at a high rate"),
    0x400: (EventKind.DRAM_RETIREMENT, EventOrigin.HARDWARE, "faulty memory was taken out of use"),
    0x800: (
        EventKind.DRAM_RETIREMENT_FAILURE,
        EventOrigin.HARDWARE,
        "faulty memory could not be taken out of use; the GPU should be exchanged",
    ),
    0x1000: (EventKind.POISON, EventOrigin.HARDWARE, "a process used damaged memory; restart that process"),
    0x2000: (EventKind.FATAL_POISON, EventOrigin.HARDWARE, "damaged memory was used; reset the GPU"),
    0x4000: (EventKind.UNAVAILABLE, EventOrigin.HARDWARE, "the GPU cannot be used any more"),
    0x8000: (EventKind.RECOVERY_ACTION, EventOrigin.DRIVER, "the recovery action that the driver asks for changed"),
}
"""Bits of nvmlEventType. Clock, P-state, power source and single corrected errors come all the time: not asked for."""
WANTED: Final = sum(_KINDS)

_log = logging.getLogger(__name__)

EmitEvent = Callable[[EventRecord], None]


class _Last(NamedTuple):
    record: EventRecord
    held_back: int


class EventWatcher(threading.Thread):
    """Waits for events of all GPUs of one initialisation of NVML. ``start`` once, ``end`` for good."""

    def __init__(
        self,
        binding: Any,
        indices: Sequence[int],
        emit: EmitEvent,
        clock: Clock = time.monotonic_ns,
        wall: Clock = time.time_ns,
    ) -> None:
        super().__init__(name="events", daemon=True)
        self._n = binding
        self._indices = tuple(indices)
        self._emit = emit
        self._clock = clock
        self._wall = wall
        self._calls = Calls(binding, clock)
        self._stop_event = threading.Event()
        self._events = EventSet(binding, indices, WANTED, clock)
        self._turn_ns = 0
        """When the turn under way began; 0 between two."""
        self._back_off_s = 0.0
        self._last: dict[tuple[int, int, int], _Last] = {}
        self._retry_ns = clock() + _RETRY_NS
        self.ended: Absent | None = None
        """Why nobody waits for events any more; None while somebody does, and after ``end``."""

    @property
    def registered(self) -> dict[int, int]:
        """Device index to the event bits that this GPU can report and that are waited for."""
        return self._events.registered

    @property
    def busy(self) -> bool:
        """A driver call may be under way: NVML must stay open."""
        return self.is_alive() or self._events.busy

    def unwatched(self) -> tuple[Unwatched, ...]:
        """Whose events are not seen, and why. From any thread."""
        if self.ended is not None:
            return (Unwatched(EVENTS, self.ended),)
        turn_ns, missing = self._turn_ns, self._events.missing()
        if turn_ns and self._clock() - turn_ns > _HANG_NS:
            return (Unwatched(EVENTS, HANGS),)
        if missing and missing.keys() >= set(self._indices):
            return (Unwatched(EVENTS, next(iter(missing.values()))),)
        return tuple(Unwatched(f"{EVENTS} of GPU {index}", missing[index]) for index in sorted(missing))

    def end(self) -> None:
        """Wait no more; the thread ends within ``WAIT_MS``."""
        self._stop_event.set()

    def run(self) -> None:
        """Thread body."""
        try:
            self._turn_ns = self._clock()
            if not self.register():
                self.ended = self._events.refusal
                return
            while not self._stop_event.is_set():
                self._turn_ns = self._clock()
                pause_s = self.step()
                self._turn_ns = 0
                if pause_s is None:
                    self.ended = self._events.refusal
                    return
                self._stop_event.wait(pause_s)
            self._events.free()
        except Exception as exc:
            # Events are an extra: without them everything else goes on.
            _log.exception("waiting for GPU events failed")
            self.ended = Absent(Reason.ERROR, f"{type(exc).__name__}: {exc}"[:200])

    def register(self) -> bool:
        """Ask for the events of every GPU that has them. False when no GPU does, and there is nothing to wait for."""
        return self._events.open()

    def step(self) -> float | None:
        """One wait. Returns how long to pause before the next, None when there is no point in another."""
        self._events.gather()
        if self._events.nothing_yet:
            self._events.gather(WAIT_MS / 1000)
            return 0.0 if self._events.wanted else None
        try:
            event = self._n.nvmlEventSetWait_v2(self._events.handle, WAIT_MS)
        except Exception as exc:
            code = self._calls.code_of(exc)
            if code == TIMEOUT:
                self._back_off_s = 0.0
                self._quiet()
                return 0.0
            if code in DRIVER_CODES or code in PERMANENT_CODES:
                self._events.refusal = absent_for(code)
                return None
            return self._failed(code)
        self._back_off_s = 0.0
        self._tell(event)
        return 0.0

    def _failed(self, code: int) -> float:
        """Pause longer each time; of a set with a lost GPU only the others are kept, so that they lose nothing."""
        first = self._back_off_s == 0.0
        self._back_off_s = min(MAX_BACK_OFF_S, self._back_off_s * 2 or BACK_OFF_S)
        if first and code in LOST_CODES:
            self._events.free()
            if self.register():
                return 0.0
        return self._back_off_s

    def _quiet(self) -> None:
        """Nothing comes: tell what was held back, and look for GPUs that did not answer before."""
        now_ns = self._clock()
        for key, last in list(self._last.items()):
            if now_ns - last.record.mono_ns >= _REPEAT_NS:
                del self._last[key]
                if last.held_back:
                    self._emit(msgspec.structs.replace(last.record, repeats=last.held_back))
        if now_ns >= self._retry_ns:
            self._retry_ns = now_ns + _RETRY_NS
            self._events.register()

    def _tell(self, event: Any) -> None:
        bit, data = int(event.eventType), int(event.eventData)
        if bit not in _KINDS:
            return
        record = self._record(event, bit, data)
        key = (record.device_index, bit, record.xid)
        last = self._last.get(key)
        # A failing job can give hundreds of the same a second.
        if last is not None and record.mono_ns - last.record.mono_ns < _REPEAT_NS:
            self._last[key] = _Last(last.record, last.held_back + 1)
            return
        self._last[key] = _Last(record, 0)
        self._emit(msgspec.structs.replace(record, repeats=last.held_back) if last else record)

    def _record(self, event: Any, bit: int, data: int) -> EventRecord:
        kind, origin, text = _KINDS[bit]
        if bit == _XID:
            origin, text = xid(data)
        return EventRecord(
            self._events.index_of(event.device),
            self._clock(),
            self._wall(),
            kind,
            origin,
            xid=data if bit == _XID else 0,
            data=data,
            text=text,
            gpu_instance=_instance(event.gpuInstanceId),
            compute_instance=_instance(event.computeInstanceId),
        )


def _instance(number: int) -> int:
    return -1 if number == _WHOLE else int(number)
