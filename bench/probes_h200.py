"""Everything that docs/probes.md shows, measured on this machine's GPU in runs of nine minutes at most, as JSON.

Owns: the order, the time limit, what is left out. Refuses: tables (``bench/probes_table.py``), verdicts, torch.

    python bench/probes_h200.py --out probes.json             # all; the last steps are left out when time is short
    python bench/probes_h200.py --have probes.json --out more.json   # what was left out
    python bench/probes_h200.py --device cpu --tiny --out try.json   # every step once, in small, without a GPU
    python bench/probes_table.py probes.json more.json docs/probes.md

Each step is a process of its own: a probe (through ``gpuwatch probe run`` where gpuwatch can be imported, which adds
what the GPU did meanwhile), a part of the training steps, ``gpuwatch probe selftest`` and ``compare`` of this Python
with itself. What hangs or crashes costs its own figures, and the file is written after every step. Needs a Python
with torch, and gpuwatch's msgspec, click and nvidia-ml-py for the steps that use them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROBES = ROOT / "probes"
PAIRS = 3
WAIT_S = 15
"""For the GPU to be seen idle after our own last step: NVML's utilization is an average over up to a second."""


class LateError(Exception):
    """The time is over; what was under way has been ended."""


class Step(NamedTuple):
    """One process, or a few that belong together."""

    kind: str
    """probe, selftest or compare."""
    probe: str
    seconds: float
    """Measuring time of a case: what fits into the limit with fewer samples, not with other sizes."""
    usual_s: float
    """Of the step on an H200 with 16 cores."""
    size: str = ""
    tiny: str = ""
    """Size of the rehearsal."""

    @property
    def key(self) -> str:
        """Such as "probe train resnet50:256x224"."""
        return f"{self.kind} {self.probe} {self.size}".strip()


# What a second run (--have) finishes soonest comes last: all of it takes ten minutes, one run less than nine.
PLAN = (
    Step("probe", "matmul", 1.0, 43, tiny="64"),
    Step("probe", "memory", 0.2, 12, tiny="1"),
    Step("probe", "copies", 0.2, 26, tiny="4,1024"),
    Step("probe", "launch", 0.2, 12, tiny="10"),
    Step("probe", "train", 0.4, 118, "resnet50:256x224", "resnet50:2x32"),
    Step("probe", "train", 0.4, 42, "bert:8x128", "tiny:2x8"),
    Step("probe", "train", 0.4, 73, "resnet50:128x32", "resnet50:4x32"),
    Step("probe", "train", 0.4, 47, "bert:fillx128", "tiny:4x8"),
    Step("selftest", "launch", 0.2, 40),
    Step("compare", "memory", 0.2, 52),
    Step("probe", "attention", 0.2, 16, tiny="1x2x16"),
    Step("probe", "conv", 0.3, 24, tiny="1x4x16x16"),
    Step("probe", "inference", 0.2, 26, tiny="1x32"),
    Step("probe", "dataloader", 0.4, 14, tiny="32"),
    Step("probe", "shm", 0.5, 7, tiny="64"),
    Step("probe", "storage", 1.0, 13, tiny="2"),
    Step("probe", "allreduce", 0.5, 4, tiny="4"),
)


def main() -> int:
    """Run and write; 0 when every probe that ran is ok or unavailable."""
    options = arguments()
    ends = time.monotonic() + options.limit_s
    answer: dict[str, Any] = {"schema": "gpuwatch.probe/1", "results": [], "left_out": []}
    answer["done"] = []
    run = Run(options.device, options.tiny, has_gpuwatch() and not options.direct, ends)
    known = [key for path in options.have for key in json.loads(path.read_text(encoding="utf-8"))["done"]]
    for number, step in ((number, step) for number in range(options.runs) for step in PLAN):
        if step.key in known:
            continue
        if not options.tiny and ends - time.monotonic() < 0.8 * step.usual_s:
            why = f"it takes about {step.usual_s:g} s, and no time was left"
            answer["left_out"].append({"step": step.key, "why": why})
            continue
        began = time.monotonic()
        try:
            said = run.probe(step, answer) if step.kind == "probe" else run.judged(step, answer, repeat=number)
        except LateError as exc:
            said = str(exc)
            answer["left_out"].append({"step": step.key, "why": said})
        print(f"{step.key}: {said} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        options.out.write_text(json.dumps(answer, indent=1))  # what is there survives whatever comes next
    bad = [result["probe"] for result in answer["results"] if result["status"] not in ("ok", "unavailable")]
    answer["exit_code"] = 1 if bad else 0
    options.out.write_text(json.dumps(answer, indent=1))
    return int(answer["exit_code"])


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description="Run every probe and write one JSON object.")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--have", type=Path, action="append", default=[], help="leave out what this file has")
    parser.add_argument("--device", default="cuda:0", help="cuda:N (default cuda:0) or cpu")
    parser.add_argument("--runs", type=int, default=1, help="fresh processes of every probe")
    parser.add_argument("--limit-s", type=float, default=525.0, help="seconds for everything")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: every step, as small as it can be")
    parser.add_argument("--direct", action="store_true", help="start the probes without gpuwatch")
    return parser.parse_args()


def has_gpuwatch() -> bool:
    """Whether this Python can run ``gpuwatch probe``."""
    needed = "import gpuwatch.cli.main, gpuwatch.collect.nvml, gpuwatch.daemon.probing"
    done = subprocess.run([sys.executable, "-c", needed], env=environment(), capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        print(f"without gpuwatch: {' '.join(why)}", file=sys.stderr)
    return done.returncode == 0


def environment() -> dict[str, str]:
    """Ours, with the checkout to import gpuwatch from."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


class Run:
    """One run of the plan: where, how small, with what, until when."""

    def __init__(self, device: str, tiny: bool, gpuwatch: bool, ends: float) -> None:
        self._device, self._tiny, self._gpuwatch, self._ends = device, tiny, gpuwatch, ends

    def probe(self, step: Step, answer: dict[str, Any]) -> str:
        """One probe into ``answer``; one word about it."""
        result = self._result(step)
        answer["results"].append(result)
        answer["done"].append(step.key)
        return f"{result['status']} {result['message']}".strip()

    def judged(self, step: Step, answer: dict[str, Any], repeat: int) -> str:
        """selftest or compare into ``answer``. Once is enough, and nothing without gpuwatch."""
        if repeat:
            return "done before"
        if not self._gpuwatch:
            answer["left_out"].append({"step": step.key, "why": "this Python cannot import gpuwatch"})
            return "left out"
        sides = ["--a", sys.executable, "--b", sys.executable]
        own = ["--python", sys.executable] if step.kind == "selftest" else sides
        command = [*self._command(step.kind), step.probe, *self._where(step), *own, "--pairs", str(PAIRS), "--seed=1"]
        found, why = self._json(command)
        if found is None or "rows" not in found:
            answer["left_out"].append({"step": step.key, "why": why or "no answer"})
            return why or "no answer"
        answer["done"].append(step.key)
        answer[step.kind] = found
        return str(found["exit_reason"])

    def _result(self, step: Step) -> dict[str, Any]:
        """The result object of one fresh process, whatever becomes of it."""
        began = time.monotonic()
        if self._gpuwatch and not self._size(step):
            found, _why = self._json(
                [*self._command("run"), step.probe, *self._where(step), "--python", sys.executable]
            )
            told: dict[str, Any] = next(iter((found or {}).get("results", [])), {"message": "no answer"})
            # The probe's own answer; one that gpuwatch refused or could not place is worth another try.
            if told.get("settings", {}).get("torch") and told["status"] in ("ok", "invalid", "unavailable"):
                return told
            print(f"{step.key}: {told['message']}; once more without gpuwatch", file=sys.stderr)
        command = [sys.executable, str(PROBES), step.probe, "--json", "--device", self._device]
        command += ["--seconds", f"{self._seconds(step):g}"]
        command += ["--size", self._size(step)] if self._size(step) else []
        found, why = self._json(command)
        if found is not None and "probe" in found:
            return found
        empty = {"probe": step.probe, "status": "failed", "device": self._device, "values": [], "settings": {}}
        return {**empty, "duration_s": time.monotonic() - began, "message": why or "no result"}

    def _command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "gpuwatch", "probe", verb]

    def _where(self, step: Step) -> list[str]:
        device = self._device if ":" in self._device or self._device == "cpu" else "cuda:0"
        return ["--device", device, "--json", "--seconds", f"{self._seconds(step):g}", "--wait", str(WAIT_S)]

    def _seconds(self, step: Step) -> float:
        return 0.02 if self._tiny else step.seconds

    def _size(self, step: Step) -> str:
        return step.tiny if self._tiny else step.size

    def _json(self, command: list[str]) -> tuple[dict[str, Any] | None, str]:
        """The JSON object that a command prints; or None and why there is none. Its workers end with it.

        Raises LateError.
        """
        left_s = max(1.0, self._ends - time.monotonic())
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), start_new_session=True) as child:
            try:
                text, _ = child.communicate(timeout=left_s)
            except subprocess.TimeoutExpired:
                raise LateError(f"ended after {left_s:.0f} s: no time left") from None
            finally:
                end(child)
        try:
            found = json.loads(text)
        except ValueError:
            return None, f"no result, exit code {child.returncode}"
        return (found, "") if isinstance(found, dict) else (None, "no JSON object")


def end(child: subprocess.Popen[bytes]) -> None:
    """gpuwatch ends its probe on SIGTERM, a moment later; a probe's own workers share its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=3)


if __name__ == "__main__":
    sys.exit(main())
