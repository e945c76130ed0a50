"""What gpuwatch costs on this machine: ``make bench``, or ``python bench/run.py`` with the checkout on PYTHONPATH.

Owns: the order of the measurements and the table. Refuses: verdicts; a figure is only good for the machine it names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import screens
from bench.children import cpu_ns, rss_bytes, started, wait_until
from bench.readings import Readings, choose
from bench.stream import watch
from bench.table import Row, machine, report
from bench.wire_cost import encode_cost
from gpuwatch.config import STREAM_SOCKET

WARM_UP_S = 5.0
"""Imports and the first snapshot are start-up, not what an hour costs."""
PERIODS_S = (1.0, 0.1)
"""What a day costs, and what a close look costs. At 10 Hz slow readings still come at their own pace."""
GPUWATCH = (sys.executable, "-m", "gpuwatch")


def main() -> int:
    """Measure and print. Exit code 0, or 1 when a part could not be measured (it says which)."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each process is watched (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="feed the daemon with this recording")
    parser.add_argument("--no-screens", action="store_true", help="the daemon alone; the screens take minutes")
    options = parser.parse_args()
    failures: list[str] = []
    rows = list(wire_rows())
    # The prefix is short because a Unix socket's path may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        readings = choose(Path(folder), options.replay)
        try:
            # One by one: what was measured before a failure is still worth printing.
            for row in daemon_rows(readings, Path(folder), options.seconds):
                rows.append(row)
        except RuntimeError as exc:
            failures.append(str(exc))
        if options.replay is None and not options.no_screens:
            screens.measure_all(Path(folder), screens.GPU_COUNTS, options.seconds, sys.executable, rows, failures)
    about = machine(readings.name, f"{options.seconds:g} s after {WARM_UP_S:g} s of warm-up")
    report(rows, failures, about, as_json=options.json)
    return 1 if any(failure != screens.NO_NVITOP for failure in failures) else 0


def wire_rows() -> Iterator[Row]:
    """Size and time of a tick."""
    for gpus, each in ((1, 2), (8, 0), (8, 2)):
        cost = encode_cost(gpus, each)
        subject = f"wire, {cost.gpus} GPU{'s' if gpus > 1 else ''}, {cost.processes} processes"
        yield Row(subject, "tick", cost.size_bytes, "B")
        yield Row(subject, "encode, median", cost.median_us, "µs")
        yield Row(subject, "encode, 95 %", cost.p95_us, "µs")


def daemon_rows(readings: Readings, folder: Path, seconds: float) -> Iterator[Row]:
    """The daemon at 1 Hz with one subscriber, then at 10 Hz. Raises RuntimeError."""
    # Once for its bytecode: a daemon that compiled its own modules had 60 MiB where the one after it had 49.
    for number, period_s in enumerate((PERIODS_S[0], *PERIODS_S)):
        config = folder / f"{period_s:g}.toml"
        config.write_text(f"period_s = {period_s}\n", encoding="utf-8")
        runtime, log = folder / f"run{number}", folder / f"daemon{number}.log"
        endpoint = f"ipc://{runtime}"
        argv = [*GPUWATCH, "daemon", "--config", str(config), "--runtime-dir", str(runtime), *readings.daemon_flags]
        with started(argv, readings.environment(), log) as child:
            wait_until((runtime / STREAM_SOCKET).is_socket, child, log)
            time.sleep(WARM_UP_S)
            if number:
                yield from _daemon_use(child.pid, endpoint, seconds, period_s)


def _daemon_use(pid: int, endpoint: str, seconds: float, period_s: float) -> list[Row]:
    before, start = cpu_ns(pid), time.monotonic()
    stream = watch(endpoint, seconds)
    cpu_pct = (cpu_ns(pid) - before) / 1e7 / (time.monotonic() - start)
    subject = f"daemon {1 / period_s:g} Hz, {stream.gpus} GPU{'' if stream.gpus == 1 else 's'}"
    return [
        Row(subject, "CPU of a core", cpu_pct, "%"),
        Row(subject, "resident", rss_bytes(pid) / 2**20, "MiB"),
        Row(subject, "inside NVML a tick, median", stream.nvml_ms, "ms"),
        Row(subject, "inside NVML a tick, most", stream.nvml_ms_max, "ms"),
        Row(subject, "inside NVML", stream.nvml_ms_total / stream.seconds, "ms/s"),
        Row(subject, "tick, median", stream.tick_bytes, "B"),
        Row(subject, "stream", stream.bytes_per_s, "B/s"),
        Row(subject, "ticks", stream.ticks / stream.seconds, "/s"),
    ]


if __name__ == "__main__":
    sys.exit(main())
