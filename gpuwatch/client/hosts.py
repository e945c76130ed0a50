"""Several nodes at once: one thread each, so that a slow one holds up nobody.

Owns: the feeds' threads, the newest state of each, which requests go where. Refuses: sockets (the feeds'), widgets,
order of the hosts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import msgspec

from gpuwatch.client.feed import Asked, OpenFeed
from gpuwatch.client.state import Link, NodeState, connecting
from gpuwatch.errors import GpuwatchError

STEP_S = 0.25
"""How long a feed may wait for news: bounds the delay of a request and of ending."""
CLOSE_S = 4.0
"""For all threads together: an embedded daemon has three seconds to end. A feed that hangs is left behind."""
FEW_HOSTS = 4
KEEP_TICKS_OF_MANY = 120
"""Samples a device when there are more than ``FEW_HOSTS``: ten minutes of 64 hosts of 8 GPUs would be 200 MB."""


class Hosts:
    """``start``, then ``step`` again and again from one thread, then ``close``."""

    def __init__(self, sources: Sequence[tuple[str, OpenFeed]]) -> None:
        """Names, to be shown while nothing is known, and how to open each feed."""
        self._sources = tuple(sources)
        self._changed = threading.Condition()
        self._states = [connecting(name) for name, _ in self._sources]
        self._requests: list[queue.SimpleQueue[Asked]] = [queue.SimpleQueue() for _ in self._sources]
        self._failure: Exception | None = None
        self._news = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Open all feeds, each in its own thread."""
        for place, (name, opener) in enumerate(self._sources):
            thread = threading.Thread(target=self._follow, args=(place, opener), name=f"feed {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def step(self, timeout_s: float) -> tuple[NodeState, ...]:
        """Wait at most ``timeout_s`` for news of any host; the newest state of each, in the order given.

        Raises the GpuwatchError that ended the only feed, and any bug. One of several that ends is a lost host."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._failure is not None, timeout_s)
            self._news = False
            if self._failure is not None:
                raise self._failure
            states = tuple(self._states)
        if len(states) > 1:
            # Hosts tick when they like: what comes within a twentieth of a second is one change of the screen.
            self._stop.wait(min(0.05, timeout_s))
        return states

    def request(self, place: int, message: Asked) -> None:
        """Send a request to the host at this place. Thread-safe."""
        self._requests[place].put(message)

    def close(self) -> None:
        """End all threads."""
        self._stop.set()
        ends = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _follow(self, place: int, opener: OpenFeed) -> None:
        try:
            feed = opener()
            try:
                while not self._stop.is_set():
                    while not self._requests[place].empty():
                        feed.request(self._requests[place].get())
                    self._put(place, feed.step(STEP_S))
            finally:
                feed.close()
        except GpuwatchError as exc:
            if len(self._sources) == 1:
                self._fail(exc)
            else:
                self._put(place, msgspec.structs.replace(self._states[place], link=Link.LOST, detail=str(exc)))
        except Exception as exc:
            self._fail(exc)

    def _put(self, place: int, state: NodeState) -> None:
        if state is self._states[place]:
            return
        with self._changed:
            self._states[place] = state
            self._news = True
            self._changed.notify_all()

    def _fail(self, exc: Exception) -> None:
        with self._changed:
            self._failure = exc
            self._changed.notify_all()
