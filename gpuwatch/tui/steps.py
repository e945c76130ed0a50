"""What a job says of its own loop: over the window of its diagnosis, and just now.

Owns: the lines of a job that uses ``gpuwatch.hook``; no other job has any. Refuses: judging, textual.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.export.diagnosis_text import steps_text
from gpuwatch.model import Absent, StepReport, StepTimes
from gpuwatch.tui.text import Glyphs, Row, Span, fit, wrap

SILENT_NS = 10_000_000_000
"""A loop that has said nothing for so long, and for three of its spans, is over or waits: it has no "now"."""


def rows(state: NodeState, pid: int, measured: StepTimes | None, width: int, glyphs: Glyphs) -> list[Row]:
    """At most three lines, none for a job that says nothing."""
    out: list[Row] = []
    if measured is not None:
        out += [((f" {line}", "text"),) for line in wrap(steps_text(measured), width - 2, 2, glyphs.ellipsis)]
    current = _current(state, pid)
    if current is not None:
        said: list[Span] = [(" now ", "dim"), (f"{units.short_time_text(_mean_s(current))} a step", "title")]
        if not isinstance(current.wait_ns, Absent) and current.span_ns:
            share = units.pct_text(100 * current.wait_ns / current.span_ns)
            said.append((f", {share} of the time in its data wait, by the job itself", "text"))
        out.append(fit(said, width, glyphs))
    return out


def _current(state: NodeState, pid: int) -> StepReport | None:
    """Of the loop with the longest steps that still speaks: it contains the others."""
    speaking = [
        report
        for report in state.steps.get(pid, ())
        if report.steps and state.tick_mono_ns - report.mono_ns < max(SILENT_NS, 3 * report.span_ns)
    ]
    return max(speaking, key=_mean_s, default=None)


def _mean_s(report: StepReport) -> float:
    return report.step_ns / report.steps / 1e9
