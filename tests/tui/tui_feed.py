"""A feed whose states are written down beforehand, for tests of the application."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpuwatch.client.feed import Asked
from gpuwatch.client.state import NodeState


class ScriptedFeed:
    """Gives one state a step, then repeats the last; an exception in the script is raised at its turn."""

    def __init__(self, *script: NodeState | Exception) -> None:
        self.script: Sequence[NodeState | Exception] = script
        self.steps = 0
        self.requests: list[Asked] = []
        self.closed = False
        self._pause = threading.Event()

    def open(self) -> ScriptedFeed:
        return self

    def step(self, timeout_s: float) -> NodeState:
        if self.steps >= len(self.script):
            self._pause.wait(min(timeout_s, 0.02))
        current = self.script[min(self.steps, len(self.script) - 1)]
        self.steps += 1
        if isinstance(current, Exception):
            raise current
        return current

    def request(self, message: Asked, /) -> None:
        self.requests.append(message)

    def close(self) -> None:
        self.closed = True
