"""A diagnosis as text: the short form under the overview, and the whole of it.

Owns: words and order of what a finding says on a screen. Refuses: judging, ranking (both are the daemon's), textual.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.model import CodeLocation, Diagnosis, EvidenceRow, Finding, Severity, Standing
from gpuwatch.tui import account, chart, facts, steps
from gpuwatch.tui.selection import (
    Job,
    ViewOptions,
    diagnosing,
    diagnosis_of,
    other_ranks,
    rank_text,
    selected_job,
)
from gpuwatch.tui.text import Glyphs, Row, Span, between, clean, cut, cut_left, fit, pad, row_width, rule, wrap
from gpuwatch.wire import DiagnosisProgress

_NUMBER = 20
"""Cells of an evidence's value that is a number with its unit."""
ROOM_FOR_TIME = 30
"""Lines of a screen on which verdict, remedy and first evidence are in sight below the account over time."""


def severity_role(severity: Severity) -> str:
    """The role that a severity is drawn with; its sign and its word stand beside it."""
    return {Severity.INFO: "ok", Severity.WARNING: "warn", Severity.CRITICAL: "crit"}[severity]


def sign(severity: Severity, glyphs: Glyphs) -> str:
    """The symbol of a severity."""
    return {Severity.INFO: glyphs.info, Severity.WARNING: glyphs.warning, Severity.CRITICAL: glyphs.critical}[severity]


def subject_text(state: NodeState, job: Job) -> str:
    """What a diagnosis is about: "GPU 0: 4242 python train.py", "GPU 1, rank 1 of 2: 4243 python train.py"."""
    gpus = ",".join(map(str, job.device_indices)) or "?"
    if not job.pid:
        return f"GPU {gpus}: {facts.no_process_text(state, job.device_indices[0])}"
    found = state.diagnosis_of(job.pid)
    command = job.main.command if job.main is not None else found.command if found is not None else ""
    rank = f", {rank_text(job)}" if rank_text(job) else ""
    return f"GPU {gpus}{rank}: {job.pid} {clean(command) or '(not visible in /proc from here)'}"


def summary_rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """The selected job's verdict in at most ``room`` lines: cause, cost, remedy, place, account, evidence."""
    job = selected_job(state, options)
    if job is None:
        nothing: list[Row] = [((" no process on any GPU", "dim"),)]
        return nothing[:room]
    glyphs = options.glyphs
    out = _progress(state, job, width, glyphs)
    found = diagnosis_of(state, job)
    if found is None:
        return [*out, *_nothing_yet(state, job, running=bool(out))][:room]
    verdict = found.verdict
    out += _headline(verdict, width, glyphs, 2 if room >= 5 else 1)
    out += _cost(state, found, width, glyphs)
    left = room - len(out)
    place = _location(verdict.location, width, glyphs) if verdict.location is not None else []
    room_left = max(1, min(3, left - len(place)))
    out += _paragraph(glyphs.arrow, verdict.remedy, "accent", width, max_lines=room_left, glyphs=glyphs)
    out += place
    left = room - len(out)
    if found.account and left >= 2:
        out += account.rows(found.account, width, glyphs)[:left]
    left = room - len(out)
    if left >= 1:
        out += _evidence(verdict.evidence[:left], width, glyphs)
    return out[:room]


def rows(state: NodeState, options: ViewOptions, width: int, room: int = 0) -> list[Row]:
    """The whole diagnosis of the selected job, as many lines as it takes.

    The account over time stands below that of the newest diagnosis; where ``room`` (lines of the screen) is less than
    ``ROOM_FOR_TIME`` it comes last, for what is to be changed goes first."""
    glyphs = options.glyphs
    job = selected_job(state, options)
    if job is None:
        return [(), (("  Nothing to diagnose: no GPU and no job.", "dim"),)]
    out: list[Row] = [rule(subject_text(state, job), [("d", "key"), (" diagnose", "dim")], width, glyphs)]
    out += _progress(state, job, width, glyphs)
    found = diagnosis_of(state, job)
    if found is None:
        said = [*steps.rows(state, job.pid, None, width, glyphs), *_ranks(state, job, width, glyphs)]
        return [*out, *_nothing_yet(state, job, running=len(out) > 1), *said]
    verdict = found.verdict
    out += _headline(verdict, width, glyphs, 4)
    out += _cost(state, found, width, glyphs)
    out += _ranks(state, job, width, glyphs)
    if found.account:
        out += [(), rule("Where the wall time went", [], width, glyphs), *account.rows(found.account, width, glyphs)]
    out += steps.rows(state, job.pid, found.steps, width, glyphs)
    over_time = account.over_time(state.accounts.get((found.pid, found.device_indices), ()), options, width, room)
    if room >= ROOM_FOR_TIME:
        out += over_time
    out += [(), *_finding_body(verdict, width, glyphs)]
    if len(found.findings) > 1:
        out += [(), rule("Also found, by rank", [], width, glyphs)]
        for finding in found.findings[1:]:
            out += _other(finding, width, glyphs)
    if found.missing:
        out += [(), rule("What would have made this surer", [], width, glyphs)]
        for text in found.missing:
            out += _paragraph(glyphs.separator, text, "dim", width, max_lines=3, glyphs=glyphs)
    if room < ROOM_FOR_TIME:
        out += over_time
    return out


def _ranks(state: NodeState, job: Job, width: int, glyphs: Glyphs) -> list[Row]:
    """The verdict of each other rank of the job: the one that waits is not the one that is slow."""
    others = other_ranks(state, job)
    out: list[Row] = [(), rule("The other ranks of this job", [("right", "key")], width, glyphs)] if others else []
    for other in others:
        found = diagnosis_of(state, other)
        gpus = ",".join(map(str, other.device_indices)) or "?"
        name: Span = (f" {rank_text(other)}, GPU {gpus}: {other.pid} ", "key")
        if found is None:
            out.append(fit((name, ("not diagnosed", "dim")), width, glyphs))
            continue
        verdict = found.verdict
        loss = f" loses {units.pct_text(100 * verdict.lost_share)} " if verdict.lost_share > 0 else " "
        role = severity_role(verdict.severity)
        left = (name, (f"{sign(verdict.severity, glyphs)} ", role), (clean(verdict.cause), "text"))
        out.append(between(left, ((loss, role),), width))
    return out


def _headline(finding: Finding, width: int, glyphs: Glyphs, max_lines: int) -> list[Row]:
    role = severity_role(finding.severity)
    label = f" {sign(finding.severity, glyphs)} {finding.severity.value} "
    lines = wrap(clean(finding.summary), width - len(label) - 1, max_lines, glyphs.ellipsis)
    return [((label if number == 0 else " " * len(label), role), (line, "title")) for number, line in enumerate(lines)]


def _cost(state: NodeState, found: Diagnosis, width: int, glyphs: Glyphs) -> list[Row]:
    """What it costs, what the fix can gain at most, how sure, and when that was."""
    verdict = found.verdict
    confidence: Span = (f"  confidence {verdict.confidence.value}", "text")
    cause: Span = (f"  {verdict.cause}", "dim")
    said: list[Span] = [cause]
    if verdict.lost_share > 0:
        said.append(
            (f"  loses {units.pct_text(100 * verdict.lost_share)} of the time", severity_role(verdict.severity))
        )
    if verdict.gain_max > 1.005:
        said.append((f"  fix gains at most {units.factor_text(verdict.gain_max)}", "accent"))
    said.append(confidence)
    if found.end_mono_ns and state.tick_mono_ns:
        said.append((f"  {_ago(state.tick_mono_ns - found.end_mono_ns)}", "dim"))
        said.append((f", over {units.seconds_text(found.window_s)}", "dim"))
    # What is least missed goes first: length of the window, id of the cause, confidence, age.
    for least in (said[-1], cause, confidence, said[-2]):
        if 1 + row_width(said) > width and len(said) > 1:
            said.remove(least)
    return [fit([(" ", "text"), *said], width, glyphs)]


def _ago(age_ns: int) -> str:
    seconds = max(0, age_ns) // 1_000_000_000
    return (
        f"{units.seconds_text(round(seconds))} ago" if seconds >= 10 else f"{seconds} s ago" if seconds else "just now"
    )


def _finding_body(finding: Finding, width: int, glyphs: Glyphs) -> list[Row]:
    out: list[Row] = []
    if finding.remedy:
        out += [rule("What to change", [], width, glyphs)]
        out += _paragraph(glyphs.arrow, finding.remedy, "accent", width, max_lines=8, glyphs=glyphs)
    if finding.location is not None:
        out += _location(finding.location, width, glyphs)
    if finding.gain_max > 1.005 or finding.gain_basis:
        text = f"gain at most {units.factor_text(finding.gain_max)}: {finding.gain_basis}"
        out += _paragraph(glyphs.separator, text, "text", width, max_lines=4, glyphs=glyphs)
    if finding.evidence:
        out += [(), rule("How we know", [], width, glyphs), *_evidence(finding.evidence, width, glyphs)]
    if finding.alternatives or finding.experiment:
        out += [(), rule("What else it could be", [], width, glyphs)]
        if finding.alternatives:
            out += _paragraph(
                glyphs.separator, ", ".join(finding.alternatives), "text", width, max_lines=3, glyphs=glyphs
            )
        if finding.experiment:
            text = f"to tell: {finding.experiment}"
            out += _paragraph(glyphs.arrow, text, "accent", width, max_lines=4, glyphs=glyphs)
    return out


_STANDINGS = {Standing.ROOT: "", Standing.CONTRIBUTING: ", contributing", Standing.SYMPTOM: ", a symptom"}


def _other(finding: Finding, width: int, glyphs: Glyphs) -> list[Row]:
    role = severity_role(finding.severity)
    loss = f" {units.pct_text(100 * finding.lost_share)} " if finding.lost_share > 0 else " "
    left: list[Span] = [
        (f" {sign(finding.severity, glyphs)} {finding.severity.value} ", role),
        (clean(finding.cause), "key"),
        (_STANDINGS[finding.standing], "dim"),
    ]
    out: list[Row] = [between(left, ((loss, role),), width)]
    out += [((f"     {line}", "text"),) for line in wrap(clean(finding.summary), width - 6, 3, glyphs.ellipsis)]
    if finding.remedy:
        out += [
            ((f"   {row[0][0]}", row[0][1]), *row[1:])
            for row in _paragraph(glyphs.arrow, finding.remedy, "accent", width - 3, max_lines=3, glyphs=glyphs)
        ]
    return out


def _evidence(evidence: Sequence[EvidenceRow], width: int, glyphs: Glyphs) -> list[Row]:
    """Name, value with its unit, source and window, one line each."""
    if not evidence:
        return []
    names = min(max(len(row.name) for row in evidence), width // 2 - 2)
    # Words, such as a place in the code, go into the column of the source rather than make the numbers' wide.
    values = max((len(_value(row)) for row in evidence if len(_value(row)) <= _NUMBER), default=0)
    out: list[Row] = []
    for row in evidence:
        origin = clean(row.source)
        if row.window_s:
            origin += f", over {units.seconds_text(row.window_s)}"
        if row.note:
            origin += f"; {clean(row.note)}"
        room = max(values, width - names - 7 - len(origin))
        spans: list[Span] = [
            (f"   {pad(clean(row.name), names, ellipsis=glyphs.ellipsis)}  ", "text"),
            (f"{cut_left(_value(row), room, glyphs.ellipsis):>{values}}", "title"),
            (f"  {origin}", "dim"),
        ]
        out.append(fit(spans, width, glyphs))
    return out


def _value(row: EvidenceRow) -> str:
    value = row.value
    if isinstance(value, str):
        return clean(f"{value} {row.unit}".strip())
    if row.unit in ("B", "bytes"):
        return units.bytes_text(value)
    if row.unit in ("B/s", "bytes/s"):
        return units.rate_text(value)
    number = f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
    return clean(f"{number} {row.unit}".strip())


def _location(location: CodeLocation, width: int, glyphs: Glyphs) -> list[Row]:
    share = f", {units.pct_text(100 * location.share)} of the stacks" if location.share > 0 else ""
    tail = f":{location.line} in {clean(location.function)}()"
    room = width - 7 - len(tail) - len(share)
    return [
        (
            ("   at ", "dim"),
            (cut_left(clean(location.file), max(12, room), glyphs.ellipsis) + tail, "code"),
            (share, "dim"),
        )
    ]


def _paragraph(mark: str, text: str, role: str, width: int, *, max_lines: int, glyphs: Glyphs) -> list[Row]:
    if not text:
        return []
    indent = len(mark) + 2
    lines = wrap(clean(text), width - indent - 1, max_lines, glyphs.ellipsis)
    return [((f" {mark} " if number == 0 else " " * indent, role), (line, "text")) for number, line in enumerate(lines)]


def progress_elsewhere(state: NodeState, job: Job | None, width: int, glyphs: Glyphs) -> list[Row]:
    """The diagnosis under way when it is of another job than ``job``: nobody should wonder why theirs is refused."""
    progress = state.progress
    if progress is None or (job is not None and diagnosing(state, job)):
        return []
    gpus = ",".join(map(str, progress.device_indices))
    who = f"GPU {gpus}" + (f": {progress.pid}" if progress.pid else "")
    return [_progress_bar(progress, f" diagnosing {who}", width, glyphs)]


def _progress(state: NodeState, job: Job, width: int, glyphs: Glyphs) -> list[Row]:
    progress = state.progress
    if progress is None or not diagnosing(state, job):
        return []
    return [_progress_bar(progress, " diagnosing", width, glyphs)]


def _progress_bar(progress: DiagnosisProgress, title: str, width: int, glyphs: Glyphs) -> Row:
    done, total = progress.done_s, max(progress.total_s, 0.001)
    text = f"{title}: {done:.0f} of {progress.total_s:.0f} s "
    cells = min(30, width - len(text) - 2)
    note = f"  {clean(progress.message)}" if progress.message else ""
    spans: list[Span] = [
        (text, "accent"),
        (chart.bar(100 * done / total, cells, glyphs), "accent"),
        (cut(note, max(0, width - len(text) - cells), glyphs.ellipsis), "dim"),
    ]
    return fit(spans, width, glyphs)


def _nothing_yet(state: NodeState, job: Job, *, running: bool) -> list[Row]:
    if running:
        return []
    if not state.devices:
        return [((" waiting for the first sample", "dim"),)]
    subject = f"process {job.pid}" if job.pid else f"GPU {job.device_indices[0]}"
    return [((f" no diagnosis yet of {subject}: press ", "dim"), ("d", "key"), (" to start one", "dim"))]
