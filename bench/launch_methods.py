"""How long one kernel between two events takes, by how many such pairs are queued: ``python bench/launch_methods.py``
on a machine with a GPU, half a minute.

Owns: the ways, and the table. Refuses: verdicts.

It is the difference between a sample that is waited for and ``triton.testing.do_bench``, which queues all of its own.
And two of the probe's captured graphs of the same kernels, since one process may replay them at two speeds.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from probes import device, launch

IN_FLIGHT = (1, 2, 3, 5, 10, 100)
HOLD_CYCLES = 150_000
"""75 µs at 2 GHz, before each pair."""


def main() -> int:
    """Print the table. Exit code 69 without a GPU."""
    parser = argparse.ArgumentParser(prog="launch_methods", description="Time a kernel by the length of the queue.")
    parser.add_argument("--samples", type=int, default=300, help="of each way (default 300)")
    options = parser.parse_args()
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        sys.stderr.write("launch_methods: torch sees no GPU here\n")
        return 69
    target = device.open_target(torch, "cuda:0")
    counter = launch.Counter(target)
    counter.add()
    graphs = [launch.capture(target, counter) for _ in range(2)]
    works: tuple[tuple[str, Callable[[], Any], int], ...] = (
        ("nothing", lambda: None, 1),
        ("one kernel", counter.add, 1),
        (f"a graph of {launch.GRAPH_NODES}", graphs[0].replay, launch.GRAPH_NODES),
        ("another one", graphs[1].replay, launch.GRAPH_NODES),
    )
    print(f"{'between the events':<20}{'queued':>7}{'µs a kernel':>13}{'20 %':>9}{'80 %':>9}")
    for (name, work, kernels), depth in itertools.product(works, IN_FLIGHT):
        found = sorted(us / kernels for us in samples(torch, work, depth, options.samples))
        low, high = found[len(found) // 5], found[4 * len(found) // 5]
        print(f"{name:<20}{depth:>7}{statistics.median(found):>13.3f}{low:>9.3f}{high:>9.3f}", flush=True)
    return 0


def samples(torch: Any, work: Callable[[], Any], depth: int, count: int) -> list[float]:
    """Microseconds between two events around the work, with ``depth`` such pairs in the queue at any time."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for number, (start, end) in enumerate(pairs):
        torch.cuda._sleep(HOLD_CYCLES)
        start.record()
        work()
        end.record()
        if number >= depth - 1:
            pairs[number - depth + 1][1].synchronize()
    torch.cuda.synchronize()
    return [1000.0 * start.elapsed_time(end) for start, end in pairs]


if __name__ == "__main__":
    sys.exit(main())
