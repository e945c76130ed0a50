"""Figures that a policy demands, and whether a demand can be meant.

Owns: expect_min and expect_max against a result. Refuses: baselines.

A demand that no GPU of this kind can meet, or that every broken one meets, is a slip of the unit: NVIDIA's own
diagnostic once shipped 2333 MB/s as the least memory bandwidth of an H200 (it has 4800 GB/s).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from gpuwatch.errors import ConfigError
from gpuwatch.model import ProbeResult, ProbeValue
from gpuwatch.verdict import baseline, expectations, quantities
from gpuwatch.verdict.policy import Amount, Policy, Rule
from gpuwatch.verdict.verdicts import Row, Verdict, placed, row

LEAST_SHARE = 0.01
"""Of the published ceiling: a lower demand is a slip."""


def demand_rows(runs: Iterable[ProbeResult], policy: Policy) -> list[Row]:
    """A row BELOW for each demand that is not met. Raises ConfigError for one of another unit or order."""
    rows = []
    groups = baseline.grouped(runs)
    for probe, name in policy.demanded():
        rule = policy.rule(probe, name)
        for (measured, _device), results in groups.items():
            if measured != probe:
                continue
            value = next((value for value in results[-1].values if value.name == name), None)
            if value is None:
                rows.append(
                    placed(row(probe, name, Verdict.MISSING, "the policy demands it, not measured"), results[-1])
                )
                continue
            found = median(baseline.medians(results, name) or [0.0])
            rows += _unmet(results[-1], value, found, rule)
    return rows


def _unmet(run: ProbeResult, value: ProbeValue, found: float, rule: Rule) -> list[Row]:
    rows = []
    source = f" ({rule.source})" if rule.source else ""
    for amount, least in ((rule.expect_min, True), (rule.expect_max, False)):
        if amount is None:
            continue
        limit = _limit(amount, run, value)
        if (found < limit) if least else (found > limit):
            reason = f"{found:.4g} {value.unit}, {'at least' if least else 'at most'} {amount} demanded{source}"
            one = row(run.probe, value.name, Verdict.BELOW, reason)
            one = msgspec.structs.replace(
                *(one,),
                unit=value.unit,
                higher_is_better=value.higher_is_better,
                before=limit,
                after=found,
            )
            rows.append(placed(one, run))
    return rows


def _limit(amount: Amount, run: ProbeResult, value: ProbeValue) -> float:
    """The demand in the value's own unit."""
    where = f"policy: probe.{run.probe}.{value.name}"
    limit = quantities.converted(amount.value, amount.unit, value.unit)
    if limit is None:
        raise ConfigError(f"{where}: {amount} is no {value.unit}, which this quantity has")
    known = expectations.expectation(run.probe, value.name, run.device_name)
    ceiling = quantities.converted(known.ceiling, known.unit, value.unit) if known and known.ceiling else None
    if ceiling and value.higher_is_better and not LEAST_SHARE * ceiling <= limit <= ceiling:
        raise ConfigError(
            f"{where}: {amount} cannot be meant: {run.device_name} reaches {ceiling:.4g} {value.unit} at most;"
            " check the unit"
        )
    return limit
