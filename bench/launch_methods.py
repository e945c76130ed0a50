"""Why ``triton.testing.do_bench`` and the probe ``launch`` differ by a microsecond: one work, measured in all the ways
that lie between the two. ``python bench/launch_methods.py`` on a machine with a GPU, half a minute.

Owns: the ways, and the table. Refuses: verdicts.

The probe holds the stream by a spin, measures one sample and waits for it; do_bench queues all its samples one behind
the other. They also differ in how long the stream is held and in whether the events exist beforehand.
Needs torch alone.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

NODES = 100
HOLDS = (150_000, 300_000, 600_000)
"""Cycles of the spin: 75, 150 and 300 µs at 2 GHz."""


class Way(NamedTuple):
    """How a sample is taken."""

    queued: bool
    """Behind the sample before, as do_bench does; else after waiting for it."""
    events_made: bool
    """Both events have been recorded before, so that none is created while the stream is held."""
    hold_cycles: int


def main() -> int:
    """Print the table. Exit code 69 without a GPU."""
    parser = argparse.ArgumentParser(prog="launch_methods", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=300, help="of each way (default 300)")
    options = parser.parse_args()
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        sys.stderr.write("launch_methods: torch sees no GPU here\n")
        return 69
    element = torch.zeros(1, device="cuda")
    graph = captured(torch, element)
    works: tuple[tuple[str, Callable[[], Any], int], ...] = (
        ("nothing", lambda: None, 1),
        ("one kernel", lambda: element.add_(1.0), 1),
        (f"graph of {NODES}", graph.replay, NODES),
    )
    print(f"{'work':<14}{'samples':<10}{'events':<9}{'held':>9}{'µs a kernel':>13}{'20 %':>9}{'80 %':>9}")
    for (name, work, kernels), queued, made, cycles in itertools.product(works, (False, True), (False, True), HOLDS):
        found = sorted(us / kernels for us in samples(torch, work, Way(queued, made, cycles), options.samples))
        low, high = found[len(found) // 5], found[4 * len(found) // 5]
        middle = statistics.median(found)
        way = f"{'queued' if queued else 'single':<10}{'made' if made else 'new':<9}{cycles:>9}"
        print(f"{name:<14}{way}{middle:>13.3f}{low:>9.3f}{high:>9.3f}", flush=True)
    return 0


def captured(torch: Any, element: Any) -> Any:
    """A graph of ``NODES`` additions."""
    element.add_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            element.add_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def samples(torch: Any, work: Callable[[], Any], way: Way, count: int) -> list[float]:
    """Microseconds between two events around the work."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    if way.events_made:
        for event in itertools.chain.from_iterable(pairs):
            event.record()
        torch.cuda.synchronize()
    for start, end in pairs:
        torch.cuda._sleep(way.hold_cycles)
        start.record()
        work()
        end.record()
        if not way.queued:
            end.synchronize()
    torch.cuda.synchronize()
    return [1000.0 * start.elapsed_time(end) for start, end in pairs]


if __name__ == "__main__":
    sys.exit(main())
