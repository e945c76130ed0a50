"""Probe results for the tests of verdicts, and a machine with noise and drift.

Owns: no assertion.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from gpuwatch.model import ProbeResult, ProbeStatus, ProbeValue

SETTINGS = {"torch": "2.9.0", "cuda": "12.8", "seconds": "3", "matmul_fp32": "ieee", "power_limit_w": "700"}
UUID = "GPU-11"


def value(name: str, median: float, unit: str = "TFLOP/s", higher: bool = True, n: int = 30) -> ProbeValue:
    return ProbeValue(name, unit, median, median * 0.99, median * 1.01, n, higher)


def result(
    *values: ProbeValue,
    probe: str = "matmul",
    status: ProbeStatus = ProbeStatus.OK,
    at: int = 0,
    message: str = "",
    uuid: str = UUID,
    name: str = "NVIDIA H200",
    device: str = "cuda:0",
    contaminated: bool = False,
    settings: Mapping[str, str] = SETTINGS,
    observed: Mapping[str, float] | None = None,
) -> ProbeResult:
    return ProbeResult(
        *(probe, status, device, values, uuid, name, at, 1.0, message, contaminated, dict(settings)),
        observed=dict(observed or {}),
    )


def runs(figures: Sequence[float], start: int = 0, **rest: str) -> list[ProbeResult]:
    """One result of bf16 per figure, in order of time."""
    return [
        result(value("bf16_8192_sustained", figure), at=start + number, **rest)  # type: ignore[arg-type]
        for number, figure in enumerate(figures)
    ]


class Machine:
    """Run medians of a workload: 1.0 with the given noise between processes, on a machine that drifts.

    ``drift`` is the relative loss over the whole experiment of ``length`` runs.
    """

    def __init__(self, seed: int, noise: float, drift: float = 0.0, length: int = 1) -> None:
        self._chance = random.Random(seed)
        self._noise = noise
        self._drift = drift
        self._length = length
        self._turn = 0

    def run(self, speed: float = 1.0) -> float:
        """The next run's median."""
        slow = 1.0 - self._drift * self._turn / self._length
        self._turn += 1
        return speed * slow * max(0.1, 1.0 + self._chance.gauss(0.0, self._noise))
