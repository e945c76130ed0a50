"""Findings in time: what somebody who looks in the morning is told about the night."""

from __future__ import annotations

from gpuwatch.daemon.findings import KEEP_RESOLVED, Findings
from gpuwatch.model import Confidence, Diagnosis, Finding, Severity

S = 1_000_000_000


def diagnosis(*causes: str, pid: int = 7, lost: float = 0.4, severity: Severity = Severity.WARNING) -> Diagnosis:
    findings = tuple(Finding(c, c, severity, lost, 2.0, "b", Confidence.HIGH) for c in causes)
    return Diagnosis(pid, (0,), 8.0, findings, command="python fit.py")


def test_a_finding_is_opened_once_and_remembers_its_worst() -> None:
    findings = Findings()
    assert len(findings.update(diagnosis("launch_bound", lost=0.4), 10 * S)) == 1
    assert findings.update(diagnosis("launch_bound", lost=0.8, severity=Severity.CRITICAL), 70 * S) == ()
    assert findings.update(diagnosis("launch_bound", lost=0.2), 130 * S) == ()
    (span,) = findings.spans()
    assert (span.since_wall_ns, span.seen_wall_ns, span.resolved_wall_ns) == (10 * S, 130 * S, 0)
    assert (span.worst_lost_share, span.severity, span.command) == (0.8, Severity.CRITICAL, "python fit.py")


def test_one_window_without_it_does_not_end_a_finding_two_do() -> None:
    findings = Findings()
    findings.update(diagnosis("launch_bound"), 10 * S)
    assert findings.update(diagnosis("healthy"), 20 * S) == ()
    assert findings.update(diagnosis("launch_bound"), 30 * S) == (), "it is the same finding still"
    findings.update(diagnosis("healthy"), 40 * S)
    (over,) = findings.update(diagnosis("healthy"), 50 * S)
    assert (over.resolved_wall_ns, over.since_wall_ns, over.resolution) == (50 * S, 10 * S, "not found any more")


def test_a_finding_that_comes_back_is_a_new_one() -> None:
    findings = Findings()
    for second, cause in enumerate(("launch_bound", "healthy", "healthy", "launch_bound")):
        findings.update(diagnosis(cause), second * S)
    assert [(s.since_wall_ns // S, s.resolved_wall_ns // S) for s in findings.spans()] == [(0, 2), (3, 0)]


def test_the_end_of_a_job_ends_its_findings_and_no_others() -> None:
    findings = Findings()
    findings.update(diagnosis("launch_bound", "host_sync"), 10 * S)
    findings.update(diagnosis("launch_bound", pid=8), 10 * S)
    assert {s.cause for s in findings.ended(7, 20 * S)} == {"launch_bound", "host_sync"}
    assert [s.pid for s in findings.spans() if not s.resolved_wall_ns] == [8]
    assert findings.ended(7, 30 * S) == ()


def test_healthy_idle_and_starting_jobs_leave_no_trace() -> None:
    findings = Findings()
    for cause in ("healthy", "idle", "warming_up"):
        assert findings.update(diagnosis(cause), 10 * S) == ()
    assert findings.spans() == ()


def test_a_year_of_findings_is_bounded() -> None:
    findings = Findings()
    for i in range(KEEP_RESOLVED + 50):
        findings.update(diagnosis("launch_bound", pid=i + 1), i * S)
        findings.ended(i + 1, i * S)
    assert len(findings.spans()) == KEEP_RESOLVED
