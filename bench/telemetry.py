"""What the driver of this machine gives beside samples, and what that costs: ``python bench/telemetry.py``.

Owns: reading every GPU at 1 Hz for a while, and the table. Refuses: verdicts, except one: a sample that the driver took
and that was lost or seen twice makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.export.jsonable import jsonable
from gpuwatch.model import Burst, DeviceHealth, DriverState, SampleSeries


class Watched:
    """One GPU over the time of the look."""

    def __init__(self, reader: DeviceReader) -> None:
        self.reader = reader
        self.nvml_ms: list[float] = []
        self.bursts: list[Burst] = []
        self.health: DeviceHealth | None = None

    def tick(self) -> None:
        """One reading with what comes after it. Its driver time counts to the next sample."""
        now_ns = time.monotonic_ns()
        self.nvml_ms.append(self.reader.read(now_ns).nvml_ns / 1e6)
        for extra in self.reader.extras(now_ns):
            if isinstance(extra, Burst):
                self.bursts.append(extra)
            else:
                self.health = extra

    def report(self) -> dict[str, Any]:
        """Costs, what the rings gave, the newest slow readings."""
        steady = self.nvml_ms[2:] or self.nvml_ms
        return {
            "nvml_ms_first": self.nvml_ms[1] if len(self.nvml_ms) > 1 else self.nvml_ms[0],
            "nvml_ms_median": statistics.median(steady),
            "nvml_ms_most": max(steady),
            "utilization": ring([burst.util_pct for burst in self.bursts]),
            "power": ring([burst.power_mw for burst in self.bursts]),
            "health": jsonable(self.health),
        }


def ring(parts: list[SampleSeries]) -> dict[str, float]:
    """Samples after the first drain, their interval, and how often one follows too early or too late."""
    parts = [part for part in parts if part.values]
    steps = [step for part in parts[1:] for step in part.steps_us]
    usual = statistics.median(steps) if steps else 0
    return {
        "first_drain": len(parts[0].values) if parts else 0,
        "samples": len(steps),
        "interval_ms": usual / 1000,
        "longest_ms": max(steps, default=0) / 1000,
        "shortest_ms": min(steps, default=0) / 1000,
        "repeated": sum(step <= 0 for step in steps),
        "broken": sum(part.broken for part in parts[1:]),
    }


def main() -> int:
    """Watch and print JSON. Exit code 0, 1 when samples were lost or repeated, 69 without a driver."""
    parser = argparse.ArgumentParser(prog="bench/telemetry", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=40, help="how long (default 40: every tier has its turn)")
    options = parser.parse_args()
    nvml = Nvml()
    state, hint = nvml.open()
    if state is not DriverState.OK:
        sys.stderr.write(f"{hint}\n")
        return 69
    devices, facts = nvml.devices(), nvml.driver_facts()
    watched = {device.index: Watched(nvml.reader(device.index)) for device in devices}
    due = time.monotonic()
    for _ in range(options.seconds):
        for gpu in watched.values():
            gpu.tick()
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))
    shown = {device.name + f" {device.index}": watched[device.index].report() for device in devices}
    nvml.close()
    sys.stdout.write(json.dumps({"driver": jsonable(tuple(facts)), "gpus": shown}, indent=2) + "\n")
    rings = [gpu[name] for gpu in shown.values() for name in ("utilization", "power")]
    return int(any(found["repeated"] or found["broken"] for found in rings))


if __name__ == "__main__":
    sys.exit(main())
