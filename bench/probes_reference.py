"""``triton.testing.do_bench`` on the work of a probe: ``python bench/probes_reference.py matmul cuda:0`` prints JSON.

Owns: the same work written again, without the probes' code. Refuses: comparing; ``bench/probes_table.py`` does.

Only what is the same quantity is measured. do_bench has no burst: it warms up, then takes the middle of what follows.
Of a single kernel and of a graph it is asked without its flush of the L2 cache: with it, the kernel's code and its
element come from memory, which is another quantity (4.35 µs and 3.14 µs on an H200). The stream is held by a spin
instead, so that the GPU is ahead of Python as it is during a flush.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MIB = 1024**2
SHORT_MS, LONG_MS = 100, 2000
"""do_bench's default; and long enough to be limited by power, as the sustained part of a probe is."""
HOLD_CYCLES = 300_000
"""150 µs at 2 GHz: several times what Python needs for a launch or a replay."""

Row = tuple[str, str, float]
MedianMs = Callable[..., float]


def main() -> int:
    """An object with "rows", each {"probe", "value", "unit", "figure"}. One that fails is told on stderr."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # nothing here uses it
    torch = importlib.import_module("torch")
    name, device, *rest = sys.argv[1:]
    tiny = rest == ["--tiny"]
    if device == "cpu":
        median_ms: MedianMs = rehearsed
    else:
        torch.cuda.set_device(torch.device(device).index or 0)
        do_bench = importlib.import_module("triton.testing").do_bench

        def median_ms(work: Callable[[], object], rep_ms: int = SHORT_MS) -> float:
            return float(do_bench(work, warmup=rep_ms // 4, rep=rep_ms, return_mode="median"))

    found = []
    for row in {"matmul": matmul, "memory": memory, "copies": copies, "launch": launch}[name](torch, device, tiny):
        try:
            value, unit, figure = row(median_ms)
            found.append({"probe": name, "value": value, "unit": unit, "figure": figure})
        except Exception as exc:
            print(f"{name}: no reference for one figure: {type(exc).__name__}: {exc}", file=sys.stderr)
    print(json.dumps({"rows": found}))
    return 0


def rehearsed(work: Callable[[], object], rep_ms: int = SHORT_MS) -> float:
    """One call by the wall clock, where there is no GPU: to see that everything here can be called."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000.0


def matmul(torch: Any, device: str, tiny: bool) -> Iterator[Callable[[MedianMs], Row]]:
    """Sustained products at the sizes of the probe."""
    kinds = (("bf16", torch.bfloat16, 8192), ("fp16", torch.float16, 8192), ("fp32", torch.float32, 4096))
    for kind, dtype, whole in kinds:
        yield product(torch, device, kind, dtype, 64 if tiny else whole)


def product(torch: Any, device: str, kind: str, dtype: Any, size: int) -> Callable[[MedianMs], Row]:
    """Of one type and size."""

    def row(median_ms: MedianMs) -> Row:
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)
        ms = median_ms(lambda: torch.mm(left, right, out=out), LONG_MS)
        return f"{kind}_{size}_sustained", "TFLOP/s", 2.0 * size**3 / (ms * 1e9)

    return row


def memory(torch: Any, device: str, tiny: bool) -> Iterator[Callable[[MedianMs], Row]]:
    """1 GiB arrays; bytes read and written."""
    size = (1 if tiny else 1024) * MIB
    left, right, out = (torch.randn(size // 4096, 1024, device=device) for _ in range(3))
    yield lambda median_ms: ("copy", "GB/s", 2 * size / (median_ms(lambda: out.copy_(left)) * 1e6))
    yield lambda median_ms: (
        *("triad", "GB/s"),
        3 * size / (median_ms(lambda: torch.add(left, right, alpha=1.25, out=out)) * 1e6),
    )


def copies(torch: Any, device: str, tiny: bool) -> Iterator[Callable[[MedianMs], Row]]:
    """256 MiB, pinned."""
    size = (1 if tiny else 256) * MIB
    host = torch.randint(0, 256, (size,), dtype=torch.uint8)
    host = host if device == "cpu" else host.pin_memory()
    there = torch.empty(size, dtype=torch.uint8, device=device)
    for way, to, of in (("h2d", there, host), ("d2h", host, there)):

        def row(median_ms: MedianMs, name: str = f"{way}_pinned_256MiB", to: Any = to, of: Any = of) -> Row:
            return name, "GB/s", size / (median_ms(lambda: to.copy_(of, non_blocking=True), 500) * 1e6)

        yield row


def launch(torch: Any, device: str, tiny: bool) -> Iterator[Callable[[MedianMs], Row]]:
    """Two hundred launches from Python (Python's share), one kernel, and a hundred in a graph (the GPU's share)."""
    element = torch.zeros(1, device=device)

    def many(count: int) -> None:
        for _ in range(count):
            element.add_(1.0)

    many(100)
    yield lambda median_ms: ("enqueue", "µs", median_ms(lambda: many(200), 500) * 5.0)
    if device == "cpu":
        return

    def pair(median_ms: MedianMs) -> Row:
        with held_instead_of_flushed(torch):
            return "event_pair", "µs", median_ms(lambda: many(1)) * 1000.0

    def graphed(median_ms: MedianMs) -> Row:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many(100)
        with held_instead_of_flushed(torch):
            return "graph", "µs", median_ms(graph.replay) * 10.0

    yield pair
    yield graphed


@contextmanager
def held_instead_of_flushed(torch: Any) -> Iterator[None]:
    """do_bench spins where it would write 256 MB. Raises AttributeError where this triton has no such place."""
    driver = importlib.import_module("triton.runtime").driver.active
    flush = driver.clear_cache
    driver.clear_cache = lambda _cache: torch.cuda._sleep(HOLD_CYCLES)
    try:
        yield
    finally:
        driver.clear_cache = flush


if __name__ == "__main__":
    sys.exit(main())
