"""How often each group of driver calls is made: tiers by measured cost, a guard that slows what turns out dear.

Owns: periods, what low demand makes of them, when a group is demoted and when it comes back. Refuses: calls, clocks.

The costs behind the tiers were measured on one H200 (docs/telemetry.md); other cards and drivers are 10 to 1000 times
slower or faster in single calls, which is what the guard is for.
"""

from __future__ import annotations

import enum
from typing import Final

DEAR_NS: Final = 5_000_000
"""A call that takes longer than this three times in a row is made less often."""
CHEAP_NS: Final = DEAR_NS // 2
STRIKES: Final = 3

_S: Final = 1_000_000_000


class Tier(enum.IntEnum):
    """How often, fastest first."""

    TICK = 0
    """With every full reading."""
    MEDIUM = 1
    SLOW = 2
    RARE = 3
    ONCE = 4
    """Once for as long as the driver stays loaded."""


_PERIOD_NS: Final = {Tier.TICK: 0, Tier.MEDIUM: 2 * _S, Tier.SLOW: 5 * _S, Tier.RARE: 30 * _S, Tier.ONCE: 0}
_LOW_PERIOD_NS: Final = {Tier.TICK: 0, Tier.MEDIUM: 10 * _S, Tier.SLOW: 30 * _S, Tier.RARE: 60 * _S, Tier.ONCE: 0}
"""With no client, no alert and no diagnosis under way."""
_EARLY_NS: Final = _S // 2
"""A turn that would come half a tick too early is taken: waiting for the next would make 2 s into 3 s."""


class Pace:
    """When one group of calls is due."""

    def __init__(self, tier: Tier, slowest: Tier = Tier.RARE) -> None:
        self._tier = tier
        self._slowest = slowest
        self._now = tier
        self._last_ns: int | None = None
        self._dear = 0
        self._cheap = 0
        self._unsettled = False

    @property
    def slowed(self) -> bool:
        """The guard has moved it to a slower tier."""
        return self._now is not self._tier

    def due(self, now_ns: int, *, low: bool = False) -> bool:
        """It is this group's turn."""
        if self._last_ns is None:
            return True
        if self._now is Tier.ONCE and not self._unsettled:
            return False
        tier = Tier.RARE if self._now is Tier.ONCE else self._now
        period_ns = (_LOW_PERIOD_NS if low else _PERIOD_NS)[tier]
        return now_ns - self._last_ns >= period_ns - _EARLY_NS

    def ran(self, now_ns: int, cost_ns: int, *, unsettled: bool = False) -> None:
        """It was done at ``now_ns`` and took so long inside the driver. ``unsettled``: some of it failed in a way that
        may pass, so that once is not enough."""
        self._last_ns = now_ns
        self._unsettled = unsettled
        self._dear = self._dear + 1 if cost_ns > DEAR_NS else 0
        self._cheap = self._cheap + 1 if cost_ns < CHEAP_NS else 0
        if self._dear >= STRIKES and self._now < self._slowest:
            self._now, self._dear = Tier(self._now + 1), 0
        elif self._cheap >= STRIKES and self._now > self._tier:
            self._now, self._cheap = Tier(self._now - 1), 0
