"""Record the jobs of other libraries on one GPU: ``python -m probes.faults.libraries_run --out FOLDER``.

Owns: their order, speeds before and after the repair, recordings, results. Refuses: the jobs (``libraries.py``),
judging (``python -m bench.accuracy FOLDER``).

While one job runs the next one imports its libraries, which takes longer than its recording; it touches the GPU when
its turn has come.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .host import NotHereError
from .libraries import JOBS
from .run import EXIT_UNAVAILABLE, SCHEMA, _last_line

READY_S, FIRST_S = 90.0, 60.0
WARM_S, RATE_S = 2.0, 3.0
LEAST_STEPS = 4
LONGEST = 4.0
"""Times as long as asked for, at most, until there are so many steps."""

Values = dict[str, Any]


class Process:
    """One job, its marks read by a thread as they come."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        self.name, self.log = name, options.out / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [options.python, "-m", "probes.faults.libraries", name, "--device", options.device],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        self.marks: list[Values] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # A library's own word on stdout.
                continue
            if "ready" in said:
                self._ready.set()
            elif "steps" in said:
                self.marks.append(said)

    def begin(self) -> None:
        """Let it touch the GPU, and wait for its first steps. Raises NotHereError."""
        if not self._ready.wait(READY_S):
            raise NotHereError(f"its libraries were not imported: {self._last()}")
        self.say("go")
        self._until(2, FIRST_S)

    def say(self, word: str) -> None:
        """One line to its stdin."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise NotHereError(f"it has ended: {self._last()}") from None

    def _until(self, marks: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.marks) < marks:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotHereError(f"it made no steps: {self._last()}")
            time.sleep(0.05)

    def rate(self, seconds: float, *, fixed: bool) -> float | None:
        """Steps per second over the next so many seconds, or until there are enough; None when it made none."""
        begin = time.monotonic()
        while True:
            inside = [mark for mark in list(self.marks) if mark["t"] >= begin and mark["fixed"] is fixed]
            steps = inside[-1]["steps"] - inside[0]["steps"] if len(inside) > 1 else 0
            passed = time.monotonic() - begin
            if passed >= seconds and (steps >= LEAST_STEPS or passed >= LONGEST * seconds):
                return per_second(inside) if steps else None
            time.sleep(0.1)

    def end(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _last(self) -> str:
        return _last_line(self.log.read_text(encoding="utf-8", errors="replace"))


def per_second(marks: Sequence[Values]) -> float:
    """Steps per second from the first mark to the last."""
    first, last = marks[0], marks[-1]
    return round(float((last["steps"] - first["steps"]) / (last["t"] - first["t"])), 3)


def run(process: Process, options: argparse.Namespace) -> Values:
    """One job: record it, then measure what its repair gains."""
    job = JOBS[process.name]
    kind = "control" if not job.causes else "cause"
    result: Values = {
        "case": process.name, "kind": kind, "level": "medium", "causes": job.causes, "also": job.also,
        "measured": bool(job.fix), "cpus": len(os.sched_getaffinity(0)), "past_queue": True, "twins": [],
    }  # fmt: skip
    try:
        process.begin()
        time.sleep(WARM_S)
        unwatched = process.rate(RATE_S, fixed=False)
        watched = _record(process, options, result)
        result["fault"] = {"rate": unwatched or 0.0, "watched": watched}
        if job.fix:
            process.say("fix")
            time.sleep(WARM_S)
            gained = process.rate(RATE_S, fixed=True)
            result["twins"] = [{"role": "own", "name": job.fix, "change": {}, "rate": gained}]
    except NotHereError as exc:
        result["error"] = str(exc)
    finally:
        process.end()
    return result


def _record(process: Process, options: argparse.Namespace, result: Values) -> float | None:
    if options.no_record:
        return None
    file = options.out / f"{process.name}.gwrec"
    command = [*shlex.split(options.recorder), "record", str(file), "--force", "--for", f"{options.record_s:g}s",
               "--pid", str(process.pid)]  # fmt: skip
    before = len(process.marks)
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.record_s + 60, check=False)
    if done.returncode:
        raise NotHereError(f"no recording: {_last_line(done.stderr)}")
    result["file"], result["bytes"], result["pid"] = file.name, file.stat().st_size, process.pid
    inside = process.marks[before:]
    return per_second(inside) if len(inside) > 1 else None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="libraries_run", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("libraries-out"), help="folder for results.json and the recordings")
    add("--jobs", default=",".join(JOBS), help="names, with commas (default: all)")
    add("--record-s", type=float, default=8.0, help="length of a recording (default 8)")
    add("--limit-s", type=float, default=570.0, help="begin no job after so long (default 570)")
    add("--no-record", action="store_true", help="measure only")
    add("--recorder", default=f"{shlex.quote(sys.executable)} -m gpuwatch", help="command of gpuwatch")
    add("--python", default=sys.executable, help="interpreter of the jobs: one with these libraries")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny jobs, to see that they run")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run all. Exit code 0, 64 for a wrong name, 69 when none ran."""
    options = parse(arguments)
    names = options.jobs.split(",")
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        print(f"libraries_run: --jobs: no job {unknown[0]!r}; there are: {', '.join(JOBS)}", file=sys.stderr)
        return 64
    options.out.mkdir(parents=True, exist_ok=True)
    begun, started = int(time.time()), time.monotonic()
    results: list[Values] = []
    following: Process | None = Process(names[0], options)
    for place, name in enumerate(names):
        process = following
        late = time.monotonic() - started > options.limit_s
        following = Process(names[place + 1], options) if place + 1 < len(names) and not late else None
        if process is None:
            results.append({"case": name, "kind": "cause", "error": "not run: the time limit"})
            continue
        results.append(run(process, options))
        document = {"schema": SCHEMA, "begun": begun, "device": options.device, "runs": results}
        (options.out / f"results-{begun}.json").write_text(json.dumps(document, indent=1))
        print(f"{time.monotonic() - started:5.0f} s  {_line(results[-1])}", flush=True)
    return 0 if any("error" not in result for result in results) else EXIT_UNAVAILABLE


def _line(result: Values) -> str:
    if "error" in result:
        return f"{result['case']:22} {result['error']}"
    rate = result["fault"]["rate"]
    gains = [f"{twin['name']} {twin['rate'] / rate:.2f}x" for twin in result["twins"] if twin["rate"] and rate]
    return f"{result['case']:22} {rate:9.2f} steps/s  {'  '.join(gains)}"


if __name__ == "__main__":
    sys.exit(main())
