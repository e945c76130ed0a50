"""Scores from pairs of (truth, answer).

Owns: the arithmetic. Refuses: knowing what a cause is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Pairs = Sequence[tuple[str, str]]


def credited(causes: Sequence[str], also: Collection[str], answer: str) -> tuple[str, str]:
    """(truth, answer) for one cause; an id that cannot be told from the label counts as the label."""
    truth = causes[0]
    return truth, truth if answer in also else answer


def confusion(pairs: Pairs) -> dict[str, Counter[str]]:
    """Answers per truth, truths in order of name."""
    table: dict[str, Counter[str]] = {}
    for truth, answer in sorted(pairs):
        table.setdefault(truth, Counter())[answer] += 1
    return table


def f1_by_class(pairs: Pairs, no_answer: Collection[str] = ()) -> dict[str, float]:
    """F1 of every class that occurs as truth or as answer, save answers that claim nothing."""
    classes = ({t for t, _ in pairs} | {a for _, a in pairs}) - set(no_answer)
    scores = {}
    for name in sorted(classes):
        hit = sum(t == a == name for t, a in pairs)
        said, true = sum(a == name for _, a in pairs), sum(t == name for t, _ in pairs)
        scores[name] = 2 * hit / (said + true) if said + true else 0.0
    return scores


def macro_f1(pairs: Pairs, no_answer: Collection[str] = ()) -> float | None:
    """Mean F1 over classes; None without pairs."""
    scores = f1_by_class(pairs, no_answer)
    return fmean(scores.values()) if scores else None


def set_f1(truth: Collection[str], answer: Collection[str]) -> float:
    """F1 of two sets; two empty ones agree."""
    if not truth and not answer:
        return 1.0
    return 2 * len(set(truth) & set(answer)) / (len(set(truth)) + len(set(answer)))


def stable_from(answers: Sequence[tuple[float, str]]) -> float | None:
    """The earliest time from which every later answer is the last one; None without two answers that agree."""
    if len(answers) < 2:
        return None
    last = answers[-1][1]
    since: float | None = None
    for at, answer in reversed(answers):
        if answer != last:
            break
        since = at
    return since if since != answers[-1][0] else None


WORKERS_ALIKE = 1.34
"""Worker counts within this factor are one repair when the advised number itself was not measured."""


def rate_after(
    change: Mapping[str, Any],
    plan: Mapping[str, Any],
    fault_rate: float,
    twins: Iterable[tuple[Mapping[str, Any], float]],
) -> float | None:
    """Measured speed after ``change``; the ailing speed where it changes nothing, None where it was not measured."""
    wanted = {k: v for k, v in change.items() if plan.get(k) != v}
    if not wanted:
        return fault_rate
    near: list[tuple[float, float]] = []
    for other, rate in twins:
        made = {k: v for k, v in other.items() if plan.get(k) != v}
        if made == wanted:
            return rate
        if set(made) == set(wanted) == {"workers"}:
            low, high = sorted((max(1, made["workers"]), max(1, wanted["workers"])))
            if high / low <= WORKERS_ALIKE:
                near.append((high / low, rate))
    return min(near)[1] if near else None


def rule_of_three(runs: int) -> float:
    """Upper 95 % bound on a rate that was zero in so many runs."""
    return min(1.0, 3.0 / runs) if runs else 1.0
