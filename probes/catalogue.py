"""What there is to measure: every probe's question, how much it disturbs, how long it takes.

Owns: the table from which sets are built and lists are printed. Refuses: torch, the device and any measuring, so that
whoever builds a set needs none of them.
"""

from __future__ import annotations

from typing import NamedTuple

LIGHT = "light"
"""Short, small, leaves a neighbour most of the machine."""
INTENSIVE = "intensive"
"""Fills the GPU, its memory, all cores or a disk for seconds: for a person or a schedule to start."""


class ProbeInfo(NamedTuple):
    """One probe. Seconds are rough, for a whole run with its defaults, start of torch included."""

    name: str
    question: str
    on_cpu: str
    """What it does without a GPU."""
    kind: str
    """``LIGHT`` or ``INTENSIVE``."""
    gpu_s: float
    cpu_s: float
    disturbs: str
    """What a neighbour would feel."""


PROBES = (
    ProbeInfo(
        "matmul",
        "How much matrix arithmetic does this device do, at once and for long?",
        "fp32 and fp64 at 1024, fp32 at 2048",
        INTENSIVE,
        90,
        20,
        "SMs, power",
    ),
    ProbeInfo(
        "conv",
        "How fast are convolutions, and does the memory layout matter here?",
        "fp32, a small image",
        LIGHT,
        25,
        10,
        "SMs, power",
    ),
    ProbeInfo(
        "dataloader",
        "How many samples a second can this machine prepare, and how many workers does that take?",
        "the same, without the copy to the GPU",
        INTENSIVE,
        30,
        12,
        "all CPU cores, shared memory",
    ),
    ProbeInfo(
        "memory",
        "How fast is this device's memory, and does it keep what is written to it?",
        "the same with smaller arrays",
        LIGHT,
        20,
        12,
        "memory bandwidth",
    ),
    ProbeInfo(
        "copies",
        "How fast do data travel between the host and this GPU?",
        "copies from host memory to host memory",
        LIGHT,
        25,
        8,
        "PCIe, host memory",
    ),
    ProbeInfo(
        "launch",
        "What does it cost to start a kernel, and to wait for it?",
        "the cost of one small operation",
        LIGHT,
        10,
        4,
        "one CPU core",
    ),
    ProbeInfo(
        "inference",
        "What latency and throughput does a ResNet-50 have here, by batch and by gradient mode?",
        "fp32 at batch 1 and 4",
        LIGHT,
        40,
        15,
        "SMs, power",
    ),
    ProbeInfo(
        "attention",
        "How fast is scaled dot-product attention with each of its back ends?",
        "fp32, a short sequence",
        LIGHT,
        30,
        10,
        "SMs, power",
    ),
    ProbeInfo(
        "train",
        "How many training steps a second does this machine do, and what does each speed-up bring?",
        "ResNet-50 at 32 × 32 and a small BERT in fp32",
        INTENSIVE,
        240,
        20,
        "SMs, power, most of the GPU's memory",
    ),
    ProbeInfo(
        "storage",
        "How fast do files come from the disk itself, and how fast from the page cache?",
        "the same",
        INTENSIVE,
        20,
        20,
        "the disk, 1 GiB of its space",
    ),
    ProbeInfo(
        "shm",
        "How fast do tensors pass between processes, and does shared memory suffice for a loader?",
        "the same, without pinned memory",
        LIGHT,
        10,
        5,
        "shared memory, two CPU cores",
    ),
    ProbeInfo(
        "allreduce",
        "How fast do gradients travel between this machine's GPUs?",
        "gloo between processes",
        INTENSIVE,
        40,
        10,
        "all GPUs and their links",
    ),
)
