"""The arithmetic behind verdicts, against published tables and by seeded simulation."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from gpuwatch.verdict import statistics


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    # Any table of Student's t.
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.776),
        (0.975, 9, 2.262),
        (0.8, 4, 0.941),
        (0.95, 30, 1.697),
        (0.975, 1000, 1.962),
    ],
)
def test_the_t_quantile_is_that_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert statistics.t_quantile(probability, freedom) == pytest.approx(expected, abs=6e-4)


def test_the_tail_probability_is_the_inverse_of_the_quantile() -> None:
    for freedom in (1, 3, 9, 40):
        assert statistics.t_tail(statistics.t_quantile(0.99, freedom), freedom) == pytest.approx(0.02, abs=1e-7)
    assert statistics.t_tail(0.0, 5) == 1.0
    assert statistics.t_tail(math.inf, 5) == 0.0


def test_an_interval_of_known_numbers() -> None:
    interval = statistics.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.estimate == 3.0
    assert (interval.low, interval.high) == pytest.approx((3 - 1.9632, 3 + 1.9632), abs=1e-3)
    assert interval.inside(5.0)
    assert not interval.inside(4.9)


def test_a_p_value_of_known_numbers() -> None:
    # t = 3 / (1.5811 / √5) = 4.2426 with 4 degrees of freedom.
    assert statistics.t_test([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.01324, abs=1e-5)
    assert statistics.t_test([0.2]) == 1.0
    assert statistics.t_test([0.1, 0.1, 0.1]) == 0.0
    assert statistics.t_test([0.0, 0.0]) == 1.0


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two values"):
        statistics.t_interval([1.0])
    with pytest.raises(ValueError, match="two values"):
        statistics.bootstrap_interval([1.0], seed=1)


def test_the_bootstrap_is_reproducible_and_follows_the_skew() -> None:
    values = [0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.4, 4.0]
    once = statistics.bootstrap_interval(values, seed=3)
    assert once == statistics.bootstrap_interval(values, seed=3)
    assert once != statistics.bootstrap_interval(values, seed=4)
    assert once.low <= once.estimate <= once.high
    assert once.high - once.estimate > 2 * (once.estimate - once.low), "a t interval would be symmetric"
    assert statistics.bootstrap_interval([2.0] * 9, seed=1) == (2.0, 2.0, 2.0)


def test_the_paired_interval_covers_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(7)
    hits = 0
    for trial in range(200):
        differences = [chance.gauss(0.03, 0.01) for _ in range(8)]
        interval = statistics.paired_interval(differences, seed=trial)
        hits += interval.low <= 0.03 <= interval.high
    assert hits >= 184


def test_theil_sen_is_not_tilted_by_one_outlier() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert statistics.theil_sen(times, [2 * time for time in times]) == 2.0
    assert statistics.theil_sen(times, [0.0, 2.0, 4.0, 900.0, 8.0, 10.0, 12.0]) == pytest.approx(2.0)
    assert statistics.theil_sen([1.0, 1.0], [0.0, 5.0]) == 0.0
    assert statistics.theil_sen([1.0], [5.0]) == 0.0


def test_holm_keeps_fifty_quantities_from_crying_wolf() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_the_prediction_interval_holds_one_new_run_in_19_of_20() -> None:
    chance = random.Random(5)
    hits = 0
    for _ in range(400):
        base = [chance.gauss(0.0, 0.01) for _ in range(10)]
        difference = statistics.prediction(base, [chance.gauss(0.0, 0.01)], assumed=1.0)
        hits += difference.interval.low <= 0.0 <= difference.interval.high
    assert 370 <= hits <= 390


def test_a_baseline_of_one_run_borrows_its_noise_from_what_is_assumed() -> None:
    narrow = statistics.prediction([1.0], [1.1], assumed=0.01)
    wide = statistics.prediction([1.0], [1.1], assumed=0.1)
    assert narrow.p < 0.001
    assert wide.p > 0.05
    assert narrow.interval.estimate == pytest.approx(0.1)
    assert statistics.prediction([1.0, 1.0], [1.0], assumed=9.0).p == 1.0
    assert statistics.prediction([1.0, 1.0], [1.1], assumed=9.0).p == 0.0


def test_what_a_design_detects_is_printed_as_the_protocol_has_it() -> None:
    assert statistics.detectable_paired(1.0, 5) == pytest.approx(2.35, abs=0.01)
    assert statistics.detectable_paired(1.0, 8) == pytest.approx(1.63, abs=0.01)
    assert statistics.detectable_against(1.0, 10, 1) == pytest.approx(3.3, abs=0.02)
    assert statistics.detectable_against(1.0, 10, 3) == pytest.approx(2.0, abs=0.03)
    assert statistics.detectable_paired(1.0, 1) == math.inf
    assert statistics.detectable_against(1.0, 1, 5) == math.inf
    assert statistics.pairs_needed(0.01, 0.0236) == 5
    assert statistics.pairs_needed(1.0, 0.0001, most=50) is None
    assert statistics.detectable_paired(1.0, 5, 0.01) == pytest.approx(3.5, abs=0.02)
    assert statistics.pairs_needed(0.01, 0.0236, level=0.01) == 8


def test_the_robust_deviation_is_that_of_normal_data() -> None:
    chance = random.Random(1)
    values = [chance.gauss(10.0, 2.0) for _ in range(999)]
    assert statistics.mad(values) == pytest.approx(2.0, rel=0.1)
    assert statistics.mad([*values, 1e9]) == pytest.approx(2.0, rel=0.1)
    assert fmean([*values, 1e9]) > 1e5
