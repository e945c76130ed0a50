"""The slower of two cards is named by its UUID: an index changes with CUDA_VISIBLE_DEVICES, a card does not."""

from __future__ import annotations

from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict import skew
from gpuwatch.verdict.measured import measured
from gpuwatch.verdict.verdicts import Level, Verdict
from verdict.parts import SETTINGS, result, runs, value


def card(letter: str, matmul: float, copy: float = 55.0, **rest: object) -> list[ProbeResult]:
    """What one card has measured; the letter is its UUID."""
    where = {"uuid": f"GPU-{letter * 2}", "device": f"cuda:{ord(letter) - ord('a')}", **rest}
    return [
        result(value("bf16_8192_sustained", matmul), **where),  # type: ignore[arg-type]
        result(value("h2d_pinned_256MiB", copy, "GB/s"), probe="copies", **where),  # type: ignore[arg-type]
    ]


def told(results: list[ProbeResult]) -> list[tuple[str, str, str]]:
    rows = [row for row in measured(results).rows if row.verdict is Verdict.SLOWER]
    return [(row.name, row.device_uuid, row.reason) for row in rows]


def test_the_slower_card_is_named_by_uuid_with_what_it_is_slower_in() -> None:
    judged = measured([*card("a", 600.0), *card("b", 700.0)])
    assert told([*card("a", 600.0), *card("b", 700.0)]) == [
        ("matmul.bf16_8192_sustained", "GPU-aa", "GPU-aa is 14.3% slower than GPU-bb (cuda:1), in this machine")
    ]
    assert (judged.level, judged.exit_code) == (Level.WARN, 1), "two cards cannot say which is as it should be"
    row = next(row for row in judged.rows if row.verdict is Verdict.SLOWER)
    assert (row.before, row.after, row.unit) == (700.0, 600.0, "TFLOP/s")


def test_the_natural_spread_of_healthy_cards_is_no_finding() -> None:
    assert told([*card("a", 670.0), *card("b", 700.0)]) == []
    assert measured([*card("a", 670.0), *card("b", 700.0)]).exit_code == 0


def test_copies_are_compared_too_and_a_longer_time_is_slower() -> None:
    assert [name for name, uuid, _ in told([*card("a", 700, copy=25.0), *card("b", 700)]) if uuid == "GPU-aa"] == [
        "copies.h2d_pinned_256MiB"
    ]
    launches = [
        result(value("enqueue", us, "µs", higher=False), probe="launch", uuid=uuid)
        for uuid, us in (("GPU-aa", 3.0), ("GPU-bb", 4.0))
    ]
    assert told(launches)[0][1:] == ("GPU-bb", "GPU-bb is 25.0% slower than GPU-aa (cuda:0), in this machine")


def test_of_eight_cards_each_slow_one_is_held_against_the_best() -> None:
    cards = [one for letter in "abcdef" for one in card(letter, 700.0)]
    assert [uuid for _, uuid, _ in told([*cards, *card("g", 600.0), *card("h", 500.0)])] == ["GPU-gg", "GPU-hh"]


def test_other_models_other_conditions_and_failed_runs_are_not_compared() -> None:
    fast = card("a", 700.0)
    assert told([*fast, *card("b", 300.0, name="NVIDIA H100 PCIe")]) == []
    assert told([*fast, *card("b", 300.0, settings={**SETTINGS, "power_limit_w": "350"})]) == []
    assert told([*fast, *card("b", 300.0, status=ProbeStatus.INVALID)]) == []
    assert told([*fast, *card("b", 300.0, contaminated=True)]) == []
    assert told([*card("a", 1.0, device="cpu", uuid=""), *fast]) == []


def test_several_runs_of_a_card_count_by_their_middle() -> None:
    slow_once = [*runs([700, 400, 702], uuid="GPU-aa"), *runs([700, 701, 699], start=9, uuid="GPU-bb")]
    assert told(slow_once) == []


def test_a_card_that_was_hot_while_it_was_slow_is_named_all_the_same() -> None:
    hot = card("b", 500.0, observed={"throttled_share": 0.9})
    assert [uuid for _, uuid, _ in told([*card("a", 700.0), *hot])] == ["GPU-bb"]


def test_people_see_the_skew_of_every_quantity_worst_first() -> None:
    assert skew.lines([*card("a", 690.0), *card("b", 700.0, copy=40.0)]) == [
        "skew over 2 GPUs:",
        "  quantity                     skew  slowest card",
        "  copies.h2d_pinned_256MiB    27.3%  cuda:1 GPU-bb",
        "  matmul.bf16_8192_sustained   1.4%  cuda:0 GPU-aa",
    ]
    assert skew.lines(card("a", 700.0)) == []
