"""What has come up beside the samples: slow readings, the driver's own samples in brief, events.

Owns: the newest of each GPU, how much of it one message carries, whether anybody is watching. Refuses: sockets, clocks.

A message is bounded: utilization of all GPUs below a second, but the slow readings of one GPU only, the longest untold
first, and with many GPUs only in every other message. So eight GPUs cost 420 bytes a tick on average, and each is told
anew every sixteen ticks.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, runtime_checkable

from gpuwatch import wire
from gpuwatch.collect.fold import summarise
from gpuwatch.daemon.publisher import Publish
from gpuwatch.model import NOT_READ, Burst, BurstSummary, DeviceHealth, EventRecord, Observation

EVENTS_PER_TICK = 20
MANY_GPUS = 4
HELD_BURSTS = 5
"""As long as utilization is left in the driver's ring when nobody watches."""
KEEP_EVENTS = 100


@runtime_checkable
class SlowsDown(Protocol):
    """A source that can read less when nobody watches."""

    def set_demand(self, low: bool) -> None:
        """Nobody watches."""


def _whole(bursts: list[Burst]) -> bool:
    """They are told with this tick. Power waits for the utilization of the same time, which comes rarer."""
    return bursts[-1].util_pct.absent != NOT_READ or len(bursts) >= HELD_BURSTS


class TelemetryPart:
    """Takes observations, publishes once a tick. Not thread-safe: the daemon's loop owns it."""

    def __init__(self) -> None:
        self.health: dict[int, DeviceHealth] = {}
        self.events: deque[EventRecord] = deque(maxlen=KEEP_EVENTS)
        """The newest last."""
        self._untold: dict[int, None] = {}
        """Devices with health to tell, the longest waiting first."""
        self._bursts: dict[int, list[Burst]] = {}
        self._summaries: dict[int, BurstSummary] = {}
        self._new_events: deque[EventRecord] = deque(maxlen=KEEP_EVENTS)
        self._low = False
        self._skip = False

    def take(self, observation: Observation) -> None:
        """Keep it if it is one of ours."""
        match observation:
            case DeviceHealth():
                self.health[observation.device_index] = observation
                self._untold.setdefault(observation.device_index)
            case Burst():
                self._bursts.setdefault(observation.device_index, []).append(observation)
            case EventRecord():
                self.events.append(observation)
                self._new_events.append(observation)
            case _:
                pass

    def publish(self, publish: Publish) -> None:
        """Tell what is new, if anything."""
        self._skip = len(self.health) > MANY_GPUS and not self._skip
        index = None if self._skip else next(iter(self._untold), None)
        health = () if index is None else (self.health[index],)
        if index is not None:
            del self._untold[index]
        ready = {index: found for index, found in self._bursts.items() if _whole(found)}
        bursts = tuple(summarise(found) for _, found in sorted(ready.items()))
        for index in ready:
            del self._bursts[index]
        self._summaries.update((burst.device_index, burst) for burst in bursts)
        events = tuple(self._new_events.popleft() for _ in range(min(EVENTS_PER_TICK, len(self._new_events))))
        if health or bursts or events:
            publish(lambda epoch, seq: wire.Telemetry(epoch, seq, health, bursts, events))

    def tell_all(self, publish: Publish) -> None:
        """For one who has just joined: all slow readings and the last events, as the next message of the stream."""
        health, events = tuple(self.health[index] for index in sorted(self.health)), tuple(self.events)
        bursts = tuple(self._summaries[index] for index in sorted(self._summaries))
        if health or bursts or events:
            publish(lambda epoch, seq: wire.Telemetry(epoch, seq, health, bursts, events, complete=True))

    def demand(self, source: object, subscribers: int) -> None:
        """Let the source know when the last watcher has gone, or the first has come."""
        low = subscribers == 0
        if low != self._low and isinstance(source, SlowsDown):
            source.set_demand(low)
        self._low = low
