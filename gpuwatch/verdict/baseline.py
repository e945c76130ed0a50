"""Results that were accepted as good: what a baseline holds, and what may enter it.

Owns: the document of results and baselines, which runs are accepted, which are kept. Refuses: files, judging.

A baseline is a list of whole results, so that it can be judged again by a later version. History is append-only: the
first runs are kept for ever beside the newest, so that a drift of one percent a week cannot creep through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from msgspec import Struct

from gpuwatch.errors import RecordingError
from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict import quantities
from gpuwatch.verdict.statistics import mad

ENOUGH_RUNS = 5
"""With fewer the baseline is provisional: its noise is not known well, and nothing is CRITICAL because of it."""
KEEP_FIRST = 5
KEEP_NEWEST = 25
TRIM_MADS = 5.0
"""Three, as usual, cut healthy runs off short baselines: 1.6 % false alarms in 1000 simulated checks against 0.9 %."""
MOST_TRIMMED = 0.3
"""When more than this share of the runs would have to go, they are not one population: nothing is trimmed."""
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""A file may be anything: a million brackets in each other, too."""
SCHEMAS = ("gpuwatch.probe/1", "gpuwatch.probe-baseline/1", "gpuwatch.probe-check/1", "gpuwatch.probe-selftest/1")
"""A selftest's runs are of one environment on one machine: what they differ by is the noise that a check allows for.
Those of a comparison are of two environments, and no baseline."""


class Document(Struct, frozen=True):
    """What ``run``, ``check`` and ``selftest`` write with ``--json``, and ``baseline``. Other fields are skipped."""

    schema: str
    results: tuple[ProbeResult, ...]
    host: str = ""


def decode(data: bytes, name: str) -> Document:
    """A document from its bytes. Raises RecordingError that names the file and what is wrong with it."""
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
    except _UNREADABLE as exc:
        raise RecordingError(f"{name}: not a result of gpuwatch probe: {exc}") from None
    if schema not in SCHEMAS:
        raise RecordingError(f"{name}: schema {schema!r}; expected one of {', '.join(SCHEMAS)}")
    try:
        return msgspec.json.decode(data, type=Document)
    except _UNREADABLE as exc:
        raise RecordingError(f"{name}: damaged {schema}: {exc}") from None


class _Head(Struct, frozen=True):
    schema: str


def acceptable(result: ProbeResult) -> str:
    """Why a result may not be part of a baseline, or ""."""
    if result.status is not ProbeStatus.OK:
        return f"{result.status.value}: {result.message}" if result.message else result.status.value
    if result.contaminated:
        return "somebody else was on the GPU"
    if any(quantities.broken(value) for value in quantities.judged(result)):
        return "a figure is zero, negative or not finite"
    if not any(True for _ in quantities.judged(result)):
        return "it has no figure to judge"
    if result.observed.get("throttled_share", 0.0) > 0:
        return "the GPU slowed down for heat or hardware reasons meanwhile"
    return ""


def accepted(results: Iterable[ProbeResult]) -> tuple[list[ProbeResult], list[str]]:
    """Results that may enter a baseline, and one line for each that may not."""
    good, refused = [], []
    for result in results:
        reason = acceptable(result)
        if reason:
            refused.append(f"{result.probe} on {result.device}: left out, {reason}")
        else:
            good.append(result)
    return good, refused


def place(result: ProbeResult) -> tuple[str, str]:
    """The probe and the very device: its UUID, else its name."""
    return result.probe, result.device_uuid or result.device_name or result.device


def grouped(results: Iterable[ProbeResult]) -> dict[tuple[str, str], list[ProbeResult]]:
    """Runs by probe and device, each list from old to new."""
    groups: dict[tuple[str, str], list[ProbeResult]] = {}
    for result in sorted(results, key=lambda result: result.started_wall_ns):
        groups.setdefault(place(result), []).append(result)
    return groups


def appended(old: Iterable[ProbeResult], new: Iterable[ProbeResult]) -> list[ProbeResult]:
    """History with the new runs: of each probe and device the first five and the newest 25; each run once."""
    kept: list[ProbeResult] = []
    for runs in grouped([*old, *new]).values():
        unique = list({run.started_wall_ns: run for run in runs}.values())
        newest = unique[KEEP_FIRST:][-KEEP_NEWEST:]
        kept += [*unique[:KEEP_FIRST], *newest]
    return kept


def medians(runs: Iterable[ProbeResult], name: str) -> list[float]:
    """The run medians of one quantity."""
    return [value.median for run in runs for value in run.values if value.name == name and not quantities.broken(value)]


def trimmed(scores: Sequence[float], tolerance: float) -> list[float]:
    """Without what lies farther than max(5 MAD, tolerance) from the median, repeated until nothing changes.

    All of them when more than 30 % would go, or with fewer than five.
    """
    kept = list(scores)
    while len(kept) >= ENOUGH_RUNS:
        centre, reach = median(kept), max(TRIM_MADS * mad(kept), tolerance)
        inside = [value for value in kept if abs(value - centre) <= reach]
        if len(inside) == len(kept):
            break
        kept = inside
    return kept if len(kept) >= (1 - MOST_TRIMMED) * len(scores) else list(scores)
