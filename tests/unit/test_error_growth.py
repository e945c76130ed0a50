"""Growth of error counters: what is new, not what a card has gathered in its life."""

from __future__ import annotations

from gpuwatch.collect.error_growth import ERRORS, WINDOW_NS, ErrorGrowth
from gpuwatch.collect.field_ids import COUNTERS
from gpuwatch.model import NOT_SUPPORTED, CounterGrowth, DeviceHealth

S = 1_000_000_000


def test_what_a_card_had_before_is_old_news_and_what_comes_is_told_for_an_hour() -> None:
    growth = ErrorGrowth()
    growth.take({"pcie_replays": 655, "pcie_to_recovery": 1, "ecc_volatile_corrected": NOT_SUPPORTED}, 1 * S)
    assert (growth.grown(1 * S), growth.window_ns(1 * S)) == ((), 0)
    growth.take({"pcie_replays": 660, "pcie_to_recovery": 9}, 31 * S)
    growth.take({"pcie_replays": 667, "remapped_correctable": 4}, 61 * S)
    growth.take({"remapped_correctable": 5}, 62 * S)
    assert growth.grown(62 * S) == (CounterGrowth("pcie_replays", 12), CounterGrowth("remapped_correctable", 1))
    assert growth.window_ns(61 * S) == 60 * S
    later = 31 * S + WINDOW_NS + 1
    assert growth.grown(later) == (CounterGrowth("pcie_replays", 7), CounterGrowth("remapped_correctable", 1))
    assert growth.window_ns(later) == WINDOW_NS


def test_a_counter_that_the_driver_reset_has_not_grown() -> None:
    growth = ErrorGrowth()
    for second, value in enumerate((10, 3, 4)):
        growth.take({"pcie_replays": value}, second * S)
    assert growth.grown(3 * S) == (CounterGrowth("pcie_replays", 1),)


def test_every_counter_that_is_followed_is_a_reading() -> None:
    assert set(DeviceHealth.__struct_fields__) >= ERRORS
    assert {field.name for field in COUNTERS if "error" in field.name} <= ERRORS
