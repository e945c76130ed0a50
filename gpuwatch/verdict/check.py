"""New results against a baseline and a policy.

Owns: the verdict of each quantity. Refuses: measuring, text, exit codes (verdicts.py adds them up).

Effects are log ratios of run medians in the better direction. The interval of a difference includes the noise of the
new runs (a prediction interval); p-values are adjusted (Holm) over all rows, so that fifty quantities do not make
twice as many false alarms as twenty-five.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec
from msgspec import Struct

from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict import baseline, fingerprint, missing, quantities
from gpuwatch.verdict.demands import demand_rows, idle_rules
from gpuwatch.verdict.policy import Policy
from gpuwatch.verdict.statistics import Difference, Interval, detectable_against, holm, prediction
from gpuwatch.verdict.verdicts import Change, Judgement, Level, Row, Verdict, placed, row

ALARM = 0.01
"""One false change in a hundred checks or comparisons at most. At 0.05 it was six in a hundred in simulation, where the
noise is larger than the tolerance, which otherwise keeps most of them away."""
CLASS_SPREAD = 0.05
"""GPUs of one node differ by 5 % and more (stas00): this much is added when the baseline is another unit's."""
CLOCK_EXPLAINS = 0.7
"""Of a loss: from this share on it is named as the clock's."""
_WRONG = re.compile(
    r"wrong result|different results|are wrong|arrived damaged|differ from the pattern|was wrong after"
    r"|not what the dataset holds|not what was written|computes wrong|loss is not finite|did not change the weights"
)


class Settings(Struct, frozen=True):
    """How strict."""

    policy: Policy = Policy()
    vary: frozenset[str] = frozenset()
    """Settings that may differ from the baseline's."""
    strict: bool = False
    probes: frozenset[str] = frozenset()
    """Judge only these; all when empty."""
    whole_host: bool = False
    """The baseline is of this very host and every device was to be measured: one that is not there is lost."""


class _Candidate(Struct, frozen=True):
    """A row without its verdict, and what the verdict rests on."""

    row: Row
    effect: Difference = Difference(Interval(0.0, 0.0, 0.0), 1.0, 0.0)
    drift: str = ""
    clock: str = ""
    runs: int = 0
    """Accepted ones in the baseline: those that are trimmed say how noisy it is, and do not make it provisional."""


def decide(interval: Interval, p: float, tolerance: float) -> Verdict:
    """The verdict of one effect. ``p`` is adjusted; ``tolerance`` is a share, such as 0.02."""
    limit = math.log1p(tolerance)
    if p < ALARM and abs(interval.estimate) > limit:
        return Verdict.FASTER if interval.estimate > 0 else Verdict.SLOWER
    return Verdict.SAME if interval.inside(limit) else Verdict.AMBIGUOUS


def one_of(count: int) -> float:
    """The p-value that the clearest of ``count`` quantities needs (Holm): what a design can detect depends on it."""
    return ALARM / max(1, count)


def failures(runs: Sequence[ProbeResult]) -> list[Row]:
    """One row for each kind of failure among the runs of one probe on one device."""
    rows: dict[Verdict, Row] = {}
    for run in runs:
        verdict, reason = failure(run)
        if verdict is not None and verdict not in rows:
            rows[verdict] = placed(row(run.probe, "", verdict, reason), run)
    return list(rows.values())


def failure(run: ProbeResult) -> tuple[Verdict | None, str]:
    """Why a run has no figures to judge; None when it has."""
    match run.status:
        case ProbeStatus.BUSY:
            return Verdict.CONTAMINATED if run.contaminated else Verdict.BUSY, run.message
        case ProbeStatus.FAILED:
            return Verdict.ERROR, run.message
        case ProbeStatus.UNAVAILABLE:
            return Verdict.NOT_AVAILABLE, run.message
        case ProbeStatus.INVALID:
            return Verdict.WRONG_RESULT if wrong_result(run) else Verdict.INVALID, run.message
    broken = [value.name for value in run.values if quantities.broken(value) and value.unit not in quantities.COUNTS]
    if broken:
        return Verdict.INVALID, f"{broken[0]} is zero, negative or not finite"
    if not run.values:
        return Verdict.ERROR, "nothing was measured"
    if run.contaminated:
        return Verdict.CONTAMINATED, "somebody else was on the GPU, or the run was forced"
    return None, ""


def wrong_result(run: ProbeResult) -> bool:
    """Whether the probe says that the arithmetic was wrong, rather than the clock; the words are the probes'."""
    return run.status is ProbeStatus.INVALID and _WRONG.search(run.message) is not None


def check(base: Iterable[ProbeResult], new: Iterable[ProbeResult], settings: Settings, title: str = "") -> Judgement:
    """Judge ``new`` against ``base``. What the baseline has for these devices and is not there now is MISSING."""
    known, _refused = baseline.accepted(base)
    new, policy = list(new), settings.policy
    notes: list[str] = []
    if settings.probes:
        known = [run for run in known if run.probe in settings.probes]
        notes, policy = policy.without(settings.probes), policy.only(settings.probes)
    candidates: list[_Candidate] = []
    rows: list[Row] = []
    differences: dict[tuple[str, str, str], Change] = {}
    measured = baseline.grouped(run for run in new if not settings.probes or run.probe in settings.probes)
    for runs in measured.values():
        rows += failures(runs)
        good = [run for run in runs if failure(run)[0] is None]
        if not good:
            continue
        side, spread = _reference(known, good[0])
        if not side:
            rows += _unknown(known, good)
            continue
        changed = fingerprint.changes(side, good)
        differences |= {(change.key, change.before, change.after): change for change in changed}
        obstacles = fingerprint.obstacles(changed, settings.vary)
        if obstacles:
            rows.append(placed(row(good[0].probe, "", Verdict.NOT_COMPARABLE, fingerprint.explain(obstacles)), good[0]))
            continue
        for value in _values(side):
            candidates.append(_candidate(side, good, value, policy, spread))
    p_values = holm([candidate.effect.p for candidate in candidates])
    level = one_of(len(candidates))
    rows += [_verdict(candidate, p, policy, level) for candidate, p in zip(candidates, p_values, strict=True)]
    rows += missing.rows(known, new, policy, settings.whole_host)
    tried = [run for runs in measured.values() for run in runs]
    rows += demand_rows(new, [run for run in tried if failure(run)[0] is None], policy)
    rows += missing.unknown(settings.probes - {run.probe for run in new} - {one.probe for one in rows})
    notes += idle_rules(policy, [*known, *tried])
    return Judgement(title, tuple(rows), tuple(differences.values()), tuple(notes), settings.strict)


def _reference(known: Sequence[ProbeResult], run: ProbeResult) -> tuple[list[ProbeResult], float]:
    """The baseline's runs on this very device, else on others of its kind with more spread allowed."""
    same = [old for old in known if baseline.place(old) == baseline.place(run)]
    if same:
        return same, 0.0
    kind = [old for old in known if (old.probe, old.device_name) == (run.probe, run.device_name)]
    return kind, CLASS_SPREAD


def _unknown(known: Sequence[ProbeResult], runs: Sequence[ProbeResult]) -> list[Row]:
    """A probe without a baseline on this kind of device."""
    others = sorted({old.device_name for old in known if old.probe == runs[0].probe})
    if others:
        reason = f"the baseline is of {', '.join(others)}, this is {runs[0].device_name}"
        return [placed(row(runs[0].probe, "", Verdict.NOT_COMPARABLE, reason), runs[0])]
    return [placed(row(runs[0].probe, "", Verdict.NEW, "not in the baseline"), runs[0])]


def _values(side: Sequence[ProbeResult]) -> list[ProbeValue]:
    """The quantities of the baseline's newest run."""
    return list(quantities.judged(side[-1]))


def _candidate(
    side: Sequence[ProbeResult], good: Sequence[ProbeResult], value: ProbeValue, policy: Policy, spread: float
) -> _Candidate:
    run = good[0]
    rule = policy.rule(run.probe, value.name)
    tolerance = (rule.max_regression or quantities.tolerance(run.probe, value.name, run.device)) + spread

    def scores(runs: Iterable[ProbeResult]) -> list[float]:
        return [quantities.score(figure, value.higher_is_better) for figure in baseline.medians(runs, value.name)]

    history, now = scores(side), scores(good)
    old = baseline.trimmed(history, math.log1p(tolerance))
    one = placed(
        Row(
            *(run.probe, value.name, Verdict.MISSING, Level.CRITICAL),
            unit=value.unit,
            higher_is_better=value.higher_is_better,
            before=quantities.figure_of(fmean(old), value.higher_is_better),
            tolerance=tolerance,
            n_before=len(old),
            n_after=len(now),
        ),
        run,
    )
    units = {other.unit for result in good for other in result.values if other.name == value.name}
    if not now or units != {value.unit}:
        reason = (
            f"unit {', '.join(sorted(units))} instead of {value.unit}" if now else "in the baseline, not measured now"
        )
        verdict, level = (Verdict.INVALID, Level.UNKNOWN) if now else (Verdict.MISSING, rule.missing or Level.CRITICAL)
        return _Candidate(msgspec.structs.replace(one, verdict=verdict, level=level, reason=reason))
    difference = prediction(old, now, assumed=math.log1p(tolerance) / 2)
    one = msgspec.structs.replace(
        one,
        after=quantities.figure_of(fmean(now), value.higher_is_better),
        improvement=quantities.share(difference.interval.estimate),
        low=quantities.share(difference.interval.low),
        high=quantities.share(difference.interval.high),
        noise=quantities.share(difference.deviation),
    )
    drift = _drift(history, now, math.log1p(tolerance))
    clock = _clock_reason(side, good, difference.interval.estimate)
    return _Candidate(one, difference, drift, clock, len(history))


def _verdict(found: _Candidate, p: float, policy: Policy, alarm: float) -> Row:
    one, effect = found.row, found.effect.interval
    if one.after is None:
        return one
    assert one.tolerance is not None
    tolerance = one.tolerance
    detectable = detectable_against(found.effect.deviation, one.n_before, one.n_after, alarm)
    rule = policy.rule(one.probe, one.value)
    provisional = found.runs < baseline.ENOUGH_RUNS
    verdict = decide(effect, p, tolerance)
    reason, level = "", Level.OK
    if verdict is Verdict.SLOWER:
        gross = -effect.estimate > 2 * math.log1p(tolerance) and not provisional
        reason, level = found.clock, rule.slower or (Level.CRITICAL if gross else Level.WARN)
    elif found.drift:
        verdict, reason, level = Verdict.SLOWER, found.drift, rule.slower or Level.WARN
    elif verdict is Verdict.AMBIGUOUS:
        reason, level = _more_runs(found.effect, one, alarm), rule.ambiguous or Level.WARN
    if provisional and level is not Level.OK:
        reason = "; ".join(filter(None, (reason, f"the baseline is provisional, with {found.runs} run(s)")))
    least = quantities.share(detectable) if math.isfinite(detectable) else None
    return msgspec.structs.replace(one, verdict=verdict, level=level, reason=reason, detectable=least)


def _more_runs(difference: Difference, one: Row, alarm: float) -> str:
    """What would make it clear."""
    assert one.tolerance is not None
    limit = math.log1p(one.tolerance)
    for runs in range(one.n_after + 1, 50):
        if detectable_against(difference.deviation, max(one.n_before, 2), runs, alarm) <= limit:
            return f"{runs} runs would tell a change of {one.tolerance:.1%}"
    return f"too noisy here to tell a change of {one.tolerance:.1%}; a larger baseline may"


def _drift(history: Sequence[float], now: Sequence[float], limit: float) -> str:
    """Whether the new runs lie below the very first accepted ones, once the history is longer than those."""
    if len(history) < 2 * baseline.KEEP_FIRST:
        return ""
    first = prediction(history[: baseline.KEEP_FIRST], now, assumed=limit / 2)
    if first.p < ALARM and first.interval.estimate < -limit:
        return f"{-quantities.share(first.interval.estimate):.1%} below the first accepted runs: a slow drift"
    return ""


def _clock_reason(side: Iterable[ProbeResult], good: Iterable[ProbeResult], effect: float) -> str:
    """Whether a loss is the SM clock's: then it is power or heat, and not the software."""

    def clock(runs: Iterable[ProbeResult]) -> float:
        seen = [run.observed["sm_clock_mhz"] for run in runs if run.observed.get("sm_clock_mhz", 0.0) > 0]
        return fmean(seen) if seen else 0.0

    before, after = clock(side), clock(good)
    if before <= 0 or after <= 0 or effect >= 0 or math.log(after / before) > CLOCK_EXPLAINS * effect:
        return ""
    return f"the SM clock was {1 - after / before:.1%} lower ({after:.0f} MHz): power or heat, not the code"
