"""A Diagnosis as text for a terminal and as Markdown for a ticket.

Owns: layout within a width. Refuses: judging, terminals, colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuwatch import units
from gpuwatch.export.cells import clean, pad, shorten, width_of, wrap
from gpuwatch.model import (
    Absent,
    AccountShare,
    CodeLocation,
    Device,
    Diagnosis,
    EvidenceRow,
    Finding,
    Severity,
    StepTimes,
)

_BAR = 40
_MARKS = "#=~+:o*%"
_LABEL = 10
_KEEP = "\u00a0"
"""Keeps a share and its name on one line."""


def diagnosis_lines(diagnosis: Diagnosis, devices: Sequence[Device] = (), width: int = 80) -> list[str]:
    """The whole diagnosis, no line wider than ``width`` cells: a longer path loses its beginning (JSON has it all)."""
    lines = wrap(_title(diagnosis, devices), width)
    lines.append("")
    for place, finding in enumerate(diagnosis.findings):
        lines.extend(_finding(finding, width, first=place == 0))
        if place == 0 and diagnosis.account:
            lines.extend(_account(diagnosis.account, width))
        if place == 0 and diagnosis.steps is not None:
            lines.extend(_labelled("steps", steps_text(diagnosis.steps), width))
        if finding.evidence:
            lines.extend(_evidence(finding.evidence, width))
        lines.append("")
    for note in diagnosis.missing:
        lines.extend(_labelled("missing", note, width))
    return lines if lines[-1] else lines[:-1]


def _title(diagnosis: Diagnosis, devices: Sequence[Device]) -> str:
    names = {d.index: d.name for d in devices}
    gpus = ", ".join(f"{i} {names.get(i, '')}".strip() for i in diagnosis.device_indices)
    job = f"pid {diagnosis.pid} {diagnosis.command}".strip() if diagnosis.pid else "no process"
    window = f"watched {units.seconds_text(diagnosis.window_s)}"
    return f"GPU {gpus} | {shorten(job, 60)} | {window}"


def _finding(finding: Finding, width: int, *, first: bool) -> list[str]:
    head = f"{finding.severity.upper()} {finding.cause}"
    if not first:
        head = f"{finding.standing}: {head}"
    lines = [head, *wrap(finding.summary, width, "  ")]
    if finding.lost_share >= 0.005 and finding.severity is not Severity.INFO:
        lines.extend(_labelled("costs", _cost(finding), width))
    lines.extend(_labelled("do", finding.remedy, width))
    if finding.location is not None:
        lines.extend(_labelled("at", location_text(finding.location), width))
    lines.extend(_labelled("sure", _sure(finding), width))
    return lines


def _cost(finding: Finding) -> str:
    cost = f"{units.pct_text(100 * finding.lost_share)} of the wall time"
    if finding.gain_max > 1.005:
        cost += f"; fixing it gives at most {units.factor_text(finding.gain_max)} ({finding.gain_basis})"
    return cost


def _sure(finding: Finding) -> str:
    text = f"{finding.confidence} confidence"
    if finding.alternatives:
        text += f"; could also be {', '.join(finding.alternatives)}"
    if finding.experiment:
        text += f". To tell: {finding.experiment}"
    return text


def location_text(location: CodeLocation) -> str:
    """ "/home/u/train.py:41 in collate (92 % of these samples)"."""
    return (
        f"{location.file}:{location.line} in {location.function} "
        f"({units.pct_text(100 * location.share)} of these samples)"
    )


def steps_text(steps: StepTimes) -> str:
    """One sentence: "312 ms a step (longest 400 ms, n=25), of which 287 ms data wait, 92 % of the time; …"."""
    said = f"{units.short_time_text(steps.step_s)} a step (longest {units.short_time_text(steps.step_max_s)}, "
    said += f"n={steps.steps})"
    if not isinstance(steps.wait_s, Absent):
        said += f", of which {units.short_time_text(steps.wait_s)} data wait"
    if not isinstance(steps.wait_share, Absent):
        said += f", {units.pct_text(100 * steps.wait_share)} of the time"
    return f"{said}; measured by the job itself" + (", and so in the account" if steps.in_account else "")


def account_bar(account: Sequence[AccountShare], cells: int) -> str:
    """The shares as one bar of ``cells`` characters, one mark per activity, largest remainders last."""
    exact = [share.share * cells for share in account]
    whole = [int(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: exact[i] - whole[i], reverse=True)
    for i in order[: max(0, cells - sum(whole))]:
        whole[i] += 1
    return "".join(_MARKS[i % len(_MARKS)] * n for i, n in enumerate(whole))


def _account(account: Sequence[AccountShare], width: int) -> list[str]:
    bar = account_bar(account, min(_BAR, width - _LABEL - 4))
    legend = ", ".join(
        f"{_MARKS[i % len(_MARKS)]} {share.activity} {units.pct_text(100 * share.share)}".replace(" ", _KEEP)
        for i, share in enumerate(account)
    )
    lines = wrap(legend, width, " " * _LABEL)
    return [f"  {'time':<{_LABEL - 2}}[{bar}]", *(line.replace(_KEEP, " ") for line in lines)]


def _evidence(evidence: Iterable[EvidenceRow], width: int) -> list[str]:
    """Quantity, value, where it was read; a long value gets lines of its own."""
    lines = ["  evidence"]
    for row in evidence:
        name, quantity = clean(row.name), clean(value_text(row))
        source = clean(row.source + (f", {row.note}" if row.note else ""))
        line = f"    {pad(name, 36)} {pad(quantity, 18)} {source}".rstrip()
        if width_of(line) <= width:
            lines.append(line)
        elif width_of(short := f"    {pad(name, 36)} {quantity}") <= width:
            lines.extend([short, *wrap(source, width, " " * 41)])
        else:
            lines.extend([*wrap(name, width, "    "), *wrap(f"{quantity} ({source})", width, " " * 6)])
    return lines


def value_text(row: EvidenceRow) -> str:
    """ "95.5 % of samples": three significant digits are what a window of seconds supports."""
    value = row.value
    if not isinstance(value, float):
        return f"{value} {row.unit}".strip()
    number = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{number} {row.unit}".strip()


def _labelled(label: str, text: str, width: int) -> list[str]:
    return wrap(text, width, f"  {label:<{_LABEL - 2}}", " " * _LABEL)


def diagnosis_markdown(diagnosis: Diagnosis, devices: Sequence[Device] = ()) -> str:
    """The same for a ticket."""
    lines = [f"### {_escape(_title(diagnosis, devices))}", ""]
    for finding in diagnosis.findings:
        lines += [
            f"**{finding.severity}: `{finding.cause}`** ({finding.standing}, {finding.confidence} confidence)",
            "",
        ]
        lines += [_escape(finding.summary), ""]
        if finding.lost_share >= 0.005:
            lines.append(f"- costs: {_escape(_cost(finding))}")
        lines.append(f"- do: {_escape(finding.remedy)}")
        if finding.location is not None:
            lines.append(f"- at: {_code(location_text(finding.location))}")
        lines += ["", "| evidence | value | source | window |", "| --- | --- | --- | --- |"]
        for row in finding.evidence:
            value = f"{row.value:g}" if isinstance(row.value, float) else row.value
            window = units.seconds_text(row.window_s) if row.window_s else ""
            lines.append(
                f"| {_escape(row.name)} | {_escape(f'{value} {row.unit}')} | {_escape(row.source)} | {window} |"
            )
        lines.append("")
    if diagnosis.account:
        shares = ", ".join(f"{s.activity} {units.pct_text(100 * s.share)}" for s in diagnosis.account)
        lines += [f"Wall time: {shares}", ""]
    if diagnosis.steps is not None:
        lines += [f"Steps: {steps_text(diagnosis.steps)}", ""]
    lines += [f"- missing: {_escape(note)}" for note in diagnosis.missing]
    return "\n".join(lines).rstrip() + "\n"


def _escape(text: str) -> str:
    return clean(text).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """As code, also where a file's name has a backtick."""
    return f"`` {clean(text)} ``" if "`" in text else f"`{clean(text)}`"
