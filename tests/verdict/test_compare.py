"""Two environments: what is found, what is not, and that nothing is found where nothing is. Seeded simulation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest

from gpuwatch.model import ProbeStatus
from gpuwatch.verdict.compare import Options, Pair, compare, order
from gpuwatch.verdict.verdicts import Judgement, Level, Verdict
from verdict.parts import SETTINGS, Machine, result, runs, value


def experiment(seed: int, pairs: int, noise: float, speed: float = 1.0, drift: float = 0.0) -> Judgement:
    """A and B in alternation on a machine; B has ``speed``."""
    machine = Machine(seed, noise, drift, length=2 * pairs)
    found = []
    for sides in order(pairs, seed):
        figures = {side: machine.run(speed if side == "B" else 1.0) for side in sides}
        found.append(pair(figures["A"], figures["B"]))
    return compare(found, Options(seed))


def pair(a: float, b: float) -> Pair:
    return Pair(runs([a])[0], runs([b])[0])


def verdicts(trials: int, *, pairs: int, noise: float, speed: float = 1.0, drift: float = 0.0) -> Counter[Verdict]:
    return Counter(experiment(seed, pairs, noise, speed, drift).rows[0].verdict for seed in range(trials))


@pytest.mark.parametrize(("pairs", "noise"), [(5, 0.01), (5, 0.03), (8, 0.01)])
def test_an_environment_does_not_differ_from_itself_on_a_drifting_machine(pairs: int, noise: float) -> None:
    """Also where the noise is larger than the tolerance, which then keeps no false change away."""
    trials = 300 if pairs == 5 else 100
    found = verdicts(trials, pairs=pairs, noise=noise, drift=0.03)
    assert found[Verdict.FASTER] + found[Verdict.SLOWER] <= trials // 100


def test_many_quantities_do_not_make_a_false_change_likelier() -> None:
    changed = 0
    for seed in range(100):
        machines = [Machine(1000 * seed + number, 0.03, 0.03, length=10) for number in range(10)]
        found = []
        for sides in order(5, seed):
            runs_of = {
                side: result(*(value(f"q{number}", machine.run()) for number, machine in enumerate(machines)))
                for side in sides
            }
            found.append(Pair(runs_of["A"], runs_of["B"]))
        judged = compare(found, Options(seed))
        changed += any(row.verdict in (Verdict.FASTER, Verdict.SLOWER) for row in judged.rows)
    assert changed <= 1


def test_all_of_a_before_all_of_b_would_find_changes_that_are_none() -> None:
    wrong = 0
    for seed in range(100):
        machine = Machine(seed, 0.003, 0.06, length=16)
        before = [machine.run() for _ in range(8)]
        after = [machine.run() for _ in range(8)]
        row = compare([pair(a, b) for a, b in zip(before, after, strict=True)], Options(seed)).rows[0]
        wrong += row.verdict is Verdict.SLOWER
    assert wrong > 50, "or the alternation would be for nothing"


def test_five_percent_are_found_at_one_percent_noise() -> None:
    found = verdicts(200, pairs=5, noise=0.01, speed=0.95, drift=0.03)
    assert found[Verdict.SLOWER] >= 180
    assert found[Verdict.FASTER] == 0
    faster = verdicts(100, pairs=5, noise=0.01, speed=1.06)
    assert faster[Verdict.FASTER] >= 90


def test_a_quiet_machine_says_same_and_a_noisy_one_says_that_it_cannot_tell() -> None:
    assert verdicts(50, pairs=4, noise=0.003)[Verdict.SAME] >= 49
    noisy = verdicts(50, pairs=5, noise=0.03, speed=0.97)
    assert noisy[Verdict.SAME] == 0
    assert noisy[Verdict.AMBIGUOUS] >= 25
    row = experiment(1, 5, 0.03).rows[0]
    assert "pairs would tell a change of 2.0%" in row.reason
    assert row.detectable is not None
    assert row.detectable > 0.02


def test_the_pairs_that_it_asks_for_are_enough() -> None:
    """One quantity of thirty needs more evidence than one alone; the advice must know."""

    def found_with(pairs: int, seed: int) -> Judgement:
        machines = [Machine(100 * seed + number, 0.01, length=2 * pairs) for number in range(30)]
        both = []
        for sides in order(pairs, seed):
            of = {
                side: result(
                    *(value(f"q{n}", machine.run(0.95 if side == "B" else 1.0)) for n, machine in enumerate(machines))
                )
                for side in sides
            }
            both.append(Pair(of["A"], of["B"]))
        return compare(both, Options(seed, max_regression=0.02))

    few = found_with(5, 0).rows
    unclear = [row for row in few if row.verdict is Verdict.AMBIGUOUS]
    assert unclear, "five pairs are few for thirty quantities"
    assert all(row.detectable is not None and row.detectable > 0.05 for row in unclear)
    asked = sorted(int(match[1]) for row in unclear if (match := re.match(r"about (\d+) pairs", row.reason)))
    enough = asked[len(asked) // 2]
    assert enough > 8, "what a single quantity would need at this noise"
    slower = sum(row.verdict is Verdict.SLOWER for row in found_with(enough, 1).rows)
    assert slower >= 27


def test_a_row_that_no_reasonable_number_of_pairs_would_clear_says_so() -> None:
    wild = compare([pair(1.0, 30.0), pair(25.0, 1.0), pair(1.0, 2.0)], Options(same_side=True)).rows[0]
    assert wild.reason == "too noisy here: more than 200 pairs would be needed to tell a change of 2.0%"
    assert wild.noise is not None
    assert wild.noise > 1.0


def test_a_machine_that_drifts_is_told_although_the_verdict_does_not_depend_on_it() -> None:
    machine = Machine(3, 0.002, 0.08, length=16)
    found = []
    for turn, sides in enumerate(order(8, 3)):
        figures = {side: runs([machine.run()], start=100 * turn + 50 * i)[0] for i, side in enumerate(sides)}
        found.append(Pair(figures["A"], figures["B"]))
    judged = compare(found, Options(3))
    assert judged.rows[0].verdict is Verdict.SAME
    (note,) = judged.notes
    assert note.startswith("matmul.bf16_8192_sustained: the machine itself changed by -7.")
    assert experiment(3, 8, 0.002).notes == ()


def test_the_order_is_balanced_random_and_repeatable() -> None:
    plan = order(20, 4)
    assert plan == order(20, 4)
    assert plan != order(20, 5)
    assert all(sorted(plan[i : i + 2]) == ["AB", "BA"] for i in range(0, 20, 2))
    assert len(order(7, 1)) == 7


def steady(a: float, b: float, count: int = 5) -> list[Pair]:
    wobble = (1.0, 1.001, 0.999, 1.0005, 0.9995)
    return [pair(a * wobble[i % 5], b * wobble[(i + 2) % 5]) for i in range(count)]


def test_a_row_says_by_how_much_and_how_sure() -> None:
    (row,) = compare(steady(700.0, 735.0), Options()).rows
    assert (row.verdict, row.level) == (Verdict.FASTER, Level.OK)
    assert row.improvement == pytest.approx(0.05, abs=0.001)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 0.05 < row.high
    assert row.before == pytest.approx(700, abs=1)
    assert row.after == pytest.approx(735, abs=1)


def test_less_time_is_faster() -> None:
    def timed(ms: float) -> list[float]:
        return [ms, ms * 1.001, ms * 0.999]

    found = [
        Pair(
            result(value("enqueue", a, "µs", higher=False), probe="launch"),
            result(value("enqueue", b, "µs", higher=False), probe="launch"),
        )
        for a, b in zip(timed(5.0), timed(8.0), strict=True)
    ]
    (row,) = compare(found, Options()).rows
    assert row.verdict is Verdict.SLOWER
    assert row.level is Level.CRITICAL, "far beyond twice the tolerance"
    assert row.improvement == pytest.approx(5 / 8 - 1, abs=0.01)


def test_differing_settings_are_told_and_versions_do_not_forbid_the_comparison() -> None:
    newer = {**SETTINGS, "torch": "2.10.0"}
    judged = compare(
        [Pair(p.a, runs([p.b.values[0].median], settings=newer)[0]) for p in steady(1, 1)],  # type: ignore[arg-type]
        Options(),
    )
    assert [(c.key, c.before, c.after, c.ring) for c in judged.changes] == [("torch", "2.9.0", "2.10.0", "declared")]
    assert judged.rows[0].verdict is Verdict.SAME


def test_another_precision_is_no_comparison_unless_it_is_meant() -> None:
    other = {**SETTINGS, "matmul_fp32": "tf32"}
    pairs = [Pair(p.a, runs([7.7], settings=other)[0]) for p in steady(1, 1)]  # type: ignore[arg-type]
    judged = compare(pairs, Options())
    assert judged.rows[0].verdict is Verdict.NOT_COMPARABLE
    assert judged.exit_code == 3
    assert "--vary matmul_fp32" in judged.rows[0].reason
    assert compare(pairs, Options(vary=frozenset({"matmul_fp32"}))).rows[0].verdict is Verdict.FASTER


def failing(status: ProbeStatus, message: str = "why") -> Pair:
    return Pair(runs([1.0])[0], result(status=status, message=message))


@pytest.mark.parametrize(
    ("status", "verdict", "code"),
    [
        (ProbeStatus.INVALID, Verdict.INVALID, 3),
        (ProbeStatus.FAILED, Verdict.ERROR, 3),
        (ProbeStatus.BUSY, Verdict.BUSY, 75),
    ],
)
def test_a_side_without_figures_is_never_a_pass(status: ProbeStatus, verdict: Verdict, code: int) -> None:
    judged = compare([failing(status)] * 5, Options())
    assert [row.verdict for row in judged.rows] == [verdict]
    assert judged.rows[0].reason == "side B: why"
    assert judged.exit_code == code


def test_wrong_arithmetic_is_critical_whatever_its_speed() -> None:
    judged = compare([failing(ProbeStatus.INVALID, "bf16: wrong result: error 1e3")] * 3, Options())
    assert (judged.rows[0].verdict, judged.exit_code) == (Verdict.WRONG_RESULT, 2)


def test_what_one_side_cannot_do_is_named_and_is_no_fault() -> None:
    both = value("fp32_8192_sustained", 1.0)
    found = [Pair(result(both), result(both, value("fp8_8192_sustained", 9.0))) for _ in range(3)]
    rows = {row.value: row for row in compare(found, Options()).rows}
    assert rows["fp8_8192_sustained"].verdict is Verdict.NOT_AVAILABLE
    assert rows["fp8_8192_sustained"].reason == "side A does not have it"
    assert compare(found, Options()).exit_code == 0
    nowhere = compare([failing(ProbeStatus.UNAVAILABLE)] * 3, Options())
    assert nowhere.rows[0].verdict is Verdict.NOT_AVAILABLE
    assert nowhere.exit_code == 3, "then nothing was compared at all"


def test_a_spoiled_pair_is_dropped_while_enough_are_left() -> None:
    spoiled = Pair(runs([1.0])[0], result(value("bf16_8192_sustained", 0.2), contaminated=True))
    judged = compare([*steady(1.0, 1.0), spoiled], Options())
    assert [(row.verdict, row.n_after) for row in judged.rows] == [(Verdict.SAME, 5)]
    few = compare([*steady(1.0, 1.0, 2), spoiled, spoiled], Options())
    assert {row.verdict for row in few.rows} == {Verdict.CONTAMINATED, Verdict.AMBIGUOUS}


def test_a_selftest_that_finds_a_change_blames_the_machine() -> None:
    judged = compare(steady(1.0, 0.8), Options(same_side=True))
    assert (judged.rows[0].level, judged.exit_code) == (Level.WARN, 1)
    assert "not steady" in judged.rows[0].reason
    noisy = experiment(1, 5, 0.03)
    assert noisy.exit_code == 1
    again = compare([pair(1.0, 1.1), pair(1.1, 1.0), pair(1.0, 1.05)], Options(same_side=True))
    assert (again.rows[0].verdict, again.exit_code) == (Verdict.AMBIGUOUS, 0)


def test_no_pair_is_no_pass() -> None:
    assert compare([], Options()).exit_code == 3


def test_first_calls_counts_and_the_time_beside_its_rate_are_not_judged() -> None:
    def noise(figures: Sequence[float]) -> list[Pair]:
        def one(figure: float) -> list[object]:
            return [
                value("forward", 1.0),
                value("forward_ms", figure, "ms", higher=False),
                value("forward_first_call_ms", figure, "ms", higher=False, n=1),
                value("knee", figure, "workers", higher=False),
            ]

        return [Pair(result(*one(1.0), probe="conv"), result(*one(f), probe="conv")) for f in figures]  # type: ignore[arg-type]

    assert [row.value for row in compare(noise([5.0, 6.0, 7.0]), Options()).rows] == ["forward"]
