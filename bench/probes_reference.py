"""``triton.testing.do_bench`` on the work of a probe: ``python bench/probes_reference.py matmul cuda`` prints JSON.

Owns: the same work written again, without the probes' code. Refuses: comparing; ``bench/probes_table.py`` does.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

MIB = 1024**2
SHORT_MS, LONG_MS = 100, 2000
"""do_bench's default, which ends before power limits the clocks; and long enough to be limited by it."""


def main() -> int:
    """One list of {"probe", "value", "unit", "figure"}."""
    torch = importlib.import_module("torch")
    do_bench = importlib.import_module("triton.testing").do_bench
    name, device = sys.argv[1:]
    torch.cuda.set_device(torch.device(device).index or 0)

    def median_ms(work: Callable[[], object], rep_ms: int = SHORT_MS) -> float:
        return float(do_bench(work, warmup=rep_ms // 4, rep=rep_ms, return_mode="median"))

    rows = {"matmul": matmul, "memory": memory, "copies": copies, "launch": launch}[name](torch, median_ms)
    print(json.dumps([{"probe": name, "value": value, "unit": unit, "figure": figure} for value, unit, figure in rows]))
    return 0


def matmul(torch: Any, median_ms: Callable[..., float]) -> list[tuple[str, str, float]]:
    """Burst against the short run, sustained against the long one."""
    rows = []
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        left, right = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(left)
        for part, rep in (("burst", SHORT_MS), ("sustained", LONG_MS)):
            ms = median_ms(lambda left=left, right=right, out=out: torch.mm(left, right, out=out), rep)
            rows.append((f"{kind}_8192_{part}", "TFLOP/s", 2.0 * 8192**3 / (ms * 1e9)))
    return rows


def memory(torch: Any, median_ms: Callable[..., float]) -> list[tuple[str, str, float]]:
    """1 GiB arrays; bytes read and written."""
    size = 1024 * MIB
    left, right, out = (torch.randn(size // 4096, 1024, device="cuda") for _ in range(3))
    works = {
        "copy": (2, lambda: out.copy_(left)),
        "triad": (3, lambda: torch.add(left, right, alpha=1.25, out=out)),
    }
    return [(name, "GB/s", arrays * size / (median_ms(work) * 1e6)) for name, (arrays, work) in works.items()]


def copies(torch: Any, median_ms: Callable[..., float]) -> list[tuple[str, str, float]]:
    """256 MiB, pinned."""
    size = 256 * MIB
    host = torch.randint(0, 256, (size,), dtype=torch.uint8).pin_memory()
    there = host.cuda()
    rows = []
    for name, destination, source in (("h2d", there, host), ("d2h", host, there)):
        ms = median_ms(lambda to=destination, of=source: to.copy_(of, non_blocking=True), 500)
        rows.append((f"{name}_pinned_256MiB", "GB/s", size / (ms * 1e6)))
    return rows


def launch(torch: Any, median_ms: Callable[..., float]) -> list[tuple[str, str, float]]:
    """A hundred launches in a graph, and two hundred from Python: GPU's share and Python's share.

    One kernel alone is event_pair, but do_bench flushes the L2 in front of it: the element and the kernel's code come
    from memory, so that its figure is expected to be higher.
    """
    element = torch.zeros(1, device="cuda")

    def many(count: int) -> None:
        for _ in range(count):
            element.add_(1.0)

    many(100)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many(100)
    return [
        ("graph", "µs", median_ms(graph.replay) * 10.0),
        ("enqueue", "µs", median_ms(lambda: many(200), 500) * 5.0),
        ("event_pair", "µs", median_ms(lambda: many(1)) * 1000.0),
    ]


if __name__ == "__main__":
    sys.exit(main())
