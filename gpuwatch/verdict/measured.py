"""Results that are compared with no other time, as rows: what ``probe run`` reports.

Owns: one row per figure, the published figure beside it, and cards that are slower than their neighbours. Refuses:
baselines.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict import baseline, expectations, quantities
from gpuwatch.verdict.check import failure, failures
from gpuwatch.verdict.skew import slower
from gpuwatch.verdict.verdicts import Judgement, Level, Row, Verdict, placed


def measured(results: Iterable[ProbeResult], strict: bool = False) -> Judgement:
    """A row for every judged figure of every good run, and one for each kind of failure.

    A run that was forced beside others is measured: the user asked for it. The row says so.
    """
    rows: list[Row] = []
    results = list(results)
    for runs in baseline.grouped(results).values():
        usable = [
            run for run in runs if failure(run)[0] in (None, Verdict.CONTAMINATED) and run.status is ProbeStatus.OK
        ]
        rows += failures([run for run in runs if run not in usable])
        rows += [placed(_row(run, value), run) for run in usable for value in quantities.judged(run)]
    return Judgement("probe run", (*rows, *slower(results)), strict=strict)


def _row(run: ProbeResult, value: ProbeValue) -> Row:
    told = [expectations.published(run.probe, value.name, run.device_name, value.median)]
    if run.contaminated:
        told.insert(0, "measured beside others")
    return Row(
        *(run.probe, value.name, Verdict.MEASURED, Level.OK),
        unit=value.unit,
        higher_is_better=value.higher_is_better,
        after=value.median,
        n_after=1,
        reason="; ".join(filter(None, told)),
    )
