"""A judgement as a table for people: differing settings first, then one line per quantity, then why.

Owns: columns, signs, significant digits. Refuses: colours, deciding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwatch.verdict.fingerprint import told
from gpuwatch.verdict.verdicts import Judgement, Row, Verdict

HEAD = ("quantity", "before", "after", "unit", "change", "95 % interval", "verdict")


def report(judgement: Judgement, before: str = "baseline", after: str = "now") -> str:
    """The whole report; ``before`` and ``after`` name the two columns of figures."""
    lines: list[str] = []
    if judgement.changes:
        lines += ["settings that differ:", *(f"  {told(change)}  ({change.ring})" for change in judgement.changes), ""]
    if judgement.rows:
        lines += [*table(judgement.rows, before, after), ""]
    lines += reasons(judgement.rows)
    lines += [f"note: {note}" for note in judgement.notes]
    lines.append(f"{judgement.level.value.upper()}: {judgement.exit_reason}")
    return "\n".join(lines)


def table(rows: Sequence[Row], before: str, after: str) -> list[str]:
    """Aligned columns; those that no row fills are left out."""
    device = len({row.device for row in rows}) > 1
    head = (HEAD[0], before, after, *HEAD[3:])
    body = [(label(row) if device else row.name, *cells(row)) for row in rows]
    used = [i for i in range(len(head)) if i in (0, 6) or any(line[i] for line in body)]
    right = {1, 2, 4}
    lines = []
    widths = {i: max(len(line[i]) for line in (head, *body)) for i in used}
    for line in (head, *body):
        shown = [f"{line[i]:>{widths[i]}}" if i in right else f"{line[i]:<{widths[i]}}" for i in used]
        lines.append("  ".join(shown).rstrip())
    return lines


def reasons(rows: Sequence[Row]) -> list[str]:
    """One line per reason, with the quantities that have it."""
    having: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            having.setdefault(row.reason, []).append(label(row))
    return [
        f"{', '.join(labels[:2])}{f' and {len(labels) - 2} more' if len(labels) > 2 else ''}: {reason}"
        for reason, labels in having.items()
    ]


def label(row: Row) -> str:
    """The quantity and where it was measured."""
    return f"{row.name} ({row.device})" if row.device else row.name


def cells(row: Row) -> tuple[str, str, str, str, str, str]:
    """Before, after, unit, change, interval, verdict."""
    interval = "" if row.low is None or row.high is None else f"{percent(row.low)} … {percent(row.high)}"
    change = "" if row.improvement is None else percent(row.improvement)
    shown = row.verdict.value
    if row.verdict in (Verdict.SAME, Verdict.AMBIGUOUS) and row.tolerance is not None:
        shown += f" (±{row.tolerance:.1%})"
    return figure(row.before), figure(row.after), row.unit, change, interval, shown


def percent(share: float) -> str:
    """ "+5.0 %": positive is better, whatever the unit. Beyond tenfold only the factor is of use."""
    return f"{share * 100:+.1f} %" if share < 9 else f"×{share + 1:.0f}"


def figure(value: float | None) -> str:
    """Four significant digits, or nothing."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 9)}f}"


def detectable_lines(judgement: Judgement) -> list[str]:
    """For each quantity the noise between fresh processes, and the smallest change that so many pairs find with it."""
    rows = [row for row in judgement.rows if row.detectable is not None and row.noise is not None]
    if not rows:
        return []
    head = ("quantity", "noise", "smallest change")
    body = [(label(row), _about(row.noise), _about(row.detectable)) for row in rows]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(3)]
    lines = [
        f"  {name:<{widths[0]}}  {noise:>{widths[1]}}  {found:>{widths[2]}}" for name, noise, found in (head, *body)
    ]
    pairs = max(row.n_after for row in rows)
    return ["", f"noise between fresh processes, and the smallest change that {pairs} pairs find here:", *lines]


def _about(share: float | None) -> str:
    """A share for a person; more than twofold is no figure to plan with."""
    return "" if share is None else f"{share:.1%}" if share < 1 else "> 100%"
