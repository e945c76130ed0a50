"""What latency and throughput does a ResNet-50 have here, by batch and by gradient mode?

ResNet-50 in evaluation mode at 224 × 224. At the smallest batch three times: with gradients recorded, under ``no_grad``
and under ``inference_mode``; then batches up to 256 under ``inference_mode``. fp32 (TF32 off) and bf16 autocast on a
GPU. Latency is the device's time from the call to its output (events), and the 95th percentile of it.

Expected signature: images/s grow with the batch until the GPU is full; latency hardly grows until then. At batch 1 all
modes alike on a fast GPU: Python's launches are the limit, and only a graph or torch.compile helps. Gradients recorded:
about as fast, but with all activations kept (see ``…_peak``).

Validity: the three modes must give the same output, finite; under the last two no graph may be recorded. Weights and
images are random. A batch that does not fit is noted and left out, its memory freed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import device, harness, stats, verify
from .report import Report, UnavailableError

NAME = "inference"
SECONDS = {"cuda": 0.5, "cpu": 0.3}
BATCHES = {"cuda": (1, 8, 64, 256), "cpu": (1, 4)}
SIDE = 224
TOLERANCE = {"fp32": 1e-3, "bf16": 0.2}
"""Of the largest of 1000 outputs after 50 layers; another network is off by more than its own size."""


class Case(NamedTuple):
    """One way to run the network."""

    kind: str
    mode: str
    batch: int

    @property
    def name(self) -> str:
        """Such as "bf16_no_grad_b1"."""
        return f"{self.kind}_{self.mode}_b{self.batch}"


class Size(NamedTuple):
    """Batches and image side."""

    batches: tuple[int, ...]
    side: int


def parse_size(text: str) -> Size:
    """``--size 1,8,64x224``: batches and the side of the images. Raises ValueError with one line."""
    batches, _, side = text.partition("x")
    parts = [*batches.split(","), side or str(SIDE)]
    if not all(part.strip().isdigit() and 1 <= int(part) <= 8192 for part in parts) or int(parts[-1]) < 32:
        raise ValueError(f"--size {text}: expected BATCH,BATCH,…xSIDE, such as 1,8,64x224, sides from 32")
    return Size(tuple(int(part) for part in parts[:-1]), int(parts[-1]))


def cases(kinds: tuple[str, ...], batches: tuple[int, ...]) -> list[Case]:
    """All modes at the smallest batch, inference_mode at the others."""
    first = min(batches)
    found: list[Case] = []
    for kind in kinds:
        found += [Case(kind, mode, first) for mode in ("grad", "no_grad")]
        found += [Case(kind, "inference_mode", batch) for batch in sorted(batches)]
    return found


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises UnavailableError when not even the first batch fits."""
    from . import models

    torch = target.torch
    kind = "cuda" if target.is_cuda else "cpu"
    wanted = parse_size(size) if size else Size(BATCHES[kind], SIDE)
    report.settings.update(device.set_tf32(torch, False), side=str(wanted.side))
    torch.manual_seed(3)
    model = models.resnet50().eval().to(target.device)
    kinds = ("fp32", "bf16") if target.capability >= 8 else ("fp32",)
    budget = harness.Budget.of(seconds, intensive=False)
    images = torch.randn(max(wanted.batches), 3, wanted.side, wanted.side)
    if verify.dull(torch, images):
        report.problems.append("the images are no random data")
    for case in cases(kinds, wanted.batches):
        try:
            batch = images[: case.batch].to(target.device)
            _measure(target, clock, report, case, model, batch, budget, harness.prefixed(say, case.name))
        except (RuntimeError, MemoryError) as exc:
            if not device.is_out_of_memory(exc):
                raise
            report.notes.append(f"{case.name} left out: it does not fit in memory")
        device.release(target)
    if not report.values:
        raise UnavailableError("the GPU is too small: not even the first batch fits; use a smaller --size")


def forward(torch: Any, model: Any, images: Any, case: Case) -> Any:
    """The work under test."""
    mode = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[case.mode]
    with mode(), torch.autocast(images.device.type, torch.bfloat16, enabled=case.kind == "bf16"):
        return model(images)


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    case: Case,
    model: Any,
    images: Any,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> None:
    torch = target.torch
    last: list[Any] = [None]

    def work() -> None:
        last[0] = None
        last[0] = forward(torch, model, images, case)

    if target.is_cuda:
        torch.cuda.reset_peak_memory_stats(target.device)
    # Latency is what a caller sees: a network of small kernels is not helped along by a full queue.
    timing = harness.time_case(clock, work, budget, say, burst=False, hold=False)
    say("checking")
    problem = output_problem(torch, model, images, case, last[0])
    if problem:
        report.problems.append(problem)
    times = timing.sustained_ms
    report.add(case.name, "images/s", [case.batch * 1000.0 / ms if ms > 0 else 0.0 for ms in times])
    report.add(f"{case.name}_ms", "ms", times, higher_is_better=False)
    report.add(f"{case.name}_p95_ms", "ms", [stats.quantile(times, 0.95)], higher_is_better=False)
    report.add(f"{case.name}_first_call_ms", "ms", [timing.first_call_ms], higher_is_better=False)
    if target.is_cuda:
        peak = torch.cuda.max_memory_allocated(target.device) / device.GIB
        report.add(f"{case.name}_peak", "GiB", [peak], higher_is_better=False)
    harness.note_timing(report, case.name, timing)


def output_problem(torch: Any, model: Any, images: Any, case: Case, output: Any) -> str:
    """Why this output is wrong, against fp32 with gradients on the first image; or ""."""
    if output.requires_grad != (case.mode == "grad"):
        return f"{case.name}: gradients were {'not ' if case.mode == 'grad' else ''}recorded"
    expected = forward(torch, model, images[:1], Case("fp32", "grad", 1)).detach()
    error = verify.share(torch, output[:1].float() - expected, expected)
    return verify.wrong(case.name, error, TOLERANCE[case.kind])
