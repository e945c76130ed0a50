"""Published figures per GPU: what others have measured. Information, never a verdict.

Owns: the table with its sources. Refuses: judging. Silicon and nodes spread by 5 % and more, and the published figures
were measured with other sizes, libraries and clocks: a figure outside ±10 % is a reason to look, not a fault.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Expectation(NamedTuple):
    """What is known of one quantity on one kind of GPU."""

    gpu: str
    """Words that must all be in the device's name."""
    quantity: str
    """Regular expression over "probe.value"."""
    typical: float
    """0.0: nothing citable was published."""
    ceiling: float
    """Of the data sheet; 0.0 where there is none."""
    unit: str
    source: str


_MATMUL16 = r"^matmul\.(bf16|fp16)_\d+_sustained$"
_TF32 = r"^matmul\.tf32_\d+_sustained$"
_FP8 = r"^matmul\.fp8_\d+_sustained$"
_SIZE = re.compile(r"^matmul\.\w+?_(\d+)_sustained$")
LEAST_MATMUL = 4096
"""The published figures are of the best shape found, or of 8192 and more. A product of 256 is bound by its launch."""
_COPY = r"^memory\.(copy|clone)$"
_TRIAD = r"^memory\.triad$"
_H2D = r"^copies\.h2d_pinned_\d+MiB$"
_D2H = r"^copies\.d2h_pinned_\d+MiB$"

_MAMF = "stas00/ml-engineering, best found shape"
_FRYER = "huggingface/gpu-fryer, 8192"
_STREAM = "BabelStream on the part"
_SHEET = "data sheet"

# Narrow names come first: the first entry whose words all occur in the device's name wins.
TABLE = (
    Expectation("GH200", _MATMUL16, 828.6, 989.4, "TFLOP/s", _MAMF),
    Expectation("GH200", _TF32, 363.0, 494.7, "TFLOP/s", _FRYER),
    Expectation("H200", _MATMUL16, 794.5, 989.4, "TFLOP/s", _MAMF + " (H100: the same chip)"),
    Expectation("H200", _FP8, 1366.0, 1978.9, "TFLOP/s", "Azure AI benchmarking guide, 16384"),
    Expectation("H200", _TF32, 0.0, 494.7, "TFLOP/s", _SHEET),
    Expectation("H200", _COPY, 4010.0, 4800.0, "GB/s", _STREAM),
    Expectation("H200", _TRIAD, 4150.0, 4800.0, "GB/s", _STREAM),
    Expectation("H200", _H2D, 52.0, 63.0, "GB/s", "nvbandwidth, PCIe gen 5 x16"),
    Expectation("H200", _D2H, 52.0, 63.0, "GB/s", "nvbandwidth, PCIe gen 5 x16"),
    Expectation("H100 PCIe", _MATMUL16, 0.0, 756.5, "TFLOP/s", _SHEET),
    Expectation("H100", _MATMUL16, 794.5, 989.4, "TFLOP/s", _MAMF),
    Expectation("H100", _FP8, 1402.6, 1978.9, "TFLOP/s", _MAMF),
    Expectation("H100", _TF32, 373.0, 494.7, "TFLOP/s", _FRYER),
    Expectation("H100", _COPY, 2900.0, 3350.0, "GB/s", _STREAM),
    Expectation("H100", _TRIAD, 2970.0, 3350.0, "GB/s", _STREAM),
    Expectation("H100", _H2D, 54.8, 63.0, "GB/s", "four nodes, median, PCIe gen 5 x16"),
    Expectation("B200", _MATMUL16, 1745.0, 2250.0, "TFLOP/s", _MAMF),
    Expectation("B200", _FP8, 3432.0, 4500.0, "TFLOP/s", _MAMF),
    Expectation("A100 PCIe", _MATMUL16, 252.9, 312.0, "TFLOP/s", _MAMF),
    Expectation("A100", _MATMUL16, 271.2, 312.0, "TFLOP/s", _MAMF),
    Expectation("A100", _TF32, 128.2, 156.0, "TFLOP/s", _MAMF),
    Expectation("A100", _COPY, 1610.0, 2039.0, "GB/s", _STREAM),
    Expectation("A100", _TRIAD, 1700.0, 2039.0, "GB/s", _STREAM),
    Expectation("A100", _H2D, 25.9, 31.5, "GB/s", "SuperBench fleet, PCIe gen 4 x16"),
    Expectation("A100", _D2H, 26.0, 31.5, "GB/s", "SuperBench fleet, PCIe gen 4 x16"),
)


def expectation(probe: str, value: str, device_name: str) -> Expectation | None:
    """What is published about this quantity on this GPU, or None. Of a small product only the ceiling holds."""
    words = set(device_name.lower().replace("-", " ").split())
    quantity = f"{probe}.{value}"
    for entry in TABLE:
        if set(entry.gpu.lower().split()) <= words and re.search(entry.quantity, quantity):
            size = _SIZE.match(quantity)
            return entry._replace(typical=0.0) if size and int(size[1]) < LEAST_MATMUL else entry
    return None


def published(probe: str, value: str, device_name: str, figure: float) -> str:
    """ "published: 794.5 TFLOP/s (source), here 94 %", or "" where nothing is."""
    entry = expectation(probe, value, device_name)
    if entry is None or not entry.typical:
        return ""
    return f"published: {entry.typical:g} {entry.unit} ({entry.source}), here {figure / entry.typical:.0%}"
