"""Numbers as people read them: an absent value is never a zero, a small one never vanishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwatch import units
from gpuwatch.model import NOT_READ

TEXTS: list[Callable[[object], str]] = [
    units.bytes_text,
    units.rate_text,
    units.pct_text,
    units.watts_text,
    units.celsius_text,
    units.mhz_text,
    units.count_text,
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
def test_an_absent_reading_prints_as_na_and_zero_as_zero(text: Callable[[object], str]) -> None:
    assert text(NOT_READ) == "n/a"
    assert text(0).startswith("0")


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.__name__)
def test_a_flag_or_a_word_is_not_printed_as_a_number(text: Callable[[object], str]) -> None:
    assert text(True) == "n/a"
    assert text("driver") == "n/a"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1023.6 * 1024, "1.0 MiB"),
        (13.44 * 2**30, "13.4 GiB"),
        (140.4 * 2**30, "140 GiB"),
        (99.96 * 2**30, "100 GiB"),
        (3.2 * 2**50, "3.2 PiB"),
        (5000 * 2**50, "5000 PiB"),
    ],
)
def test_bytes_keep_three_digits_and_a_binary_prefix(value: float, text: str) -> None:
    assert units.bytes_text(value) == text
    assert units.rate_text(value) == text + "/s"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 0, "0 %"),
        (0.03, 0, "<1 %"),
        (0.03, 1, "<0.1 %"),
        (0.5, 0, "0 %"),
        (0.51, 0, "1 %"),
        (37.4, 0, "37 %"),
        (37.44, 1, "37.4 %"),
        (100, 0, "100 %"),
    ],
)
def test_percent(value: float, digits: int, text: str) -> None:
    assert units.pct_text(value, digits) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.7, "1 h"),
        (7500, "2 h 5 min"),
        (48 * 3600, "2 d"),
        (76 * 3600, "3 d 4 h"),
    ],
)
def test_durations_use_the_two_largest_useful_units(seconds: float, text: str) -> None:
    assert units.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 µs"),
        (2.345e-6, "2.35 µs"),
        (0.0009996, "1.00 ms"),
        (0.0312, "31.2 ms"),
        (0.3126, "313 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (75.0, "1 min 15 s"),
        (NOT_READ, "n/a"),
    ],
)
def test_a_step_has_three_digits_whatever_its_length(seconds: object, text: str) -> None:
    assert units.short_time_text(seconds) == text


@pytest.mark.parametrize(
    ("factor", "text"), [(1.0, "1.00×"), (3.42, "3.42×"), (12.4, "12×"), (99.4, "99×"), (250, ">100×")]
)
def test_a_gain_beyond_a_hundred_claims_only_its_order(factor: float, text: str) -> None:
    assert units.factor_text(factor) == text
