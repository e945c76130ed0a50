"""A recording under a client's control.

Owns: which requests a source can follow, the answer, telling everybody. Refuses: playing (the player's).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gpuwatch import wire
from gpuwatch.daemon.publisher import Publish
from gpuwatch.errors import UsageError


@runtime_checkable
class Controllable(Protocol):
    """A source that can be paused and moved."""

    @property
    def start_ns(self) -> int:
        """The recorder's clock at the first reading."""

    @property
    def duration_s(self) -> float:
        """Length at 1×."""

    @property
    def speed(self) -> float:
        """Times real time; 0 as fast as possible."""

    @property
    def paused(self) -> bool:
        """It stands still because somebody wanted it to."""

    @property
    def position_s(self) -> float:
        """Seconds from the start."""

    def control(self, action: str, value: float) -> str:
        """Do it; one line that says what was done. Raises UsageError."""


def control(source: object, request: wire.ReplayControl, publish: Publish) -> wire.Reply:
    """Follow a request; refused for a live source, and for what the player does not know."""
    if not isinstance(source, Controllable):
        return wire.Refused(request.request_id, "this is a live machine: only a recording can be paused or moved")
    try:
        done = "" if request.action == "status" else source.control(request.action, request.value)
    except UsageError as exc:
        return wire.Refused(request.request_id, str(exc))
    publish(
        lambda epoch, seq: wire.ReplayPosition(
            epoch, seq, source.start_ns, source.position_s, source.duration_s, source.speed, source.paused
        )
    )
    return wire.Accepted(request.request_id, done)
