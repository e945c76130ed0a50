"""What gpuwatch costs on this machine: ``make bench``, or ``python bench/run.py`` with the checkout on PYTHONPATH.

Owns: the order of the measurements and the table. Refuses: verdicts; a figure is only good for the machine it names.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.children import Terminal, cpu_ns, rss_bytes, started, wait_until
from bench.readings import Readings, choose
from bench.stream import watch
from bench.wire_cost import encode_cost
from gpuwatch import __version__
from gpuwatch.config import STREAM_SOCKET

WARM_UP_S = 5.0
"""Imports, the first snapshot and the first full chart are start-up, not what an hour costs."""
SCREENS = ((80, 24), (160, 50))
PERIODS_S = (1.0, 0.1)
"""What a day costs, and what a close look costs. At 10 Hz slow readings still come at their own pace."""
GPUWATCH = (sys.executable, "-m", "gpuwatch")
FIRST_FRAME = b"BUSY"
"""Head of a column: it is drawn with the first readings, not while connecting."""


class Row(NamedTuple):
    """One figure."""

    subject: str
    what: str
    value: float
    unit: str


def main() -> int:
    """Measure and print. Exit code 0, or 1 when a part could not be measured (it says which)."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each process is watched (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="feed the daemon with this recording")
    options = parser.parse_args()
    failures: list[str] = []
    rows = list(wire_rows())
    # The prefix is short because a Unix socket's path may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        readings = choose(Path(folder), options.replay)
        for measure in (daemon_rows, nvitop_rows):
            try:
                # One by one: what was measured before a failure is still worth printing.
                for row in measure(readings, Path(folder), options.seconds):
                    rows.append(row)
            except RuntimeError as exc:
                failures.append(str(exc))
    report(rows, failures, machine(readings, options.seconds), as_json=options.json)
    return 1 if failures else 0


def wire_rows() -> Iterator[Row]:
    """Size and time of a tick."""
    for gpus, each in ((1, 2), (8, 0), (8, 2)):
        cost = encode_cost(gpus, each)
        subject = f"wire, {cost.gpus} GPU{'s' if gpus > 1 else ''}, {cost.processes} processes"
        yield Row(subject, "tick", cost.size_bytes, "B")
        yield Row(subject, "encode, median", cost.median_us, "µs")
        yield Row(subject, "encode, 95 %", cost.p95_us, "µs")


def daemon_rows(readings: Readings, folder: Path, seconds: float) -> Iterator[Row]:
    """The daemon at 1 Hz with one subscriber, then the screen in two sizes, then the daemon at 10 Hz. Raises
    RuntimeError."""
    for period_s in PERIODS_S:
        config = folder / f"{period_s:g}.toml"
        config.write_text(f"period_s = {period_s}\n", encoding="utf-8")
        runtime, log = folder / f"run{period_s:g}", folder / f"daemon{period_s:g}.log"
        endpoint = f"ipc://{runtime}"
        argv = [*GPUWATCH, "daemon", "--config", str(config), "--runtime-dir", str(runtime), *readings.daemon_flags]
        with started(argv, readings.environment(), log) as child:
            wait_until((runtime / STREAM_SOCKET).is_socket, child, log)
            time.sleep(WARM_UP_S)
            yield from _daemon_use(child.pid, endpoint, seconds, period_s)
            for size in SCREENS if period_s == PERIODS_S[0] else ():
                argv = [*GPUWATCH, "tui", "--connect", endpoint]
                yield from _screen_use(f"tui {size[0]}×{size[1]}", argv, size, seconds)


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


def _screen_use(
    subject: str, argv: list[str], size: tuple[int, int], seconds: float, needle: bytes = FIRST_FRAME
) -> list[Row]:
    terminal = Terminal(argv, screen_environment(), *size)
    try:
        first_s = terminal.read_until(needle)
        terminal.watch(WARM_UP_S)
        use = terminal.watch(seconds)
    finally:
        terminal.close()
    return [
        Row(subject, "first frame", first_s, "s"),
        Row(subject, "to the terminal", use.output_bytes / use.seconds, "B/s"),
        Row(subject, "CPU of a core", use.cpu_pct, "%"),
        Row(subject, "resident", use.rss_bytes / 2**20, "MiB"),
    ]


def nvitop_rows(readings: Readings, _folder: Path, seconds: float) -> list[Row]:
    """nvitop in the same terminal and at the same rate, where it is installed and there is a driver to read."""
    if importlib.util.find_spec("nvitop") is None or not readings.has_nvml:
        return []
    argv = [sys.executable, "-m", "nvitop", "--monitor", "full", "--interval", "1"]
    return _screen_use("nvitop 160×50", argv, SCREENS[1], seconds, needle=b"GPU")


def screen_environment() -> dict[str, str]:
    """What SSH usually gives: 256 colours, since COLORTERM is not forwarded."""
    env = {name: value for name, value in os.environ.items() if name not in ("COLORTERM", "NO_COLOR", "TMUX")}
    return env | {"TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"}


def machine(readings: Readings, seconds: float) -> dict[str, str]:
    """What the figures are of."""
    models = [
        line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("model name")
    ]
    return {
        "gpuwatch": __version__,
        "readings": readings.name,
        "CPU": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "each watched for": f"{seconds:g} s after {WARM_UP_S:g} s of warm-up",
    }


def report(rows: list[Row], failures: list[str], about: dict[str, str], *, as_json: bool) -> None:
    """The table, or the same as one JSON object."""
    if as_json:
        shown = {
            "schema": "gpuwatch.bench/1",
            "machine": about,
            "rows": [row._asdict() for row in rows],
            "failures": failures,
        }
        sys.stdout.write(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
        return
    lines = [f"{name:<17}{value}" for name, value in about.items()] + [""]
    last = ""
    for row in rows:
        lines.append(f"{row.subject if row.subject != last else '':<27}{row.what:<28}{number(row.value):>9} {row.unit}")
        last = row.subject
    lines += [f"not measured: {failure}" for failure in failures]
    sys.stdout.write("\n".join(lines) + "\n")


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
