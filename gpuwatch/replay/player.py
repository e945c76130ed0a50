"""A recording that stands in for the hardware.

Owns: playing at 1×, N× or as fast as possible, and saying that it is a recording. Refuses: changing a single reading.

The whole file is read before the first observation is emitted, so that a damaged one is refused at once and not in
the middle of a screen (a minute of one H200 and one job is about 300 kB on disk and 40 MB in memory).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpuwatch.collect.source import Emit, Focus
from gpuwatch.errors import RecordingError, UsageError
from gpuwatch.model import DeviceSample, Inventory, Observation, Source, SourceKind
from gpuwatch.replay.format import read_header, read_observations


def load(path: Path, *, partial: bool = False) -> tuple[Observation, ...]:
    """Every observation, inventories marked as recorded. Raises InputNotFoundError, RecordingError."""
    source = Source(SourceKind.RECORDED, path.name, read_header(path).created_wall_ns)
    found = tuple(
        msgspec.structs.replace(o, source=source) if isinstance(o, Inventory) else o
        for o in read_observations(path, partial=partial)
    )
    if not any(isinstance(o, Inventory) for o in found):
        raise RecordingError(f"{path}: holds no inventory of a machine; record again")
    return found


def instant_ns(observation: Observation) -> int | None:
    """When it was read, on the recorder's clock; None for an inventory."""
    return None if isinstance(observation, Inventory) else observation.mono_ns


class ReplaySource:
    """An ObservationSource over a recording that can be paused, stepped and moved. ``speed`` 0 is as fast as possible.

    ``partial`` plays what a damaged file still has. Focus does nothing: what was not recorded cannot be looked at.
    """

    def __init__(
        self,
        path: Path,
        speed: float = 1.0,
        *,
        partial: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._observations = _in_time(load(path, partial=partial))
        self._speed = speed
        self._clock = clock
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        instants = [t for o in self._observations if (t := instant_ns(o)) is not None]
        self._first_ns, self._last_ns = min(instants, default=0), max(instants, default=0)
        self._started_ns = 0
        """Our clock when the position was ``_from_ns``."""
        samples = [o.mono_ns for o in self._observations if isinstance(o, DeviceSample)]
        # A recorder reads its host and its processes up to a second before a GPU: nobody waits for that again.
        self._from_ns = self._catch_up_ns = min(samples, default=self._first_ns)
        """Play without waiting up to here: where somebody wants to be."""
        self._reached_ns = -1
        """Instant of the last reading that was let through."""
        self._paused = self._stopping = self._rewind = self._ended = False
        self._emit: Emit | None = None
        self._inventory: Inventory | None = None
        """The last one that was emitted."""

    @property
    def start_ns(self) -> int:
        """The recorder's clock at the first reading."""
        return self._first_ns

    @property
    def duration_s(self) -> float:
        """Length of the recording at 1×, in seconds."""
        return (self._last_ns - self._first_ns) / 1e9

    @property
    def speed(self) -> float:
        """Times real time; 0 as fast as possible."""
        return self._speed

    @property
    def paused(self) -> bool:
        """It stands still because somebody wanted it to."""
        return self._paused

    @property
    def position_s(self) -> float:
        """Seconds from the start of the recording."""
        return (self.now_ns() - self._first_ns) / 1e9

    def start(self, emit: Emit) -> None:
        """Begin to play on a thread of our own."""
        self._emit = emit
        self._started_ns = self._clock()
        self._thread = threading.Thread(target=self._play, args=(emit,), name="gpuwatch-replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def focus(self, focus: Focus | None) -> None:
        """Nothing to focus: the recording is what it is."""

    def now_ns(self) -> int:
        """Position on the recorder's clock; stands at the end, and while paused."""
        if self._paused:
            return self._from_ns
        if self._ended or self._speed <= 0:
            return self._last_ns
        return min(self._last_ns, self._from_ns + int((self._clock() - self._started_ns) * self._speed))

    def progress_ns(self) -> int:
        """A recording cannot hang: always just now."""
        return self._clock()

    def control(self, action: str, value: float) -> str:
        """``pause``, ``resume``, ``step`` and ``seek`` (seconds), ``speed`` (factor); says what was done.

        Raises UsageError for another action or a value that cannot be. Thread-safe.
        """
        with self._changed:
            said = self._control(action, value)
            self._changed.notify_all()
        if action == "speed" and self._emit is not None and self._inventory is not None:
            self._emit(self._with_speed(self._inventory))
        return said

    def _control(self, action: str, value: float) -> str:
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"replay {action} {value:g}: must be 0 or more")
        at_ns = self.now_ns()
        match action:
            case "pause":
                self._from_ns, self._paused = at_ns, True
                return "paused"
            case "resume":
                self._from_ns, self._started_ns, self._paused = at_ns, self._clock(), False
                return "playing"
            case "speed":
                self._from_ns, self._started_ns, self._speed = at_ns, self._clock(), value
                return f"speed {value:g}×" if value else "as fast as possible"
            case "step":
                self._paused = True
                return f"at {self._go_to(at_ns + int(value * 1e9)):.1f} s"
            case "seek":
                return f"at {self._go_to(self._first_ns + int(value * 1e9)):.1f} s"
        raise UsageError(f"replay cannot {action!r}: pause, resume, step, seek or speed")

    def _go_to(self, target_ns: int) -> float:
        """Forward is played without waiting; back is played from the start, because a picture is a sum of what came
        before it. Gives the place in seconds from the start."""
        target_ns = min(target_ns, self._last_ns)
        self._rewind = self._rewind or target_ns < max(self._from_ns, self._reached_ns)
        self._from_ns = self._catch_up_ns = target_ns
        self._started_ns = self._clock()
        return (target_ns - self._first_ns) / 1e9

    def _play(self, emit: Emit) -> None:
        while self._play_from_start(emit):
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._rewind)

    def _play_from_start(self, emit: Emit) -> bool:
        """Play until the end or until somebody goes back; False when stopped."""
        with self._changed:
            self._rewind = self._ended = False
            self._reached_ns = -1
        for observation in self._observations:
            instant = instant_ns(observation)
            if not self._reach(instant):
                return not self._stopping
            if isinstance(observation, Inventory):
                self._inventory = observation
                emit(self._with_speed(observation))
            else:
                emit(observation)
        self._ended = True
        assert self._inventory is not None, "load() has seen one"
        ended = self._with_speed(self._inventory)
        emit(msgspec.structs.replace(ended, source=msgspec.structs.replace(ended.source, ended=True)))
        return True

    def _reach(self, instant_ns: int | None) -> bool:
        """Wait until that instant; False when stopped or moved back meanwhile."""
        with self._changed:
            while not (self._stopping or self._rewind):
                if instant_ns is None or instant_ns <= self._catch_up_ns:
                    break
                if self._paused:
                    self._changed.wait()
                    continue
                if self._speed <= 0:
                    break
                due_ns = self._started_ns + int((instant_ns - self._from_ns) / self._speed)
                wait_s = (due_ns - self._clock()) / 1e9
                if wait_s <= 0:
                    break
                self._changed.wait(wait_s)
            else:
                return False
            self._reached_ns = max(self._reached_ns, instant_ns or -1)
            return True

    def _with_speed(self, inventory: Inventory) -> Inventory:
        source = msgspec.structs.replace(inventory.source, speed=self._speed)
        return msgspec.structs.replace(inventory, source=source)


def _in_time(observations: Sequence[Observation]) -> Sequence[Observation]:
    """In the order of their instants; threads may have written them slightly out of order. Inventories stay first."""
    ordered: list[tuple[int, int, Observation]] = []
    latest = 0
    for place, observation in enumerate(observations):
        instant = instant_ns(observation)
        latest = latest if instant is None else instant
        ordered.append((latest, place, observation))
    return [observation for _, _, observation in sorted(ordered, key=lambda item: item[:2])]
