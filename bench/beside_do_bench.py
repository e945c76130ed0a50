"""Our way of timing beside ``triton.testing.do_bench``: the same work in turns, in one process.

    python bench/beside_do_bench.py --out beside.json                  # two minutes on one GPU
    python bench/beside_do_bench.py --page docs/probes.md beside.json  # the table, between its two marker lines
    python bench/beside_do_bench.py --device cpu --tiny --out try.json # every work once, in small, without a GPU

Owns: the works, the turns, the table. Refuses: verdicts; and what is not the same quantity: do_bench has no burst, and
a call that is not waited for is not its subject.

Ours is the code of ``probes/``: its harness and, for launches, the probe's own functions. Of a kernel and of a graph
do_bench is asked without its flush of the L2 cache: with it, the kernel's code and its element come from memory, which
is another quantity (4.35 and 3.7 µs on an H200). The stream is held by a spin instead, so that the GPU is ahead of
Python as it is during a flush. Needs torch, and triton on a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.page import write_part
from gpuwatch.verdict.statistics import Interval, paired_interval
from probes import clocks, copies, device, harness, launch, matmul, memory

PART = "do_bench"
MIB = 1024**2
SHORT_MS, LONG_MS = 200, 1000
"""do_bench's ``rep``. Long for what is limited by power, which must come to rest at its clocks."""
HOLD_CYCLES = 300_000
"""150 µs at 2 GHz: several times what Python needs for a launch or a replay."""
WITHIN = 0.02


class Work(NamedTuple):
    """One figure, by both."""

    name: str
    unit: str
    ours: Callable[[], float]
    theirs: Callable[[], float]


class Methods:
    """How both time a call, in milliseconds."""

    def __init__(self, target: device.Target, tiny: bool) -> None:
        self.target, self.torch, self.tiny = target, target.torch, tiny
        self.clock: Any = clocks.CudaClock(self.torch, target.device) if target.is_cuda else clocks.CpuClock()
        self.counter: launch.Counter | None = None
        self._do_bench = importlib.import_module("triton.testing").do_bench if target.is_cuda else None

    def ours_ms(self, call: Callable[[], object], rep_ms: int) -> float:
        """By the probes' harness, warmed up as long as do_bench is."""
        seconds = 0.01 if self.tiny else rep_ms / 1000.0
        budget = harness.Budget(seconds, seconds / 4, seconds)
        timing = harness.time_case(self.clock, call, budget, lambda _text: None, burst=False)
        return harness.middle(timing.sustained_ms)

    def theirs_ms(self, call: Callable[[], object], rep_ms: int) -> float:
        """By do_bench; on a CPU one call by the wall clock, to see that everything here can be called."""
        if self._do_bench is None:
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1000.0
        return float(self._do_bench(call, warmup=rep_ms // 4, rep=rep_ms, return_mode="median"))

    def timed(self, name: str, unit: str, call: Callable[[], object], amount: float, rep_ms: int = SHORT_MS) -> Work:
        """A rate: ``amount`` a millisecond."""
        return Work(
            name, unit, lambda: amount / self.ours_ms(call, rep_ms), lambda: amount / self.theirs_ms(call, rep_ms)
        )


def works(methods: Methods) -> Iterator[Work]:
    """Every work, its tensors made when it is asked for."""
    torch, target, tiny = methods.torch, methods.target, methods.tiny
    for kind, size in (("fp32", 64),) if tiny else (("bf16", 8192), ("fp16", 8192), ("fp32", 4096)):
        case = matmul.Case(kind, size)
        call: Callable[[], object] = partial(matmul.multiply, torch, *matmul.operands(target, case))
        yield methods.timed(f"matmul {case.name}", "TFLOP/s", call, 2.0 * size**3 / 1e9, LONG_MS)
        device.release(target)
    mib = 1 if tiny else 1024
    arrays = memory.arrays(target, mib)
    for name, moved in (("copy", 2), ("triad", 3)):
        call = partial(memory.work_on, torch, name, *arrays)
        yield methods.timed(f"memory {name}", "GB/s", call, moved * mib * MIB / 1e6)
    size = (1 if tiny else 256) * MIB
    for way in ("h2d", "d2h") if target.is_cuda else ("host",):
        copy = copies.Case(way, "pinned" if target.is_cuda else "pageable", size)
        call = copies.copier(target, copy, copies.buffers(target, copy))
        yield methods.timed(f"copies {copy.name}", "GB/s", call, size / 1e6, LONG_MS // 2)
    yield from launches(methods)


def launches(methods: Methods) -> Iterator[Work]:
    """Python's share of a launch, one kernel, and a hundred in a graph: by the probe's own functions."""
    clock = methods.clock
    counter = methods.counter = launch.Counter(methods.target)
    seconds, element = (0.01 if methods.tiny else 0.2), counter.element

    def middle(once: Callable[[Any, launch.Counter, int], float], calls: int) -> float:
        return statistics.median(launch.samples(clock, counter, calls, seconds, once))

    def many(count: int) -> None:
        for _ in range(count):
            element.add_(1.0)

    def theirs_us(call: Callable[[], object], rep_ms: int = SHORT_MS) -> float:
        found = methods.theirs_ms(call, rep_ms)
        element.fill_(float(counter.expected))  # do_bench adds as often as it likes
        return found * 1000.0

    def held_us(call: Callable[[], object]) -> float:
        with held_instead_of_flushed(methods.torch):
            return theirs_us(call)

    def enqueue_theirs() -> float:
        return theirs_us(lambda: many(launch.QUEUED), 2 * SHORT_MS) / launch.QUEUED

    yield Work("launch enqueue", "µs", lambda: middle(launch.enqueue_us, launch.QUEUED), enqueue_theirs)
    if not methods.target.is_cuda:
        return
    clock.sm_mhz()
    yield Work(
        "launch event_pair",
        "µs",
        lambda: statistics.median(launch.samples_of(counter, seconds, lambda: launch.pairs_us(clock, counter))),
        lambda: held_us(lambda: many(1)),
    )
    graph = launch.capture(methods.target, counter)
    # The same graph for both: an H200 replays the first of a process at 0.86 µs a kernel and later ones at 1.04.
    yield Work(
        "launch graph",
        "µs",
        lambda: middle(lambda clk, cnt, _calls: launch.graph_us(clk, graph, cnt), launch.GRAPH_NODES),
        lambda: held_us(graph.replay) / launch.GRAPH_NODES,
    )


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


def in_turns(work: Work, turns: int) -> list[tuple[float, float]]:
    """(ours, theirs) of each turn; who begins changes from turn to turn, the first turn warms up and is not counted."""
    found = []
    for number in range(turns + 1):
        if number % 2 == 0:
            ours, theirs = work.ours(), work.theirs()
        else:
            theirs, ours = work.theirs(), work.ours()
        found.append((ours, theirs))
    return found[1:]


def table(document: dict[str, Any]) -> str:
    """Markdown: medians of both, and the mean difference with its 95 % interval."""
    lines = [f"{document['device']}, torch {document['torch']}, triton {document['triton']}.", ""]
    lines += ["| work | ours | do_bench | unit | difference | 95 % interval | turns | within 2 % |"]
    lines += ["| --- | --: | --: | --- | --: | --- | --: | --- |"]
    for row in document["rows"]:
        ours, theirs = (statistics.median(pair[side] for pair in row["turns"]) for side in (0, 1))
        found = paired_interval([pair[0] / pair[1] - 1.0 for pair in row["turns"]], seed=1)
        within = "yes" if found.low >= -WITHIN and found.high <= WITHIN else "no" if beyond(found) else "not sure"
        reach = f"{100 * found.low:+.1f} to {100 * found.high:+.1f} %"
        lines.append(
            f"| `{row['work']}` | {ours:.4g} | {theirs:.4g} | {row['unit']} | {100 * found.estimate:+.1f} % | {reach} "
            f"| {len(row['turns'])} | {within} |"
        )
    if document.get("lost_samples"):
        lines += [
            "",
            f"NOT VALID: launches were lost in {document['lost_samples']} sample(s): the additions do not count up.",
        ]
    return "\n".join(lines)


def beyond(found: Interval) -> bool:
    """The whole interval lies outside of what is alike."""
    return found.low > WITHIN or found.high < -WITHIN


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All works in turns."""
    torch = device.load_torch()
    target = device.open_target(torch, options.device)
    methods = Methods(target, options.tiny)
    triton = importlib.import_module("triton").__version__ if target.is_cuda else "none"
    rows = []
    for work in works(methods):
        if options.only and not any(name in work.name for name in options.only):
            continue
        turns = in_turns(work, options.turns)
        rows.append({"work": work.name, "unit": work.unit, "turns": turns})
        print(f"{work.name}: {turns[-1][0]:.4g} and {turns[-1][1]:.4g} {work.unit}", file=sys.stderr, flush=True)
    lost = methods.counter.wrong if methods.counter else 0
    return {"device": target.name, "torch": torch.__version__, "triton": triton, "rows": rows, "lost_samples": lost}


def joined(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an earlier run, those that were measured anew in their place."""
    anew = {row["work"]: row for row in rows}
    return [anew.pop(row["work"], row) for row in before] + list(anew.values())


def main(arguments: list[str] | None = None) -> int:
    """Measure, or write the table of what was measured. Exit code 0, 1 for a page without its marker lines."""
    parser = argparse.ArgumentParser(prog="beside_do_bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measured", nargs="?", type=Path, help="JSON of an earlier run, for --page")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--turns", type=int, default=6, help="of each work, after one that warms up (default 6)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="works whose name has this; may be repeated")
    parser.add_argument(
        "--have", type=Path, help="JSON of an earlier run on this GPU: its works that --only leaves out"
    )
    parser.add_argument("--device", default="cuda:0", help="cuda:N (default cuda:0) or cpu")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal")
    options = parser.parse_args(arguments)
    if options.measured is None:
        document = measured(options)
        if options.have is not None:
            document["rows"] = joined(json.loads(options.have.read_text(encoding="utf-8"))["rows"], document["rows"])
    else:
        document = json.loads(options.measured.read_text(encoding="utf-8"))
    if options.out:
        options.out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    text = table(document)
    if options.page is None:
        print(text)
        return 0
    try:
        write_part(options.page, PART, text)
    except ValueError as exc:
        print(f"beside_do_bench: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
