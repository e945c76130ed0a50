"""The driver's counters beside what the work itself counts: does a GPM figure mean what it says?

    python -m bench.gpm_beside --out gpm.json

Owns: reading the counters through gpuwatch's own reader while ``bench/jobs/loads.py`` repeats the probes' work, and the
ceilings that turn a share into TFLOP/s or GB/s. Refuses: judging; the ratio is printed, the reader judges.

Two things stand between a counter and the work. The clock that NVML tells is not the one that the SMs run at while
their tensor pipes work: an H200 that it saw at 1,980 MHz ran at 1,814, far from its power limit. So the clock that the
job's spin has counted is taken where there is one. And the link carries packets: what the PCIe counters say is made
payload by the packet size that the device is set to, where the kernel shows it (root).

Counters come about 110 ms late (measured on an H200), so only windows that lie at least ``LAG_NS`` inside the steady
part are taken; the work's own rate is that of the same stretch of time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.paired import rate
from bench.talking import Job
from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.model import Absent, Device, DeviceSample, DriverState
from probes.peaks import peak

LAG_NS = 250_000_000
LEAST_WINDOWS = 5
READY_S = 60.0
FLOP_PER_CYCLE = {
    "9.0": {"bf16": 4096.0, "fp16": 4096.0, "tf32": 2048.0, "fp8": 8192.0, "fp32": 256.0},
    "8.0": {"bf16": 2048.0, "fp16": 2048.0, "tf32": 1024.0, "fp32": 128.0},
}
"""Of one SM, dense: compute capability and type. H100 and A100 whitepapers; 132 SMs at 1.83 GHz give the 989 TFLOP/s of
the data sheet."""


PACKET_BYTES = {"h2d": 20, "d2h": 24}
"""Beside the payload of a packet, from PCIe generation 3 on: framing with the sequence number 4, checksum 4, and the
header: 12 of a completion (what a device gets that reads host memory), 16 of a write with a 64-bit address."""
SYSFS = Path("/sys/bus/pci/devices")


class Compared(NamedTuple):
    """Which counter a load is compared with."""

    counter: str
    kind: str
    """Of the ceiling in probes/peaks.py; "" where the counter is bytes per second itself."""
    unit: str


LOADS = {
    "matmul": Compared("tensor_active_pct", "bf16", "TFLOP/s"),
    "conv": Compared("tensor_active_pct", "bf16", "TFLOP/s"),
    "copy": Compared("dram_active_pct", "dram", "GB/s"),
    "h2d": Compared("pcie_rx_bytes_per_s", "", "GB/s"),
    "d2h": Compared("pcie_tx_bytes_per_s", "", "GB/s"),
    "matmul_fp32": Compared("fp32_active_pct", "fp32", "TFLOP/s"),
    "matmul_zeros": Compared("tensor_active_pct", "bf16", "TFLOP/s"),
    "conv_zeros": Compared("tensor_active_pct", "bf16", "TFLOP/s"),
    "matmul_4096": Compared("tensor_active_pct", "bf16", "TFLOP/s"),
    "matmul_fp16": Compared("tensor_active_pct", "fp16", "TFLOP/s"),
    "matmul_tf32": Compared("tensor_active_pct", "tf32", "TFLOP/s"),
    "matmul_fp8": Compared("tensor_active_pct", "fp8", "TFLOP/s"),
}
GIGA = {"TFLOP/s": 1e12, "GB/s": 1e9}


class Counters(threading.Thread):
    """Reads one GPU as often as GPM has a window, keeping what it read."""

    def __init__(self, reader: DeviceReader) -> None:
        super().__init__(name="counters", daemon=True)
        self._reader = reader
        self._done = threading.Event()
        self.samples: list[DeviceSample] = []

    def run(self) -> None:
        """Thread body."""
        while not self._done.is_set():
            self.samples.append(self._reader.read(time.monotonic_ns(), full=False))
            pause_ns = max(self._reader.gpm_ready_ns - time.monotonic_ns(), 1_000_000)
            self._done.wait(pause_ns / 1e9)

    def end(self) -> list[DeviceSample]:
        """Stop, and what was read."""
        self._done.set()
        self.join(5.0)
        return self.samples


def ceiling(facts: Mapping[str, Any], kind: str, sm_mhz: float, mem_mhz: float) -> float | None:
    """What 100 % of a counter is at these clocks, in FLOP/s or B/s; None where this card's figures are not known."""
    if kind == "dram":
        bits = facts.get("memory_bus_bits")
        return None if bits is None else mem_mhz * 1e6 * 2 * bits / 8
    per_cycle = FLOP_PER_CYCLE.get(str(facts.get("capability")), {}).get(kind)
    return None if per_cycle is None else per_cycle * facts["sm_count"] * sm_mhz * 1e6


def payload_bytes(config: bytes) -> int | None:
    """The largest payload of a packet, from a device's configuration space (PCI Express capability, Device Control);
    None where the bytes end before: who is not root is shown 64 of them."""
    at = config[0x34] if len(config) > 0x34 else 0
    for _ in range(48):
        if not at or at + 10 > len(config):
            return None
        if config[at] == 0x10:
            return 128 << (int.from_bytes(config[at + 8 : at + 10], "little") >> 5 & 7)
        at = config[at + 1]
    return None


def payload_of(place: str) -> int | None:
    """The same of the device at "0000:01:00.0"."""
    try:
        return payload_bytes((SYSFS / place / "config").read_bytes())
    except OSError:
        return None


def compared(load: Mapping[str, Any], facts: Mapping[str, Any], samples: Sequence[DeviceSample]) -> dict[str, Any]:
    """One load's own figure and what the counters make of it. Raises RuntimeError when there are too few windows."""
    name = load["load"]
    what = LOADS[name]
    marks = [(int(ns), int(calls)) for ns, calls in load["marks"]]
    inside = within(samples, marks[0][0], marks[-1][0])
    values = [value for value in (getattr(sample, what.counter) for sample in inside) if not isinstance(value, Absent)]
    if len(values) < LEAST_WINDOWS:
        first = next((getattr(s, what.counter) for s in inside if isinstance(getattr(s, what.counter), Absent)), None)
        why = (
            f", {what.counter}: {first.reason.name.lower()} {first.detail}".rstrip()
            if isinstance(first, Absent)
            else ""
        )
        raise RuntimeError(f"{name}: {len(values)} windows of the counter, {LEAST_WINDOWS} are the least{why}")
    begin_ns, end_ns = inside[0].mono_ns - inside[0].gpm_window_ns, inside[-1].mono_ns
    own = rate(marks, begin_ns, end_ns) * load["per_call"] / GIGA[what.unit]
    mean, sm, mem = statistics.fmean(values), mean_of(inside, "sm_clock_mhz"), mean_of(inside, "mem_clock_mhz")
    spun = float(load.get("spun_mhz") or 0.0)
    by_sheet, by_clock = said(what, mean, str(facts.get("name", "")), ceiling(facts, what.kind, spun or sm, mem))
    payload = facts.get("payload_bytes")
    if by_clock is not None and name in PACKET_BYTES and payload:
        by_clock *= payload / (payload + PACKET_BYTES[name])
    return {
        "load": name, "counter": what.counter, "unit": what.unit, "own": own, "counter_mean": mean,
        "counter_least": min(values), "counter_most": max(values), "windows": len(values), "sm_mhz": sm, "mem_mhz": mem,
        "spun_mhz": spun or None, "spun_range_mhz": [load.get("spun_least"), load.get("spun_most")],
        "power_w": mean_of(inside, "power_w"), "sm_active_pct": mean_of(inside, "sm_active_pct"),
        "by_data_sheet": by_sheet, "by_clock": by_clock,
        "own_over_data_sheet": _ratio(own, by_sheet), "own_over_clock": _ratio(own, by_clock),
    }  # fmt: skip


def said(what: Compared, mean: float, name: str, at_clock: float | None) -> tuple[float | None, float | None]:
    """The counter in the load's unit: by the published ceiling, and by that of the clocks it ran at. One that counts
    bytes needs no ceiling."""
    if not what.kind:
        return mean / 1e9, mean / 1e9
    published = peak(name, what.kind)
    return (
        mean / 100 * published if published else None,
        None if at_clock is None else mean / 100 * at_clock / GIGA[what.unit],
    )


def within(samples: Sequence[DeviceSample], begin_ns: int, end_ns: int) -> list[DeviceSample]:
    """Windows that lie wholly in between, whatever of their lag is true."""
    return [
        sample
        for sample in samples
        if sample.gpm_window_ns
        and sample.mono_ns - sample.gpm_window_ns >= begin_ns + LAG_NS
        and sample.mono_ns <= end_ns
    ]


def mean_of(samples: Sequence[DeviceSample], name: str) -> float:
    """Mean of what was readable, 0.0 of nothing."""
    values = [value for value in (getattr(sample, name) for sample in samples) if not isinstance(value, Absent)]
    return statistics.fmean(values) if values else 0.0


def _ratio(own: float, said: float | None) -> float | None:
    return own / said if said else None


def device_of(devices: Sequence[Device], uuid: str) -> Device:
    """The GPU that torch means; the first where torch does not tell."""
    return next((device for device in devices if device.uuid == uuid), devices[0])


def measure(answer: dict[str, Any], options: argparse.Namespace, log: Path) -> None:
    """All loads, into ``answer``. Raises RuntimeError."""
    ends = time.monotonic() + options.limit_s
    flags = ["--seconds", f"{options.seconds:g}", *(["--device", options.device] if options.device else [])]
    nvml = Nvml()
    state, hint = nvml.open()
    if state is not DriverState.OK:
        raise RuntimeError(hint)
    with Job("loads.py", flags, log) as job:
        facts = job.until("device", min(READY_S, options.limit_s))["device"]
        facts["payload_bytes"] = payload_of(str(facts.get("pci", "")))
        answer["device"] = facts
        device = device_of(nvml.devices(), facts.get("uuid", ""))
        answer["same_gpu"] = device.uuid == facts.get("uuid")
        counters = Counters(nvml.reader(device.index))
        counters.start()
        try:
            while (line := job.line(ends - time.monotonic())) is not None:
                take(answer, line, facts, counters.samples)
                options.out.write_text(json.dumps(answer))
        finally:
            counters.end()
    nvml.close()


def take(
    answer: dict[str, Any], line: Mapping[str, Any], facts: Mapping[str, Any], samples: Sequence[DeviceSample]
) -> None:
    """One line of the job: a result, or why there is none."""
    if "load" not in line:
        return
    if "error" in line:
        answer["failures"].append(f"{line['load']}: {line['error']}")
        return
    try:
        answer["results"].append(compared(line, facts, list(samples)))
    except RuntimeError as exc:
        answer["failures"].append(str(exc))


def main() -> int:
    """Measure and write JSON. Exit code 0, 1 when a load could not be compared."""
    parser = argparse.ArgumentParser(prog="gpm_beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each load (default 2.5)")
    parser.add_argument("--limit-s", type=float, default=60.0, help="for everything (default 60)")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    options = parser.parse_args()
    answer: dict[str, Any] = {"results": [], "failures": []}
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        try:
            measure(answer, options, Path(folder) / "job.log")
        except (RuntimeError, OSError, IndexError) as exc:
            answer["failures"].append(f"counters: {exc}")
    options.out.write_text(json.dumps(answer))
    return 1 if answer["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
