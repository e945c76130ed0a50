"""What a screen costs that stays open: gpuwatch's and nvitop's, in the same terminal on the same GPUs.

    python bench/screens.py [--gpus 1 8 16] [--seconds 5] [--nvitop PYTHON] [--json]

with the checkout on PYTHONPATH; ``make bench`` runs it too. The GPUs are the tests' NVML library, whose values all
change each second, and the real ones where there is a driver. A pseudo-terminal of 256 colours stands for SSH. nvitop
is measured where it can be imported, from ``--nvitop`` PYTHON or from this interpreter.

Owns: these measurements. Refuses: verdicts, the form of the table (table.py).
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.children import Terminal, cpu_ns, started, wait_until
from bench.readings import Readings, driver_of_this_machine, fake
from bench.table import Row, machine, report
from gpuwatch.config import STREAM_SOCKET

GPUWATCH = (sys.executable, "-m", "gpuwatch")
GPU_COUNTS = (1, 8, 16)
SIZES = ((80, 24), (160, 50))
"""The larger one for eight GPUs only."""
WARM_UP_S = 4.0
"""The first full chart is start-up, not what an hour costs."""
STARTS = 3
NO_NVITOP = "nvitop: not installed here; pip install nvitop, or --nvitop with a Python that has it"


class Program(NamedTuple):
    """A monitor in a terminal."""

    name: str
    argv: tuple[str, ...]
    needle: re.Pattern[bytes]
    """Something used of something: it is drawn with the first readings, not before."""
    daemon_pid: int = 0
    """Reads for it, so its work belongs to the screen's."""


def main() -> int:
    """Measure and print. Exit code 0, or 1 when a program could not be measured (it says which)."""
    parser = argparse.ArgumentParser(prog="screens", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="*", default=GPU_COUNTS, metavar="N", help="default: 1 8 16")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each screen is watched (default 5)")
    parser.add_argument("--nvitop", default=sys.executable, metavar="PYTHON", help="interpreter that has nvitop")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    rows: list[Row] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        measure_all(Path(folder), options.gpus, options.seconds, options.nvitop, rows, failures)
    about = machine(
        "the tests' stand-in for the NVML library, and the driver if there is one", watched(options.seconds)
    )
    report(rows, failures, about, as_json=options.json)
    return 1 if any(failure != NO_NVITOP for failure in failures) else 0


def watched(seconds: float) -> str:
    """How a figure came about."""
    return f"{seconds:g} s after {WARM_UP_S:g} s of warm-up; of {STARTS} starts the median"


def measure_all(
    folder: Path, counts: Sequence[int], seconds: float, nvitop: str, rows: list[Row], failures: list[str]
) -> None:
    """Every program on every set of GPUs, into ``rows``; what could not be measured into ``failures``."""
    nvitop_version = version_of_nvitop(nvitop)
    if not nvitop_version:
        failures.append(NO_NVITOP)
    sources = [(f"{count} GPU{'s' if count > 1 else ''}", fake(folder, count), count) for count in counts]
    sources.append(("this machine's GPUs", driver_of_this_machine(), 0))
    for name, readings, count in sources:
        if readings is None:
            continue
        try:
            for row in _of_source(folder, name, readings, count, seconds, nvitop, nvitop_version):
                rows.append(row)
        except RuntimeError as exc:
            failures.append(f"{name}: {exc}")


def version_of_nvitop(python: str) -> str:
    """Empty where it cannot be imported."""
    code = "from importlib.metadata import version; import nvitop; print(version('nvitop'))"
    child = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return child.stdout.strip() if child.returncode == 0 else ""


def _of_source(
    folder: Path, name: str, readings: Readings, count: int, seconds: float, nvitop: str, nvitop_version: str
) -> Iterator[Row]:
    runtime, log = folder / f"screen{count}", folder / f"screen{count}.log"
    argv = [*GPUWATCH, "daemon", "--runtime-dir", str(runtime)]
    with started(argv, readings.environment(), log) as daemon:
        wait_until((runtime / STREAM_SOCKET).is_socket, daemon, log)
        time.sleep(WARM_UP_S)
        own = Program(
            "gpuwatch", (*GPUWATCH, "tui", "--connect", f"ipc://{runtime}"), re.compile(rb"\d/\d\d"), daemon.pid
        )
        programs = [own]
        if nvitop_version:
            flags = ("--monitor", "auto", "--interval", "1")
            programs.append(
                Program(f"nvitop {nvitop_version}", (nvitop, "-m", "nvitop", *flags), re.compile(rb"W / \d+W"))
            )
        for size in SIZES if count == 8 else SIZES[:1]:
            for program in programs:
                subject = f"{program.name}, {name}, {size[0]}×{size[1]}"
                yield from _use(subject, program, _environment(readings, folder / program.name), size, seconds)


def _use(subject: str, program: Program, env: dict[str, str], size: tuple[int, int], seconds: float) -> Iterator[Row]:
    compiled = Path(env["PYTHONPYCACHEPREFIX"]).exists()
    first = _first_frame(program, env, size)
    if not compiled:
        yield Row(subject, "first frame, no bytecode yet", first, "s")
    starts = [_first_frame(program, env, size) for _ in range(STARTS)]
    yield Row(subject, "first frame", statistics.median(starts), "s")
    terminal = Terminal(program.argv, env, *size)
    try:
        terminal.read_until(program.needle)
        terminal.watch(WARM_UP_S)
        before = cpu_ns(program.daemon_pid) if program.daemon_pid else 0
        use = terminal.watch(seconds)
        daemon_pct = (cpu_ns(program.daemon_pid) - before) / 1e7 / use.seconds if program.daemon_pid else 0.0
    finally:
        terminal.close()
    yield Row(subject, "to the terminal", use.output_bytes / use.seconds, "B/s")
    yield Row(subject, "CPU of a core", use.cpu_pct, "%")
    if program.daemon_pid:
        yield Row(subject, "its daemon besides", daemon_pct, "%")
    yield Row(subject, "resident", use.rss_bytes / 2**20, "MiB")


def _first_frame(program: Program, env: dict[str, str], size: tuple[int, int]) -> float:
    terminal = Terminal(program.argv, env, *size)
    try:
        return terminal.read_until(program.needle)
    finally:
        terminal.close()


def _environment(readings: Readings, bytecode: Path) -> dict[str, str]:
    """What SSH usually gives: 256 colours, since COLORTERM is not forwarded. Each program has a folder of its own for
    bytecode: its first start is one without."""
    away = ("COLORTERM", "NO_COLOR", "TMUX", "DISPLAY", "TERM_PROGRAM")
    env = {name: value for name, value in readings.environment().items() if name not in away}
    return env | {"TERM": "xterm-256color", "PYTHONPYCACHEPREFIX": str(bytecode)}


if __name__ == "__main__":
    sys.exit(main())
