"""How fast is scaled dot-product attention with each of its back ends?

``scaled_dot_product_attention`` forward, and forward with all gradients, over batch × heads × sequence × 64, with each
back end that torch can be told to use: flash, memory-efficient, cuDNN, math; and with the one that torch picks itself.

Expected signature: flash and cuDNN far above math, which writes the whole score matrix to memory; ``default`` equal to
the fastest. ``default`` equal to math: a mask, a head size or a type keeps the fused kernels out, as it would in a job.

Validity: every back end's output and gradients are compared with attention written out in float32 (float64 on a CPU) on
the first and last head; inputs are normal random numbers. FLOP count two products forward and four backward (a fused
backward computes one more again, which is not counted). A back end that this GPU or torch lacks is noted, not failed.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from . import device, harness, peaks, verify
from .report import Report, UnavailableError, first_line

NAME = "attention"
SECONDS = {"cuda": 0.5, "cpu": 0.2}
HEAD = 64
BACKENDS = ("flash", "efficient", "cudnn", "math")
NAMES = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
# Root mean square of the error: rounding of inputs' products, probabilities and results to the type.
TOLERANCE = {"bf16": 1.5e-2, "fp16": 3e-3, "fp32": 1e-5}


class Shape(NamedTuple):
    """Of query, key and value alike."""

    batch: int
    heads: int
    length: int


SHAPES = {"cuda": Shape(8, 16, 2048), "cpu": Shape(1, 4, 256)}


def parse_size(text: str) -> Shape:
    """``--size 8x16x2048``: batch, heads, sequence length. Raises ValueError with one line."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and 1 <= int(part) <= 65536 for part in parts):
        raise ValueError(f"--size {text}: expected BATCHxHEADSxLENGTH, such as 8x16x2048")
    return Shape(*(int(part) for part in parts))


def flop(shape: Shape, train: bool) -> float:
    """Two products forward; four more backward."""
    return 4.0 * shape.batch * shape.heads * shape.length**2 * HEAD * (3 if train else 1)


def need_bytes(shape: Shape) -> int:
    """Peak memory of the math back end with gradients: about six score matrices of 4 bytes, and 1 GiB to work in."""
    scores = shape.batch * shape.heads * shape.length**2
    return 24 * scores + 16 * shape.batch * shape.heads * shape.length * HEAD * 4 + device.GIB


def chosen(torch: Any, backend: str) -> Any:
    """A context in which only ``backend`` may be used. Raises UnavailableError where this torch does not know it."""
    if backend == "default":
        return contextlib.nullcontext()
    modern = getattr(torch.nn, "attention", None)
    if modern is not None and hasattr(modern, "sdpa_kernel"):
        kind = getattr(modern.SDPBackend, NAMES[backend], None)
        if kind is None:
            raise UnavailableError("this torch does not know it")
        return modern.sdpa_kernel(kind)
    switches = {"flash": "enable_flash", "efficient": "enable_mem_efficient", "math": "enable_math"}
    if backend not in switches:
        raise UnavailableError("this torch does not know it")
    return torch.backends.cuda.sdp_kernel(**{name: name == switches[backend] for name in switches.values()})


def attend(torch: Any, query: Any, key: Any, value: Any) -> Any:
    """The work under test."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def written_out(torch: Any, query: Any, key: Any, value: Any) -> Any:
    """The same by definition."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores, dim=-1) @ value


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all back ends into the report."""
    shape = parse_size(size) if size else SHAPES["cuda" if target.is_cuda else "cpu"]
    device.require_memory(target, need_bytes(shape))
    report.settings["shape"] = "x".join(str(side) for side in (*shape, HEAD))
    report.settings.update(device.set_tf32(target.torch, False))
    kind = ("bf16" if target.capability >= 8 else "fp16") if target.is_cuda else "fp32"
    inputs = tensors(target, shape, kind)
    if verify.dull(target.torch, inputs[0]):
        report.problems.append("the inputs are no random data")
    budget = harness.Budget.of(seconds, intensive=False)
    for backend in (*BACKENDS, "default"):
        for train in (False, True):
            name = f"{backend}_{kind}_{'train' if train else 'forward'}"
            missing = ""
            try:
                with _quiet(), chosen(target.torch, backend):
                    _measure(target, clock, report, name, inputs, shape, train, budget, harness.prefixed(say, name))
            except UnavailableError as exc:
                missing = str(exc)
            except RuntimeError as exc:
                missing = unavailable(exc)
                if not missing:
                    raise
            device.release(target)
            if missing:
                report.notes.append(f"{name} is not available: {missing}")
                break


def unavailable(exc: RuntimeError) -> str:
    """What torch says when a back end cannot do this shape or type here, or "" for any other error."""
    if device.is_out_of_memory(exc):
        return "it does not fit in memory"
    text = first_line(exc)
    return text if any(word in text for word in ("No available kernel", "No viable backend", "not supported")) else ""


def tensors(target: device.Target, shape: Shape, kind: str) -> tuple[Any, Any, Any, Any]:
    """Query, key, value and the gradient that comes from above."""
    torch = target.torch
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    generator = torch.Generator(device=target.device).manual_seed(11)
    sides = (*shape, HEAD)
    made = [torch.randn(sides, device=target.device, generator=generator).to(dtype) for _ in range(4)]
    return made[0], made[1], made[2], made[3]


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    name: str,
    inputs: tuple[Any, Any, Any, Any],
    shape: Shape,
    train: bool,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> None:
    torch = target.torch
    query, key, value = (tensor.detach().requires_grad_(train) for tensor in inputs[:3])
    above = inputs[3]
    last: list[Any] = [None, ()]

    def work() -> None:
        last[:] = [None, ()]
        output = attend(torch, query, key, value)
        gradients = torch.autograd.grad(output, (query, key, value), above) if train else ()
        last[:] = [output, gradients]

    timing = harness.time_case(clock, work, budget, say, burst=False)
    say("checking")
    kind = name.split("_")[1]
    error = attention_error(torch, (query, key, value), above, last[0], last[1])
    report.settings[f"{name}_error"] = f"{error:.2g}"
    problem = verify.wrong(name, error, TOLERANCE[kind])
    if problem:
        report.problems.append(problem)
    rates = [flop(shape, train) / (ms * 1e9) if ms > 0 else math.inf for ms in timing.sustained_ms]
    report.add(name, "TFLOP/s", rates)
    report.add(f"{name}_ms", "ms", timing.sustained_ms, higher_is_better=False)
    too_fast = peaks.impossible(target.name, kind, harness.middle(rates))
    if too_fast:
        report.problems.append(f"{name}: {too_fast}")
    harness.note_timing(report, name, timing)


def attention_error(torch: Any, inputs: tuple[Any, Any, Any], above: Any, output: Any, gradients: Any) -> float:
    """Error of output and gradients of the first and last head (root mean square, as a share). NaN → inf."""
    wide = torch.float64 if output.device.type == "cpu" else torch.float32
    worst = 0.0
    for where in ((0, 0), (-1, -1)):
        parts = [tensor.detach()[where].to(wide).requires_grad_(True) for tensor in inputs]
        expected = written_out(torch, *parts)
        pairs = [(output.detach()[where], expected.detach())]
        if gradients:
            true_gradients = torch.autograd.grad(expected, parts, above[where].to(wide))
            pairs += [(found[where], right) for found, right in zip(gradients, true_gradients)]
        for found, right in pairs:
            # Over one position softmax is 1 whatever query and key are: their gradients must be zero, and have no size.
            size = right if bool(right.any()) else above[where].to(wide)
            worst = max(worst, verify.rms_share(torch, found.to(wide) - right, size))
    return worst


@contextlib.contextmanager
def _quiet() -> Any:
    """torch explains at length why it does not take a back end that it was told not to take."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
