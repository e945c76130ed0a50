"""Remedies with numbers in them.

Owns: the arithmetic of worker counts and gain bounds, and the builder that every family uses for a Finding.
Refuses: deciding which cause it is.
"""

from __future__ import annotations

import math

from msgspec import Struct

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.model import CodeLocation, Confidence, EvidenceRow, Finding, Severity

GAIN_CAP = 1000.0


def gain_bound(lost: float) -> float:
    """1 / (1 - lost), with a cap where nothing would be left."""
    return min(GAIN_CAP, 1.0 / max(1.0 - lost, 1.0 / GAIN_CAP))


def severity_of(lost: float) -> Severity:
    """Half of the wall time is critical, a tenth is a warning."""
    if lost >= t.CRITICAL_FROM:
        return Severity.CRITICAL
    return Severity.WARNING if lost >= t.NAMED_FROM else Severity.INFO


class Bound(Struct, frozen=True):
    """An upper bound on a speed-up, and where it comes from."""

    gain: float
    basis: str


NO_GAIN = Bound(1.0, "there is nothing to speed up")


def finding(
    cause: str,
    summary: str,
    lost: float,
    bound: Bound,
    *,
    remedy: str,
    confidence: Confidence = Confidence.HIGH,
    evidence: tuple[EvidenceRow, ...] = (),
    location: CodeLocation | None = None,
    alternatives: tuple[str, ...] = (),
    experiment: str = "",
    severity: Severity | None = None,
) -> Finding:
    """A Finding whose severity follows from ``lost`` unless given."""
    lost = min(1.0, max(0.0, lost))
    return Finding(
        cause=cause,
        summary=summary,
        severity=severity or severity_of(lost),
        lost_share=lost,
        gain_max=bound.gain,
        gain_basis=bound.basis,
        confidence=confidence,
        evidence=evidence,
        remedy=remedy,
        location=location,
        alternatives=alternatives,
        experiment=experiment,
    )


class WorkerAdvice(Struct, frozen=True):
    """How many DataLoader workers, and what that buys at most."""

    now: int
    needed: int
    """So that the loader keeps up with the rest of the step, if workers scale."""
    advised: int
    """``needed`` with headroom, but no more than there are cores."""
    cores_limit: bool
    """There are fewer cores, or the job may use fewer, than ``needed`` asks for."""
    gain_max: float
    """At ``advised`` workers."""


def advise_workers(
    now: int, waiting: float, computing: float, cpus: float, *, cores_per_worker: float = 1.0, cpu_bound: bool = True
) -> WorkerAdvice:
    """Workers from measured shares.

    ``waiting``: share of the wall time in which the training thread waits for data (or, with ``now`` = 0, prepares it
    itself). A step cannot become shorter than its other parts, ``1 - waiting``, nor than the GPU's own work,
    ``computing``; the loader must then deliver ``1 / floor`` times as fast as now. With ``now`` workers that takes
    ``now / floor`` of them; with none, one worker takes ``waiting`` per batch, so ``waiting / floor``.
    """
    floor = max(1.0 - waiting, computing, 0.01)
    bare = now / floor if now else waiting / floor
    needed = max(now + 1 if now else 1, math.ceil(bare - 1e-9))
    wanted = math.ceil(needed * t.WORKER_HEADROOM)
    limit = max(1, round((cpus - 1) / max(cores_per_worker, 1.0))) if cpu_bound and cpus else wanted
    advised = max(1, min(wanted, max(limit, 1)))
    rate = advised / now if now else advised / max(waiting, 0.01)
    best = 1.0 / floor
    return WorkerAdvice(now, needed, advised, needed > limit, max(1.0, min(best, rate)))


def row(
    name: str, value: float | str | None, unit: str, source: str, window_s: float, note: str = ""
) -> EvidenceRow | None:
    """An evidence row, or None when the value was not read: a row without a number is no evidence."""
    if value is None:
        return None
    shown = round(value, 4 if abs(value) < 10 else 1) if isinstance(value, float) else value
    return EvidenceRow(name, shown, unit, source, round(window_s, 1), note)


def rows(*candidates: EvidenceRow | None) -> tuple[EvidenceRow, ...]:
    """Those that have a number."""
    return tuple(r for r in candidates if r is not None)


def pct(share: float | None) -> float | None:
    """A share as percent; None stays None."""
    return None if share is None else 100.0 * share


def share_text(share: float) -> str:
    """0.924 as "92 %"."""
    return units.pct_text(100.0 * share)


def place_text(location: CodeLocation | None) -> str:
    """ " at train.py:41 (collate)" or ""."""
    if location is None:
        return ""
    return f" at {location.file.rsplit('/', 1)[-1]}:{location.line} ({location.function.rsplit('.', 1)[-1]})"
