"""Where the daemon's memory goes, stage by stage: interpreter, imports, opening NVML, readings, a trim.

    python -m bench.memory --out memory.json

Owns: the stages, in one process that does what a daemon does. Refuses: anything but resident memory.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

READINGS = 5


def resident() -> dict[str, float]:
    """MiB: all, what is backed by files, and what is this process's own."""
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss", "Anonymous"):
            found[name.lower()] = int(rest.split()[0]) / 1024
    return found


def main() -> int:
    """Go through the stages and write JSON. Exit code 0, 1 when there is no driver."""
    parser = argparse.ArgumentParser(prog="memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    answer: dict[str, Any] = {"python": sys.version.split()[0], "results": [], "failures": []}

    def stage(name: str) -> None:
        answer["results"].append({"stage": name, **resident()})
        options.out.write_text(json.dumps(answer))

    stage("interpreter")
    from gpuwatch.cli.daemon import _one_arena

    _one_arena()
    for name in (
        "gpuwatch.collect.node",
        "gpuwatch.collect.stacks",
        "gpuwatch.daemon.probing",
        "gpuwatch.daemon.service",
    ):
        importlib.import_module(name)
    from gpuwatch.collect.host import HostReader
    from gpuwatch.collect.nvml import Nvml
    from gpuwatch.collect.procfs import ProcessReader
    from gpuwatch.model import DriverState

    stage("our imports")
    nvml = Nvml()
    state, hint = nvml.open()
    if state is not DriverState.OK:
        answer["failures"].append(hint)
        options.out.write_text(json.dumps(answer))
        return 1
    stage("nvmlInit")
    readers = [nvml.reader(device.index) for device in nvml.devices()]
    stage("identity")
    host, processes = HostReader(), ProcessReader()
    for _ in range(READINGS):
        for reader in readers:
            reader.read(time.monotonic_ns())
            reader.extras(time.monotonic_ns())
        host.read(time.monotonic_ns())
        processes.read({os.getpid(): (0,)}, time.monotonic_ns())
        time.sleep(0.3)
    stage("readings")
    ctypes.CDLL(None).malloc_trim(0)
    stage("malloc_trim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
