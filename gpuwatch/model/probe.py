"""What a probe has measured.

Owns: ProbeResult. Refuses: verdicts on it.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class ProbeStatus(enum.StrEnum):
    """Outcome of one probe run."""

    OK = "ok"
    BUSY = "busy"
    """Refused: somebody else's process is on the GPU."""
    INVALID = "invalid"
    """Ran, and the figure cannot be true (above the physical peak, wrong result)."""
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    """Cannot run here: no torch, no such device."""


class ProbeValue(Struct, frozen=True):
    """One measured quantity: the median over samples and its spread."""

    name: str
    unit: str
    median: float
    p20: float
    p80: float
    n: int
    higher_is_better: bool = True


class ProbeResult(Struct, frozen=True):
    """What a probe said. The JSON on a probe's stdout has these fields."""

    probe: str
    status: ProbeStatus
    device: str
    """"cuda:0" or "cpu"."""
    values: tuple[ProbeValue, ...] = ()
    device_uuid: str = ""
    device_name: str = ""
    started_wall_ns: int = 0
    duration_s: float = 0.0
    message: str = ""
    """For anything but OK: what happened and what to do. One line."""
    contaminated: bool = False
    """Another process appeared on the GPU during the run, or it was forced."""
    settings: dict[str, str] = {}
    """Versions and switches that were pinned and read back."""
    notes: tuple[str, ...] = ()
    observed: dict[str, float] = {}
    """What the GPU did meanwhile: power, clocks, activity; names and units in verdict/observe.py. Empty: not seen."""
