"""The same probes on the GPUs of one machine: which card is slower than its neighbours.

Owns: the skew of each quantity, and a row for each slower card. Refuses: baselines (check.py), many nodes and which
of them is the odd one (outliers.py).

Two cards cannot say which of them is as it should be, so each is held against the best, and a slower one is a warning
and never critical. Healthy GPUs of one node differ by up to 5 %: less is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from gpuwatch.model import ProbeResult, ProbeValue
from gpuwatch.verdict import baseline, fingerprint, quantities
from gpuwatch.verdict.check import failure
from gpuwatch.verdict.outliers import SPREAD
from gpuwatch.verdict.verdicts import Row, Verdict, placed, row


class Skew(Struct, frozen=True):
    """One quantity on several GPUs of one kind."""

    probe: str
    value: ProbeValue
    figures: tuple[tuple[ProbeResult, float], ...]
    """The newest run of each GPU and its median over runs, best first."""

    @property
    def share(self) -> float:
        """How much worse the last is than the first: 0.2 is 20 %."""
        return self.behind(self.figures[-1][1])

    def behind(self, figure: float) -> float:
        """How much worse a figure is than the best one."""
        best, higher = self.figures[0][1], self.value.higher_is_better
        return -quantities.share(quantities.score(figure, higher) - quantities.score(best, higher))


def skews(results: Iterable[ProbeResult]) -> list[Skew]:
    """Of every judged quantity that two or more GPUs of one kind have measured alike, the largest skew first."""
    kinds: dict[tuple[str, str, str], list[list[ProbeResult]]] = {}
    for runs in baseline.grouped(results).values():
        # Unlike for a baseline, a run that was throttled counts: it is what makes a card slower.
        good = [run for run in runs if failure(run)[0] is None]
        if good and not good[-1].device.startswith("cpu"):
            digest = fingerprint.fingerprint(good[-1:]).digests[fingerprint.HARD]
            kinds.setdefault((good[-1].probe, good[-1].device_name, digest), []).append(good)
    found = []
    for (probe, _name, _hard), gpus in kinds.items():
        values = {value.name: value for runs in gpus for value in quantities.judged(runs[-1])}
        for name, value in values.items():
            figures = [(runs[-1], median(ms)) for runs in gpus if (ms := baseline.medians(runs, name))]
            figures.sort(key=lambda one: -quantities.score(one[1], value.higher_is_better))
            if len(figures) > 1:
                found.append(Skew(probe, value, tuple(figures)))
    return sorted(found, key=lambda one: -one.share)


def slower(results: Iterable[ProbeResult]) -> list[Row]:
    """A row for each card and quantity that is further behind the best than healthy cards are."""
    rows = []
    for skew in skews(results):
        best, figure = skew.figures[0]
        for run, found in skew.figures[1:]:
            limit = max(SPREAD, quantities.tolerance(skew.probe, skew.value.name, run.device))
            behind = skew.behind(found)
            if abs(math.log(found / figure)) <= math.log1p(limit):
                continue
            reason = f"{run.device_uuid or run.device} is {behind:.1%} slower than {best.device_uuid or best.device}"
            one = row(skew.probe, skew.value.name, Verdict.SLOWER, f"{reason} ({best.device}), in this machine")
            rows.append(placed(_with_figures(one, skew.value, figure, found, -behind, limit), run))
    return rows


def _with_figures(one: Row, value: ProbeValue, best: float, found: float, improvement: float, limit: float) -> Row:
    return replace(
        one, unit=value.unit, higher_is_better=value.higher_is_better, before=best, after=found,
        improvement=improvement, tolerance=limit,
    )  # fmt: skip


def lines(results: Iterable[ProbeResult]) -> list[str]:
    """For people: the skew of each quantity, largest first, with the slowest card by UUID. Empty for one GPU."""
    found = skews(results)
    if not found:
        return []
    body = [("quantity", "skew", "slowest card")]
    for skew in found:
        run = skew.figures[-1][0]
        body.append((f"{skew.probe}.{skew.value.name}", f"{skew.share:.1%}", f"{run.device} {run.device_uuid}"))
    widths = [max(len(line[column]) for line in body) for column in range(2)]
    head = f"skew over {max(len(skew.figures) for skew in found)} GPUs:"
    return [head, *(f"  {name:<{widths[0]}}  {share:>{widths[1]}}  {card}" for name, share, card in body)]
