"""The measurements that need a GPU, one command, less than four minutes: ``python bench/h200.py --out h200.json``.

Owns: the order, the time of each part, one JSON file, the tables. Refuses: measuring (the parts), verdicts.

    python bench/h200.py --out h200.json                                # all, at most 235 s
    python bench/h200.py --out rest.json --part small --only rest --turn-s 4   # one part, longer turns
    python bench/h200.py --out dry.json --device cpu --seconds 0.8 --turn-s 0.5 --pairs 3   # without a GPU: a dry run

With the checkout on PYTHONPATH, and a Python that has torch and gpuwatch's dependencies. Each part is a process of its
own: one that fails, hangs or crashes costs no other. What was measured before is in the file by then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.readings import ROOT, Readings, choose
from bench.table import machine

PARTS = ("memory", "gpm", "small", "loader")
SHARE = {"memory": 0.1, "gpm": 0.25, "small": 0.6, "loader": 1.0}
"""Of the time that is left, at most: whoever comes later gets what an earlier part did not need."""
ENDING_S = 6.0
"""A part that keeps its limit still has to end its children; one that does not is killed after this."""
AGREE = 0.05


def main() -> int:
    """Measure, write, print. Exit code 0, 1 when something could not be measured (it says which)."""
    options = arguments()
    ends = time.monotonic() + options.limit_s
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as folder:
        readings = choose(Path(folder), None)
        if not readings.has_nvml:
            sys.stderr.write("neither an NVIDIA driver nor a C compiler for the tests' library\n")
            return 69
        about = {name: value for name, value in machine(readings.name, "").items() if name != "each watched for"}
        answer: dict[str, Any] = {"schema": "gpuwatch.h200/1", "machine": about, "parts": {}, "failures": []}
        for part in options.part or PARTS:
            left = ends - time.monotonic() - ENDING_S
            limit_s = left * (1.0 if options.part else SHARE[part])
            answer["parts"][part] = measured(part, readings, Path(folder), options, limit_s)
            answer["failures"] += answer["parts"][part]["failures"]
            options.out.write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines(answer)) + "\n")
    return 1 if answer["failures"] else 0


def measured(
    part: str, readings: Readings, folder: Path, options: argparse.Namespace, limit_s: float
) -> dict[str, Any]:
    """What one part wrote, with its failures; a part that ended otherwise is a failure too."""
    out, log = folder / f"{part}.json", folder / f"{part}.log"
    began, problem = time.monotonic(), ""
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command(part, out, options, limit_s),
                env=environment(readings),
                cwd=ROOT, stdout=errors, stderr=errors, timeout=max(limit_s + ENDING_S, 1.0), check=False,
            )  # fmt: skip
            problem = f"ended with code {done.returncode}" if done.returncode not in (0, 1) else ""
        except subprocess.TimeoutExpired:
            problem = f"killed after {limit_s + ENDING_S:.0f} s"
    try:
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found, problem = {"results": [], "failures": []}, problem or "wrote nothing"
    if problem:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found["failures"].append(f"{part}: {problem}{': ' + said[-1] if said else ''}")
    found["took_s"] = round(time.monotonic() - began, 1)
    return found


def environment(readings: Readings) -> dict[str, str]:
    """Of a part: this checkout first, then whatever else this process finds its packages by."""
    before = os.environ.get("PYTHONPATH", "")
    return readings.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), before)))}


def command(part: str, out: Path, options: argparse.Namespace, limit_s: float) -> list[str]:
    """Of one part."""
    shared = ["--out", str(out), "--limit-s", f"{max(limit_s, 1.0):.1f}", "--device", options.device]
    if part == "memory":
        return [sys.executable, "-m", "bench.memory", "--out", str(out)]
    if part == "gpm":
        return [sys.executable, "-m", "bench.gpm_beside", *shared, "--seconds", f"{options.seconds:g}"]
    # The loader's stacks say by themselves that it waits: a diagnosis never asks for its native frames.
    chosen = [options.only] if options.only else ["rest", "look", *(["native"] if part == "small" else [])]
    only = [word for name in chosen for word in ("--only", name)]
    turns = ["--pairs", str(options.pairs), "--turn-s", f"{options.turn_s:g}"]
    return [sys.executable, "-m", "bench.watching_cost", "--loop", part, *shared, *turns, *only]


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The tables."""
    yield from (f"{name:<17}{value}" for name, value in answer["machine"].items())
    facts = answer["parts"].get("gpm", {}).get("device", {})
    yield from (f"{name:<17}{value}" for name, value in facts.items())
    yield ""
    yield "resident memory of a daemon, MiB"
    for row in answer["parts"].get("memory", {}).get("results", ()):
        yield f"{row['stage']:<13}{row['rss']:>10.1f}   anonymous {row['anonymous']:.1f}, share {row['pss']:.1f}"
    yield ""
    yield "counters beside the work's own figure"
    yield f"{'load':<13}{'own':>10}{'by clock':>10}{'ratio':>8}{'by sheet':>10}{'ratio':>8}  {'within 5 %':<12}counter"
    for row in answer["parts"].get("gpm", {}).get("results", ()):
        yield gpm_line(row)
    yield ""
    yield "a job's steps per second, with and without"
    heads = f"{'with':>10}{'without':>10}{'change':>9}   {'95 % interval':<19}{'median':>8}  pairs"
    yield f"{'job':<8}{'treatment':<30}{heads}"
    for part in ("small", "loader"):
        for row in answer["parts"].get(part, {}).get("results", ()):
            reach = f"{row['low_pct']:+.2f} to {row['high_pct']:+.2f} %"
            # A few turns in which the machine did something else move the mean, and hardly the median.
            middle = 100 * statistics.median(pair["with_it"] / pair["without"] - 1.0 for pair in row["pairs"])
            yield (
                f"{part:<8}{row['treatment']:<30}{row['with_it']:>10.1f}{row['without']:>10.1f}"
                f"{row['change_pct']:>+8.2f}%   {reach:<19}{middle:>+7.2f}%  {len(row['pairs'])}"
            )
    yield ""
    yield "  ".join(f"{name}: {found['took_s']} s" for name, found in answer["parts"].items())
    yield from (f"not measured: {failure}" for failure in answer["failures"])


def gpm_line(row: dict[str, Any]) -> str:
    """One load."""
    ratio = row["own_over_clock"]
    agrees = "n/a" if ratio is None else "yes" if abs(ratio - 1) <= AGREE else "no"
    figures = "".join(
        f"{'n/a' if value is None else format(value, form):>{width}}"
        for value, form, width in (
            (row["own"], ".1f", 10),
            (row["by_clock"], ".1f", 10),
            (ratio, ".3f", 8),
            (row["by_data_sheet"], ".1f", 10),
            (row["own_over_data_sheet"], ".3f", 8),
        )
    )
    spun = f", a spin counts {row['spun_mhz']:.0f}" if row["spun_mhz"] else ""
    at = f"{row['counter']} at {row['sm_mhz']:.0f} MHz{spun}, {row['windows']} windows, {row['unit']}"
    return f"{row['load']:<13}{figures}  {agrees:<12}{at}"


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="h200", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--only", choices=("rest", "look", "native"), help="of the jobs: only this treatment")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each load beside the counters (default 2.5)")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of turns for each treatment (default 12)")
    parser.add_argument("--turn-s", type=float, default=2.0, help="seconds of a turn (default 2)")
    parser.add_argument("--limit-s", type=float, default=235.0, help="for everything (default 235)")
    parser.add_argument("--device", default="cuda", help="of the jobs: cuda (default), cuda:N or cpu for a dry run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
