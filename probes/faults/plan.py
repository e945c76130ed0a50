"""What a job does, as data.

Owns: the fields of a job and their plain defaults, and how they travel. Refuses: knowing which of them hurt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

Values = dict[str, Any]
RUNNER_FIELDS = ("quota_cores", "neighbour", "crowd", "delay_ms")
"""The runner arranges these around the job; the job itself ignores them."""


@dataclass(frozen=True)
class Plan:
    """One phase of a job. Counts of steps: "every" 0 is never."""

    # The network and its step.
    net: str = "conv"
    """conv, gpt, mlp, or none: hold memory and wait."""
    device: str = "cuda"
    tiny: bool = False
    """Widths and lengths that a CPU gets through."""
    batch: int = 64
    depth: int = 4
    width: int = 256
    precision: str = "bf16"
    """bf16 or fp32; ``wide_share`` of the blocks run in fp32 when it is fp32."""
    wide_share: float = 1.0
    optimizer: str = "foreach"
    """single: a Python loop over the parameters; foreach; fused; plain: SGD without momentum."""
    graphs: bool = False
    chain: int = 0
    """Elementwise operations after each block."""
    checks: int = 0
    """Looks at values of the network per block, each with a wait for the GPU."""
    read_loss: bool = False
    compiled: bool = False
    shapes: int = 1
    """Different sequence lengths, one after another, ``shape_steps`` steps each."""
    shape_steps: int = 50

    # Where batches come from.
    source: str = "resident"
    """resident: on the GPU; pool: ready-made in host memory; loader: a DataLoader."""
    workers: int = 12
    persistent: bool = True
    pinned: bool = True
    prefetch: int = 2
    epoch_steps: int = 0
    store: str = "memory"
    """memory, packed (one file), pieces (many small files), raw (large unbuffered reads), http."""
    pieces: int = 0
    read_kib: int = 0
    port: int = 0
    decode: bool = True
    filters: int = 0
    """Blurs per sample, with Pillow or cv2."""
    mixes: int = 0
    """Resamplings per sample with torch's own CPU kernels."""
    threads: int = 1
    """Threads of these kernels in each worker."""
    collate: str = "worker"
    """worker, or main: the batch is joined in the training process."""
    parts: int = 1
    """Tensors per sample."""
    payload_mb: int = 0
    """Host batch of a pool; 0 is what the network needs."""
    payload: str = "float32"
    """float32 or uint8."""
    guard: bool = False

    # Beside the step.
    host_filters: int = 0
    """Images blurred by the training thread per step."""
    tokens: int = 0
    """Token ids handled in Python per step."""
    vectorised: bool = False
    save_every: int = 0
    review_every: int = 0
    review_items: int = 0
    log_every: int = 0
    log_images: int = 0
    collect_every: int = 0
    heap_k: int = 0
    """Thousands of live Python objects."""
    freeze: bool = False
    side_threads: int = 0
    side_duty: float = 1.0
    release_every: int = 0
    hold_gib: float = 0.0

    # Around the job (see RUNNER_FIELDS).
    quota_cores: float = 0.0
    neighbour: int = 0
    crowd: int = 0
    delay_ms: float = 0.0


NAMES = tuple(field.name for field in fields(Plan))


def plan_of(*parts: Mapping[str, Any]) -> Plan:
    """A plan from several mappings, later ones win. Raises ValueError naming a field that does not exist."""
    merged: Values = {}
    for part in parts:
        merged.update(part)
    unknown = sorted(set(merged) - set(NAMES))
    if unknown:
        raise ValueError(f"a job has no field {unknown[0]!r}; it has: {', '.join(NAMES)}")
    return replace(Plan(), **merged)


def encode(plan: Plan) -> str:
    """One line of JSON, without what the runner arranges."""
    return json.dumps({name: value for name, value in asdict(plan).items() if name not in RUNNER_FIELDS})


def effective(plan: Plan, change: Mapping[str, Any]) -> Values:
    """What of ``change`` is a change to ``plan``."""
    now = asdict(plan)
    return {name: value for name, value in change.items() if now[name] != value}
