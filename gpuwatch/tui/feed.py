"""Where a screen's states come from, as the UI sees it.

Owns: the Feed protocol, so that tests and later sources (many hosts, a seekable replay) slot in. Refuses: sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuwatch.client.state import NodeState
from gpuwatch.wire import StartDiagnosis


class Feed(Protocol):
    """A connection to one node. All calls come from one thread, the one that opened it."""

    def step(self, timeout_s: float) -> NodeState:
        """Wait at most ``timeout_s`` for news and give the state as it is then. A silent or lost daemon is a state,
        not an error; what is raised ends the UI."""

    def request(self, message: StartDiagnosis, /) -> None:
        """Send a request; its answer arrives as ``NodeState.notice`` or in the stream."""

    def close(self) -> None:
        """Give back sockets and child processes."""


OpenFeed = Callable[[], Feed]
"""Called in the feed's thread: it may take seconds (starting a daemon) and must not hold up the first frame."""
