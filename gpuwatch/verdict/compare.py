"""Two environments against each other: fresh processes in alternation, paired statistics.

Owns: the order of the runs, the verdict of each quantity, what a machine can detect. Refuses: processes.

Runs of A and B alternate, AB and BA in random blocks of two pairs, so that a drift of the machine (heat, clocks, a
neighbour) hits both sides alike: with all of A before all of B a drift of 3 % made 29 % false changes in simulation,
in this order 0.1 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median, stdev

from msgspec import Struct

from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict import fingerprint, quantities
from gpuwatch.verdict.check import decide, failure, one_of
from gpuwatch.verdict.statistics import (
    Interval,
    detectable_paired,
    holm,
    paired_interval,
    pairs_needed,
    t_test,
    theil_sen,
)
from gpuwatch.verdict.verdicts import LEVELS, Change, Judgement, Level, Row, Verdict, placed, row

LEAST_PAIRS = 3
MOST_PAIRS = 200
"""Nobody waits for more."""


class Pair(Struct, frozen=True):
    """One run of the same probe on each side, close in time."""

    a: ProbeResult
    b: ProbeResult


class Options(Struct, frozen=True):
    """How two sides are compared."""

    seed: int = 0
    max_regression: float | None = None
    """Changes up to this share count as none; None: the probe's own tolerance."""
    vary: frozenset[str] = frozenset()
    same_side: bool = False
    """Both sides are the same on purpose: then a change is a fault of the machine or of the method."""


def order(pairs: int, seed: int) -> list[str]:
    """ "AB" or "BA" for each pair: blocks of one each in random order, so that never more than two alike follow."""
    chance = random.Random(seed)  # noqa: S311 - reproducible on purpose, nothing secret
    plan: list[str] = []
    while len(plan) < pairs:
        plan += chance.sample(["AB", "BA"], 2)
    return plan[:pairs]


def compare(pairs: Iterable[Pair], options: Options, title: str = "") -> Judgement:
    """Judge B against A. Rows are per quantity; settings that differ come first, for they explain the rows."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.a.probe, []).append(pair)
    rows: list[Row] = []
    candidates: list[_Candidate] = []
    changed: dict[str, Change] = {}
    for group in groups.values():
        good = [pair for pair in group if failure(pair.a)[0] is None and failure(pair.b)[0] is None]
        rows += _failures(group, enough=len(good) >= LEAST_PAIRS)
        if not good:
            continue
        differences = fingerprint.changes([pair.a for pair in good], [pair.b for pair in good])
        changed |= {change.key: change for change in differences}
        hard = [c for c in differences if c.ring == fingerprint.HARD and c.key not in options.vary]
        if hard:
            rows.append(placed(row(good[0].a.probe, "", Verdict.NOT_COMPARABLE, fingerprint.explain(hard)), good[0].a))
            continue
        found, lonely = _candidates(good, options)
        candidates += found
        rows += lonely
    adjusted = holm([candidate.p for candidate in candidates])
    level = one_of(len(candidates))
    rows += [_judged(candidate, p, options, level) for candidate, p in zip(candidates, adjusted, strict=True)]
    return Judgement(title, tuple(rows), tuple(changed.values()), notes=tuple(_drift_notes(candidates, options)))


class _Candidate(Struct, frozen=True):
    result: ProbeResult
    value: ProbeValue
    before: list[float]
    after: list[float]
    differences: list[float]
    """Log ratios in the better direction, one per pair."""
    interval: Interval
    p: float
    drift: float
    """Change of the machine over the whole comparison, as a log ratio, the same on both sides."""


def _failures(group: Sequence[Pair], enough: bool) -> list[Row]:
    """One row for each kind of failure on each side. Runs that a neighbour spoiled are only told when too few are left.

    What one side cannot do at all is NOT_AVAILABLE there, and no fault.
    """
    rows: dict[tuple[Verdict, str], Row] = {}
    for side, runs in (("A", [pair.a for pair in group]), ("B", [pair.b for pair in group])):
        for run in runs:
            verdict, reason = failure(run)
            spoiled = verdict in (Verdict.BUSY, Verdict.CONTAMINATED)
            if verdict is None or (spoiled and enough) or (verdict, side) in rows:
                continue
            level = Level.NOTE if verdict is Verdict.NOT_AVAILABLE and _other_side_ok(group, side) else None
            rows[verdict, side] = placed(row(run.probe, "", verdict, f"side {side}: {reason}", level=level), run)
    return list(rows.values())


def _other_side_ok(group: Sequence[Pair], side: str) -> bool:
    return any((pair.b if side == "A" else pair.a).status is ProbeStatus.OK for pair in group)


def _candidates(good: Sequence[Pair], options: Options) -> tuple[list[_Candidate], list[Row]]:
    """Quantities with enough pairs, and rows for those that one side lacks or that have too few."""
    values = {value.name: value for pair in good for run in (pair.a, pair.b) for value in quantities.judged(run)}
    found: list[_Candidate] = []
    rows: list[Row] = []
    for name, value in values.items():
        before, after = ([_figure(run, name) for run in side] for side in _sides(good))
        both = [(a, b) for a, b in zip(before, after, strict=True) if a > 0 and b > 0]
        run = good[0].a
        if not any(before) or not any(after):
            reason = f"side {'B' if any(before) else 'A'} does not have it"
            rows.append(placed(row(run.probe, name, Verdict.NOT_AVAILABLE, reason, level=Level.NOTE), run))
        elif len(both) < LEAST_PAIRS:
            reason = f"{len(both)} good pair(s) of {LEAST_PAIRS} that are needed"
            rows.append(placed(row(run.probe, name, Verdict.AMBIGUOUS, reason), run))
        else:
            sign = 1.0 if value.higher_is_better else -1.0
            differences = [sign * math.log(b / a) for a, b in both]
            interval = paired_interval(differences, options.seed)
            old, new = [a for a, _b in both], [b for _a, b in both]
            drift = _drift(good, name, sign)
            found.append(_Candidate(run, value, old, new, differences, interval, t_test(differences), drift))
    return found, rows


def _judged(found: _Candidate, p: float, options: Options, alarm: float) -> Row:
    run, value = found.result, found.value
    tolerance = options.max_regression or quantities.tolerance(run.probe, value.name, run.device)
    verdict = decide(found.interval, p, tolerance)
    deviation = stdev(found.differences) / math.sqrt(2)
    reason = ""
    level = LEVELS[verdict]
    if verdict is Verdict.AMBIGUOUS:
        reason = _more_pairs(deviation, tolerance, alarm)
        level = Level.OK if options.same_side else level
    elif options.same_side and verdict in (Verdict.FASTER, Verdict.SLOWER):
        reason, level = "the same environment differs from itself: the machine is not steady", Level.WARN
    elif verdict is Verdict.SLOWER and -found.interval.estimate > 2 * math.log1p(tolerance):
        level = Level.CRITICAL
    return placed(
        Row(
            *(run.probe, value.name, verdict, level),
            unit=value.unit,
            higher_is_better=value.higher_is_better,
            before=geometric_mean(found.before),
            after=geometric_mean(found.after),
            improvement=quantities.share(found.interval.estimate),
            low=quantities.share(found.interval.low),
            high=quantities.share(found.interval.high),
            tolerance=tolerance,
            detectable=max(tolerance, quantities.share(detectable_paired(deviation, len(found.differences), alarm))),
            noise=quantities.share(deviation),
            n_before=len(found.before),
            n_after=len(found.after),
            reason=reason,
        ),
        run,
    )


def _more_pairs(deviation: float, tolerance: float, alarm: float) -> str:
    """What would make it clear."""
    enough = pairs_needed(deviation, math.log1p(tolerance), alarm, MOST_PAIRS)
    if enough is None:
        return f"too noisy here: more than {MOST_PAIRS} pairs would be needed to tell a change of {tolerance:.1%}"
    return f"about {enough} pairs would tell a change of {tolerance:.1%}"


def _drift(pairs: Sequence[Pair], name: str, sign: float) -> float:
    """Theil-Sen slope of both sides' figures over time, each relative to its side's middle, times the duration."""
    times: list[float] = []
    scores: list[float] = []
    for side in _sides(pairs):
        seen = [(run.started_wall_ns / 1e9, math.log(figure)) for run in side if (figure := _figure(run, name)) > 0]
        middle = median(score for _time, score in seen)
        times += [time for time, _score in seen]
        scores += [sign * (score - middle) for _time, score in seen]
    return theil_sen(times, scores) * (max(times) - min(times))


def _drift_notes(candidates: Sequence[_Candidate], options: Options) -> list[str]:
    """One line per quantity whose machine changed by more than what counts as a change."""
    notes = []
    for found in candidates:
        run, value = found.result, found.value
        tolerance = options.max_regression or quantities.tolerance(run.probe, value.name, run.device)
        if abs(found.drift) > math.log1p(tolerance):
            notes.append(
                f"{run.probe}.{value.name}: the machine itself changed by {quantities.share(found.drift):+.1%}"
                " meanwhile; the alternation takes it out"
            )
    return notes


def _sides(pairs: Sequence[Pair]) -> tuple[list[ProbeResult], list[ProbeResult]]:
    return [pair.a for pair in pairs], [pair.b for pair in pairs]


def _figure(run: ProbeResult, name: str) -> float:
    """The run's median, 0.0 where it has none."""
    return next((value.median for value in run.values if value.name == name and not quantities.broken(value)), 0.0)
