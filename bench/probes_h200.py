"""Every probe on this machine's GPU, and ``triton.testing.do_bench`` beside matmul, memory, copies and launch.

Owns: the order, the time limit, one JSON object. Refuses: tables (``bench/probes_table.py``) and verdicts.

    python bench/probes_h200.py --out probes.json            # all, at most 345 s
    python bench/probes_h200.py --part machine --out a.json  # all but the training steps
    python bench/probes_h200.py --part train --out b.json

Needs the checkout and a Python with torch and triton; gpuwatch itself is not imported. A probe for which no time is
left is named in "left_out", never dropped in silence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROBES = ROOT / "probes"
REFERENCE = ROOT / "bench" / "probes_reference.py"
BESIDE = ("matmul", "memory", "copies", "launch")
"""Probes whose reference is measured at once after them."""

# Probe and seconds of a case: what fits into the limit with fewer samples, not with other sizes.
MACHINE = (
    ("matmul", 1.0),
    ("memory", 0.5),
    ("copies", 0.3),
    ("launch", 0.5),
    ("attention", 0.3),
    ("conv", 0.4),
    ("inference", 0.3),
    ("dataloader", 0.4),
    ("shm", 0.5),
    ("storage", 1.0),
    ("allreduce", 0.5),
)
TRAIN = (("train", 0.4),)
LEAST_LEFT_S = 20.0


def main() -> int:
    """Run and write; 0 when every probe that ran is ok or unavailable."""
    options = arguments()
    ends = time.monotonic() + options.limit_s
    plan = {"machine": MACHINE, "train": TRAIN, "all": MACHINE + TRAIN}[options.part]
    answer: dict[str, Any] = {"schema": "gpuwatch.probe/1", "results": [], "reference": [], "left_out": []}
    for number in range(options.runs):
        for name, seconds in plan:
            left = ends - time.monotonic()
            if left < LEAST_LEFT_S:
                answer["left_out"].append(f"{name} (run {number + 1})")
                continue
            result = probe(name, seconds, options.device, left)
            answer["results"].append(result)
            print(f"{name}: {result['status']} in {result['duration_s']:.0f} s {result['message']}", file=sys.stderr)
            if name in BESIDE and options.device != "cpu":
                answer["reference"] += reference(name, options.device, ends - time.monotonic())
            options.out.write_text(json.dumps(answer, indent=1))  # what is there survives whatever comes next
    bad = [result["probe"] for result in answer["results"] if result["status"] not in ("ok", "unavailable")]
    answer["exit_code"] = 1 if bad else 0
    options.out.write_text(json.dumps(answer, indent=1))
    return int(answer["exit_code"])


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description="Run every probe and write one JSON object.")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--part", choices=("all", "machine", "train"), default="all")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--runs", type=int, default=1, help="fresh processes of every probe")
    parser.add_argument("--limit-s", type=float, default=345.0, help="seconds for everything")
    return parser.parse_args()


def probe(name: str, seconds: float, device: str, left_s: float) -> dict[str, Any]:
    """The result object of one fresh process, whatever becomes of it."""
    arguments = [sys.executable, str(PROBES), name, "--json", "--device", device, "--seconds", f"{seconds:g}"]
    began = time.monotonic()
    try:
        done = subprocess.run(arguments, stdout=subprocess.PIPE, timeout=left_s, check=False)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found
    except subprocess.TimeoutExpired:
        message = f"ended after {left_s:.0f} s: no time left"
    except (ValueError, AssertionError):
        message = f"no result, exit code {done.returncode}"
    spent = time.monotonic() - began
    return {"probe": name, "status": "failed", "device": device, "values": [], "duration_s": spent, "message": message}


def reference(name: str, device: str, left_s: float) -> list[dict[str, Any]]:
    """What do_bench says to the same work in a process of its own; nothing where there is no triton."""
    arguments = [sys.executable, str(REFERENCE), name, device]
    try:
        done = subprocess.run(arguments, stdout=subprocess.PIPE, timeout=max(left_s, 1.0), check=False)
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        print(f"{name}: no reference", file=sys.stderr)
        return []
    assert isinstance(found, list)
    return found


if __name__ == "__main__":
    sys.exit(main())
