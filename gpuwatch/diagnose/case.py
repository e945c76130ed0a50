"""What the rules get: the evidence, and what was computed from it once.

Owns: Case. Refuses: judging.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gpuwatch.diagnose import cores
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.account import Account
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import Bound, gain_bound, pct, row, share_text
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.worker_view import Crew, WorkerView, crew
from gpuwatch.model import CodeLocation, EvidenceRow, StepTimes


class Case(Struct, frozen=True):
    """One job under judgement."""

    evidence: Evidence
    account: Account | None
    """None when there were too few stack samples."""
    workers: WorkerView | None

    @property
    def busy(self) -> float:
        """Mean GPU busy share of the window; 0 when never read."""
        return self.evidence.mean("busy") or 0.0

    @property
    def main_cores(self) -> float:
        """CPU of the GPU process, in cores; 0 when not read."""
        return (self.evidence.main.cpu_cores or 0.0) if self.evidence.main else 0.0

    @property
    def crew(self) -> Crew:
        """The DataLoader workers, by whether they had work."""
        return crew(self.evidence, self.workers)

    @property
    def worker_cores(self) -> float | None:
        """Mean CPU per DataLoader worker that had work, in cores; of all when none had."""
        known = [w.cpu_cores for w in self.crew.counted if w.cpu_cores is not None]
        return sum(known) / len(known) if known else None

    @property
    def cpus(self) -> float:
        """Cores that the loader may use, or that the training process may where there is none."""
        e = self.evidence
        return cores.usable(e, self.crew.counted or ((e.main,) if e.main is not None else ()))

    @property
    def steps(self) -> StepTimes | None:
        """What the job says of its own loop, and whether the account rests on it."""
        steps, account = self.evidence.steps, self.account
        return steps and msgspec.structs.replace(steps, in_account=account is not None and account.measured)

    @property
    def throttled(self) -> bool:
        """The job's cgroup is held back by a CPU quota."""
        quota = self.evidence.quota
        return quota is not None and quota.throttled_periods >= t.THROTTLED_PERIODS

    def gpu_rows(self) -> tuple[EvidenceRow | None, ...]:
        """The truth ladder, which every finding shows."""
        e = self.evidence
        source = "GPM" if e.gpm else "NVML utilization (proxy)"
        return (
            row("gpu busy", pct(e.mean("busy")), "%", source, e.window_s),
            row("SM active", pct(e.mean("sm")), "%", "GPM", e.window_s),
        )

    def bound(self, *activities: Activity) -> Bound:
        """What fixing these activities can give at most.

        Not ``1 / (1 - lost)``: without the stall the thread runs ahead, so its other work overlaps with the GPU's. A
        step can become as short as the longer of the two. (H200: a starved ResNet-50 that this bounds at 11× reached
        10.3× with the advised workers; the other formula had said 5.9×.)
        """
        if self.account is None:
            return Bound(gain_bound(1.0 - self.busy), "the GPU idles no more; nothing is known of the rest of the loop")
        held = self.account.held_in(*activities)
        floor = max(self.account.computing, 1.0 - held)
        basis = (
            f"a step keeps the longer of its GPU work ({share_text(self.account.computing)} of the time now) and "
            f"the rest of its loop ({share_text(1.0 - held)})"
        )
        return Bound(gain_bound(1.0 - floor), basis)

    def stack_row(self, name: str, *activities: Activity) -> EvidenceRow | None:
        """Share of the training thread's stack samples in these activities."""
        if self.account is None:
            return None
        held = self.account.held_in(*activities)
        source = f"stack samples (n={self.account.samples})"
        if self.account.measured:
            source += ", weighted by the job's own data wait"
        return row(name, 100.0 * held, "% of samples", source, self.evidence.window_s)


def text_at(case: Case, place: CodeLocation | None) -> str:
    """The source line at a place, quoted, or ""."""
    line = case.evidence.source.get((place.file, place.line), "") if place else ""
    return f": `{line.strip()}`" if line.strip() else ""


def line_row(case: Case, place: CodeLocation | None) -> EvidenceRow | None:
    """Where most of an activity's samples stand, as evidence."""
    if place is None:
        return None
    return row("code", f"{place.file}:{place.line}{text_at(case, place)}", "", "stack samples", case.evidence.window_s,
               f"{share_text(place.share)} of these samples")  # fmt: skip
