"""Under which conditions a figure was measured, in three rings, and what differs between two sides.

Owns: which setting belongs to which ring. Refuses: reading settings from a machine.

* hard: another GPU, another size, another precision: the figures cannot be compared at all.
* declared: another driver, torch or switch: comparable when the user says that this is what changes.
* soft: where and when; reported only.

A setting that varies between runs of one side (a calibrated loop count, an error of rounding) is an outcome, not a
condition, whatever its name: it counts as soft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from gpuwatch.model import ProbeResult
from gpuwatch.verdict.verdicts import Change

HARD, DECLARED, SOFT = "hard", "declared", "soft"

_DECLARED = frozenset(
    (
        *("python", "torch", "torchvision", "cuda", "cuda_runtime", "cudnn", "nccl", "triton", "numpy", "pillow"),
        *("driver", "driver_version", "vbios", "image", "container", "governor", "locked_clocks", "compile"),
        *("cuda_module_loading", "pytorch_cuda_alloc_conf", "pytorch_alloc_conf", "omp_num_threads"),
    )
)
_OUTCOME = re.compile(r"(_inner|_stationary|_error)$")
"""Calibrated or measured by the probe itself: no condition, and not worth a line."""
_SOFT = re.compile(
    r"(_seed|_samples|_n|_path|_dir|_dirty|_s|_ms|_us|_mhz|_c|_pct|_share|_free|_used"
    r"|_free_bytes|_used_bytes|_per_s)$|^(cpu|hostname|kernel|numa.*|pcie.*|mem_free_bytes|uuid|serial|probe_count)$"
)
_SOFT_ON_GPU = frozenset(("cpus", "threads"))
"""On a GPU the host's cores are not the condition; for a CPU probe they are."""
_CPU_PROBES = re.compile(r"loader|storage|decode|shm|worker|cpu")


class Fingerprint(Struct, frozen=True):
    """The rings of one probe on one device."""

    hard: dict[str, str]
    declared: dict[str, str]
    soft: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """The first 16 hexadecimal digits of each ring's sha256, over its canonical JSON."""
        rings = {HARD: self.hard, DECLARED: self.declared, SOFT: self.soft}
        return {name: _digest(ring) for name, ring in rings.items()}


def ring_of(key: str, probe: str, on_gpu: bool) -> str:
    """The ring of one setting. An unknown one is hard: rather no comparison than a wrong one."""
    if key.lower() in _DECLARED:
        return DECLARED
    if key in _SOFT_ON_GPU:
        return SOFT if on_gpu and not _CPU_PROBES.search(probe) else HARD
    return SOFT if _SOFT.search(key) else HARD


def fingerprint(runs: Sequence[ProbeResult]) -> Fingerprint:
    """Of all runs of one probe on one kind of device. Needs one at least."""
    first = runs[0]
    on_gpu = not first.device.startswith("cpu")
    rings: dict[str, dict[str, str]] = {HARD: {"probe": first.probe, "device_name": first.device_name}}
    rings |= {DECLARED: {}, SOFT: {"device_uuid": first.device_uuid} if first.device_uuid else {}}
    for key in sorted({key for run in runs for key in run.settings if not _OUTCOME.search(key)}):
        told = {run.settings[key] for run in runs if key in run.settings}
        ring = ring_of(key, first.probe, on_gpu) if len(told) == 1 else SOFT
        rings[ring][key] = told.pop() if len(told) == 1 else "varies"
    return Fingerprint(rings[HARD], rings[DECLARED], rings[SOFT])


def changes(before: Sequence[ProbeResult], after: Sequence[ProbeResult]) -> list[Change]:
    """Settings that differ, the hard ones first. A side that varies in a setting does not have it."""
    old, new = fingerprint(before), fingerprint(after)
    found = []
    for ring, was, now in (
        (HARD, old.hard, new.hard),
        (DECLARED, old.declared, new.declared),
        (SOFT, old.soft, new.soft),
    ):
        for key in sorted(was.keys() | now.keys()):
            # A key that varies within one side is soft there, and may be hard on the other, which has fewer runs.
            if ring != SOFT and (key in old.soft or key in new.soft):
                continue
            left, right = was.get(key, ""), now.get(key, "")
            if left != right and "varies" not in (left, right):
                # What one side does not tell is not known to differ: the user decides.
                found.append(Change(key, left, right, ring if (left and right) or ring == SOFT else DECLARED))
    return found


def obstacles(differences: Iterable[Change], vary: Collection[str]) -> list[Change]:
    """The differences that forbid a comparison: hard ones, and declared ones that the user does not name.

    ``vary`` also lets a hard one pass: then the user compares, say, two power limits on purpose.
    """
    return [change for change in differences if change.ring != SOFT and change.key not in vary]


def told(change: Change) -> str:
    """ "torch 2.0.1 → 2.9.0", for a person."""
    return f"{change.key} {change.before or 'not there'} → {change.after or 'not there'}"


def explain(obstacles: Sequence[Change]) -> str:
    """What differs, and the option with which the user says that it is meant so."""
    shown = ", ".join(told(change) for change in obstacles[:3])
    more = f" and {len(obstacles) - 3} more" if len(obstacles) > 3 else ""
    return f"{shown}{more}; if meant so: --vary {','.join(change.key for change in obstacles)}"


def _digest(ring: dict[str, str]) -> str:
    import hashlib  # It loads OpenSSL, 3.5 MiB, which a daemon without a baseline has no use for.

    canonical = json.dumps(ring, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
