"""What other tools would say of the same recording, from the thresholds that they publish.

Owns: one function per tool, written from its documentation. Refuses: guessing what a tool does with readings that it
does not take. A class that may mean several causes counts as right when the truth is among them, which favours the
tools; a class that claims nothing counts as no answer.

``torch-tb`` needs the step time from inside the job; here the share of the training thread's stack samples that stand
in the DataLoader takes its place, which favours it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from bench.accuracy.labels import FAMILIES, HEALTHY
from gpuwatch.diagnose.account import balance
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.assemble import assemble
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.moments import moments
from gpuwatch.model import DeviceSample, Observation

INPUT = frozenset(FAMILIES["input"])
STARVED = INPUT | {"host_preprocessing", "cpu_quota_throttled", "cpu_oversubscribed"}
SMALL_WORK = frozenset({"launch_bound", "batch_too_small", "host_sync", "python_bound"})
FINE = frozenset({HEALTHY})
NOTHING: frozenset[str] = frozenset()
_LOADER = (
    Activity.WAITING_FOR_DATA, Activity.PREPARING_DATA, Activity.RECEIVING_DATA, Activity.RESTARTING_WORKERS,
)  # fmt: skip


class Answer(Struct, frozen=True):
    """A class in the tool's own words and the causes that it may mean."""

    said: str
    may_mean: frozenset[str]


class Readings(Struct, frozen=True):
    """Means over the recording, percent unless named; None where it was not read."""

    util: float | None = None
    memory: float | None = None
    copying: float | None = None
    busy: float | None = None
    sm: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    fp64: float | None = None
    dram: float | None = None
    pcie_bytes_per_s: float | None = None
    loader: float | None = None
    """Share of the training thread's samples in the DataLoader."""


def readings(observations: Sequence[Observation], pid: int) -> Readings:
    """What the tools would have read."""
    evidence = assemble(observations, pid)
    own = [o for o in observations if isinstance(o, DeviceSample) and o.device_index in evidence.device_indices]
    traffic = [v for v in (evidence.mean("rx_bytes_per_s"), evidence.mean("tx_bytes_per_s")) if v is not None]
    account = balance(evidence, moments(evidence))
    return Readings(
        util=_mean([s.gpu_util_pct for s in own]),
        memory=_pct(evidence.mem_used_share),
        copying=_mean([s.mem_util_pct for s in own]),
        busy=_pct(_gpm(evidence, "busy")),
        sm=_pct(_gpm(evidence, "sm")),
        tensor=_pct(_gpm(evidence, "tensor")),
        fp32=_pct(_gpm(evidence, "fp32")),
        fp64=_pct(_gpm(evidence, "fp64")),
        dram=_pct(_gpm(evidence, "dram")),
        pcie_bytes_per_s=sum(traffic) if traffic else None,
        loader=_pct(account.held_in(*_LOADER)) if account else None,
    )


def _gpm(evidence: Evidence, field: str) -> float | None:
    return evidence.mean(field) if evidence.gpm else None


def _mean(values: Sequence[object]) -> float | None:
    known = [float(v) for v in values if isinstance(v, (int, float))]
    return sum(known) / len(known) if known else None


def _pct(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def low_utilization(r: Readings) -> Answer:
    """The rule of thumb: utilization below 30 % means the data loader."""
    if r.util is None:
        return Answer("no reading", NOTHING)
    return Answer("data loader", STARVED) if r.util < 30 else Answer("fine", FINE)


def kempner_pulse(r: Readings) -> Answer:
    """Twelve classes, first match; DCGM's fields by their GPM and NVML counterparts."""
    if r.sm is None or r.busy is None:
        return Answer("no DCGM profiling fields", NOTHING)
    sm, tensor, dram = r.sm, r.tensor or 0.0, r.dram or 0.0
    moving = (r.copying or 0.0) >= 40 or (r.pcie_bytes_per_s or 0.0) >= 1e9
    classes = (
        (r.busy < 5 and dram < 5 and (r.util or 0.0) < 5, "idle", frozenset(FAMILIES["use"])),
        (tensor >= 50 and sm >= 60, "tensor heavy", FINE),
        (tensor >= 15 and sm >= 40, "tensor", FINE),
        ((r.fp64 or 0.0) >= 20 and sm >= 50, "FP64", NOTHING),
        (moving and sm < 30, "I/O or data loading", INPUT | frozenset(FAMILIES["transfer"])),
        (dram >= 50 and sm < 50, "memory bound", frozenset({"memory_bandwidth_bound"})),
        (sm >= 80, "compute heavy", FINE),
        (sm >= 50, "compute active", FINE),
        (dram >= 40, "memory active", frozenset({"memory_bandwidth_bound"})),
        (r.busy >= 40 and sm < 25, "busy, low SM", SMALL_WORK),
        (max(sm, tensor, dram, r.busy) < 15, "low", NOTHING),
    )
    return next((Answer(said, means) for holds, said, means in classes if holds), Answer("mixed", NOTHING))


def nvsonar(r: Readings) -> Answer:
    """One NVML snapshot: starved below 40 % with half of the memory in use, idle below 5 %, compute at 100 %."""
    if r.util is None:
        return Answer("no reading", NOTHING)
    if r.util < 5:
        return Answer("IDLE", frozenset(FAMILIES["use"]))
    if r.util < 40 and (r.memory or 0.0) > 50:
        return Answer("DATA_STARVED", STARVED)
    return Answer("COMPUTE_BOUND", FINE) if r.util >= 99.5 else Answer("BALANCED", FINE)


def torch_tb(r: Readings) -> Answer:
    """Profiler plug-in: loader above 5 % of the step, else utilization below 50 %, else no tensor cores."""
    if r.loader is not None and r.loader > 5:
        return Answer("DataLoader", STARVED)
    if r.util is not None and r.util < 50:
        return Answer("low utilization: larger batch", SMALL_WORK)
    if r.tensor is not None and r.tensor < 0.5:
        return Answer("tensor cores unused", frozenset({"tensor_cores_unused"}))
    return Answer("no advice", FINE)


def gpmtop(r: Readings) -> Answer:
    """SM below 5 idle; tensor from 50 compute; SM below 50 launch- or input-bound; DRAM from 60 memory."""
    if r.sm is None:
        return Answer("no GPM", NOTHING)
    if r.sm < 5:
        return Answer("idle", frozenset(FAMILIES["use"]))
    if (r.tensor or 0.0) >= 50:
        return Answer("compute", FINE)
    if r.sm < 50:
        return Answer("launch- or input-bound", STARVED | SMALL_WORK)
    if (r.dram or 0.0) >= 60:
        return Answer("memory", frozenset({"memory_bandwidth_bound"}))
    return Answer("FP32", frozenset({"tensor_cores_unused"})) if (r.fp32 or 0.0) >= 40 else Answer("latency", FINE)


PEERS: dict[str, Callable[[Readings], Answer]] = {
    "utilization < 30 % is the loader": low_utilization,
    "torch-tb (loader > 5 %)": torch_tb,
    "NVSonar": nvsonar,
    "KempnerPulse": kempner_pulse,
    "gpmtop": gpmtop,
}
