"""What ``gpuwatch.hook`` costs a job: nanoseconds per step with and without a receiver, a datagram, the import.

    python -m bench.hook

Each figure is the least of some runs: what the code takes when nobody else has the CPU. No GPU is needed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuwatch import hook
from gpuwatch.daemon.steps import StepSocket

STEPS = 2_000_000
RUNS = 5
IMPORTS = 21
DATAGRAMS = 2000


def plain() -> None:
    """The loop without the hook."""
    for _ in range(STEPS):
        pass


def watched() -> None:
    """The same, watched."""
    for _ in hook.watch(range(STEPS)):
        pass


def marked() -> None:
    """The same, with each step marked."""
    for _ in range(STEPS):
        hook.step()


def least_ns(work: Callable[[], None]) -> float:
    """Nanoseconds per step of the best run."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - began)
    return best / STEPS


def datagram_us(receiver: StepSocket) -> float:
    """Microseconds to sum up and send once, the median; the socket is emptied outside of the measure."""
    loop = hook._Loop(1, marked=False)
    loop.open(time.monotonic_ns())
    took = []
    arrived = 0
    for _ in range(DATAGRAMS):
        loop.steps = loop.wait_ns = 1
        began = time.perf_counter_ns()
        loop.tell(time.monotonic_ns())
        took.append(time.perf_counter_ns() - began)
        # A second later each time: nothing of this is a flood.
        arrived += len(receiver.receive((len(took) + 1) * 1_000_000_000))
    assert arrived == DATAGRAMS, "some were not sent"
    return statistics.median(took) / 1e3


def import_ms(statement: str) -> float:
    """Milliseconds that a statement takes in a fresh interpreter, the median."""
    code = f"import time\nbegan = time.perf_counter_ns()\n{statement}\nprint(time.perf_counter_ns() - began)"
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(IMPORTS)
    ]
    return statistics.median(map(int, said)) / 1e6


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        os.environ["GPUWATCH_ENDPOINT"] = folder
        hook._in_child()  # Look there instead of where this process looked when it imported the hook.
        base = least_ns(plain)
        print(f"watch(), no receiver   {least_ns(watched) - base:6.0f} ns a step")
        print(f"step(), no receiver    {least_ns(marked) - base:6.0f} ns a step")
        with StepSocket(Path(folder) / "steps.sock") as receiver:
            time.sleep(hook.LOOK_EVERY_NS / 1e9)
            done = threading.Event()

            def empty() -> None:
                while not done.wait(0.2):
                    receiver.receive(time.monotonic_ns())

            reader = threading.Thread(target=empty)
            reader.start()
            print(f"watch(), a receiver    {least_ns(watched) - base:6.0f} ns a step")
            print(f"step(), a receiver     {least_ns(marked) - base:6.0f} ns a step")
            done.set()
            reader.join()
            print(f"a datagram, two a second {datagram_us(receiver):4.0f} us")
    print(f"import gpuwatch.hook   {import_ms('import gpuwatch.hook'):6.1f} ms in a bare interpreter")


if __name__ == "__main__":
    main()
