"""Is the result right, checked another way than it was computed.

Owns: Freivalds' test of a product, a convolution against float64 on a cut-out, the bilinear identity of gradients.
Refuses: timing. A wrong result is invalid whatever its speed.
"""

from __future__ import annotations

import math
from typing import Any

CHUNK_ROWS = 1024
"""Rows converted to float64 at a time: 64 MiB at 8192 columns instead of the whole matrix."""
COLUMNS = 4
"""Random vectors: a wrong row escapes one with probability one half, four with one sixteenth; there are many rows."""

# Largest error over the rows, as a share of the result's root mean square. Rounding of inputs and output gives about
# u/2 (u: unit roundoff of the type) as one standard deviation; the largest of 10^4 rows is at 4 to 5 of them.
# fp32 lies between true fp32 (1e-5 at 8192) and TF32 that was left on (2e-3), so that it tells the two apart.
# fp8 inputs are exact in float64; the output is bf16 and the sum is kept in 14 bits or so on Hopper.
PRODUCT_TOLERANCE: dict[str, float] = {"fp8": 0.1, "bf16": 3e-2, "fp16": 1e-2, "tf32": 1e-2, "fp32": 1e-4}
PRODUCT_TOLERANCE["fp64"] = 1e-10
# One output element, not a sum over a row; Winograd in fp32 costs a decimal digit.
CONV_TOLERANCE: dict[str, float] = {"bf16": 4e-2, "fp32": 5e-4}
# Rounding averages out over the sum, and with it the difference between fp32 and TF32.
GRADIENT_TOLERANCE: dict[str, float] = {"bf16": 2e-2, "fp32": 1e-3}


def times_vectors(torch: Any, matrix: Any, vectors: Any) -> Any:
    """``matrix @ vectors`` in float64, a block of rows at a time."""
    blocks = [matrix[row : row + CHUNK_ROWS].double() @ vectors for row in range(0, matrix.shape[0], CHUNK_ROWS)]
    return torch.cat(blocks)


def product_error(torch: Any, left: Any, right: Any, product: Any) -> float:
    """Freivalds in float64: the largest row of ``product @ x - left @ (right @ x)`` over the size of a row. NaN → inf.

    A single wrong element of ordinary size is below the rounding of bf16 and stays unseen; a wrong row, tile, precision
    or exponent does not.
    """
    generator = torch.Generator(device="cpu").manual_seed(20)
    signs = torch.randint(0, 2, (right.shape[1], COLUMNS), generator=generator) * 2 - 1
    vectors = signs.to(device=right.device, dtype=torch.float64)
    expected = times_vectors(torch, left, times_vectors(torch, right, vectors))
    found = times_vectors(torch, product, vectors)
    return share(torch, found - expected, expected)


def cutouts(height: int, width: int) -> list[tuple[int, int]]:
    """Top left corners of 8×8 pieces of the output: a corner with padding, the middle, the far corner."""
    return [(0, 0), (height // 2 - 4, width // 2 - 4), (height - 8, width - 8)]


def convolution_error(torch: Any, image: Any, weight: Any, output: Any) -> float:
    """Largest error of 3×3, padding 1 ``output`` on cut-outs of the first and last image, against unfold in float64."""
    worst = 0.0
    functional = torch.nn.functional
    flat = weight.double().reshape(weight.shape[0], -1)
    height, width = output.shape[-2:]
    for index in (0, image.shape[0] - 1):
        padded = functional.pad(image[index : index + 1], (1, 1, 1, 1))
        for top, left in cutouts(height, width):
            columns = functional.unfold(padded[:, :, top : top + 10, left : left + 10].double(), 3)
            expected = (flat @ columns[0]).reshape(-1, 8, 8)
            found = output[index, :, top : top + 8, left : left + 8].double()
            worst = max(worst, share(torch, found - expected, expected))
    return worst


def gradient_error(torch: Any, image: Any, weight: Any, output: Any, gradients: Any) -> float:
    """For ``g = output``: <g, output>, <grad_image, image> and <grad_weight, weight> must be the same number.

    A convolution is linear in image and in weight. With g = output the number is a sum of squares, so it is large and
    a gradient that is missing, zero or of the wrong scale cannot agree with it by chance.
    """
    energy = _dot(torch, output, output)
    parts = [_dot(torch, gradients[0], image), _dot(torch, gradients[1], weight)]
    errors = [abs(part - energy) / energy if energy > 0 else math.inf for part in parts]
    return max(errors) if all(math.isfinite(error) for error in errors) else math.inf


def _dot(torch: Any, left: Any, right: Any) -> float:
    """Inner product in float64, one image at a time."""
    parts = [(a.double() * b.double()).sum() for a, b in ((left[i], right[i]) for i in range(left.shape[0]))]
    return float(torch.stack(parts).sum().item())


def share(torch: Any, difference: Any, expected: Any) -> float:
    """The largest difference as a share of the root mean square of ``expected``; inf when anything is not finite."""
    size = float(expected.pow(2).mean().sqrt().item())
    worst = float(difference.abs().max().item())
    # NaN compares false with everything: it must count as wrong, not as small.
    return worst / size if math.isfinite(worst) and size > 0 else math.inf


def rms_share(torch: Any, difference: Any, expected: Any) -> float:
    """Root mean square of the difference over that of ``expected``; inf when anything is not finite.

    For values with long tails, such as the gradients of attention, whose largest rounding error says little: a missing
    row of 2048 still shows as 2 %.
    """
    size = float(expected.double().pow(2).mean().sqrt().item())
    error = float(difference.double().pow(2).mean().sqrt().item())
    return error / size if math.isfinite(error) and size > 0 else math.inf


def dull(torch: Any, values: Any) -> bool:
    """Whether ``values`` are (nearly) all alike. Zeros take less power: an A100 multiplies them 15 % faster.

    Looks at 4096 elements spread over the whole: random ones have dozens of different values even in 8 bits.
    """
    flat = values.detach().reshape(-1)
    step = max(1, flat.numel() // 4096)
    picked = flat[::step][:4096].double()
    least = min(32, picked.numel() // 2)
    return bool(picked.unique().numel() < least)


def wrong(name: str, error: float, tolerance: float) -> str:
    """One line when the error is not within tolerance, else ""."""
    if error <= tolerance:
        return ""
    return f"{name}: wrong result: error {error:.2g} of its size, {tolerance:.2g} is rounding"
