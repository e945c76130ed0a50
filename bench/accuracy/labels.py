"""Labelled runs: what was measured, and which labels count.

Owns: reading ``results*.json`` and ``labels.json``, and the admission of a label. Refuses: any look at a recording.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gpuwatch.errors import InputNotFoundError, RecordingError
from probes.faults.cases import ADMIT_FROM, DECOY_BELOW, LOOK_ALIKE_BELOW

HEALTHY, UNATTRIBUTED = "healthy", "unattributed"

FAMILIES = {
    "input": (
        "loader_in_main_process", "loader_too_few_workers", "loader_slow_transform", "loader_storage_bandwidth",
        "loader_storage_latency", "loader_small_files", "loader_worker_restart", "loader_collate_or_ipc",
        "loader_hung", "shm_too_small", "loader_slow_sample",
    ),
    "host": (
        "host_preprocessing", "python_bound", "launch_bound", "batch_too_small", "host_sync", "gil_contention",
        "gc_pauses", "cpu_oversubscribed", "cpu_quota_throttled", "memory_thrash", "recompilation",
        "allocator_thrash", "checkpoint_stall", "logging_or_eval_stall",
    ),
    "transfer": ("pageable_copies", "pcie_bound", "pcie_link_degraded", "nvlink_or_collective_wait"),
    "device": (
        "memory_bandwidth_bound", "tensor_cores_unused", "power_capped", "thermal_throttle", "hw_slowdown",
        "ecc_or_xid", "gpu_lost", "gpu_shared",
    ),
    "use": ("idle_process_holds_memory", "model_on_cpu", "gpu_memory_leak", "gpu_memory_nearly_full", "idle"),
    HEALTHY: (HEALTHY, "warming_up"),
}  # fmt: skip
READY_BATCHES_BELOW = 0.9
"""Of the speed before: being watched costs no job fed by workers that much, ready batches doubled some jobs' speed."""
FAMILY_OF = {cause: family for family, causes in FAMILIES.items() for cause in causes}


class Twin(Struct, frozen=True):
    """The same job with one repair."""

    role: str
    """own, look_alike or advice."""
    name: str
    change: dict[str, Any]
    rate: float | None = None
    error: str = ""
    of: float | None = None
    """Speed of the ailing job beside which it was measured, where that is not the run's own. Another day has another
    calibration, and a job that stalls now and then another share of stalls: they differ by up to a third."""


class Speed(Struct, frozen=True):
    """Samples per second, by the job's own count."""

    rate: float
    watched: float | None = None
    """While it was recorded, with a burst of stacks. In runs that lack this, ``rate`` is that."""


class FirstSight(Struct, frozen=True):
    """What was said of a recording before anybody had looked at it: later rules may have been fitted on it."""

    rules: str
    """Revision of the rules."""
    answer: str
    named: tuple[str, ...] = ()
    workers: int = 0
    """The worker count that the first advice named."""
    confidence: str = ""
    by_seconds: tuple[tuple[float, str], ...] = ()
    """What was said after so many seconds of the recording."""
    bound: float | None = None
    """The most that following the first advice could gain, as it said. The last three were not written down before seed
    104."""


class Run(Struct, frozen=True):
    """One labelled job."""

    case: str
    kind: str
    """cause, control, decoy or several."""
    level: str = ""
    seed: int = 0
    causes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    measured: bool = True
    file: str = ""
    pid: int = 0
    cpus: int = 0
    plan: dict[str, Any] = {}
    fault: Speed | None = None
    twins: tuple[Twin, ...] = ()
    error: str = ""
    doubt: str = ""
    """Why its label is not believed, where somebody has said so."""
    past_queue: bool = False
    """Speeds were measured once the batches were used up that lay ready: older runs took them for the job's pace."""
    folder: str = ""
    first: FirstSight | None = None
    before: tuple[Speed, tuple[Twin, ...]] | None = None
    """Speed and repairs as they were first measured, where they were replaced."""

    def gain(self, twin: Twin) -> float | None:
        """Speed-up of a repair; None when either speed is missing, infinity when the job stood still."""
        if self.fault is None or twin.rate is None:
            return None
        ailing = self.fault.rate if twin.of is None else twin.of
        if ailing <= 0:
            return float("inf") if twin.rate > 0 else None
        return twin.rate / ailing

    def speed(self, twin: Twin) -> float | None:
        """Samples per second of the repaired job as they would have been beside this run's ailing one."""
        if self.fault is None or twin.rate is None or not twin.of or self.fault.rate <= 0:
            return twin.rate
        return twin.rate * self.fault.rate / twin.of


class _Document(Struct):
    runs: tuple[Run, ...]
    begun: int = 0


class Standing(enum.StrEnum):
    """What a label is good for."""

    CAUSE = "cause"
    QUIET = "quiet"
    """Nothing is to be named: a control, a decoy, or a fault whose repair gains nothing."""
    SEVERAL = "several"
    APART = "apart"
    """Not scored; the reason says why."""


class Label(Struct, frozen=True):
    """A run's label after its own measurements have been heard."""

    standing: Standing
    reason: str
    gain: float | None = None


def read(folders: Iterable[Path]) -> list[Run]:
    """The runs of these folders; of several runs of one draw the last with a recording, with the repairs
    that were measured beside it, and those that later runs tried. Raises GpuwatchError."""
    found: dict[tuple[str, str, str, int], Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputNotFoundError(f"{folder}: no such folder; make one with: make faults")
        paths = sorted([*folder.glob("results*.json"), *folder.glob("labels.json")])
        for document in sorted(map(_document, paths), key=lambda d: d.begun):
            for run in document.runs:
                key = (str(folder), run.case, run.level, run.seed)
                if run.file or key not in found:
                    found[key] = msgspec.structs.replace(run, folder=str(folder))
                elif run.fault is not None and not run.error:
                    found[key] = _measured_again(found[key], run)
    return list(found.values())


def _measured_again(recorded: Run, later: Run) -> Run:
    """A recorded run with the repairs that a later one without a recording measured, each beside its own ailing job.

    What was measured beside the recording stays: on another day the same machine had a third less of its CPU, and the
    recording's account bounds what its own job can gain. Where that was no speed to compare with, the later one counts.
    A later speed is none either if the job stood still, or ran far ahead of what it was recorded at.
    """
    assert later.fault is not None
    rate, old = later.fault.rate, recorded.fault
    if old is not None and (rate <= 0 or _ahead(recorded, rate) is not None):
        return recorded
    doubtful = _ready_batches(recorded) is not None
    kept = () if doubtful else tuple(twin for twin in recorded.twins if twin.rate is not None or twin.error)
    known = {(twin.role, twin.name) for twin in kept if twin.of is None and twin.rate is not None}
    measured = [twin for twin in later.twins if twin.rate is not None and (twin.role, twin.name) not in known]
    again = {(twin.role, twin.name) for twin in measured}
    kept = tuple(twin for twin in kept if (twin.role, twin.name) not in again)
    twins = tuple(msgspec.structs.replace(twin, of=rate) for twin in measured)
    if old is None or doubtful:
        before = recorded.before if old is None else (old, recorded.twins)
        recorded = msgspec.structs.replace(recorded, fault=Speed(rate), past_queue=later.past_queue, before=before)
    return msgspec.structs.replace(recorded, twins=twins + kept)


def stamp(folder: Path, sights: Mapping[str, FirstSight]) -> int:
    """Write first sights, by file name of the recording, into the results of a folder. What is written stays: a second
    look is no first. Returns how many are new. Raises GpuwatchError for results that cannot be read."""
    new = 0
    for path in sorted(folder.glob("results*.json")):
        _document(path)
        raw = msgspec.json.decode(path.read_bytes())
        for run in raw["runs"]:
            sight = sights.get(run.get("file", ""))
            if sight is not None and "first" not in run:
                run["first"] = sight
                new += 1
        path.write_bytes(msgspec.json.format(msgspec.json.encode(raw), indent=1) + b"\n")
    return new


def _document(path: Path) -> _Document:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document)
    except (OSError, msgspec.DecodeError) as exc:
        raise RecordingError(f"{path}: cannot be read as results of `make faults` ({exc})") from None


def label(run: Run, *, as_first_measured: bool = False) -> Label:
    """Whether the label counts, by the intervention: own repair ≥ 1.15×, look-alikes < 1.10×.

    ``as_first_measured``: also with a speed that was taken while ready batches lasted.
    """
    if not run.file:
        return Label(Standing.APART, run.error or "not recorded")
    if run.doubt:
        return Label(Standing.APART, run.doubt)
    if as_first_measured and run.before is not None:
        run = msgspec.structs.replace(run, fault=run.before[0], twins=run.before[1], past_queue=False)
    if not as_first_measured and (share := _ready_batches(run)) is not None:
        why = f"its speed was measured while ready batches lasted: watched it ran at {share:.2f} of that"
        return Label(Standing.APART, why)
    own = [g for t in run.twins if t.role == "own" and (g := run.gain(t)) is not None]
    best = max(own, default=None)
    if run.kind in ("control", "decoy"):
        if best is not None and best > DECOY_BELOW:
            return Label(Standing.APART, f"not a decoy here: its repair gains {best:.2f}x", best)
        return Label(Standing.QUIET, "nothing is wrong", best)
    if not run.measured:
        return Label(Standing.CAUSE if run.kind == "cause" else Standing.SEVERAL, "true by construction")
    if best is None:
        return Label(Standing.APART, "its own repair was not measured: " + _errors(run))
    if run.kind == "several":
        enough = best >= ADMIT_FROM
        return Label(Standing.SEVERAL if enough else Standing.APART, f"repairs gain up to {best:.2f}x", best)
    helpful = [t.name for t in run.twins if t.role == "look_alike" and (run.gain(t) or 0.0) >= LOOK_ALIKE_BELOW]
    if best < DECOY_BELOW:
        return Label(Standing.QUIET, f"the fault costs nothing here: its repair gains {best:.2f}x", best)
    if best < ADMIT_FROM:
        return Label(Standing.APART, f"too mild: its repair gains {best:.2f}x", best)
    if helpful:
        return Label(Standing.APART, f"not one cause: {', '.join(helpful)} helps as well", best)
    gained = "its repair makes it move at all" if best == float("inf") else f"its repair gains {best:.2f}x"
    return Label(Standing.CAUSE, gained, best)


def _ready_batches(run: Run) -> float | None:
    """Watched over unwatched speed of a job fed by workers, where the unwatched is none to compare with."""
    return None if run.past_queue or run.fault is None else _ahead(run, run.fault.rate)


def _ahead(run: Run, rate: float) -> float | None:
    """Speed of a job fed by workers while it was recorded over one at which it can have run on ready batches alone."""
    loaded = run.plan.get("source") == "loader" and run.plan.get("workers", 0) > 0
    recorded = run.before[0] if run.before else run.fault
    if not loaded or recorded is None or recorded.watched is None or rate <= 0:
        return None
    share = recorded.watched / rate
    return share if share < READY_BATCHES_BELOW else None


def _errors(run: Run) -> str:
    return next((t.error for t in run.twins if t.error), "no twin was run")


def severity(gain: float | None) -> str:
    """Band of the share of speed that the fault costs: 1 - 1/gain."""
    if gain is None or gain <= 1.0:
        return "none"
    lost = 1.0 - 1.0 / gain
    return "mild" if lost < 0.25 else "medium" if lost < 0.5 else "severe"
