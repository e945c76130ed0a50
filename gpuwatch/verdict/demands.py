"""Figures that a policy demands, whether a demand can be meant, and rules that hold for nothing.

Owns: expect_min and expect_max against results. Refuses: baselines.

A demand that no GPU of this kind can meet, or that every broken one meets, is a slip of the unit: NVIDIA's own
diagnostic once shipped 2333 MB/s as the least memory bandwidth of an H200 (it has 4800 GB/s). A demand that nothing was
measured for is MISSING, and one that is met is a row too: a check against a policy alone must be able to pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

import msgspec

from gpuwatch.errors import ConfigError
from gpuwatch.model import ProbeResult, ProbeValue
from gpuwatch.verdict import baseline, expectations, quantities
from gpuwatch.verdict.catalogue import SEVERAL_GPUS
from gpuwatch.verdict.policy import Amount, Policy, Rule
from gpuwatch.verdict.verdicts import Level, Row, Verdict, placed, row

LEAST_SHARE = 0.01
"""Of the published ceiling: a lower demand is a slip."""


def demand_rows(new: Sequence[ProbeResult], good: Iterable[ProbeResult], policy: Policy) -> list[Row]:
    """A row for each demand: MET, BELOW, or MISSING where nothing was measured for it. Raises ConfigError for one of
    another unit or order.

    ``good``: the runs with figures. A probe that was tried and has none has its own row with the reason.
    """
    rows = []
    groups = baseline.grouped(good)
    for probe, name in policy.demanded():
        rule = policy.rule(probe, name)
        for (measured, _device), results in groups.items():
            if measured == probe:
                rows += _judged(results, name, rule)
        rows += _untried(probe, name, new, rule)
    return rows


def idle_rules(policy: Policy, runs: Iterable[ProbeResult]) -> list[str]:
    """One line for each rule that holds for nothing that was measured or is in the baseline: most often a slip of the
    name. Demands are told as MISSING."""
    judged: dict[str, set[str]] = {}
    for run in runs:
        judged.setdefault(run.probe, set()).update(value.name for value in quantities.judged(run))
    lines = []
    for key, rule in policy.rules.items():
        probe, _, name = key.partition(".")
        if not key or rule == Rule() or rule.expect_min or rule.expect_max:
            continue
        if probe not in judged:
            lines.append(f"policy: probe.{key}: no such probe was run, and none is in the baseline")
        elif name and name not in judged[probe]:
            lines.append(f"policy: probe.{key}: {probe} has no such quantity to judge{_nearest(name, judged[probe])}")
    return lines


def _judged(results: Sequence[ProbeResult], name: str, rule: Rule) -> list[Row]:
    """The demands on one quantity of one probe on one device."""
    newest = results[-1]
    values: Mapping[str, ProbeValue] = {value.name: value for run in results for value in run.values}
    if name not in values:
        reason = f"the policy demands it, not measured{_nearest(name, values)}"
        return [placed(row(newest.probe, name, Verdict.MISSING, reason, level=rule.missing), newest)]
    found = median(baseline.medians(results, name) or [0.0])
    demands = ((rule.expect_min, True), (rule.expect_max, False))
    return [_row(newest, values[name], found, amount, least, rule) for amount, least in demands if amount is not None]


def _row(run: ProbeResult, value: ProbeValue, found: float, amount: Amount, least: bool, rule: Rule) -> Row:
    limit = _limit(amount, run, value)
    met = found >= limit if least else found <= limit
    source = f" ({rule.source})" if rule.source else ""
    reason = f"{found:.4g} {value.unit}, {'at least' if least else 'at most'} {amount} demanded{source}"
    one = msgspec.structs.replace(
        # A demand that is met needs no line of its own below the table.
        row(run.probe, value.name, Verdict.MET if met else Verdict.BELOW, "" if met else reason),
        unit=value.unit,
        higher_is_better=value.higher_is_better,
        before=limit,
        after=found,
    )
    return placed(one, run)


def _untried(probe: str, name: str, new: Sequence[ProbeResult], rule: Rule) -> list[Row]:
    """MISSING for a probe that was not even tried: nowhere, or on one of several devices of a kind."""
    reason = "the policy demands it, and its probe was not run"
    tried = [run for run in new if run.probe == probe]
    if not tried:
        if probe in SEVERAL_GPUS and len({run.device_uuid for run in new if run.device_uuid}) == 1:
            # A policy of the whole node holds for one card of it too, which has nobody to exchange anything with.
            return [row(probe, name, Verdict.MISSING, "it needs several GPUs, and one was measured", level=Level.NOTE)]
        return [row(probe, name, Verdict.MISSING, reason, level=rule.missing)]
    if probe in SEVERAL_GPUS:
        return []
    kinds = {run.device_name for run in tried if run.device_uuid}
    devices = {run.device_uuid: run for run in new if run.device_name in kinds and run.device_uuid}
    lacking = devices.keys() - {run.device_uuid for run in tried}
    return [
        placed(row(probe, name, Verdict.MISSING, reason, level=rule.missing), devices[uuid]) for uuid in sorted(lacking)
    ]


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


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
