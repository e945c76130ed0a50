"""A day in minutes: does the daemon's memory or its number of open files grow?

    python bench/soak.py [--hours 24] [--gpus 1] [--limit-seconds 900]

with the checkout on PYTHONPATH. Writes a recording of so many hours at 1 Hz, with a new job each hour, lets a daemon
replay it as fast as it can while a client follows, and prints resident memory, open files and threads at each hour.
Owns: the recorded day, the table, what counts as growth. Refuses: start-up (the first hour is not compared).
Exit code 0, 1 when something grew, 2 when the time limit came before the third hour.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.children import rss_bytes, started, wait_until
from bench.readings import Readings
from gpuwatch.client.connection import Connection
from gpuwatch.config import STREAM_SOCKET
from gpuwatch.model import (
    CgroupSample,
    Device,
    DeviceProcess,
    DeviceSample,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Role,
    Source,
    SourceKind,
)
from gpuwatch.replay.format import Writer

HOUR_S = 3600
S = 1_000_000_000
RSS_SLACK_BYTES = 4 << 20
"""Between the median of the second to fourth hour and that of the last three. A leak of 64 bytes a tick is 5.5 MB a
day; the allocator's own breathing is below 2 MB."""
FD_SLACK = 2


class Hour(NamedTuple):
    """What the daemon held when the replay came to an hour."""

    hour: int
    seconds: float
    rss_bytes: int
    fds: int
    threads: int
    messages: int
    """Published until then."""


def day(hours: int, gpus: int) -> Iterator[Observation]:
    """The recorded observations: busy by day, idle at times, each hour another job with four workers."""
    node = NodeInfo("soak", "6.1", "boot", 64, 1 << 40)
    devices = tuple(Device(i, f"GPU-{i}", "NVIDIA H200", f"0000:{i:02x}:00.0", gpm=True) for i in range(gpus))
    yield Inventory(node, devices, source=Source(SourceKind.RECORDED, "soak"))
    before: tuple[int, ...] = ()
    for second in range(hours * HOUR_S):
        hour, now = divmod(second, HOUR_S)[0], (second + 1) * S
        root = 10_000 + 10 * hour
        pids = tuple(range(root, root + 5))
        busy = 20.0 + 75.0 * (second % 600 < 420)
        for i in range(gpus):
            yield _device(i, now + i, busy, root)
        if second % 2:
            continue
        yield HostSample(now, cpu_busy_pct=busy / 2, mem_available_bytes=1 << 39, mem_total_bytes=1 << 40)
        new = second % HOUR_S == 0
        infos = tuple(_info(pid, root, gpus) for pid in pids) if new else ()
        samples = tuple(_process(pid, now, second) for pid in pids)
        yield ProcessTick(now, samples, (CgroupSample(root, now, 8.0, second, 0, 0),), infos, before if new else ())
        before = pids


def _device(index: int, now: int, busy: float, pid: int) -> DeviceSample:
    return DeviceSample(
        *(index, now, int(busy), 20, 60 << 30, 300.0 + busy, 50, 1980, 3201, 0, S),
        *(busy, busy * 0.8, 30.0, busy * 0.4, 0.0, 5.0, 0.0, 25.0, 1e9, 1e8, 0.0, 0.0),
        (DeviceProcess(pid, 60 << 30, "C"),),
        None,
        3_000_000,
    )


def _info(pid: int, root: int, gpus: int) -> ProcessInfo:
    role = Role.MAIN if pid == root else Role.LOADER_WORKER
    indices = tuple(range(gpus)) if pid == root else ()
    return ProcessInfo(
        *(pid, pid, 1, root, role, "python", f"python train_{root}.py", "ada", 1000), device_indices=indices
    )


def _process(pid: int, now: int, second: int) -> ProcessSample:
    cpu = second * S // 2
    return ProcessSample(
        *(pid, pid, now, "S", 50.0, cpu, 0, cpu, "S", 8, 0, 1 << 30, 5 * second, 100 * second, 0, 200 * second, second),
        *(0, "futex_do_wait"),
    )


def replayed(recording: Path, folder: Path, hours: int, limit_s: float) -> Iterator[Hour]:
    """Each hour that the daemon comes to. Raises RuntimeError when it does not serve."""
    runtime, log = folder / "run", folder / "log"
    argv = [sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(runtime)]
    argv += ["--replay", str(recording), "--speed", "0"]
    with started(argv, Readings("soak").environment(), log) as child:
        wait_until((runtime / STREAM_SOCKET).is_socket, child, log, timeout_s=max(60.0, limit_s))
        client, start, reached = Connection(f"ipc://{runtime}"), time.monotonic(), 0
        try:
            while reached < hours and time.monotonic() - start < limit_s:
                hour = round(client.step(0.2).tick_mono_ns / S) // HOUR_S
                if hour > reached:
                    reached = hour
                    yield _measured(hour, time.monotonic() - start, child.pid, client.state.seq)
        finally:
            client.close()


def _measured(hour: int, seconds: float, pid: int, messages: int) -> Hour:
    proc = Path(f"/proc/{pid}")
    threads = sum(1 for _ in (proc / "task").iterdir())
    return Hour(hour, seconds, rss_bytes(pid), sum(1 for _ in (proc / "fd").iterdir()), threads, messages)


def growth(seen: list[Hour]) -> str:
    """What grew, "" when nothing did. The first hour is start-up."""
    settled = [hour for hour in seen if hour.hour >= 2]
    first, last = settled[:3], settled[-3:]
    rss = statistics.median(h.rss_bytes for h in last) - statistics.median(h.rss_bytes for h in first)
    fds = max(h.fds for h in last) - max(h.fds for h in first)
    if rss > RSS_SLACK_BYTES:
        return f"resident memory grew by {rss / 2**20:.1f} MiB"
    return f"open files grew by {fds}" if fds > FD_SLACK else ""


def main() -> int:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=int, default=24, help="length of the recorded day (default 24)")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs in it (default 1)")
    parser.add_argument(
        "--limit-seconds", type=float, default=900.0, help="give up the replay after this (default 900)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as name:
        folder = Path(name)
        recording = folder / "day.gwrec"
        with Writer(recording, 1_700_000_000 * S) as writer:
            for observation in day(options.hours, options.gpus):
                writer.write(observation)
        print(f"{options.hours} h, {options.gpus} GPU, {writer.count} observations\n", flush=True)
        print("hour  after s  resident MiB  open files  threads  messages", flush=True)
        seen: list[Hour] = []
        for hour in replayed(recording, folder, options.hours, options.limit_seconds):
            seen.append(hour)
            figures = f"{hour.hour:4d}  {hour.seconds:7.1f}  {hour.rss_bytes / 2**20:12.1f}  {hour.fds:10d}"
            print(f"{figures}  {hour.threads:7d}  {hour.messages:8d}", flush=True)
    if len(seen) < 3:
        print("too few hours to say anything")
        return 2
    grown = growth(seen)
    print(f"\n{grown or 'nothing grew'}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
