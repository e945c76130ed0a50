"""How often driver calls are made: nothing dear stays frequent, and nothing is forgotten."""

from __future__ import annotations

import pytest

from gpuwatch.collect.tiers import DEAR_NS, Pace, Tier

S = 1_000_000_000


def turns(
    pace: Pace, seconds: int, cost_ns: int = 1000, *, start: int = 0, low: bool = False, unsettled: bool = False
) -> int:
    """How often it was due in so many ticks of a second."""
    count = 0
    for second in range(start, start + seconds):
        if pace.due(second * S, low=low):
            pace.ran(second * S, cost_ns, unsettled=unsettled)
            count += 1
    return count


@pytest.mark.parametrize(
    ("tier", "high", "low"),
    [(Tier.TICK, 120, 120), (Tier.MEDIUM, 60, 12), (Tier.SLOW, 24, 4), (Tier.RARE, 4, 2), (Tier.ONCE, 1, 1)],
)
def test_a_tier_keeps_its_period_and_slows_down_when_nobody_watches(tier: Tier, high: int, low: int) -> None:
    assert turns(Pace(tier), 120) == high
    assert turns(Pace(tier), 120, low=True) == low


def test_a_call_that_is_dear_three_times_in_a_row_is_made_less_often() -> None:
    pace = Pace(Tier.TICK)
    assert turns(pace, 3, DEAR_NS + 1) == 3
    assert pace.slowed
    assert not pace.due(3 * S)
    assert pace.due(4 * S)


def test_two_dear_calls_and_a_cheap_one_are_no_reason() -> None:
    pace = Pace(Tier.TICK)
    for second, cost_ns in enumerate([DEAR_NS + 1, DEAR_NS + 1, 1, DEAR_NS + 1, DEAR_NS + 1]):
        pace.ran(second * S, cost_ns)
    assert not pace.slowed


def test_a_call_that_stays_dear_sinks_no_further_than_its_slowest_tier() -> None:
    pace, tick = Pace(Tier.MEDIUM), Pace(Tier.TICK, slowest=Tier.SLOW)
    turns(pace, 600, DEAR_NS + 1)
    turns(tick, 600, DEAR_NS + 1)
    assert turns(pace, 600, DEAR_NS + 1, start=600) == 20
    # What every tick shows must not be half a minute old.
    assert turns(tick, 600, DEAR_NS + 1, start=600) == 120


def test_a_call_that_has_become_cheap_comes_back() -> None:
    pace = Pace(Tier.TICK)
    turns(pace, 3, DEAR_NS + 1)
    turns(pace, 60, start=3)
    assert not pace.slowed
    assert turns(pace, 10, start=63) == 10


def test_once_is_not_enough_when_it_failed_in_a_way_that_may_pass() -> None:
    pace = Pace(Tier.ONCE)
    assert turns(pace, 61, unsettled=True) == 3
    assert turns(pace, 60, start=61) == 1
    assert turns(pace, 60, start=121) == 0
