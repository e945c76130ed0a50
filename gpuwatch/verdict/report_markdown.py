"""A judgement as Markdown, for a pull request or the summary of a CI run.

Owns: the table, escaping. Refuses: deciding.
"""

from __future__ import annotations

import re

from gpuwatch.verdict.fingerprint import told
from gpuwatch.verdict.report_text import HEAD, cells, label, reasons
from gpuwatch.verdict.verdicts import Judgement, Level

_MARKS = {Level.CRITICAL: "**", Level.WARN: "**"}


def report(judgement: Judgement, before: str = "baseline", after: str = "now") -> str:
    """Heading with the outcome, differing settings, table, reasons."""
    lines = [f"### {_safe(judgement.title)}: {judgement.level.value.upper()}", "", _safe(judgement.exit_reason), ""]
    if judgement.changes:
        lines += ["Settings that differ:", ""]
        lines += [f"- {_safe(told(change))} ({change.ring})" for change in judgement.changes]
        lines.append("")
    if judgement.rows:
        head = (HEAD[0], before, after, *HEAD[3:])
        lines += [_line(head), _line(["---", "---:", "---:", "---", "---:", "---", "---"])]
        for row in judgement.rows:
            *rest, verdict = cells(row)
            mark = _MARKS.get(row.level, "")
            lines.append(_line([_safe(label(row)), *map(_safe, rest), f"{mark}{_safe(verdict)}{mark}"]))
        lines.append("")
    lines += [f"- {_safe(reason)}" for reason in reasons(judgement.rows)]
    lines += [f"- {_safe(note)}" for note in judgement.notes]
    return "\n".join(lines).rstrip()


def _line(texts: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _safe(text: str) -> str:
    """Text of probes and paths must not become markup or end a cell."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
