"""What a big node costs: sixteen GPUs with sixty-four processes each, at 1 Hz.

    python bench/big_node.py [--gpus 16] [--processes 64] [--seconds 20]

with the checkout on PYTHONPATH. The GPUs are the tests' NVML library, whose calls cost next to nothing, so the CPU is
a floor: gpuwatch's own work. The processes are real, asleep, each on one GPU. Owns: this one measurement.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.children import cpu_ns, rss_bytes, started, wait_until
from bench.readings import ROOT, Readings
from bench.stream import watch
from gpuwatch.config import STREAM_SOCKET

WARM_UP_S = 6.0


def scenario(gpus: int, pids: list[int]) -> str:
    """Busy GPUs, the processes dealt out among them."""
    lines = [
        f"gpus={gpus} driver=580.82.07",
        "gpu * util=97 memutil=41 used=60000000000 power=500000 gpm.1=95 gpm.2=80",
    ]
    for gpu in range(gpus):
        listed = ",".join(f"{pid}:900000000:C" for pid in pids[gpu::gpus])
        lines.append(f"gpu {gpu} procs={listed}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="big_node", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=16, help="at most 16 (default)")
    parser.add_argument("--processes", type=int, default=64, help="on each GPU (default 64)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long it is watched (default 20)")
    options = parser.parse_args()
    sys.path.append(str(ROOT / "tests"))
    from fakenvml.build import fake_env

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuwatch-")))
        children = [subprocess.Popen(["sleep", "3600"]) for _ in range(options.gpus * options.processes)]
        try:
            env = fake_env(folder, scenario(options.gpus, [child.pid for child in children]))
            del env["FAKE_NVML_TRACE"]
            runtime, log = folder / "run", folder / "log"
            argv = [sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(runtime), "--period", "1"]
            own = Readings("", variables=tuple(env.items())).environment()
            child = stack.enter_context(started(argv, own, log))
            wait_until((runtime / STREAM_SOCKET).is_socket, child, log)
            time.sleep(WARM_UP_S)
            before, start = cpu_ns(child.pid), time.monotonic()
            stream = watch(f"ipc://{runtime}", options.seconds)
            cpu_pct = (cpu_ns(child.pid) - before) / 1e7 / (time.monotonic() - start)
            print(f"{options.gpus} GPUs, {len(children)} processes, {stream.seconds:.0f} s")
            print(f"CPU of a core        {cpu_pct:8.1f} %")
            print(f"resident             {rss_bytes(child.pid) / 2**20:8.1f} MiB")
            print(f"inside NVML a tick   {stream.nvml_ms:8.1f} ms")
            print(f"tick, median         {stream.tick_bytes:8.0f} B")
            print(f"ticks                {stream.ticks / stream.seconds:8.2f} /s")
        finally:
            for sleeper in children:
                sleeper.kill()
            for sleeper in children:
                sleeper.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
