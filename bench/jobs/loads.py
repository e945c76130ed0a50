"""The probes' own work, each repeated for some seconds, with how much of it was done by when.

    python loads.py --seconds 2.5                 # all of LOADS
    python loads.py --load h2d

The work, its sizes and what counts as a FLOP or a byte are those of ``probes/``. One JSON line on stdout when the
device is open (``"device"``), and one for each load: marks of CLOCK_MONOTONIC in nanoseconds and the calls that the
device had finished by then. Two groups of calls are always queued, so the device never waits for Python. On a GPU a
spin of known cycles beside them tells at which clock the SMs really run.

``_zeros`` repeats a load on operands of zeros: they switch few transistors, so the same kernel runs far from the power
limit and at one clock. What a counter says differently of the two is the clock's doing; what it says alike is its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probes import conv, copies, device, matmul, memory

GROUP_S = 0.03
"""Calls between two marks take about so long."""
PAUSE_S = 0.4
"""Between two loads, for the counters to go down."""
MIB = 1024**2
SPIN_CYCLES = 5_000_000
"""2.5 to 4 ms, and one of twice as many."""


class Load(NamedTuple):
    """One repeated call."""

    work: Callable[[], object]
    per_call: float
    """FLOP or bytes."""
    unit: str


def matmul_load(target: device.Target, kind: str, size: int = 0, zeros: bool = False) -> Load:
    """A square product, of the probe's default size where none is given."""
    size = (size or matmul.DEFAULT_SIZES[kind]) if target.is_cuda else 256
    device.set_tf32(target.torch, kind == "tf32")
    case = matmul.Case(kind if target.is_cuda else "fp32", size)
    left, right, out = matmul.operands(target, case)
    if zeros:
        left, right = target.torch.zeros_like(left), target.torch.zeros_like(right)
    return Load(lambda: matmul.multiply(target.torch, left, right, out), 2.0 * size**3, "FLOP")


def conv_load(target: device.Target, zeros: bool = False) -> Load:
    """Forward, bf16, channels_last: the fastest case of the probe."""
    shape = conv.SHAPES["cuda" if target.is_cuda else "cpu"]
    case = conv.Case("bf16" if target.is_cuda else "fp32", "channels_last", train=False)
    image, weight, _ = conv.tensors(target, case, shape)
    if zeros:
        image, weight = target.torch.zeros_like(image), target.torch.zeros_like(weight)
    return Load(lambda: conv.convolve(target.torch, image, weight), conv.flop(shape, train=False), "FLOP")


def copy_load(target: device.Target) -> Load:
    """Within the device's memory; bytes read and bytes written both count."""
    mib = memory.DEFAULT_MIB["cuda"] if target.is_cuda else 16
    left, right, row, out = memory.arrays(target, mib, 0)
    return Load(lambda: memory.work_on(target.torch, "copy", left, right, row, out), 2.0 * mib * MIB, "B")


def link_load(target: device.Target, way: str) -> Load:
    """Over the host link, from or to pinned memory."""
    size = max(copies.SIZES) if target.is_cuda else 16 * MIB
    case = copies.Case(way if target.is_cuda else "host", "pinned" if target.is_cuda else "pageable", size)
    return Load(copies.copier(target, case, copies.buffers(target, case)), float(size), "B")


LOADS: dict[str, Callable[[device.Target], Load]] = {
    "matmul": lambda target: matmul_load(target, "bf16"),
    "conv": conv_load,
    "copy": copy_load,
    "h2d": lambda target: link_load(target, "h2d"),
    "d2h": lambda target: link_load(target, "d2h"),
    "matmul_fp32": lambda target: matmul_load(target, "fp32"),
    "matmul_zeros": lambda target: matmul_load(target, "bf16", zeros=True),
    "conv_zeros": lambda target: conv_load(target, zeros=True),
    "matmul_4096": lambda target: matmul_load(target, "bf16", 4096),
    "matmul_fp16": lambda target: matmul_load(target, "fp16"),
    "matmul_tf32": lambda target: matmul_load(target, "tf32"),
    "matmul_fp8": lambda target: matmul_load(target, "fp8"),
}


class Spin:
    """One thread that counts cycles in a stream of its own: the SM clock over milliseconds, whatever NVML says.

    From the difference of a spin and one of twice as many cycles: each may have to wait for room on an SM first.
    """

    def __init__(self, torch: Any) -> None:
        self._torch, self._stream = torch, torch.cuda.Stream(priority=-1)
        self._pending: list[Any] = []
        self.found_mhz: list[float] = []

    def turn(self) -> None:
        """Read the spins of the turn before, which have ended by now, and start others."""
        self.read()
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(3)]
        with self._torch.cuda.stream(self._stream):
            self._torch.cuda._sleep(1000)  # takes the launch upon itself
            events[0].record()
            for number in (1, 2):
                self._torch.cuda._sleep(number * SPIN_CYCLES)
                events[number].record()
        self._pending = events

    def read(self) -> None:
        """Wait for the last ones."""
        if not self._pending:
            return
        begin, middle, end = self._pending
        end.synchronize()
        extra_ms = middle.elapsed_time(end) - begin.elapsed_time(middle)
        if extra_ms > 0:
            self.found_mhz.append(SPIN_CYCLES / (extra_ms * 1000.0))
        self._pending = []


class Queue:
    """Calls in groups, the next one queued before the last is waited for."""

    def __init__(self, target: device.Target, work: Callable[[], object]) -> None:
        self.target, self.work = target, work
        self.group = 1
        spins = target.is_cuda and hasattr(target.torch.cuda, "_sleep")
        self.spin = Spin(target.torch) if spins else None

    def calibrate(self) -> None:
        """Warm up, and find how many calls take ``GROUP_S``."""
        self.wait(self.enqueue(2))
        began = time.monotonic()
        self.wait(self.enqueue(3))
        self.group = max(1, round(3 * GROUP_S / max(time.monotonic() - began, 1e-6)))

    def enqueue(self, calls: int) -> Any:
        """An event behind so many calls; None on a CPU, which has done them."""
        for _ in range(calls):
            self.work()
        if not self.target.is_cuda:
            return None
        # Blocking: a wait that spins would take the core that the reader of the counters may need.
        event = self.target.torch.cuda.Event(blocking=True)
        event.record()
        return event

    def wait(self, event: Any) -> None:
        """Until the calls before it are done."""
        if event is not None:
            event.synchronize()

    def marks(self, seconds: float) -> list[tuple[int, int]]:
        """(CLOCK_MONOTONIC in ns, calls finished) for so long."""
        ends = time.monotonic() + seconds
        pending = [self.enqueue(self.group), self.enqueue(self.group)] if self.target.is_cuda else [None]
        self.wait(pending.pop(0))
        done = 0
        found = [(time.monotonic_ns(), 0)]
        while time.monotonic() < ends:
            pending.append(self.enqueue(self.group))
            self.wait(pending.pop(0))
            done += self.group
            found.append((time.monotonic_ns(), done))
            if self.spin is not None:
                self.spin.turn()
        for event in pending:
            self.wait(event)
        return found


def facts(target: device.Target) -> dict[str, Any]:
    """What the ceilings are made of; what this torch does not tell is left out."""
    found: dict[str, Any] = {"name": target.name, "uuid": target.uuid, "torch": target.torch.__version__}
    if target.is_cuda:
        properties = target.torch.cuda.get_device_properties(target.device)
        found["sm_count"] = properties.multi_processor_count
        found["capability"] = f"{properties.major}.{properties.minor}"
        if hasattr(properties, "memory_bus_width"):
            found["memory_bus_bits"] = properties.memory_bus_width
        if hasattr(properties, "pci_bus_id"):
            place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
            found["pci"] = place
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="repeat the probes' work and tell when how much was done")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each load")
    parser.add_argument("--load", action="append", choices=tuple(LOADS), help="only this one; may be repeated")
    options = parser.parse_args()
    torch = device.load_torch()
    target = device.open_target(torch, options.device)
    torch.backends.cudnn.benchmark = True
    print(json.dumps({"device": facts(target)}), flush=True)
    for name in options.load or LOADS:
        time.sleep(PAUSE_S)
        line: dict[str, Any] = {"load": name}
        try:
            line.update(repeated(target, name, options.seconds))
        except (RuntimeError, AttributeError, TypeError) as exc:  # One load that this torch cannot do.
            line["error"] = f"{type(exc).__name__}: {exc}".splitlines()[0]
        print(json.dumps(line), flush=True)
        device.release(target)


def repeated(target: device.Target, name: str, seconds: float) -> dict[str, Any]:
    """One load for so long. Its tensors are freed with its return."""
    load = LOADS[name](target)
    queue = Queue(target, load.work)
    queue.calibrate()
    found: dict[str, Any] = {"per_call": load.per_call, "unit": load.unit, "marks": queue.marks(seconds)}
    if queue.spin is not None:
        queue.spin.read()
    spun = queue.spin.found_mhz if queue.spin is not None else []
    if spun:
        found["spun_mhz"], found["spun_least"], found["spun_most"] = statistics.median(spun), min(spun), max(spun)
    return found


if __name__ == "__main__":
    main()
