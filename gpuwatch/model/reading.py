"""A reading: a value, or the reason why there is none.

Owns: Absent and its reasons. Refuses: what is read.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Reason(enum.IntEnum):
    """Why a reading has no value. Numbers travel on the wire and never change meaning."""

    NOT_READ = 0
    """Nobody has asked yet: first tick, or a slower tier's turn has not come."""
    NOT_SUPPORTED = 1
    """This card, driver or kernel does not have it."""
    NO_PERMISSION = 2
    NOT_FOUND = 3
    """The thing itself is not there: process gone, file missing, buffer empty."""
    LOST = 4
    """The GPU fell off the bus or needs a reset."""
    TIMEOUT = 5
    """The driver call has not returned."""
    OUT_OF_RANGE = 6
    """The driver answered with garbage, such as 4294967295 %."""
    DRIVER = 7
    """The driver is missing, not loaded or does not match its library."""
    ERROR = 8
    """Anything else; ``detail`` has the code."""


class Absent(Struct, frozen=True, array_like=True):
    """A reading without a value, with its reason and, where it helps a person, a detail."""

    reason: Reason
    detail: str = ""


NOT_READ = Absent(Reason.NOT_READ)


NOT_SUPPORTED = Absent(Reason.NOT_SUPPORTED)


Num = float | Absent


Int = int | Absent


Text = str | Absent


def value_or(reading: float | str | Absent, default: float) -> float:
    """The number in ``reading``, or ``default``. For arithmetic that has a documented fallback only."""
    return default if isinstance(reading, (Absent, str)) else float(reading)
