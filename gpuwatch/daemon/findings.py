"""Findings in time: since when, how bad, when over.

Owns: opening, continuing and resolving the spans of findings. Refuses: judging, clocks (times are passed in).

Hysteresis: a cause is over when two diagnoses in a row do not name it, so that one window in which it hid behind
another cause does not end and reopen it.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model import Diagnosis, FindingSpan, Severity

MISSES_TO_RESOLVE = 2
KEEP_RESOLVED = 200
NOT_A_FINDING = frozenset({"healthy", "idle", "warming_up"})
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class Findings:
    """The spans of one daemon, oldest first within open and resolved."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], FindingSpan] = {}
        self._misses: dict[tuple[int, str], int] = {}
        self._resolved: list[FindingSpan] = []

    def spans(self) -> tuple[FindingSpan, ...]:
        """Resolved ones first, by the time of their end, then the open ones."""
        return (*self._resolved, *self._open.values())

    def pids(self) -> set[int]:
        """Jobs with an open finding."""
        return {pid for pid, _ in self._open if pid}

    def update(self, diagnosis: Diagnosis, wall_ns: int) -> tuple[FindingSpan, ...]:
        """A diagnosis is there. The spans that it opened or resolved."""
        named = {f.cause: f for f in diagnosis.findings if f.cause not in NOT_A_FINDING}
        changed: list[FindingSpan] = []
        for cause, finding in named.items():
            key = (diagnosis.pid, cause)
            self._misses.pop(key, None)
            span = self._open.get(key)
            if span is None:
                span = FindingSpan(
                    diagnosis.pid, diagnosis.device_indices, cause, finding.severity, wall_ns, wall_ns,
                    finding.lost_share, command=diagnosis.command,
                )  # fmt: skip
                changed.append(span)
            self._open[key] = msgspec.structs.replace(
                span,
                seen_wall_ns=wall_ns,
                worst_lost_share=max(span.worst_lost_share, finding.lost_share),
                severity=max(span.severity, finding.severity, key=_RANK.__getitem__),
            )
        for key in [k for k in self._open if k[0] == diagnosis.pid and k[1] not in named]:
            self._misses[key] = self._misses.get(key, 0) + 1
            if self._misses[key] >= MISSES_TO_RESOLVE:
                changed.append(self._resolve(key, wall_ns, "not found any more"))
        return tuple(changed)

    def ended(self, pid: int, wall_ns: int) -> tuple[FindingSpan, ...]:
        """The job is gone: its spans are over. Those that were open."""
        return tuple(self._resolve(key, wall_ns, "the job ended") for key in [k for k in self._open if k[0] == pid])

    def _resolve(self, key: tuple[int, str], wall_ns: int, why: str) -> FindingSpan:
        span = msgspec.structs.replace(self._open.pop(key), resolved_wall_ns=wall_ns, resolution=why)
        self._misses.pop(key, None)
        self._resolved = [*self._resolved, span][-KEEP_RESOLVED:]
        return span
