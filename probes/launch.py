"""What does it cost to start a kernel, and to wait for it?

Three separate numbers for an addition to one element: ``enqueue`` (Python until the call returns, nothing waited for),
``round_trip`` (enqueue and synchronise, an idle GPU each time), ``event_gap`` (from kernel to kernel in a full queue:
the GPU's own share). Beside them one kernel between two events, in a queue as full as a job's, and a captured graph of
a hundred. On a CPU: ``enqueue`` alone, which is the whole operation.

Expected signature: event_gap 1 to 3 µs, enqueue 3 to 10 µs, round_trip 10 to 25 µs. enqueue high: a slow or throttled
CPU core, a profiler or a debugger switch (CUDA_LAUNCH_BLOCKING=1 makes enqueue as long as round_trip). A job with
kernels shorter than enqueue is bound by Python; a graph or torch.compile gets it down to the last figure.

Validity: at most 400 launches are queued, since a full queue blocks and would be measured instead; the element must
hold exactly as many additions as were counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import device, harness
from .report import Report

NAME = "launch"
SECONDS = {"cuda": 0.5, "cpu": 0.3}
QUEUED = 200
"""Launches of one sample: far below the thousand or so at which the driver's queue blocks."""
GRAPH_NODES = 100
PAIRS, FILLING, PAIR_HOLD_MS = 60, 10, 0.15
"""Pairs of events queued at once, those that are not counted, and how long the stream is held before each. With five
pairs or more in the queue an H200 takes 3.7 µs for each, with fewer 2.9."""


class Counter:
    """The element, and how often it must have been added to. It starts again before fp32 stops counting exactly."""

    def __init__(self, target: device.Target) -> None:
        self.element = target.torch.zeros(1, device=target.device)
        self.expected = 0
        self.wrong = 0

    def add(self) -> None:
        """The kernel under test."""
        self.element.add_(1.0)
        self.expected += 1

    def settle(self) -> None:
        """Compare and start again."""
        if float(self.element.item()) != self.expected:
            self.wrong += 1
        self.element.zero_()
        self.expected = 0


def parse_size(text: str) -> int:
    """``--size 200``: launches queued in one sample. Raises ValueError with one line."""
    if not text.isdigit() or not 1 <= int(text) <= 400:
        raise ValueError(f"--size {text}: expected the launches queued in one sample, 1 to 400")
    return int(text)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure the numbers into the report."""
    queued = parse_size(size) if size else QUEUED
    report.settings["queued"] = str(queued)
    counter = Counter(target)
    report.add("first_call_ms", "ms", [harness.first_call(clock, counter.add)], higher_is_better=False)
    say("enqueue")
    # Half a second of launches first: the CPU core has to clock up too.
    samples(clock, counter, queued, min(seconds, 0.5), enqueue_us)
    report.add("enqueue", "µs", samples(clock, counter, queued, seconds, enqueue_us), higher_is_better=False)
    if target.is_cuda:
        say("round trip")
        trips = samples(clock, counter, 20, seconds, round_trip_us)
        report.add("round_trip", "µs", trips, higher_is_better=False)
        _on_the_gpu(target, clock, report, counter, queued, seconds, say)
    if counter.wrong:
        report.problems.append(f"the element was wrong after {counter.wrong} sample(s): launches were lost")


def _on_the_gpu(
    target: device.Target,
    clock: Any,
    report: Report,
    counter: Counter,
    queued: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    if not clock.hold(0.1):
        report.notes.append("event_gap is not available: this torch has no spin kernel to fill the queue behind")
    else:
        say("event_gap")
        report.add("event_gap", "µs", samples(clock, counter, queued, seconds, held_us), higher_is_better=False)
        say("event_pair")
        pairs = samples_of(counter, seconds, lambda: pairs_us(clock, counter))
        report.add("event_pair", "µs", pairs, higher_is_better=False)
    say("graph")
    graph = capture(target, counter)
    if graph is None:
        report.notes.append("graph is not available: this torch cannot capture CUDA graphs")
        return
    replays = samples(clock, counter, GRAPH_NODES, seconds, lambda clk, _cnt, _calls: graph_us(clk, graph, counter))
    report.add("graph", "µs", replays, higher_is_better=False)


def samples(
    clock: Any, counter: Counter, calls: int, seconds: float, once: Callable[[Any, Counter, int], float]
) -> list[float]:
    """µs per call, sample after sample."""
    return samples_of(counter, seconds, lambda: [once(clock, counter, calls)])


def samples_of(counter: Counter, seconds: float, take: Callable[[], list[float]]) -> list[float]:
    """What ``take`` gives, one or some at a time, until it is enough; each is checked outside of its timed part."""
    found: list[float] = []
    finished = harness.enough(seconds, 0.01)
    while True:
        found += take()
        counter.settle()
        if finished(found):
            return found


def enqueue_us(clock: Any, counter: Counter, calls: int) -> float:
    """Wall time until the calls return; the device is idle before and drained after."""
    element = counter.element  # counting inside the loop would be measured with it
    clock.drain()
    began = time.perf_counter_ns()
    for _ in range(calls):
        element.add_(1.0)
    elapsed = time.perf_counter_ns() - began
    clock.drain()
    counter.expected += calls
    return elapsed / 1000.0 / calls


def round_trip_us(clock: Any, counter: Counter, calls: int) -> float:
    """Wall time of launch and wait, each from an idle device."""
    clock.drain()
    began = time.perf_counter_ns()
    for _ in range(calls):
        counter.add()
        clock.drain()
    return (time.perf_counter_ns() - began) / 1000.0 / calls


def held_us(clock: Any, counter: Counter, calls: int) -> float:
    """Device time per kernel of a queue that was full before the first one started."""
    # Far more than Python needs to enqueue them: 50 µs each would be a very slow one.
    clock.hold(0.05 * calls + 0.2)
    start = clock.mark()
    for _ in range(calls):
        counter.add()
    elapsed: float = clock.ms(start, clock.mark())
    return elapsed * 1000.0 / calls


def pairs_us(clock: Any, counter: Counter) -> list[float]:
    """Device time between two events with one kernel in between, over one full queue."""
    marks = []
    for _ in range(PAIRS):
        clock.hold(PAIR_HOLD_MS)
        start = clock.mark()
        counter.add()
        marks.append((start, clock.mark()))
    return [1000.0 * clock.ms(start, end) for start, end in marks][FILLING:]


def capture(target: device.Target, counter: Counter) -> Any:
    """A graph of ``GRAPH_NODES`` additions, or None where torch cannot."""
    torch = target.torch
    if not hasattr(torch.cuda, "CUDAGraph"):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_NODES):
                counter.element.add_(1.0)
    except RuntimeError:
        return None
    return graph


def graph_us(clock: Any, graph: Any, counter: Counter) -> float:
    """Device time per kernel of one replay behind a held stream."""
    clock.hold(0.3)
    start = clock.mark()
    graph.replay()
    counter.expected += GRAPH_NODES
    elapsed: float = clock.ms(start, clock.mark())
    return elapsed * 1000.0 / GRAPH_NODES
