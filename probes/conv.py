"""How fast are convolutions, and does the memory layout matter here?

16 × 64 × 224 × 224, 3×3, 64 → 64 channels: the shape of a network's first stages. Forward alone and forward with
both gradients, in NCHW and channels_last, fp32 (TF32 off) and bf16.

Expected signature: bf16 in channels_last is the fastest, NCHW pays for conversions; fp32 far below both. bf16 no faster
than fp32: tensor cores are not used (old cuDNN, odd channel counts). First call long: cuDNN tries its algorithms
(``cudnn.benchmark`` is on), which a job pays for every new shape.

Validity: the last timed output is compared with float64 on cut-outs that include the padded edge; gradients must obey
<g, conv(x, w)> = <grad_x, x> = <grad_w, w>. TFLOP/s count the direct algorithm; Winograd needs up to four times fewer
multiplications for 3×3, so only a figure above 4 × 1.02 × the peak is called impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from . import device, harness, peaks, verify
from .report import Report

NAME = "conv"
SECONDS = {"cuda": 1.0, "cpu": 0.4}
WINOGRAD = 4.0


class Shape(NamedTuple):
    """Of the image; the weight has as many output as input channels."""

    batch: int
    channels: int
    height: int
    width: int


SHAPES = {"cuda": Shape(16, 64, 224, 224), "cpu": Shape(2, 32, 56, 56)}


class Case(NamedTuple):
    """One convolution."""

    kind: str
    layout: str
    train: bool

    @property
    def name(self) -> str:
        """Such as "bf16_channels_last_train"."""
        return f"{self.kind}_{self.layout}_{'train' if self.train else 'forward'}"


def parse_size(text: str) -> Shape:
    """``--size 16x64x224x224``: batch, channels (in = out), height, width. Raises ValueError with one line."""
    parts = text.split("x")
    good = len(parts) == 4 and all(part.isdigit() and 1 <= int(part) <= 4096 for part in parts)
    if not good or int(parts[2]) < 8 or int(parts[3]) < 8:
        raise ValueError(f"--size {text}: expected BATCHxCHANNELSxHEIGHTxWIDTH, such as 16x64x224x224, sides from 8")
    return Shape(*(int(part) for part in parts))


def cases(is_cuda: bool) -> list[Case]:
    """All on a GPU; on a CPU fp32 only, because bf16 without AMX runs for minutes."""
    kinds = ("fp32", "bf16") if is_cuda else ("fp32",)
    return [
        Case(kind, layout, train) for kind in kinds for layout in ("nchw", "channels_last") for train in (False, True)
    ]


def flop(shape: Shape, train: bool) -> float:
    """Floating point operations of the direct algorithm; each gradient costs as much as the forward pass."""
    batch, channels, height, width = shape
    return 2.0 * batch * channels * channels * 9 * height * width * (3 if train else 1)


def need_bytes(shape: Shape) -> int:
    """Peak memory: image, output and both gradients in fp32, twice for layout copies, 2 GiB for cuDNN's trials."""
    batch, channels, height, width = shape
    return 8 * batch * channels * height * width * 4 + 2 * 1024**3


def convolve(torch: Any, image: Any, weight: Any) -> Any:
    """The work under test."""
    return torch.nn.functional.conv2d(image, weight, padding=1)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all cases into the report. Raises ProbeError when the device cannot hold them."""
    shape = parse_size(size) if size else SHAPES["cuda" if target.is_cuda else "cpu"]
    device.require_memory(target, need_bytes(shape))
    report.settings["shape"] = "x".join(str(side) for side in shape)
    report.settings.update(device.set_tf32(target.torch, False))
    budget = harness.Budget.of(seconds, intensive=False)
    for case in cases(target.is_cuda):
        if case.kind == "bf16" and target.capability < 8:
            report.notes.append(f"{case.name} left out: this GPU has no units for it")
            continue
        _measure(target, clock, report, case, shape, budget, harness.prefixed(say, case.name))


def tensors(target: device.Target, case: Case, shape: Shape) -> tuple[Any, Any, Any]:
    """Image, weight and the gradient that comes from above, in the case's type and layout."""
    torch = target.torch
    generator = torch.Generator(device=target.device).manual_seed(7)
    dtype = torch.bfloat16 if case.kind == "bf16" else torch.float32
    layout = torch.channels_last if case.layout == "channels_last" else torch.contiguous_format
    channels = shape[1]

    def make(sides: tuple[int, ...], scale: float) -> Any:
        values = torch.randn(sides, device=target.device, generator=generator) * scale
        return values.to(dtype=dtype).contiguous(memory_format=layout)

    # Outputs of size about 1, so that bf16 and fp32 stay in their comfortable range.
    image, weight = make(shape, 1.0), make((channels, channels, 3, 3), 1.0 / math.sqrt(9 * channels))
    return image.requires_grad_(case.train), weight.requires_grad_(case.train), make(shape, 1.0)


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    case: Case,
    shape: Shape,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> None:
    torch = target.torch
    image, weight, above = tensors(target, case, shape)
    last: list[Any] = [None]

    def work() -> None:
        last[0] = None
        output = convolve(torch, image, weight)
        if case.train:
            torch.autograd.grad(output, (image, weight), above)
        last[0] = output

    timing = harness.time_case(clock, work, budget, say)
    say("checking")
    _check(torch, report, case, image, weight, last[0])
    total = flop(shape, case.train)
    rates = [total / (ms * 1e9) if ms > 0 else math.inf for ms in timing.sustained_ms]
    report.add(case.name, "TFLOP/s", rates)
    report.add(f"{case.name}_ms", "ms", timing.sustained_ms, higher_is_better=False)
    report.add(f"{case.name}_first_call_ms", "ms", [timing.first_call_ms], higher_is_better=False)
    too_fast = peaks.impossible(target.name, case.kind, harness.middle(rates), WINOGRAD)
    if too_fast:
        report.problems.append(f"{case.name}: {too_fast}")
    harness.note_timing(report, case.name, timing)


def _check(torch: Any, report: Report, case: Case, image: Any, weight: Any, output: Any) -> None:
    with torch.no_grad():
        error = verify.convolution_error(torch, image.detach(), weight.detach(), output.detach())
    report.settings[f"{case.name}_error"] = f"{error:.2g}"
    problem = verify.wrong(case.name, error, verify.CONV_TOLERANCE[case.kind])
    if not problem and case.train:
        again = convolve(torch, image, weight)
        gradients = torch.autograd.grad(again, (image, weight), again.detach())
        error = verify.gradient_error(torch, image.detach(), weight.detach(), again.detach(), gradients)
        problem = verify.wrong(f"{case.name} gradients", error, verify.GRADIENT_TOLERANCE[case.kind])
    if problem:
        report.problems.append(problem)
