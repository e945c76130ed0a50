"""What the diagnosis says.

Owns: Diagnosis, its findings and its account. Refuses: how it comes about.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from gpuwatch.model.reading import NOT_READ, Num


class Severity(enum.StrEnum):
    """Exit codes of ``gpuwatch diagnose`` follow from the worst finding: info 0, warning 1, critical 2."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Standing(enum.StrEnum):
    """How a finding relates to the others of the same diagnosis."""

    ROOT = "root"
    CONTRIBUTING = "contributing"
    SYMPTOM = "symptom"


class Confidence(enum.StrEnum):
    """How sure: high = direct measurement of the wait and of its reason; low = by exclusion."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class EvidenceRow(Struct, frozen=True):
    """One number that supports a finding, with where and when it was read."""

    name: str
    value: float | str
    unit: str = ""
    source: str = ""
    """Such as "GPM", "/proc", "stack samples (n=48)"."""
    window_s: float = 0.0
    note: str = ""


class CodeLocation(Struct, frozen=True):
    """Where in the user's own code."""

    file: str
    line: int
    function: str
    share: float = 0.0
    """Share of the relevant stack samples that pass through here, 0..1."""


class Finding(Struct, frozen=True):
    """One cause, what it costs, how we know, and what to do."""

    cause: str
    """Stable snake_case id, see docs/causes.md."""
    summary: str
    severity: Severity
    lost_share: float
    """Share of the wall time in the window that this cause costs the GPU, 0..1."""
    gain_max: float
    """Upper bound on the speed-up that fixing only this can give, as a factor ≥ 1."""
    gain_basis: str
    """How the bound was computed, one sentence."""
    confidence: Confidence
    evidence: tuple[EvidenceRow, ...] = ()
    remedy: str = ""
    location: CodeLocation | None = None
    alternatives: tuple[str, ...] = ()
    """Cause ids that look the same from outside."""
    experiment: str = ""
    """The one experiment that would tell the alternatives apart."""
    standing: Standing = Standing.ROOT


class AccountShare(Struct, frozen=True):
    """A part of the wall time of the window."""

    activity: str
    """computing, launching, waiting_for_data, preparing_data, copying, synchronising, communicating, checkpointing,
    compiling, allocating, other_host_work, idle, unattributed."""
    share: float


class StepTimes(Struct, frozen=True):
    """What the job said of its own loop in the window (docs/hook.md)."""

    steps: int
    step_s: float
    """Mean."""
    step_max_s: float
    wait_s: Num = NOT_READ
    """Mean data wait per step; absent where the job only marks its steps."""
    wait_max_s: Num = NOT_READ
    """Longest single wait."""
    wait_share: Num = NOT_READ
    """Of the wall time, 0..1."""
    in_account: bool = False
    """The account's waits for data are these, not those of the stack samples."""


class Diagnosis(Struct, frozen=True):
    """The answer for one GPU job (or one GPU without a job)."""

    pid: int
    """0 when the GPU has no process."""
    device_indices: tuple[int, ...]
    window_s: float
    findings: tuple[Finding, ...]
    """Ranked, never empty: the first is the verdict."""
    account: tuple[AccountShare, ...] = ()
    """Sums to 1 when there was anything to account for."""
    command: str = ""
    end_mono_ns: int = 0
    end_wall_ns: int = 0
    missing: tuple[str, ...] = ()
    """What would have made this surer, such as "stacks of pid 42: permission denied; …"."""
    steps: StepTimes | None = None
    """None for a job that says nothing of itself, as most."""

    @property
    def verdict(self) -> Finding:
        """The first finding."""
        return self.findings[0]


class FindingSpan(Struct, frozen=True):
    """One cause of one job in time: since when, how bad at worst, when it was over."""

    pid: int
    device_indices: tuple[int, ...]
    cause: str
    severity: Severity
    since_wall_ns: int
    seen_wall_ns: int
    """When it was found last."""
    worst_lost_share: float
    resolved_wall_ns: int = 0
    """0 while it lasts."""
    command: str = ""
    resolution: str = ""
    """Such as "not found any more" or "the job ended"."""
