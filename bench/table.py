"""The figures of a benchmark and what they are of, as a table or as JSON.

Owns: the form. Refuses: measuring, verdicts; a figure is only good for the machine it names.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpuwatch import __version__


class Row(NamedTuple):
    """One figure."""

    subject: str
    what: str
    value: float
    unit: str


def machine(readings: str, watched: str) -> dict[str, str]:
    """What the figures are of: where the readings came from, how long each process was watched, this machine."""
    models = [
        line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("model name")
    ]
    return {
        "gpuwatch": __version__,
        "readings": readings,
        "CPU": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "each watched for": watched,
    }


def report(rows: Sequence[Row], failures: Sequence[str], about: dict[str, str], *, as_json: bool) -> None:
    """The table, or the same as one JSON object, to standard output."""
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
    room = max((len(row.subject) for row in rows), default=0) + 2
    for row in rows:
        lines.append(
            f"{row.subject if row.subject != last else '':<{room}}{row.what:<28}{number(row.value):>9} {row.unit}"
        )
        last = row.subject
    lines += [f"not measured: {failure}" for failure in failures]
    sys.stdout.write("\n".join(lines) + "\n")


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
