"""The command line of the probes.

Owns: arguments, exit codes, one JSON object on stdout whatever libraries print. Refuses: measuring.

Exit codes: 0 ok, 1 the result cannot be true, 3 could not run, 64 usage, 75 busy.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, NoReturn, TextIO

from . import conv, dataloader, device, harness, matmul
from .report import EXIT_CODES, EXIT_USAGE, ProbeError, Progress, Report, as_json, table

PROBES: dict[str, Any] = {module.NAME: module for module in (matmul, conv, dataloader)}


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
    questions = [f"  {name:<11} {(PROBES[name].__doc__ or '').splitlines()[0]}" for name in PROBES]
    parser = Parser(
        prog="probes",
        description="Measure what this machine can reach.\n\n" + "\n".join(questions),
        epilog="exit codes: 0 ok, 1 the result cannot be true, 3 could not run, 64 usage, 75 busy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(PROBES), metavar="NAME", help="one of: " + ", ".join(PROBES))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--device", type=_device, default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--seconds", type=_seconds, help="measuring time of each case, warm-up comes on top")
    parser.add_argument(
        "--size", default="", help="matmul: N,N,…  conv: BATCHxCHANNELSxHEIGHTxWIDTH  dataloader: side in pixels"
    )
    options = parser.parse_args(arguments)
    if options.size:
        try:
            PROBES[options.name].parse_size(options.size)
        except ValueError as exc:
            parser.error(str(exc))
    return options


def main(arguments: list[str]) -> int:
    """Run one probe and print its result."""
    options = parse(arguments)
    out = _own_stdout()
    result = run(options)
    print(as_json(result) if options.json else table(result), file=out, flush=True)
    return EXIT_CODES[str(result["status"])]


def run(options: argparse.Namespace) -> dict[str, object]:
    """The result object of one run; errors that a machine can cause become its status."""
    probe = PROBES[options.name]
    report = Report(options.name, options.device)
    progress = Progress(options.name)
    try:
        torch = device.load_torch()
        target = device.open_target(torch, options.device)
        report.device = str(target.device)
        clock = harness.CudaClock(torch, target.device) if target.is_cuda else harness.CpuClock()
        device.describe(report, target, clock.name)
        seconds = options.seconds or probe.SECONDS["cuda" if target.is_cuda else "cpu"]
        report.settings["seconds"] = f"{seconds:g}"
        probe.run(target, clock, report, seconds, options.size, progress.say)
    except ProbeError as exc:
        return report.finish(exc)
    except (RuntimeError, MemoryError) as exc:
        # torch reports out of memory, a lost device and a library that is too old as RuntimeError.
        line = (str(exc).strip() or "no message").splitlines()[0]
        return report.finish(ProbeError(f"{type(exc).__name__}: {line}"))
    return report.finish()


def _own_stdout() -> TextIO:
    """Stdout for the result alone: whatever a library prints to descriptor 1 goes to stderr from here on."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(kept, "w", encoding="utf-8")
