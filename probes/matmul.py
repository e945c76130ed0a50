"""How much matrix arithmetic does this device do, at once and for long?

Each type at a large size, bf16 (fp32 on a CPU) over sizes from 256 to 16384, and fp32 at 2048 on the CPU as well.

Expected signature: TFLOP/s near the published range for the part; ``burst`` above ``sustained`` on a power-limited
GPU; bf16 about equal to fp16, about twice tf32, an order above fp32. Low in every type: clocks, power or a neighbour.
Low in tf32 only and equal to fp32: TF32 did not switch on. Over the sizes it rises to a plateau; products of 256 are
bound by launches in a job, which the figure here leaves out (the stream is held while they are enqueued).

Validity: the output buffer is filled with NaN before the sustained part and checked after it (Freivalds, float64);
the fp32 case fails that test when TF32 was left on; the same input twice must give the same bits on a GPU; a figure
above 1.02 × the published peak is invalid. Inputs are normal random numbers, never zeros: on an A100 zeros read
15 % faster, because they switch fewer transistors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import clocks, device, harness, peaks, verify
from .report import Report, first_line

NAME = "matmul"
SECONDS = {"cuda": 3.0, "cpu": 1.0}
ELEMENT_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
DEFAULT_SIZES = {"bf16": 8192, "fp16": 8192, "tf32": 8192, "fp32": 4096, "fp64": 4096, "fp8": 8192}
SWEEP = (256, 512, 1024, 2048, 4096, 16384)
SWEEP_SHARE = 0.2
"""Of the seconds, for each size of the sweep: the plateau is already known to the full time."""
BESIDE = 2048
"""Size at which the CPU is measured beside the GPU."""


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
        if sizes:
            return [Case("fp32", size) for size in sizes]
        return [Case("fp32", 1024), Case("fp32", 2048), Case("fp64", 1024)]
    return [Case(kind, size) for kind, default in DEFAULT_SIZES.items() for size in sizes or (default,)]


def sweep(is_cuda: bool) -> list[Case]:
    """One type over the sizes. On a CPU the small ones: the large ones take minutes."""
    return [Case("bf16", size) for size in SWEEP] if is_cuda else [Case("fp32", size) for size in SWEEP[:2]]


def need_bytes(case: Case) -> int:
    """Peak memory: two inputs, two outputs (one to compare with), float64 blocks, 256 MiB of library workspace."""
    matrices = 4 * case.size * case.size * ELEMENT_BYTES[case.kind]
    return matrices + 3 * verify.CHUNK_ROWS * case.size * 8 + 256 * 1024**2


def multiply(torch: Any, left: Any, right: Any, out: Any) -> Any:
    """The work under test. It allocates nothing."""
    return torch.mm(left, right, out=out)


def multiply_fp8(torch: Any, left: Any, right: Any, one: Any) -> Any:
    """The same for fp8, with bf16 output and the hardware's own sum: another function, which allocates its result."""
    product = torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return product[0] if isinstance(product, tuple) else product


def obstacle(target: device.Target, kind: str) -> str:
    """Why this type cannot be measured here, or ""."""
    if kind in ("bf16", "tf32") and target.is_cuda and target.capability < 8:
        return "this GPU has no units for it"
    if kind == "fp8":
        if not hasattr(target.torch, "float8_e4m3fn") or not hasattr(target.torch, "_scaled_mm"):
            return "this torch has no fp8 product"
        if tuple(target.torch.cuda.get_device_capability(target.device)) < (8, 9):
            return "this GPU has no units for it"
    return ""


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises ProbeError when the device cannot hold them."""
    todo = cases(target.is_cuda, parse_size(size) if size else ())
    full, short = (harness.Budget.of(share * seconds, target.is_cuda) for share in (1.0, SWEEP_SHARE))
    budgets = [(case, full) for case in todo]
    if not size:
        budgets += [(case, short) for case in sweep(target.is_cuda)]
        # A GPU too small for the largest size of the sweep can still be measured.
        room = target.free_bytes if target.is_cuda else math.inf
        budgets = [(case, budget) for case, budget in budgets if case in todo or need_bytes(case) <= room]
    device.require_memory(target, max(need_bytes(case) for case, _ in budgets))
    for case, budget in budgets:
        missing = obstacle(target, case.kind)
        if missing:
            report.notes.append(f"{case.name} is not available: {missing}")
            continue
        try:
            _measure(target, clock, report, case, budget, harness.prefixed(say, case.name))
        except (RuntimeError, TypeError) as exc:
            # Whether a library has the fp8 product for this GPU is only known by trying it.
            if case.kind != "fp8" or device.is_out_of_memory(exc):
                raise
            report.notes.append(f"{case.name} is not available: {first_line(exc)}")
        device.release(target)
    if target.is_cuda and not size:
        _beside_the_cpu(target, clock, report, SWEEP_SHARE * seconds, say)


def _beside_the_cpu(
    target: device.Target, clock: Any, report: Report, seconds: float, say: Callable[[str], None]
) -> None:
    """fp32 at one size on both, and how many times faster the GPU is."""
    case = Case("fp32", BESIDE)
    cpu = device.open_target(target.torch, "cpu")
    on_cpu = Report(report.probe, "cpu")
    budget = harness.Budget.of(max(seconds, 0.1), intensive=False)
    report.settings["cpu_threads"] = str(target.torch.get_num_threads())
    _measure(target, clock, report, case, budget, harness.prefixed(say, case.name))
    _measure(cpu, clocks.CpuClock(), on_cpu, case, budget, harness.prefixed(say, f"cpu_{case.name}"))
    report.problems += [f"cpu_{problem}" for problem in on_cpu.problems]
    name = f"{case.name}_sustained"
    ours = next((value for value in report.values if value["name"] == name), None)
    theirs = next((value for value in on_cpu.values if value["name"] == name), None)
    if ours and theirs:
        report.values.append({**theirs, "name": f"cpu_{name}"})
        report.add("gpu_over_cpu_" + case.name, "x", [_rate(ours) / _rate(theirs)])


def _rate(value: dict[str, object]) -> float:
    median = value["median"]
    assert isinstance(median, float)
    return median


def _measure(
    target: device.Target, clock: Any, report: Report, case: Case, budget: harness.Budget, say: Callable[[str], None]
) -> None:
    torch = target.torch
    read_back = device.set_tf32(torch, case.kind == "tf32")
    report.settings[f"{case.name}_matmul_fp32"] = read_back["matmul_fp32"]
    left, right, out = operands(target, case)
    if verify.dull(torch, left):
        report.problems.append(f"{case.name}: the inputs are no random data")
    last = [out]
    one = torch.ones((), device=target.device)

    def work() -> Any:
        last[0] = multiply_fp8(torch, left, right, one) if case.kind == "fp8" else multiply(torch, left, right, out)
        return last[0]

    def poison() -> None:
        last[0].fill_(math.nan)

    timing = harness.time_case(clock, work, budget, say, before_sustained=poison)
    say("checking")
    if target.is_cuda:
        report.settings[f"{case.name}_sm_mhz"] = f"{clock.sm_mhz():.0f}"
    matrices = 3 * case.size * case.size * ELEMENT_BYTES[case.kind]
    report.settings[f"{case.name}_l2"] = "warm" if matrices <= target.cache_bytes else "cold"
    _check(target, report, case, (left, right, last[0]), work)
    flop = 2.0 * case.size**3
    for part, times in (("burst", timing.burst_ms), ("sustained", timing.sustained_ms)):
        rates = [flop / (ms * 1e9) if ms > 0 else math.inf for ms in times]
        report.add(f"{case.name}_{part}", "TFLOP/s", rates)
        too_fast = peaks.impossible(target.name, case.kind, harness.middle(rates))
        if too_fast:
            report.problems.append(f"{case.name}_{part}: {too_fast}")
    report.add(f"{case.name}_first_call_ms", "ms", [timing.first_call_ms], higher_is_better=False)
    harness.note_timing(report, case.name, timing)


def operands(target: device.Target, case: Case) -> tuple[Any, Any, Any]:
    """Two random matrices and the output. fp8 wants its second matrix column by column."""
    torch = target.torch
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    dtype = types.get(case.kind, torch.float32)
    generator = torch.Generator(device=target.device).manual_seed(case.size)
    shape = (case.size, case.size)
    left, right = (torch.randn(shape, dtype=dtype, device=target.device, generator=generator) for _ in range(2))
    if case.kind == "fp8":
        # Normal numbers lie within e4m3's range of ±448: nothing saturates.
        left, right = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    return left, right, torch.empty(shape, dtype=torch.bfloat16 if case.kind == "fp8" else dtype, device=target.device)


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
        if not torch.equal(before, work()) and not problem:
            report.problems.append(f"{case.name}: the same input gave two different results")
