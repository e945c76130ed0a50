"""The command line of the probes.

Owns: arguments, exit codes, one JSON object on stdout whatever libraries print. Refuses: measuring.

Exit codes: 0 ok, 1 the result cannot be true, 3 could not run, 64 usage, 75 busy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from . import (
    allreduce,
    attention,
    catalogue,
    clocks,
    conv,
    copies,
    dataloader,
    device,
    disk,
    inference,
    launch,
    matmul,
    memory,
    scratch,
    shm,
    storage,
    train,
)
from .report import EXIT_CODES, EXIT_USAGE, ProbeError, Progress, Report, as_json, first_line, table

_MODULES = (
    matmul,
    conv,
    dataloader,
    memory,
    copies,
    launch,
    inference,
    attention,
    train,
    storage,
    shm,
    allreduce,
)
PROBES: dict[str, Any] = {module.NAME: module for module in _MODULES}
SIZES = """sizes: matmul N,N,…; conv BATCHxCHANNELSxHEIGHTxWIDTH; dataloader pixels; memory MiB; copies, shm and
allreduce KiB,KiB,…; launch launches queued; inference BATCH,BATCH,…xPIXELS; attention BATCHxHEADSxLENGTH; train
NETWORK:BATCHxSIDE,…; storage MiB"""


class Parser(argparse.ArgumentParser):
    """Argument errors exit with 64: argparse's own 2 means "critical" to those who watch health checks."""

    def error(self, message: str) -> NoReturn:
        """One line and the exit code of sysexits.h."""
        self.exit(EXIT_USAGE, f"probes: {message} (see --help)\n")


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text}: expected cpu, cuda or cuda:N")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds from 0.01 to 600")
    return seconds


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments; exits with 64 and one line when they are wrong."""
    questions = [f"  {probe.name:<11} {probe.question}" for probe in catalogue.PROBES]
    parser = Parser(
        prog="probes",
        description="Measure what this machine can reach.\n\n" + "\n".join(questions),
        epilog=SIZES + "\n\nexit codes: 0 ok, 1 the result cannot be true, 3 could not run, 64 usage, 75 busy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(PROBES), metavar="NAME", help="one of: " + ", ".join(PROBES))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--device", type=_device, default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--seconds", type=_seconds, help="measuring time of each case, warm-up comes on top")
    parser.add_argument("--size", default="", help="what to measure instead of the default, see below")
    parser.add_argument("--every-rank", action="store_true", help="allreduce under torchrun: not only rank 0 prints")
    parser.add_argument("--path", default="", metavar="DIR", help="storage: the folder to measure")
    options = parser.parse_args(arguments)
    if options.size:
        try:
            PROBES[options.name].parse_size(options.size)
        except ValueError as exc:
            parser.error(str(exc))
    if options.path and options.name != "storage":
        parser.error("--path is for the storage probe alone")
    if options.path and not Path(options.path).is_dir():
        parser.error(f"--path {options.path}: no such folder")
    return options


def main(arguments: list[str]) -> int:
    """Run one probe and print its result."""
    options = parse(arguments)
    out = _own_stdout()
    with leaving():
        for place in {disk.default_folder(""), Path(tempfile.gettempdir())}:
            scratch.sweep(place)
        result = run(options)
    if options.every_rank or not _follows(options.name):
        print(as_json(result) if options.json else table(result), file=out, flush=True)
    elif result["message"]:
        print(f"{options.name}: rank {os.environ['RANK']}: {result['message']}", file=sys.stderr, flush=True)
    return EXIT_CODES[str(result["status"])]


def _follows(name: str) -> bool:
    """Whether another rank prints: the figures of a collective are those of all ranks, so that the first is enough.
    Eight objects one after another are no JSON."""
    me = allreduce.own_rank(dict(os.environ)) if name == allreduce.NAME else None
    return me is not None and me.rank > 0


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """SIGTERM and a closed terminal end the run as an exception does, so that files and ranks are cleared away.

    Whoever sent the signal kills us soon after; a second one must not end the clearing.
    """
    owner = os.getpid()

    def leave(number: int, _frame: Any) -> None:
        if os.getpid() != owner:  # forked from us, and nothing here is its own
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for one in kept:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # One that is ignored (nohup) stays so.
    kept = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for one in kept:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one in kept:
            if signal.getsignal(one) is leave:
                signal.signal(one, signal.SIG_DFL)


def run(options: argparse.Namespace) -> dict[str, object]:
    """The result object of one run; errors that a machine can cause become its status."""
    probe = PROBES[options.name]
    report = Report(options.name, options.device)
    progress = Progress(options.name)
    try:
        torch = device.load_torch()
        target = device.open_target(torch, options.device)
        report.device = str(target.device)
        clock = clocks.CudaClock(torch, target.device) if target.is_cuda else clocks.CpuClock()
        device.describe(report, target, clock.name)
        seconds = options.seconds or probe.SECONDS["cuda" if target.is_cuda else "cpu"]
        report.settings["seconds"] = f"{seconds:g}"
        if options.path:
            report.settings["path"] = options.path
        unseen = clocks.self_test(clock)
        if unseen:
            report.problems.append(unseen)
        probe.run(target, clock, report, seconds, options.size, progress.say)
    except ProbeError as exc:
        return report.finish(exc)
    except (RuntimeError, MemoryError, OSError) as exc:
        # torch reports out of memory, a lost device and a library that is too old as RuntimeError.
        if device.is_out_of_memory(exc):
            text = f"out of memory in spite of what was free at the start: {first_line(exc)}; use a smaller --size"
            return report.finish(ProbeError(text))
        return report.finish(ProbeError(f"{type(exc).__name__}: {first_line(exc)}"))
    return report.finish()


def _own_stdout() -> TextIO:
    """Stdout for the result alone: whatever a library prints to descriptor 1 goes to stderr from here on."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(kept, "w", encoding="utf-8")
