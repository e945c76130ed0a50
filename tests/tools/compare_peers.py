"""Which of the reported conditions other monitors survive: a Markdown table.

    python tests/tools/compare_peers.py [--python PYTHON] [--only WORD]

Runs ``gpuwatch status``, ``nvitop -1`` and ``gpustat`` on the fake NVML library: three GPUs, the one in the middle in
the condition of a row. PYTHON is an interpreter that has nvitop and gpustat (default: this one; a monitor that is not
there is left out). Owns: the conditions' run and how an outcome is told. Refuses: the conditions (tests/faults/
scenarios.py). Survived means: it ends by itself with exit code 0, shows both healthy GPUs, and no number that no GPU
can have. What is said of the GPU in trouble is not compared.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]

from fakenvml.build import fake_env  # noqa: E402
from scenarios import CASES, PID, Case  # noqa: E402

TIMEOUT_S = 20.0
_HEALTHY = "gpu 0 power=111000\ngpu 2 power=222000\n"
"""Two powers that are easy to find in any monitor's output."""
_IMPOSSIBLE = re.compile(r"4294967\d*|\b200000\b|\b511 ?°?C|17179869184|1\.4e\+?14|\b1407\d+|\b129 ?%|\b16\.0 ?EiB")
_ERROR_EXIT = 1


class Monitor(NamedTuple):
    """A program that prints the GPUs once."""

    name: str
    argv: tuple[str, ...]


class Outcome(NamedTuple):
    """How a run went."""

    survived: bool
    text: str


def monitors(python: str) -> list[Monitor]:
    """gpuwatch, and those of the others that this interpreter can import."""
    found = [Monitor("gpuwatch", (sys.executable, "-m", "gpuwatch", "status"))]
    for module, flags in (("nvitop", ("-1", "--ascii")), ("gpustat", ("--no-color", "--show-power"))):
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0:
            found.append(Monitor(f"{module} {_version(python, module)}", (python, "-m", module, *flags)))
    return found


def _version(python: str, module: str) -> str:
    code = f"from importlib.metadata import version; print(version({module!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def outcome(argv: Sequence[str], env: dict[str, str]) -> Outcome:
    """Run a monitor once on what ``env`` stands for."""
    env = {**env, "TERM": "dumb", "COLUMNS": "160", "LINES": "60", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            argv, env=env, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, f"hangs (ended after {TIMEOUT_S:.0f} s)")
    shown = done.stdout.decode(errors="replace")
    # A line that says that the driver's value is out of range is not a reading.
    impossible = _IMPOSSIBLE.search("".join(line for line in shown.splitlines() if "out of range" not in line))
    if done.returncode >= _ERROR_EXIT and not ("111" in shown and "222" in shown):
        return Outcome(False, f"ends with code {done.returncode}, shows no GPU")
    if not ("111" in shown and "222" in shown):
        return Outcome(False, "hides a healthy GPU")
    if impossible:
        return Outcome(False, f"shows {impossible.group()}")
    if done.returncode:
        return Outcome(False, f"shows the GPUs, ends with code {done.returncode}")
    return Outcome(True, "yes")


def environment(case: Case, folder: Path) -> dict[str, str]:
    """Three GPUs, the middle one in the condition."""
    statements = case.statements.replace(PID, str(os.getpid()))
    return fake_env(folder, f"gpus=3\n{_HEALTHY}gpu 1 {statements}\n", case.generation)


def table(found: Sequence[Monitor], cases: Sequence[Case], say: Callable[[str], object]) -> None:
    """Row by row, with the sums at the end."""
    say("| condition | reported | " + " | ".join(m.name for m in found) + " |")
    say("| --- | --- |" + " --- |" * len(found))
    survived = [0] * len(found)
    for case in cases:
        cells = []
        for place, monitor in enumerate(found):
            with tempfile.TemporaryDirectory(prefix="gw-") as folder:
                result = outcome(monitor.argv, environment(case, Path(folder)))
            survived[place] += result.survived
            cells.append(result.text)
        say(f"| {case.name} | {case.source} | " + " | ".join(cells) + " |")
    say(f"| **survived of {len(cases)}** | | " + " | ".join(f"**{count}**" for count in survived) + " |")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has nvitop and gpustat")
    parser.add_argument("--only", default="", help="conditions whose name or source contains this")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in f"{case.name} {case.source}"]
    table(monitors(options.python), cases, lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
