"""How fast is this device's memory, and does it keep what is written to it?

copy (read 1, write 1), clone (the same with an allocation), broadcast add (read 1, write 1) and triad a = b + s·c
(read 2, write 1) over arrays far larger than the last cache. Bytes read and bytes written both count: a copy of 1 GiB
moves 2.

Expected signature: all within a few per cent of each other and at 80 to 95 % of the data sheet. Clone far below copy:
the allocator asks the driver each time. All low: a neighbour, ECC trouble, or a memory clock that is down.

Validity: an array that fits in the cache is read in turn with others until they do not; where that is not possible the
figure is called ``…_in_cache``. Results are compared with what they must be, every element; a pattern of random bits is
written over the arrays (on a CPU over 768 MiB of them) and read back. A figure above 1.02 × the published bandwidth is
invalid. Before the measured part the output is filled with NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from . import device, harness, host_memory, peaks, stats, verify
from .report import Report

NAME = "memory"
SECONDS = {"cuda": 0.7, "cpu": 0.3}
MIB = 1024**2
DEFAULT_MIB = {"cuda": 1024, "cpu": 128}
SCALE = 1.25
MOST_SETS = 64
"""With arrays of the default size enough for 2 GiB of cache."""
PATTERN_MIB = 768
"""A host's memory is far larger than any sample of it, and has its own error correction; this takes half a second."""


class Case(NamedTuple):
    """One way to pass over memory."""

    name: str
    arrays: int
    """Arrays read and written in one pass."""


CASES = (Case("copy", 2), Case("clone", 2), Case("broadcast_add", 2), Case("triad", 3))


def parse_size(text: str) -> int:
    """``--size 1024``: MiB of one array. Raises ValueError with one line."""
    if not text.isdigit() or not 1 <= int(text) <= 65536:
        raise ValueError(f"--size {text}: expected MiB of one array, 1 to 65536")
    return int(text)


def work_on(torch: Any, case: str, left: Any, right: Any, row: Any, out: Any) -> Any:
    """The work under test; gives what it wrote."""
    if case == "copy":
        return out.copy_(left)
    if case == "clone":
        return left.clone()
    if case == "broadcast_add":
        return torch.add(left, row, out=out)
    return torch.add(left, right, alpha=SCALE, out=out)


def expected(torch: Any, case: str, left: Any, right: Any, row: Any) -> Any:
    """What one block must hold, in float64 and with another kernel than the one that was timed."""
    if case in ("copy", "clone"):
        return left.double()
    addend = row.double() if case == "broadcast_add" else right.double() * SCALE
    return left.double() + addend


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises ProbeError when the device cannot hold the arrays."""
    mib = parse_size(size) if size else DEFAULT_MIB["cuda" if target.is_cuda else "cpu"]
    sets = sets_of(target, mib)
    # Three large arrays a set, a clone, and 512 MiB for the comparison.
    device.require_memory(target, (3 * sets + 1) * mib * MIB + 512 * MIB)
    report.settings.update(array_bytes=str(mib * MIB), buffer_sets=str(sets), cache_bytes=str(target.cache_bytes))
    report.settings["counts"] = "bytes read and bytes written"
    buffers = [arrays(target, mib)]
    # Copies: to draw some gigabytes of normal numbers takes longer than all the rest.
    buffers += [tuple(tensor.clone() for tensor in buffers[0]) for _ in range(sets - 1)]
    if verify.dull(target.torch, buffers[0][0]):
        report.problems.append("the arrays hold no random data")
    budget = harness.Budget.of(seconds, intensive=False)
    for case in CASES:
        _measure(target, clock, report, case, mib, buffers, budget, harness.prefixed(say, case.name))
    say("comparing patterns")
    checked = [tensor for group in buffers for tensor in (group[0], group[1], group[3])]
    if not target.is_cuda:
        checked = checked[: max(3, PATTERN_MIB // mib)]
    bad = pattern_errors(target.torch, checked)
    report.settings["pattern_bytes"] = str(len(checked) * mib * MIB)
    if bad:
        report.problems.append(f"memory returned {bad} element(s) that differ from the pattern written")


def sets_of(target: device.Target, mib: int) -> int:
    """How many sets of arrays get past the cache, 1 when too little memory is free for so many.

    They take at most 3 GiB of a GPU, and a third of a host's free memory: a fixed 768 MiB there called every server CPU
    with more than 64 MiB of cache "in cache".
    """
    # A pass touches two of a set's three arrays.
    spare = 2048 * MIB if target.is_cuda else host_memory.free_bytes() * 2 // 9 or 512 * MIB
    return stats.rotation(2 * mib * MIB, target.cache_bytes, min(spare, MOST_SETS * 2 * mib * MIB))


def arrays(target: device.Target, mib: int) -> tuple[Any, ...]:
    """Two inputs, a row to broadcast, an output: fp32, rows of 1024."""
    torch = target.torch
    generator = torch.Generator(device=target.device).manual_seed(0)
    shape = (mib * MIB // 4 // 1024, 1024)
    left, right, row = (
        torch.randn(sides, device=target.device, generator=generator) for sides in (shape, shape, (1, 1024))
    )
    return left, right, row, torch.empty(shape, device=target.device)


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    case: Case,
    mib: int,
    buffers: list[Any],
    budget: harness.Budget,
    say: Callable[[str], None],
) -> None:
    torch = target.torch
    turn = 0
    written: list[Any] = [None]

    def work() -> None:
        nonlocal turn
        left, right, row, out = buffers[turn % len(buffers)]
        turn += 1
        written[0] = None  # a clone must be freed before the next is made
        written[0] = work_on(torch, case.name, left, right, row, out)

    def poison() -> None:
        for group in buffers:
            group[3].fill_(math.nan)

    timing = harness.time_case(clock, work, budget, say, before_sustained=poison, burst=False)
    say("checking")
    left, right, row, _ = buffers[(turn - 1) % len(buffers)]
    bad = wrong_elements(torch, case.name, left, right, row, written[0])
    if bad:
        report.problems.append(f"{case.name}: {bad} element(s) are wrong")
    moved = case.arrays * mib * MIB
    state = device.cache_state(moved, len(buffers), target.cache_bytes)
    name = case.name + ("_in_cache" if state == "warm" else "")
    report.settings[f"{case.name}_l2"] = state
    if state == "warm":
        report.notes.append(f"{name}: the arrays fit in the cache; this is not the memory's bandwidth")
    rates = [moved / (ms * 1e6) if ms > 0 else math.inf for ms in timing.sustained_ms]
    report.add(name, "GB/s", rates)
    # A cache may be faster than memory: the guard is for figures that claim to be memory's.
    limit = "" if state == "warm" else peaks.impossible(target.name, "dram", harness.middle(rates), unit="GB/s")
    if limit:
        report.problems.append(f"{case.name}: {limit}")
    harness.note_timing(report, case.name, timing)


def wrong_elements(torch: Any, case: str, left: Any, right: Any, row: Any, out: Any) -> int:
    """Elements of ``out`` that are not what they must be, NaN included. A block of rows at a time."""
    bad = 0
    for start in range(0, left.shape[0], 4096):
        rows = slice(start, start + 4096)
        want = expected(torch, case, left[rows], right[rows], row)
        # Two roundings of fp32 on numbers of size 1 to 10; copies must be exact.
        limit = 0.0 if case in ("copy", "clone") else 1e-5
        fine = (out[rows].double() - want).abs() <= limit
        bad += int((~fine).sum().item())
    return bad


def pattern_errors(torch: Any, tensors: list[Any]) -> int:
    """Write random bits and their complement over ``tensors``; how many 32-bit words come back wrong."""
    bad = 0
    for tensor in tensors:
        words = tensor.view(torch.int32)
        size = min(words.shape[0], 16384)
        generator = torch.Generator(device=words.device).manual_seed(99)
        bits = torch.randint(-(2**31), 2**31, (size, words.shape[1]), device=words.device, generator=generator).int()
        for pattern in (bits, ~bits):
            for start in range(0, words.shape[0], size):
                block = words[start : start + size]
                block.copy_(pattern[: block.shape[0]])
            for start in range(0, words.shape[0], size):
                block = words[start : start + size]
                bad += int((block != pattern[: block.shape[0]]).sum().item())
    return bad
