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
"""2.5 to 4 ms: the timer may advance in steps of a microsecond."""
SPIN_SOURCE = """
extern "C" __global__ void spin(int cycles, long long* found) {
    unsigned long long begin_ns, end_ns;
    const long long begin = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
    while (clock64() - begin < cycles) {}
    const long long end = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
    found[0] = end - begin;
    found[1] = (long long)(end_ns - begin_ns);
}
"""


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
    if case.kind == "fp8":
        one = target.torch.ones((), device=target.device)
        return Load(lambda: matmul.multiply_fp8(target.torch, left, right, one), 2.0 * size**3, "FLOP")
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
    """One thread that counts cycles and nanoseconds in a stream of its own: the SM clock, whatever NVML says of it.

    Both are read within the kernel: events around it also take the time in which it waits for room on an SM. (Their
    difference over two spins read 1,878 MHz beside an fp32 product that NVML saw at 1,980, and that agreed with it.)
    Needs a torch that compiles a kernel at run time (2.9 on). Raises RuntimeError otherwise.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        compiled = getattr(torch.cuda, "_compile_kernel", None)
        if compiled is None:
            raise RuntimeError("this torch compiles no kernel at run time")
        self._torch, self._stream = torch, torch.cuda.Stream(priority=-1)
        self._kernel = compiled(SPIN_SOURCE, "spin")
        self._found = torch.zeros(2, dtype=torch.int64, device=device)
        self._pending = False
        self.found_mhz: list[float] = []

    def turn(self) -> None:
        """Read the spin of the turn before, which has ended by now, and start another."""
        self.read()
        self._kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[SPIN_CYCLES, self._found], stream=self._stream)
        self._pending = True

    def read(self) -> None:
        """Wait for the last one."""
        if not self._pending:
            return
        self._stream.synchronize()
        with self._torch.cuda.stream(self._stream):
            cycles, ns = self._found.tolist()
        self.found_mhz.append(1000.0 * cycles / ns)
        self._pending = False


def spin_of(target: device.Target) -> Spin | None:
    """The clock beside a load, None where there is no way to count it."""
    try:
        return Spin(target.torch, target.device) if target.is_cuda else None
    except (RuntimeError, OSError, AttributeError) as exc:
        print(f"no clock beside the load: {exc}", file=sys.stderr)
        return None


class Queue:
    """Calls in groups, the next one queued before the last is waited for."""

    def __init__(self, target: device.Target, work: Callable[[], object]) -> None:
        self.target, self.work = target, work
        self.group = 1
        self.spin = spin_of(target)

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
