"""A recording that stands in for the hardware.

Owns: playing at 1×, N× or as fast as possible, and saying that it is a recording. Refuses: changing a single reading.

The whole file is read before the first observation is emitted, so that a damaged one is refused at once and not in
the middle of a screen (a minute of one H200 and one job is about 300 kB on disk and 40 MB in memory).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpuwatch.collect.source import Emit, Focus
from gpuwatch.errors import RecordingError
from gpuwatch.model import Inventory, Observation, Source, SourceKind
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
    """An ObservationSource over a recording. ``speed`` 0 is as fast as possible.

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
        self._observations = load(path, partial=partial)
        self._speed = speed
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        instants = [t for o in self._observations if (t := instant_ns(o)) is not None]
        self._first_ns, self._last_ns = min(instants, default=0), max(instants, default=0)
        self._started_ns = 0
        self._ended = False

    @property
    def duration_s(self) -> float:
        """Length of the recording at 1×, in seconds."""
        return (self._last_ns - self._first_ns) / 1e9

    def start(self, emit: Emit) -> None:
        """Begin to play on a thread of our own."""
        self._started_ns = self._clock()
        self._thread = threading.Thread(target=self._play, args=(emit,), name="gpuwatch-replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def focus(self, focus: Focus | None) -> None:
        """Nothing to focus: the recording is what it is."""

    def now_ns(self) -> int:
        """Position on the recorder's clock; stands at the end."""
        if self._ended or self._speed <= 0:
            return self._last_ns
        return min(self._last_ns, self._first_ns + int((self._clock() - self._started_ns) * self._speed))

    def progress_ns(self) -> int:
        """A recording cannot hang: always just now."""
        return self._clock()

    def _play(self, emit: Emit) -> None:
        for observation in _in_time(self._observations):
            instant = instant_ns(observation)
            if self._stop.is_set() or (instant is not None and not self._reach(instant)):
                return
            emit(self._with_speed(observation) if isinstance(observation, Inventory) else observation)
        self._ended = True
        last = next(o for o in reversed(self._observations) if isinstance(o, Inventory))
        ended = self._with_speed(last)
        emit(msgspec.structs.replace(ended, source=msgspec.structs.replace(ended.source, ended=True)))

    def _reach(self, instant_ns: int) -> bool:
        """Wait until that instant; False when stopped meanwhile."""
        if self._speed <= 0:
            return True
        due_ns = self._started_ns + int((instant_ns - self._first_ns) / self._speed)
        return not self._stop.wait(max(0, due_ns - self._clock()) / 1e9)

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
