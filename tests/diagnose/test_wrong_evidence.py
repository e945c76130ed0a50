"""Recordings of known jobs with a part of the evidence missing or spoilt: right, or unsure, never wrong for sure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest

from bench.accuracy.labels import Run, Standing, label, read
from bench.accuracy.score import answer_of, subject
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import (
    NOT_SUPPORTED,
    Confidence,
    DeviceSample,
    HostSample,
    Observation,
    Pressure,
    ProcessTick,
    Role,
    SourceLine,
    StackSample,
    ThreadStack,
)
from gpuwatch.replay.player import load

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
GPM = (
    "busy_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "fp64_active_pct", "fp32_active_pct",
    "fp16_active_pct", "dram_active_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s",
)  # fmt: skip
Spoil = Callable[[Sequence[Observation]], list[Observation]]


@cache
def labelled() -> tuple[tuple[Run, tuple[Observation, ...]], ...]:
    """Every recording whose label counts, with what it holds."""
    runs = [r for r in read([RECORDINGS, RECORDINGS / "faults"]) if r.file]
    counted = [r for r in runs if label(r).standing in (Standing.CAUSE, Standing.QUIET)]
    return tuple((run, load(Path(run.folder) / run.file)) for run in counted)


def without_gpm(seen: Sequence[Observation]) -> list[Observation]:
    gone = dict.fromkeys(GPM, NOT_SUPPORTED)
    return [
        msgspec.structs.replace(o, gpm_window_ns=0, **gone) if isinstance(o, DeviceSample) else o for o in seen
    ]  # fmt: skip


def without_pressure(seen: Sequence[Observation]) -> list[Observation]:
    none = Pressure(NOT_SUPPORTED, NOT_SUPPORTED)
    return [
        msgspec.structs.replace(o, psi_cpu=none, psi_io=none, psi_memory=none) if isinstance(o, HostSample) else o
        for o in seen
    ]


def at_half_rate(seen: Sequence[Observation]) -> list[Observation]:
    counts: Counter[type] = Counter()
    kept = []
    for o in seen:
        counts[type(o)] += 1
        if counts[type(o)] % 2 or not isinstance(o, (DeviceSample, StackSample)):
            kept.append(o)
    return kept


def at_random_half_of_the_stacks(seen: Sequence[Observation]) -> list[Observation]:
    chance = random.Random(7)
    return [o for o in seen if not isinstance(o, StackSample) or o.native or chance.random() < 0.5]


def with_renamed_workers(seen: Sequence[Observation]) -> list[Observation]:
    def renamed(tick: ProcessTick) -> ProcessTick:
        infos = [
            msgspec.structs.replace(i, role=Role.CHILD, comm="x") if i.role is Role.LOADER_WORKER else i
            for i in tick.infos
        ]
        return msgspec.structs.replace(tick, infos=tuple(infos))

    return [renamed(o) if isinstance(o, ProcessTick) else o for o in seen]


def with_500_threads(seen: Sequence[Observation]) -> list[Observation]:
    """A pool that waits, before and behind the threads that matter."""
    idle = tuple(ThreadStack(10_000_000 + i, f"pool-{i}", False, False, ()) for i in range(250))
    return [
        msgspec.structs.replace(o, threads=(*idle, *o.threads, *idle))
        if isinstance(o, StackSample) and o.threads
        else o
        for o in seen
    ]


SPOILT: dict[str, Spoil] = {
    "without GPM": without_gpm,
    "without stacks": lambda seen: [o for o in seen if not isinstance(o, StackSample)],
    "without native frames": lambda seen: [o for o in seen if not (isinstance(o, StackSample) and o.native)],
    "without the text of lines": lambda seen: [o for o in seen if not isinstance(o, SourceLine)],
    "without pressure": without_pressure,
    "without the host": lambda seen: [o for o in seen if not isinstance(o, HostSample)],
    "at half rate": at_half_rate,
    "at random half of the stacks": at_random_half_of_the_stacks,
    "with renamed workers": with_renamed_workers,
    "with 500 threads": with_500_threads,
}


@pytest.mark.parametrize("name", SPOILT)
def test_no_verdict_is_wrong_and_sure(name: str) -> None:
    wrong = []
    for run, seen in labelled():
        found = label(run)
        diagnosis = diagnose(SPOILT[name](seen), subject(run, seen))
        answer = answer_of(diagnosis, found.standing)
        truth = run.causes[0] if found.standing is Standing.CAUSE else "healthy"
        if answer not in (truth, *run.also, "unattributed") and diagnosis.verdict.confidence is Confidence.HIGH:
            wrong.append(f"{run.case} #{run.seed}: {answer} instead of {truth}")
    assert wrong == []


@pytest.mark.parametrize("name", ["with renamed workers", "with 500 threads", "without pressure"])
def test_what_does_not_matter_changes_no_answer(name: str) -> None:
    changed = []
    for run, seen in labelled():
        pid, standing = subject(run, seen), label(run).standing
        before, after = (answer_of(diagnose(part, pid), standing) for part in (seen, SPOILT[name](seen)))
        if before != after:
            changed.append(f"{run.case} #{run.seed}: {before}, then {after}")
    assert changed == []
