"""Charts must show what was measured: no invented points, no hidden ones."""

from __future__ import annotations

import pytest

from gpuwatch.tui.chart import area_and_line, bar, bucket_ns, resample, shares_in_cells, stacked
from gpuwatch.tui.text import ASCII, plain, row_width

S = 1_000_000_000


def test_a_gap_in_the_samples_is_a_gap_in_the_chart() -> None:
    points = [(1 * S, 10.0), (2 * S, 20.0), (8 * S, 80.0)]
    assert resample(points, 7 * S, S, 8, hold_ns=2 * S) == [None, 10.0, 20.0, 20.0, 20.0, None, None, None]
    assert resample(points, 8 * S, S, 8, hold_ns=2 * S) == [20.0, 20.0, 20.0, None, None, None, 80.0, None]


def test_samples_of_one_bucket_are_averaged() -> None:
    assert resample([(0, 10.0), (1 * S, 30.0), (2 * S, 50.0)], 2 * S, 2 * S, 2, hold_ns=S) == [20.0, 50.0]


def test_a_value_from_before_the_window_is_held_into_it() -> None:
    assert resample([(9 * S, 40.0)], 11 * S, S, 2, hold_ns=2 * S) == [40.0, 40.0]


def test_nothing_measured_draws_nothing() -> None:
    assert resample([], 100 * S, S, 4, hold_ns=S) == [None] * 4
    assert plain(area_and_line([None] * 4, [None] * 4, 2)) == "\n"


def test_a_chart_moves_by_whole_cells_so_that_between_two_moves_only_the_last_is_sent() -> None:
    points = [(t * S, float(t)) for t in range(100)]
    charts = [resample([p for p in points if p[0] <= end * S], end * S, 4 * S, 10, hold_ns=S) for end in range(80, 89)]
    assert all(chart[:8] == charts[0][:8] for chart in charts[:8])
    assert charts[8][:8] == charts[0][2:8] + charts[7][8:10]


def test_the_future_is_empty() -> None:
    points = [(t * S, 50.0) for t in range(4)]
    assert resample(points, 9 * S, S, 10, hold_ns=9 * S, until_ns=3 * S) == [50.0] * 4 + [None] * 6


def test_a_dot_column_is_never_shorter_than_half_a_period() -> None:
    assert bucket_ns(60, 1000, period_s=1.0) == S // 2
    assert bucket_ns(600, 150, period_s=1.0) == 4 * S


def test_area_is_filled_from_the_floor_and_the_line_is_above_it() -> None:
    rows = area_and_line([50.0] * 4, [100.0] * 4, 2)
    assert plain(rows) == "⠉⠉\n⣿⣿"
    assert [row[0][1] for row in rows] == ["busy", "sm"]


def test_a_cell_that_both_share_has_the_colour_of_the_one_with_more_dots() -> None:
    assert area_and_line([50.0, 50.0], [75.0, 75.0], 1)[0][0][1] == "sm"
    assert area_and_line([20.0, 20.0], [75.0, 75.0], 1)[0][0][1] == "busy"


def test_a_small_value_is_visible_and_zero_is_not() -> None:
    assert plain(area_and_line([0.1, 0.1, 0.0, 0.0], [None] * 4, 1)) == "⣀"


def test_one_style_for_a_run_of_cells() -> None:
    (row,) = area_and_line([100.0] * 40, [100.0] * 40, 1)
    assert len(row) == 1


def test_ascii_chart_is_ascii() -> None:
    text = plain(area_and_line([50.0] * 8, [100.0] * 8, 2, glyphs=ASCII))
    assert text.isascii()
    assert text == "----\n####"


def test_a_limit_is_dotted_so_that_it_is_told_from_a_reading_without_colour() -> None:
    nothing = [None] * 8
    assert plain(area_and_line(nothing, nothing, 2, levels=(100.0,))) == "⠁⠁⠁⠁\n"
    assert area_and_line(nothing, nothing, 1, levels=(100.0,))[0][0][1] == "dim"
    assert plain(area_and_line(nothing, [100.0] * 8, 1)) == "⠉⠉⠉⠉"
    assert plain(area_and_line(nothing, nothing, 2, glyphs=ASCII, levels=(100.0,))) == "====\n"


def test_a_limit_is_seen_in_an_area_that_goes_beyond_it() -> None:
    assert plain(area_and_line([100.0] * 4, [None] * 4, 1, levels=(50.0,))) == "⣻⣻"


def test_two_limits_are_two_lines_and_what_is_measured_stays_whole() -> None:
    rows = area_and_line([25.0] * 4, [None] * 4, 2, levels=(100.0, 50.0))
    assert plain(rows) == "⠁⠁\n⣥⣥"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "    "), (0.01, "▏   "), (50.0, "██  "), (99.99, "████"), (100.0, "████"), (130.0, "████")],
)
def test_bar_shows_more_than_nothing_and_never_overflows(value: float, text: str) -> None:
    assert bar(value, 4) == text


@pytest.mark.parametrize("cells", [1, 7, 78, 100])
def test_shares_fill_the_bar_exactly(cells: int) -> None:
    shares = [0.762, 0.119, 0.079, 0.037, 0.003]
    assert sum(shares_in_cells(shares, cells)) == cells
    assert row_width(stacked([(share, "x", "text") for share in shares], cells)) == cells


def test_no_shares_make_no_bar() -> None:
    assert shares_in_cells([], 10) == []
    assert shares_in_cells([0.0, 0.0], 10) == [0, 0]
