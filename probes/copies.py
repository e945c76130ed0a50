"""How fast do data travel between the host and this GPU?

Host to device and back, from pinned and from pageable memory, at 4 KiB (latency), 1 MiB and 256 MiB, and both
directions at once. Without a GPU: from host memory to host memory, which is the ceiling of a pageable copy.

Expected signature: pinned at 80 to 90 % of the link (PCIe gen 4 x16: 25 GB/s, gen 5: 52), both directions alike;
pageable at a half or less, bound by one host thread. Pinned low both ways: fewer lanes, an older generation, a remote
NUMA node. One direction only: an IOMMU or a damaged link. Small copies are bound by latency, not bandwidth.

Validity: memory is allocated outside the timed part; the bytes are random and compared after a round trip; the
destination is overwritten before the measured part. A figure above 1.02 × the link's published peak is invalid, and
directions that differ by more than 1.4 get a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from . import device, harness, peaks, verify
from .report import Report

NAME = "copies"
SECONDS = {"cuda": 0.5, "cpu": 0.2}
KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, MIB, 256 * MIB)
LATENCY_BYTES = 64 * KIB
"""Up to this size a copy is reported as microseconds: its bandwidth says nothing."""
SYMMETRY = 1.4


class Case(NamedTuple):
    """One way to copy."""

    way: str
    """h2d, d2h, bidir or host."""
    memory: str
    """pinned or pageable."""
    size: int

    @property
    def name(self) -> str:
        """Such as "h2d_pinned_256MiB"."""
        size = f"{self.size // MIB}MiB" if self.size >= MIB else f"{self.size // KIB}KiB"
        return f"{self.way}_{self.memory}_{size}"


def parse_size(text: str) -> list[int]:
    """``--size 4,1024``: KiB of a copy. Raises ValueError with one line."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and 1 <= int(part) <= 4 * 1024**2 for part in parts):
        raise ValueError(f"--size {text}: expected KiB,KiB,… between 1 and 4194304")
    return [int(part) * KIB for part in parts]


def cases(is_cuda: bool, sizes: list[int]) -> list[Case]:
    """All ways at all sizes; both directions at once only where bandwidth is the question."""
    if not is_cuda:
        return [Case("host", "pageable", size) for size in sizes]
    found = [Case(way, memory, size) for size in sizes for memory in ("pinned", "pageable") for way in ("h2d", "d2h")]
    return found + [Case("bidir", "pinned", size) for size in sizes if size > LATENCY_BYTES]


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises ProbeError when the memory is not there."""
    sizes = parse_size(size) if size else list(SIZES)
    device.require_memory(target, 4 * max(sizes) + 64 * MIB)
    budget = harness.Budget.of(seconds, intensive=False)
    found: dict[str, float] = {}
    for case in cases(target.is_cuda, sizes):
        found[case.name] = _measure(target, clock, report, case, budget, harness.prefixed(say, case.name))
    for case in cases(target.is_cuda, sizes):
        if case.way == "h2d" and case.memory == "pinned" and case.size > LATENCY_BYTES:
            there, back = found[case.name], found[case._replace(way="d2h").name]
            if min(there, back) > 0 and max(there, back) / min(there, back) > SYMMETRY:
                report.notes.append(
                    f"{case.name} {there:.1f} and back {back:.1f} GB/s: a link is as fast both ways; "
                    "check the IOMMU, the slot and the NUMA node"
                )


def buffers(target: device.Target, case: Case) -> tuple[Any, Any, Any, Any]:
    """Source and destination of the copy; for both directions at once, of the way back too."""
    torch = target.torch
    pin = case.memory == "pinned" and target.is_cuda
    host = device.host_random_bytes(torch, case.size, 5, pin)
    if case.way == "host":
        return host, torch.empty_like(host), None, None
    there = host.to(target.device)
    back = device.host_random_bytes(torch, case.size, 6).to(target.device)
    empty = torch.empty(case.size, dtype=torch.uint8, pin_memory=pin)
    if case.way == "d2h":
        return back, empty, None, None
    return (host, there, back, empty) if case.way == "bidir" else (host, there, None, None)


def copier(target: device.Target, case: Case, tensors: tuple[Any, Any, Any, Any]) -> Callable[[], object]:
    """The work under test: on the current stream; the way back on a second one that the current one waits for."""
    source, destination, other_source, other_destination = tensors
    if case.way != "bidir":
        return lambda: destination.copy_(source, non_blocking=True)
    cuda = target.torch.cuda
    side = cuda.Stream(target.device)

    def both() -> None:
        current = cuda.current_stream(target.device)
        side.wait_stream(current)
        destination.copy_(source, non_blocking=True)
        with cuda.stream(side):
            other_destination.copy_(other_source, non_blocking=True)
        # The event behind this call must come after both copies.
        current.wait_stream(side)

    return both


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    case: Case,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> float:
    """GB/s of the case; µs for a small one."""
    tensors = buffers(target, case)
    if verify.dull(target.torch, tensors[0]):
        report.problems.append(f"{case.name}: the source holds no random data")

    def poison() -> None:
        for source, destination in (tensors[:2], tensors[2:]):
            if source is not None:
                destination.fill_(0x5A)

    timing = harness.time_case(clock, copier(target, case, tensors), budget, say, before_sustained=poison, burst=False)
    clock.drain()
    bad = damaged_bytes(target.torch, tensors)
    if bad:
        report.problems.append(f"{case.name}: {bad} byte(s) arrived damaged")
    harness.note_timing(report, case.name, timing)
    if case.size <= LATENCY_BYTES:
        times_us = [ms * 1000.0 for ms in timing.sustained_ms]
        report.add(case.name, "µs", times_us, higher_is_better=False)
        return harness.middle(times_us)
    ways = 2 if case.way == "bidir" else 1
    rates = [ways * case.size / (ms * 1e6) if ms > 0 else math.inf for ms in timing.sustained_ms]
    report.add(case.name, "GB/s", rates)
    rate = harness.middle(rates)
    problem = peaks.impossible(target.name, "link", rate, ways, "GB/s")
    if problem:
        report.problems.append(f"{case.name}: {problem}")
    return rate


def damaged_bytes(torch: Any, tensors: tuple[Any, Any, Any, Any]) -> int:
    """Bytes of the destinations that differ from their source after coming back to the host."""
    bad = 0
    for source, destination in (tensors[:2], tensors[2:]):
        if source is not None:
            bad += int((source.cpu() != destination.cpu()).sum().item())
    return bad
