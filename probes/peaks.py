"""What a part cannot exceed: published peaks of arithmetic, memory and host link, by GPU name.

Owns: the table and the sentence that a figure above it gets. Refuses: judging a figure below it; a part that is not
listed has no guard.
"""

from __future__ import annotations

MARGIN = 1.02
"""A figure above this many times a published peak is a measuring error, not a fast GPU."""

# From NVIDIA's data sheets: V100 (2018), T4 (2019), A100 (2021), A10 (2021), H100 and H100 NVL (2023), L4 and L40S
# (2023), GH200 (2024), H200 and H200 NVL (2024), HGX B200 (2024). Arithmetic is dense TFLOP/s (figures "with sparsity"
# halved), fp64 with tensor cores where they have it. "dram" is GB/s, of the fastest part when one name has several
# memory sizes. "link" is GB/s in one direction: PCIe x16 after 128b/130b encoding (gen 3 15.75, gen 4 31.5, gen 5
# 63.0), NVLink-C2C 450.
_GEN3, _GEN4, _GEN5 = 15.75, 31.5, 63.0
_HOPPER = {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 67.0, "fp64": 67.0, "fp8": 1978.9, "link": _GEN5}
_HOPPER_NVL = {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0, "fp64": 60.0, "fp8": 1671.0, "link": _GEN5}
_H100_PCIE = {"bf16": 756.5, "fp16": 756.5, "tf32": 378.0, "fp32": 51.2, "fp64": 51.2, "fp8": 1513.0}
_H100_PCIE.update(dram=2039.0, link=_GEN5)
_A100 = {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5, "fp64": 19.5, "link": _GEN4}
PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    # The first entry whose words all occur in the device name wins: narrow names come first.
    ("H200 NVL", {**_HOPPER_NVL, "dram": 4800.0}),
    ("GH200", {**_HOPPER, "dram": 4900.0, "link": 450.0}),
    ("H200", {**_HOPPER, "dram": 4800.0}),
    ("H100 NVL", {**_HOPPER_NVL, "dram": 3900.0}),
    ("H100 PCIe", _H100_PCIE),
    ("H100", {**_HOPPER, "dram": 3350.0}),
    ("B200", {"bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0, "dram": 8000.0}),
    ("A100 40GB", {**_A100, "dram": 1555.0}),
    ("A100", {**_A100, "dram": 2039.0}),
    (
        "L40S",
        {"bf16": 366.0, "fp16": 366.0, "tf32": 183.0, "fp32": 91.6, "fp8": 733.0, "dram": 864.0, "link": _GEN4},
    ),
    ("L4", {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3, "fp8": 242.5, "dram": 300.0, "link": _GEN4}),
    ("A10", {"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2, "dram": 600.0, "link": _GEN4}),
    ("V100", {"fp16": 125.0, "fp32": 15.7, "fp64": 7.8, "dram": 1134.0, "link": _GEN3}),
    ("T4", {"fp16": 65.0, "fp32": 8.1, "dram": 320.0, "link": _GEN3}),
)


def peak(device_name: str, kind: str) -> float:
    """Published peak of ``kind`` ("bf16" … in dense TFLOP/s, "dram" and "link" in GB/s), 0.0 where none is known."""
    words = set(device_name.replace("-", " ").split())
    for part, peaks in PEAKS:
        if set(part.split()) <= words:
            return peaks.get(kind, 0.0)
    return 0.0


def impossible(device_name: str, kind: str, figure: float, factor: float = 1.0, unit: str = "TFLOP/s") -> str:
    """Why this figure cannot be true, or "". ``factor``: how many times the peak the counting itself allows."""
    limit = peak(device_name, kind) * factor
    if limit and figure > MARGIN * limit:
        return f"{figure:.1f} {unit}, and {device_name} cannot do more than {limit:.1f} of {kind}: the timing is wrong"
    return ""
