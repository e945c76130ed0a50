"""Four two-rank jobs on two GPUs of one host, recorded: ``python -m probes.faults.ddp_run --out FOLDER``.

Owns: the four plans, starting both ranks under torchrun, recording each rank, results. Refuses: judging beyond printing
what ``gpuwatch diagnose`` says of each recording; and one GPU: it says what it needs and ends with 69.

A rank that waits looks busy and its neighbour's GPU idles, so each rank is recorded by itself: what is asked is whether
the slow rank is named with its cause, and the waiting one is never called the culprit.
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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import files
from .cases import LOADER, ROWS
from .host import Forker, NotHereError
from .plan import Values
from .run import EXIT_UNAVAILABLE, Runner

SCHEMA = "gpuwatch.faults-ranks/1"
RANKS = 2
START_S = 120.0
"""For torch, NCCL and the first steps of both ranks."""
END_S = 40.0
"""torchrun itself kills a rank that does not end within 30 s."""
WARM_STEPS = 5
LOADING = ("loader_too_few_workers", "loader_slow_transform")
"""One starved loader: which of the two it is depends on the cores that are left."""
WAITING = "nvlink_or_collective_wait"


@dataclass(frozen=True)
class Case:
    """One job of two ranks, and what the diagnosis of each rank may say first."""

    name: str
    plans: tuple[Values, Values]
    truth: tuple[tuple[str, ...], tuple[str, ...]]


def table(cpus: int, depth: int, device: str = "cuda") -> dict[str, Case]:
    """The four jobs, for so many CPUs; ``depth`` blocks are ``run.STEP_MS`` of GPU time."""
    if device == "cpu":
        # One core a rank: decoding two pictures takes a tenth of the step.
        both: Values = {**LOADER, "device": "cpu", "tiny": True, "batch": 2, "depth": 40, "workers": 1}
        slow: Values = {"filters": 16}
        large: Values = {**ROWS, "device": "cpu", "batch": 1, "depth": 20, "optimizer": "plain"}
    else:
        both = {**LOADER, "depth": depth, "workers": max(2, cpus // RANKS - 2), "read_loss": True}
        slow = {"workers": 1}
        large = {**ROWS, "width": 8192, "depth": 16, "batch": 1, "optimizer": "plain", "read_loss": True}
    busy: Values = {"host_filters": 16}
    healthy, waits = ("healthy",), (WAITING,)
    cases = (
        Case("even", (both, both), (healthy, healthy)),
        Case("starved", (both, {**both, **slow}), (waits, LOADING)),
        Case("filtered", (both, {**both, **busy}), (waits, ("host_preprocessing",))),
        Case("exchange", (large, large), (waits, waits)),
    )
    return {case.name: case for case in cases}


class Job:
    """Both ranks of a case under torchrun, in a process group of their own. Use as a context manager."""

    def __init__(self, case: Case, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        files.lay_out(folder, 4, 128)
        for log in folder.glob("steps-*.jsonl"):
            log.unlink()
        (folder / "plan.json").write_text(json.dumps({"ranks": case.plans}))
        root = str(Path(__file__).resolve().parents[2])
        before = os.environ.get("PYTHONPATH", "")
        env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root, "OMP_NUM_THREADS": "1"}
        argv = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
                "-m", "probes.faults.ddp", str(folder)]  # fmt: skip
        with (folder / "log").open("wb") as said:
            self.process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder, start_new_session=True
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """torchrun hands SIGTERM on to its ranks. Where it hangs itself, they are its children still: end them too."""
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            for rank in range(RANKS):
                for line in self._lines(rank)[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(line["pid"], signal.SIGKILL)
            self.process.kill()
            self.process.wait()

    def pids(self) -> list[int]:
        """Of the ranks, in order. After ``until_steps``."""
        return [int(self._lines(rank)[0]["pid"]) for rank in range(RANKS)]

    def steps(self, rank: int) -> list[Values]:
        """The rank's steps so far."""
        return self._lines(rank)[1:]

    def until_steps(self, count: int = WARM_STEPS, timeout_s: float = START_S) -> None:
        """Wait for so many steps of both ranks. Raises NotHereError with the job's last line when it ends or hangs."""
        deadline = time.monotonic() + timeout_s
        while any(len(self.steps(rank)) < count for rank in range(RANKS)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
                raise NotHereError(f"the ranks did not train: {lines[-1] if lines else 'no message'}")
            time.sleep(0.1)

    def _lines(self, rank: int) -> list[Values]:
        try:
            text = (self.folder / f"steps-{rank}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def record(case: Case, job: Job, options: argparse.Namespace) -> list[Values]:
    """One recording per rank, and what the diagnosis says of it."""
    runs = []
    for rank, pid in enumerate(job.pids()):
        file = options.out / f"ranks-{case.name}-{rank}.gwrec"
        said = _gpuwatch(options, "record", str(file), "--force", "--for", f"{options.record_s:g}s", "--pid", str(pid),
                         "--json")  # fmt: skip
        end = time.monotonic()
        steps = [step for step in job.steps(rank) if end - options.record_s <= step["t"] <= end]
        found = _gpuwatch(options, "diagnose", "--replay", str(file), "--pid", str(pid), "--json")
        finding = found["diagnoses"][0]["findings"][0]
        runs.append(
            {
                "case": case.name, "rank": rank, "pid": pid, "other_pid": job.pids()[1 - rank], "file": file.name,
                "bytes": said["bytes"], "truth": case.truth[rank], "verdict": finding["cause"],
                "right": finding["cause"] in case.truth[rank], "summary": finding["summary"], "steps": len(steps),
            }
        )  # fmt: skip
        print(f"{case.name:10} rank {rank}  {'right' if runs[-1]['right'] else 'WRONG'}  {finding['summary']}",
              flush=True)  # fmt: skip
    return runs


def _gpuwatch(options: argparse.Namespace, *arguments: str) -> Any:
    command = [*shlex.split(options.recorder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.record_s + 60, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines()
        raise NotHereError(f"gpuwatch {arguments[0]}: {lines[-1] if lines else 'no answer'}") from None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="ddp_run", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("faults-out"), help="folder for results-ranks.json and the recordings")
    add("--record-s", type=float, default=10.0, help="length of a recording; there are eight (default 10)")
    add("--recorder", default=f"{shlex.quote(sys.executable)} -m gpuwatch", help="command of gpuwatch")
    add("--python", default=sys.executable, help="interpreter of the jobs: one with torch and Pillow")
    add("--data", type=Path, help="folder for the jobs' files (default: a temporary one)")
    return parser.parse_args(arguments)


def need_gpus(python: str) -> None:
    """Asked in a process that ends: this one shall hold no GPU. Raises NotHereError with fewer than two."""
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise NotHereError(f"{python} has no torch that works: {done.stderr.strip().splitlines()[-1]}")
    if int(done.stdout) < RANKS:
        raise NotHereError(
            f"two GPUs of one host are needed, visible and with NCCL; torch sees {done.stdout.strip()} here"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the four. Exit code 0, 1 when a verdict is wrong, 69 when nothing can run here."""
    options = parse(arguments)
    try:
        need_gpus(options.python)
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="job-", dir=options.data) as folder:
            runs = _batch(options, Path(folder))
    except NotHereError as exc:
        print(f"ddp_run: {exc}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    (options.out / "results-ranks.json").write_text(json.dumps({"schema": SCHEMA, "runs": runs}, indent=1))
    return 0 if all(run.get("right") for run in runs) else 1


def _batch(options: argparse.Namespace, folder: Path) -> list[Values]:
    files.lay_out(folder, 4, 128)
    forker = Forker(folder, options.python)
    try:
        runner = Runner(argparse.Namespace(device="cuda"), forker, folder)
        runner.calibrate()
        depth = int(runner.sizes["conv"])
    finally:
        forker.close()
    runs: list[Values] = []
    for number, case in enumerate(table(len(os.sched_getaffinity(0)), depth).values()):
        try:
            with Job(case, folder / str(number), options.python) as job:
                job.until_steps()
                runs += record(case, job, options)
        except NotHereError as exc:
            runs.append({"case": case.name, "error": str(exc)})
            print(f"{case.name:10} {exc}", flush=True)
    return runs


if __name__ == "__main__":
    sys.exit(main())
