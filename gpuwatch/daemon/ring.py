"""What the daemon remembers: the latest reading of everything, a minute of observations, ten minutes of ticks.

Owns: bounds on memory and on the size of a snapshot's history. Refuses: clocks and sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from gpuwatch.model import (
    Burst,
    DeviceHealth,
    DeviceSample,
    EventRecord,
    HostSample,
    Inventory,
    Observation,
    ProcessInfo,
    ProcessTick,
    SourceKind,
    SourceLine,
    StackSample,
    StepReport,
)
from gpuwatch.wire import Tick

KEEP_S = 60.0
KEEP_COUNT = 20_000
HISTORY_TICKS = 600
HISTORY_BYTES = 300_000

KEEP_LINES = 500
"""Lines of code of the jobs: each is sent once, and a later diagnosis needs it too."""

Timed = (
    DeviceSample | HostSample | ProcessTick | StackSample | SourceLine | DeviceHealth | Burst | EventRecord | StepReport
)

Fold = Callable[[Sequence[DeviceSample]], DeviceSample]
"""Many readings of one device between two ticks to one."""


class ObservationRing:
    """The last ``KEEP_S`` of observations in the source's own time, for the diagnosis."""

    def __init__(self, keep_s: float = KEEP_S, keep_count: int = KEEP_COUNT) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._items: deque[tuple[int, Timed]] = deque(maxlen=keep_count)
        self.newest_ns = 0

    def add(self, observation: Timed) -> None:
        """Keep one more, forget what is too old."""
        if self._items and observation.mono_ns < self.newest_ns - self._keep_ns:
            self._items.clear()  # The source's clock was set back: a replay began again.
            self.newest_ns = 0
        self._items.append((observation.mono_ns, observation))
        self.newest_ns = max(self.newest_ns, observation.mono_ns)
        while self._items and self._items[0][0] < self.newest_ns - self._keep_ns:
            self._items.popleft()

    @property
    def span_ns(self) -> int:
        """Time between the oldest and the newest that are kept."""
        return self.newest_ns - min((ns for ns, _ in self._items), default=self.newest_ns)

    def since(self, mono_ns: int) -> list[Timed]:
        """Those of ``mono_ns`` and later, by time: collectors emit from several threads."""
        picked = [item for item in self._items if item[0] >= mono_ns]
        picked.sort(key=lambda item: item[0])
        return [observation for _, observation in picked]

    def clear(self) -> None:
        """Forget everything: a recording goes back."""
        self._items.clear()
        self.newest_ns = 0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._items)


class Picture:
    """The latest of everything, and what has come since the last tick."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._pending: dict[int, list[DeviceSample]] = {}
        self.inventory: Inventory | None = None
        self.devices: dict[int, DeviceSample] = {}
        self.host: HostSample | None = None
        self.processes: ProcessTick | None = None
        self.infos: dict[int, ProcessInfo] = {}
        self.lines: dict[tuple[int, str, int], SourceLine] = {}
        self._new_infos: dict[int, ProcessInfo] = {}
        self._gone: set[int] = set()

    @property
    def recorded(self) -> bool:
        """The readings come from a recording."""
        return self.inventory is not None and self.inventory.source.kind is SourceKind.RECORDED

    @property
    def ended(self) -> bool:
        """The recording has been played to its end."""
        return self.inventory is not None and self.inventory.source.ended

    @property
    def complete(self) -> bool:
        """Every device and the host have been read at least once: the first tick need not wait any longer."""
        if self.inventory is None or self.host is None:
            return False
        return all(d.index in self._pending or d.index in self.devices for d in self.inventory.devices)

    def take(self, observation: Observation) -> None:
        """One observation."""
        match observation:
            case Inventory():
                self.inventory = observation
                known = {device.index for device in observation.devices}
                self.devices = {index: s for index, s in self.devices.items() if index in known}
            case DeviceSample():
                self._pending.setdefault(observation.device_index, []).append(observation)
            case HostSample():
                self.host = observation
            case ProcessTick():
                self._take_processes(observation)
            case SourceLine():
                self._take_line(observation)
            case StackSample():
                pass  # Evidence for the diagnosis only.

    def _take_line(self, line: SourceLine) -> None:
        key = (line.root_pid, line.file, line.line)
        self.lines.pop(key, None)
        self.lines[key] = line
        if len(self.lines) > KEEP_LINES:
            del self.lines[next(iter(self.lines))]

    def _take_processes(self, tick: ProcessTick) -> None:
        self.processes = tick
        for pid in tick.gone:
            self.infos.pop(pid, None)
            self._new_infos.pop(pid, None)
            self._gone.add(pid)
        if tick.gone:
            self.lines = {key: line for key, line in self.lines.items() if key[0] not in tick.gone}
        for info in tick.infos:
            self.infos[info.pid] = info
            self._new_infos[info.pid] = info

    def fold_pending(self) -> tuple[DeviceSample, ...]:
        """Each device's reading for this tick. One whose driver call hangs keeps its old one, with its old time."""
        for index, samples in self._pending.items():
            self.devices[index] = self._fold(samples)
        self._pending.clear()
        return tuple(self.devices[index] for index in sorted(self.devices))

    def take_process_changes(self) -> tuple[tuple[ProcessInfo, ...], tuple[int, ...]]:
        """Infos and gone pids since the last call. A receiver forgets the gone first, then learns the infos."""
        changes = tuple(self._new_infos.values()), tuple(sorted(self._gone))
        self._new_infos, self._gone = {}, set()
        return changes


class History:
    """The last ticks, devices only, for the charts of a new subscriber."""

    def __init__(self, ticks: int = HISTORY_TICKS, limit_bytes: int = HISTORY_BYTES) -> None:
        self._ticks: deque[Tick] = deque(maxlen=ticks)
        self._limit_bytes = limit_bytes
        self._fitted: tuple[Tick, ...] | None = ()

    def append(self, tick: Tick) -> None:
        """One more tick."""
        self._ticks.append(Tick(tick.epoch, tick.seq, tick.mono_ns, tick.wall_ns, tick.devices))
        self._fitted = None

    def clear(self) -> None:
        """Forget everything: a recording goes back."""
        self._ticks.clear()
        self._fitted = ()

    def fitted(self) -> tuple[Tick, ...]:
        """Oldest first, thinned to the limit. Computed once per tick, however many ask."""
        if self._fitted is None:
            self._fitted = thin(tuple(self._ticks), self._limit_bytes)
        return self._fitted


def thin(ticks: Sequence[Tick], limit_bytes: int) -> tuple[Tick, ...]:
    """Drop every other tick of the older half until the rest takes at most ``limit_bytes``: the recent past stays
    sharp, the far past coarse."""
    sized = [(len(msgspec.msgpack.encode(tick)), tick) for tick in ticks]
    while len(sized) > 1 and sum(size for size, _ in sized) > limit_bytes:
        # Of two, the older one goes: a half of one element would never shrink.
        half = max(1, len(sized) // 2)
        older = sized[:half]
        sized = [*(older[1::2]), *sized[half:]]
    if sum(size for size, _ in sized) > limit_bytes:
        return ()
    return tuple(tick for _, tick in sized)
