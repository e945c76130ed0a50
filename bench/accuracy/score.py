"""From labelled recordings to scores.

Owns: diagnosing each recording (whole, growing, without stacks), and gathering what the report prints.
Refuses: layout. Everything is a function of the bytes, so that it says the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec
from msgspec import Struct

from bench.accuracy import metrics, peers
from bench.accuracy.labels import FAMILY_OF, HEALTHY, UNATTRIBUTED, Label, Run, Standing, label
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import Confidence, Diagnosis, Observation, ProcessTick, Role, Severity, StackSample
from gpuwatch.model import Standing as FindingStanding
from gpuwatch.replay.player import instant_ns, load
from probes.faults.cases import advised_workers, remedy, table

CLAIM_NOTHING = (UNATTRIBUTED,)
FIRST_S, STEP_S = 2.0, 1.0


class Scored(Struct, frozen=True):
    """One recording and what was said of it."""

    run: Run
    label: Label
    answer: str
    named: tuple[str, ...]
    """Causes of all findings from warning up, symptoms left out."""
    alarm: bool
    blind_answer: str
    """Without stack samples."""
    answers: tuple[tuple[float, str], ...]
    """By growing prefixes of the recording, in seconds."""
    advised_rate: float | None
    best_rate: float | None
    bound: float
    """The most that following the first advice can gain, as the verdict says."""
    advised_workers: int
    """The worker count that the first advice names; 0 when it names none."""
    confidence: str
    """Of the verdict; "" where it was not written down."""
    peer_answers: dict[str, peers.Answer]

    @property
    def truth(self) -> str:
        """The label, or healthy."""
        return self.run.causes[0] if self.label.standing is not Standing.QUIET and self.run.causes else HEALTHY

    @property
    def right(self) -> bool:
        """Whether the verdict is the label, or cannot be told from it."""
        return self.answer == self.truth or (self.label.standing is Standing.CAUSE and self.answer in self.run.also)


SURE = Confidence.HIGH.value


def answer_of(diagnosis: Diagnosis, standing: Standing) -> str:
    """The verdict as a class. Where nothing is wrong, a verdict that is only information is no alarm: healthy."""
    verdict = diagnosis.verdict
    quiet = standing is Standing.QUIET and verdict.severity is Severity.INFO
    return HEALTHY if quiet and verdict.cause not in (UNATTRIBUTED, "warming_up") else verdict.cause


def named_in(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What a user is told to act upon."""
    return tuple(
        f.cause
        for f in diagnosis.findings
        if f.severity is not Severity.INFO and f.cause != UNATTRIBUTED and f.standing is not FindingStanding.SYMPTOM
    )


def subject(run: Run, observations: Sequence[Observation]) -> int:
    """Pid of the job that was recorded."""
    if run.pid:
        return run.pid
    stacked = (o.root_pid for o in observations if isinstance(o, StackSample))
    mains = (i.pid for o in observations if isinstance(o, ProcessTick) for i in o.infos if i.role is Role.MAIN)
    return next(stacked, next(mains, 0))


def score(run: Run) -> Scored:
    """Diagnose one recording in all ways. Raises RecordingError, InputNotFoundError."""
    observations = load(Path(run.folder) / run.file)
    pid = subject(run, observations)
    diagnosis = diagnose(observations, pid)
    named = named_in(diagnosis)
    blind = diagnose([o for o in observations if not isinstance(o, StackSample)], pid)
    read = peers.readings(observations, pid)
    workers = advised_workers(diagnosis.verdict.remedy)
    advised, best = advice(run, diagnosis.verdict.cause, workers)
    found = label(run)
    return Scored(
        run=run,
        label=found,
        answer=answer_of(diagnosis, found.standing),
        named=named,
        alarm=bool(named),
        blind_answer=answer_of(blind, found.standing),
        answers=tuple(growing(observations, pid, found.standing)),
        advised_rate=advised,
        best_rate=best,
        bound=diagnosis.verdict.gain_max,
        advised_workers=workers,
        confidence=diagnosis.verdict.confidence.value,
        peer_answers={name: rule(read) for name, rule in peers.PEERS.items()},
    )


def growing(observations: Sequence[Observation], pid: int, standing: Standing) -> list[tuple[float, str]]:
    """The verdict after 2, 3, … seconds of the recording."""
    times = [(instant_ns(o), o) for o in observations]
    focused = [at for at, o in times if at is not None and isinstance(o, StackSample)]
    known = [at for at, _ in times if at is not None]
    if not known:
        return []
    begin, end = min(focused, default=min(known)), max(known)
    found = []
    at_s = FIRST_S
    while True:
        until = min(end, begin + int(at_s * 1e9))
        diagnosis = diagnose([o for at, o in times if at is None or at <= until], pid)
        found.append((round((until - begin) / 1e9, 1), answer_of(diagnosis, standing)))
        if until >= end:
            return found
        at_s += STEP_S


def at_first_sight(scored: Scored) -> Scored | None:
    """The same recording with what was said of it before it could shape a rule; None when that was not written down."""
    first = scored.run.first
    if first is None:
        return None
    advised, _ = advice(scored.run, first.answer, first.workers)
    return msgspec.structs.replace(
        scored,
        answer=first.answer,
        named=first.named,
        alarm=bool(first.named),
        advised_rate=advised,
        answers=first.by_seconds,
        confidence=first.confidence,
        bound=scored.bound if first.bound is None else first.bound,
    )


def as_first_measured(scored: Scored) -> Scored:
    """The same with the label that its first measurement gave it, where that was set apart later."""
    return msgspec.structs.replace(scored, label=label(scored.run, as_first_measured=True))


def advice(run: Run, cause: str, workers: int) -> tuple[float | None, float | None]:
    """(speed after following the first advice, speed after the best single repair), where they were measured."""
    if run.fault is None:
        return None, None
    twins = [(t.change, rate) for t in run.twins if (rate := run.speed(t)) is not None and "+" not in t.name]
    if not twins:
        return None, None
    change = remedy(cause, workers, run.cpus)
    after = metrics.rate_after(change, run.plan, run.fault.rate, twins)
    return after, max(run.fault.rate, *(rate for _, rate in twins))


def leading_cause(run: Run) -> str | None:
    """Of several causes the one whose repair alone gained most; None when not all repairs were measured."""
    case = table().get(run.case)
    gains = {t.name: g for t in run.twins if t.role == "own" and (g := run.gain(t)) is not None}
    if case is None or not all(name in gains for name in case.fixes):
        return None
    return max(zip(case.fixes, run.causes, strict=True), key=lambda pair: gains[pair[0]])[1]


class Summary(Struct, frozen=True):
    """The scores of one half of the draws; None where nothing was there to score."""

    runs: int
    causes: int
    kinds: int
    """Different causes among them."""
    look_alikes: int
    """Of the jobs with one cause: those for which repairs of something else were tried."""
    quiet: int
    accuracy: float | None
    macro_f1: float | None
    family_f1: float | None
    blind_f1: float | None
    alarms: tuple[str, ...]
    stable_median_s: float | None
    stable_worst_s: float | None
    never_stable: int
    """Of those whose verdicts by seconds are known."""
    sure: int
    """Verdicts with high confidence."""
    sure_wrong: int
    confident: int
    """Verdicts of which the confidence is known."""
    efficiency: float | None
    efficiency_runs: int
    advice_unknown: int
    several_f1: float | None
    slowdown: float | None
    """Median loss of speed while being recorded, as a share."""
    slowdown_runs: int
    bounds: tuple[float, ...]
    """Of right verdicts: the bound on the gain over the gain of the label's own repair."""
    peer_right: dict[str, float]
    peer_alarms: dict[str, int]


def pairs(scored: Sequence[Scored], *, blind: bool = False) -> list[tuple[str, str]]:
    """(truth, answer) of every scored run with at most one cause."""
    found = []
    for s in scored:
        answer = s.blind_answer if blind else s.answer
        if s.label.standing is Standing.CAUSE:
            found.append(metrics.credited(s.run.causes, s.run.also, answer))
        elif s.label.standing is Standing.QUIET:
            found.append((HEALTHY, answer))
    return found


def summary(scored: Sequence[Scored]) -> Summary:
    """Scores of these runs; those whose label does not count are left out."""
    single = [s for s in scored if s.label.standing in (Standing.CAUSE, Standing.QUIET)]
    causes = [s for s in single if s.label.standing is Standing.CAUSE]
    quiet = [s for s in single if s.label.standing is Standing.QUIET]
    several = [s for s in scored if s.label.standing is Standing.SEVERAL]
    by_cause = pairs(single)
    by_family = [(FAMILY_OF.get(t, t), FAMILY_OF.get(a, a)) for t, a in by_cause]
    right = [s for s in single if s.right]
    stable = [at for s in right if (at := metrics.stable_from(s.answers)) is not None]
    efficient = [min(1.0, s.advised_rate / s.best_rate) for s in causes if s.advised_rate is not None and s.best_rate]
    watched = [f for s in scored if (f := s.run.fault) is not None and f.watched is not None and f.rate > 0]
    slowdowns = [1.0 - f.watched / f.rate for f in watched if f.watched is not None]
    return Summary(
        runs=len(single) + len(several),
        causes=len(causes),
        kinds=len({s.truth for s in causes}),
        look_alikes=sum(any(t.role == "look_alike" and t.rate is not None for t in s.run.twins) for s in causes),
        quiet=len(quiet),
        accuracy=fmean(s.right for s in single) if single else None,
        macro_f1=metrics.macro_f1(by_cause, CLAIM_NOTHING),
        family_f1=metrics.macro_f1(by_family, CLAIM_NOTHING),
        blind_f1=metrics.macro_f1(pairs(single, blind=True), CLAIM_NOTHING),
        alarms=tuple(f"{s.run.case}: {', '.join(s.named)}" for s in quiet if s.alarm),
        stable_median_s=median(stable) if stable else None,
        stable_worst_s=max(stable) if stable else None,
        never_stable=sum(bool(s.answers) for s in right) - len(stable),
        sure=sum(s.confidence == SURE for s in single),
        sure_wrong=sum(s.confidence == SURE and not s.right for s in single),
        confident=sum(bool(s.confidence) for s in single),
        efficiency=fmean(efficient) if efficient else None,
        efficiency_runs=len(efficient),
        advice_unknown=sum(s.advised_rate is None and s.best_rate is not None for s in causes),
        slowdown=median(slowdowns) if slowdowns else None,
        slowdown_runs=len(slowdowns),
        bounds=tuple(s.bound / gain for s in causes if s.answer == s.truth and (gain := _finite(s.label.gain))),
        several_f1=fmean(metrics.set_f1(s.run.causes, s.named) for s in several) if several else None,
        peer_right={
            name: fmean(_may_be(s, name) for s in single) if single else 0.0 for name in peers.PEERS
        },
        peer_alarms={
            name: sum(bool(s.peer_answers[name].may_mean - {HEALTHY}) for s in quiet) for name in peers.PEERS
        },
    )  # fmt: skip


def _finite(gain: float | None) -> float:
    """0 where nothing was measured, or the job stood still."""
    return gain if gain is not None and gain != float("inf") else 0.0


def _may_be(scored: Scored, peer: str) -> bool:
    means = scored.peer_answers[peer].may_mean
    return scored.truth in means or (scored.label.standing is Standing.CAUSE and bool(means & set(scored.run.also)))
