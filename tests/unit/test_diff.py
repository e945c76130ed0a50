"""Only what changed goes over a slow link, and nothing that changed is forgotten."""

from __future__ import annotations

import random

from rich.cells import cell_len

from gpuwatch.tui.diff import changed_cells
from gpuwatch.tui.text import Row, row_width


def covered(old: Row, new: Row) -> bool:
    """Every cell that differs lies in a range."""

    def cells(row: Row) -> list[tuple[str, str]]:
        return [(c, role) for text, role in row for char in text for c in (char, *[""] * (cell_len(char) - 1))]

    ranges = changed_cells(old, new)
    inside = {x for start, end in ranges for x in range(start, end)}
    return all(x in inside for x, (a, b) in enumerate(zip(cells(old), cells(new), strict=True)) if a != b)


def test_equal_rows_send_nothing() -> None:
    row = (("GPU 0", "text"), ("  97 ", "busy"))
    assert changed_cells(row, row) == []
    assert changed_cells((("GPU", "a"), (" 0", "a")), (("GPU 0", "a"),)) == []


def test_a_digit_is_sent_alone() -> None:
    old = ((" gpuwatch  host", "title"), (" " * 50, "text"), ("17:20:31", "dim"))
    new = ((" gpuwatch  host", "title"), (" " * 50, "text"), ("17:20:32", "dim"))
    assert changed_cells(old, new) == [(72, 73)]


def test_two_changes_near_each_other_are_one_and_far_apart_are_two() -> None:
    assert changed_cells((("a1b1c", "x"),), (("a2b2c", "x"),)) == [(1, 4)]
    far = "b" * 60
    assert changed_cells(((f"a1{far}1c", "x"),), ((f"a2{far}2c", "x"),)) == [(1, 2), (62, 63)]


def test_a_change_of_colour_alone_is_a_change() -> None:
    assert changed_cells((("ab", "ok"), ("cd", "ok")), (("ab", "ok"), ("cd", "crit"))) == [(2, 4)]


def test_a_wide_character_is_never_cut_in_half() -> None:
    assert changed_cells((("a学b", "x"),), (("a習b", "x"),)) == [(1, 3)]
    assert changed_cells((("a学b", "x"),), (("axyb", "x"),)) == [(1, 3)]
    assert changed_cells((("axyb", "x"),), (("ax学", "x"),)) == [(2, 4)]


def test_a_row_of_another_width_is_sent_whole() -> None:
    assert changed_cells((("ab", "x"),), (("abcd", "x"),)) == [(0, 4)]


def test_whatever_the_change_every_changed_cell_is_covered() -> None:
    rng = random.Random(7)
    letters = "ab █▏学é"
    for _ in range(400):
        old: Row = tuple(
            ("".join(rng.choice("ab █▏") for _ in range(rng.randint(1, 6))), rng.choice("xyz")) for _ in range(6)
        )
        new = tuple((text.replace("a", rng.choice(letters[:5])), rng.choice([role, "x"])) for text, role in old)
        assert row_width(old) == row_width(new)
        assert covered(old, new)
