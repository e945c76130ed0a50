"""Where a screen's states come from.

Owns: the Feed protocol: a daemon here, one behind ssh, one that we started, a script in a test. Refuses: sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuwatch.client.state import NodeState
from gpuwatch.wire import GetHistory, ReplayControl, StartDiagnosis, StartProbe

Asked = StartDiagnosis | StartProbe | GetHistory | ReplayControl
"""What a person can ask a daemon for."""


class Feed(Protocol):
    """A connection to one node. All calls come from one thread, the one that opened it."""

    def step(self, timeout_s: float) -> NodeState:
        """Wait at most ``timeout_s`` for news and give the state as it is then. A silent or lost daemon is a state,
        not an error; what is raised ends the feed."""

    def request(self, message: Asked, /) -> None:
        """Send a request; its answer arrives in a later state."""

    def close(self) -> None:
        """Give back sockets and child processes."""


OpenFeed = Callable[[], Feed]
"""Called in the feed's thread: it may take seconds (starting a daemon) and must not hold up the first frame."""
