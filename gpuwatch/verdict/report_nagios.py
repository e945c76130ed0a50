"""A judgement as the one line of a Nagios plugin, with performance data.

Owns: the line, and the exit code in the plugin's range 0 to 3. Refuses: deciding. A probe that was skipped because
somebody uses the GPU is UNKNOWN here: a monitor must not take "not measured" for "well".
"""

from __future__ import annotations

import re

from gpuwatch.verdict.report_text import figure, percent
from gpuwatch.verdict.verdicts import EXIT_CODES, NAGIOS, Judgement, Row, Verdict


def exit_code(code: int) -> int:
    """A plugin's exit code: 0, 1, 2, and 3 for everything else."""
    return code if code in NAGIOS else 3


def report(judgement: Judgement, code: int | None = None, reason: str = "") -> str:
    """ "GPUWATCH PROBE CRITICAL - matmul.bf16 cuda:0 -7.1 % … | 'matmul.bf16_cuda:0'=735;…".

    ``code``: the exit code, where it is not the judgement's own, and ``reason`` for it; the word is that of the code.
    """
    code = exit_code(judgement.exit_code if code is None else code)
    word = NAGIOS.get(code, "UNKNOWN")
    # Of the level that makes the code: below a warning that is let pass may be a probe that could not run.
    rows = [row for row in judgement.rows if exit_code(EXIT_CODES.get(row.level, 0)) == code]
    worst = sorted(rows, key=lambda row: row.improvement or 0.0)
    said = "; ".join(_said(row) for row in worst[:3]) if code else ""
    text = said or reason or judgement.exit_reason
    told: dict[str, str] = {}
    for row in judgement.rows:
        if row.after is not None:
            told.setdefault(_label(row), _data(row, row.after))
    data = " ".join(f"'{label}'={figures}" for label, figures in told.items())
    line = f"GPUWATCH PROBE {word} - {_clean(text)}"
    return f"{line} | {data}" if data else line


def unable(reason: str) -> str:
    """The line of a check that could not even begin: no baseline, a wrong option."""
    return f"GPUWATCH PROBE UNKNOWN - {_clean(reason)}"


def _said(row: Row) -> str:
    change = ""
    if row.improvement is not None:
        change = f" {percent(row.improvement)}"
        if row.low is not None and row.high is not None:
            change += f" (95 % {percent(row.low)} … {percent(row.high)})"
    reason = "" if change else f": {row.reason}" if row.reason else ""
    return f"{row.name} {row.device} {row.verdict.value}{change}{reason}".strip()


def _label(row: Row) -> str:
    return re.sub(r"['=\s|]", "_", f"{row.name}_{row.device}" if row.device else row.name)


def _data(row: Row, after: float) -> str:
    """value[unit];warn;crit: the limits are those at which a change counts, and twice that; of a demand its figure."""
    warn = critical = ""
    if row.before is not None and row.tolerance is not None:
        once, twice = 1 + row.tolerance, (1 + row.tolerance) ** 2
        limits = (
            (row.before / once, row.before / twice) if row.higher_is_better else (row.before * once, row.before * twice)
        )
        # "10:" means: alert below 10. A plain "10" means: alert above 10.
        warn, critical = (f"{figure(limit)}{':' if row.higher_is_better else ''}" for limit in limits)
    elif row.before is not None and row.verdict in (Verdict.MET, Verdict.BELOW):
        critical = f"{figure(row.before)}{':' if row.higher_is_better else ''}"
    unit = {"µs": "us", "ms": "ms", "s": "s"}.get(row.unit, "")
    return f"{figure(after)}{unit};{warn};{critical}"


def _clean(text: str) -> str:
    """The bar begins the performance data."""
    return " ".join(text.replace("|", "/").split())
