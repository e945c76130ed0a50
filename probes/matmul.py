"""How much matrix arithmetic does this device do, at once and for long?

Expected signature: TFLOP/s near the published range for the part; ``burst`` above ``sustained`` on a power-limited
GPU; bf16 about equal to fp16, about twice tf32, an order above fp32. Low in every type: clocks, power or a neighbour.
Low in tf32 only and equal to fp32: TF32 did not switch on.

Validity: the output buffer is filled with NaN before the sustained part and checked after it (Freivalds, float64);
the fp32 case fails that test when TF32 was left on; the same input twice must give the same bits on a GPU; a figure
above 1.02 × the published peak is invalid. Inputs are normal random numbers, never zeros: on an A100 zeros read
15 % faster, because they switch fewer transistors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import device, harness, verify
from .report import Report

NAME = "matmul"
SECONDS = {"cuda": 3.0, "cpu": 1.0}
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}


class Case(NamedTuple):
    """One square product."""

    kind: str
    size: int

    @property
    def name(self) -> str:
        """Figures of different sizes are never compared, so the size is in the name."""
        return f"{self.kind}_{self.size}"


def parse_size(text: str) -> list[int]:
    """``--size 8192`` or ``--size 1024,2048``. Raises ValueError with one line."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and 16 <= int(part) <= 65536 for part in parts):
        raise ValueError(f"--size {text}: expected N or N,N,… between 16 and 65536")
    return [int(part) for part in parts]


def cases(is_cuda: bool, sizes: Sequence[int]) -> list[Case]:
    """What is measured: every type that the device has units for, at the given sizes or the default ones."""
    if not is_cuda:
        return [Case("fp32", size) for size in sizes or (1024, 2048)]
    defaults = {"bf16": 8192, "fp16": 8192, "tf32": 8192, "fp32": 4096}
    return [Case(kind, size) for kind, default in defaults.items() for size in sizes or (default,)]


def need_bytes(case: Case) -> int:
    """Peak memory: two inputs, two outputs (one to compare with), float64 blocks, 256 MiB of library workspace."""
    matrices = 4 * case.size * case.size * ELEMENT_BYTES[case.kind]
    return matrices + 3 * verify.CHUNK_ROWS * case.size * 8 + 256 * 1024**2


def multiply(torch: Any, left: Any, right: Any, out: Any) -> Any:
    """The work under test. It allocates nothing."""
    return torch.mm(left, right, out=out)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises ProbeError when the device cannot hold them."""
    todo = cases(target.is_cuda, parse_size(size) if size else ())
    device.require_memory(target, max(need_bytes(case) for case in todo))
    budget = harness.Budget.of(seconds, intensive=target.is_cuda)
    for case in todo:
        if case.kind in ("bf16", "tf32") and target.capability < 8:
            report.notes.append(f"{case.name} left out: this GPU has no units for it")
            continue
        _measure(target, clock, report, case, budget, harness.prefixed(say, case.name))


def _measure(
    target: device.Target, clock: Any, report: Report, case: Case, budget: harness.Budget, say: Callable[[str], None]
) -> None:
    torch = target.torch
    read_back = device.set_tf32(torch, case.kind == "tf32")
    report.settings[f"{case.name}_matmul_fp32"] = read_back["matmul_fp32"]
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = types.get(case.kind, torch.float32)
    generator = torch.Generator(device=target.device).manual_seed(case.size)
    shape = (case.size, case.size)
    left = torch.randn(shape, dtype=dtype, device=target.device, generator=generator)
    right = torch.randn(shape, dtype=dtype, device=target.device, generator=generator)
    out = torch.empty(shape, dtype=dtype, device=target.device)

    def work() -> Any:
        return multiply(torch, left, right, out)

    def poison() -> None:
        out.fill_(math.nan)

    timing = harness.time_case(clock, work, budget, say, before_sustained=poison)
    say("checking")
    _check(target, report, case, (left, right, out), work)
    flop = 2.0 * case.size**3
    for part, times in (("burst", timing.burst_ms), ("sustained", timing.sustained_ms)):
        rates = [flop / (ms * 1e9) if ms > 0 else math.inf for ms in times]
        report.add(f"{case.name}_{part}", "TFLOP/s", rates)
        too_fast = device.impossible(target.name, case.kind, harness.middle(rates))
        if too_fast:
            report.problems.append(f"{case.name}_{part}: {too_fast}")
    report.add(f"{case.name}_first_call_ms", "ms", [timing.first_call_ms], higher_is_better=False)
    harness.note_timing(report, case.name, timing)


def _check(target: device.Target, report: Report, case: Case, tensors: Any, work: Callable[[], Any]) -> None:
    torch = target.torch
    left, right, out = tensors
    error = verify.product_error(torch, left, right, out)
    problem = verify.wrong(case.name, error, verify.PRODUCT_TOLERANCE[case.kind])
    if problem:
        report.problems.append(problem)
    report.settings[f"{case.name}_error"] = f"{error:.2g}"
    if target.is_cuda:
        before = out.clone()
        work()
        if not torch.equal(before, out) and not problem:
            report.problems.append(f"{case.name}: the same input gave two different results")
