"""Run labelled jobs on one GPU and record them: ``python -m probes.faults.run --out FOLDER``, or ``make faults``.

Owns: the order of a batch, the measured speed of the ailing and the repaired job, results and recordings. Refuses:
judging; ``python -m bench.accuracy FOLDER`` does, without a GPU. A batch keeps a time limit: what no longer fits is
listed as not run. The repaired twin is the same process with a changed plan, so it costs seconds and not a start-up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import cases as table
from .host import Forker, NotHereError
from .plan import Plan, Values, effective, plan_of
from .stage import LONGEST, Stage

SCHEMA = "gpuwatch.faults/1"
STEP_MS = 40.0
"""Of the GPU, with a resident batch: slower than a healthy loader on 16 cores, longer than the launching of it."""
FIRST_STEP_S, WARM_S = 10.0, 0.7
QUEUE_S = 5.0
"""At most, for the batches that were made while nobody asked: three jobs of seed 102 ran at 1.2 to 4.5 times their own
pace for the first 24 steps, and so would have been measured. Training on them takes as long as 96 steps with a deep
queue, so they are thrown away."""
EXIT_USAGE, EXIT_UNAVAILABLE = 64, 69


class Runner:
    """A batch: one forking process, cases one after another."""

    def __init__(self, options: argparse.Namespace, forker: Forker, folder: Path) -> None:
        self.options, self.forker, self.folder = options, forker, folder
        self.cpus = len(os.sched_getaffinity(0))
        self.repairs = table.repairs(self.cpus)
        self.sizes: dict[str, float] = {"conv": 1, "gpt": 1}
        self.facts: Values = {}
        self.begun = int(time.time())
        """Unix seconds: of two runs of one draw in a folder the later one counts."""

    def calibrate(self) -> None:
        """Choose depths so that a step takes ``STEP_MS`` of GPU time."""
        if self.options.device == "cpu":
            return
        job = self.forker.job()
        for net, base in (("conv", table.CONV), ("gpt", table.GPT)):
            job.say(measure=asdict(plan_of(base)))
            answer = job.hear(60.0)
            if answer is None or "measured" not in answer:
                raise NotHereError(f"the GPU cannot be used: {(answer or {}).get('error', 'no answer')}")
            found = answer["measured"]
            per_block = max(1e-3, (found["step_ms_8"] - found["step_ms_4"]) / 4)
            fixed = max(0.0, found["step_ms_4"] - 4 * per_block)
            self.sizes[net] = max(4, min(200, round((STEP_MS - fixed) / per_block)))
            self.facts[net] = found
        job.end()
        self.sizes.update(decode_ms=self.facts["conv"]["decode_ms"], step_ms=STEP_MS)

    def run(self, case: table.Case, level: str, seed: int) -> Values:
        """One case: record the ailing job, then measure what its repairs gain."""
        plan = table.plan_for(case, level, seed, self.sizes)
        if self.options.device == "cpu":
            plan = plan_of(asdict(plan), {"device": "cpu", "tiny": True, "batch": min(plan.batch, 8), "hold_gib": 0.0})
        code = hashlib.sha256(f"{case.name}/{level}/{seed}".encode()).hexdigest()[:10]
        result: Values = {
            "case": case.name, "kind": case.kind, "level": level, "seed": seed, "causes": case.causes,
            "also": case.also, "measured": case.measured, "plan": asdict(plan), "cpus": self.cpus, "twins": [],
            "past_queue": True,
        }  # fmt: skip
        stage = Stage(self.forker, self.sizes, plan)
        try:
            stage.begin()
            result["fault"] = self._record(stage, code, result)
            for role, name, change in self._repairs(case, result):
                if not effective(plan, change):
                    continue
                result["twins"].append(self._twin(stage, case, role, name, change))
        except NotHereError as exc:
            result["error"] = str(exc)
        finally:
            stage.end()
        return result

    def _record(self, stage: Stage, code: str, result: Values) -> Values:
        stage.until_steps(1, FIRST_STEP_S)
        seconds = self.options.record_s
        if self.options.no_record:
            return {"rate": self._unwatched(stage)}
        unwatched = self._unwatched(stage)
        file = self.options.out / f"{code}.gwrec"
        command = [*shlex.split(self.options.recorder), "record", str(file), "--force", "--for", f"{seconds:g}s",
                   "--pid", str(stage.job.pid)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
        end = time.monotonic()
        if done.returncode:
            raise NotHereError(f"no recording: {_last_line(done.stderr)}")
        watched = stage.rate_between(end - seconds, end, period(stage.plan))
        if stage.job.ended or stage.error:
            raise NotHereError(stage.error or "the job ended while it was recorded")
        result["file"], result["bytes"], result["pid"] = file.name, file.stat().st_size, stage.job.pid
        return {"rate": unwatched, "watched": watched}

    def _unwatched(self, stage: Stage) -> float:
        """The ailing job's speed, measured as that of the repaired one will be."""
        if stage.plan.net == "none" or stage.plan.guard:
            return 0.0
        return self._steady_rate(stage, stage.plan)

    def _steady_rate(self, stage: Stage, plan: Plan) -> float:
        """Samples per second once ``plan``'s queue of batches is used up."""
        if queued(plan):
            stage.discard(queued(plan), QUEUE_S)
        stage.pause(WARM_S)
        return stage.rate(float(self.options.fix_s), period(plan))

    def _repairs(self, case: table.Case, result: Values) -> list[tuple[str, str, Values]]:
        """(role, name, change) of the twins: own repairs, together when there are several, look-alikes, the advice."""
        wanted = [("own", name, self.repairs[name]) for name in case.fixes]
        if self.options.no_twins:
            wanted = []
        if len(case.fixes) > 1 and wanted:
            merged: Values = {}
            for name in case.fixes:
                merged.update(self.repairs[name])
            wanted.append(("own", "+".join(case.fixes), merged))
        if self.options.look_alikes:
            wanted += [("look_alike", name, self.repairs[name]) for name in case.look_alikes]
        advised = self._advice(result) if self.options.advice and "file" in result else {}
        if advised and advised not in [change for _, _, change in wanted]:
            wanted.append(("advice", "advice", advised))
        return wanted

    def _advice(self, result: Values) -> Values:
        """What the first finding says to change."""
        file = self.options.out / result["file"]
        command = [*shlex.split(self.options.recorder), "diagnose", "--replay", str(file), "--pid", str(result["pid"]),
                   "--json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        try:
            finding = json.loads(done.stdout)["diagnoses"][0]["findings"][0]
        except (ValueError, KeyError, IndexError):
            return {}
        workers = table.advised_workers(finding["remedy"])
        result["advice"] = {"cause": finding["cause"], "workers": workers}
        return table.remedy(finding["cause"], workers, self.cpus)

    def _twin(self, stage: Stage, case: table.Case, role: str, name: str, change: Values) -> Values:
        twin: Values = {"role": role, "name": name, "change": change, "rate": None}
        try:
            stage.change(change, fresh=case.fresh)
            stage.until_steps(3, FIRST_STEP_S)
            rate = self._steady_rate(stage, plan_of(asdict(stage.plan), change))
            twin["rate"] = None if stage.error else rate
            if stage.error:
                twin["error"] = stage.error
        except NotHereError as exc:
            twin["error"] = str(exc)
        return twin


def queued(plan: Plan) -> int:
    """Batches that the workers of a job may have ready, and two: its pace is theirs once these are used up."""
    # A loader that hangs makes none, and would never say that it discarded them.
    loaded = plan.source == "loader" and plan.workers and not plan.guard
    return plan.workers * plan.prefetch + 2 if loaded else 0


def period(plan: Plan) -> int:
    """Steps from one event of what comes now and then to the next; 0 when each step is like the one before.

    Workers whose queue was emptied begin together and deliver one batch each at a time: a speed of one such burst, and
    not of the wait for the next, was several times that of the job.
    """
    shapes = plan.shape_steps if plan.shapes > 1 else 0
    bursts = plan.workers if queued(plan) else 0
    return max(plan.epoch_steps, plan.save_every, plan.review_every, plan.log_every, plan.collect_every, shapes,
               plan.release_every, bursts)  # fmt: skip


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def choose(options: argparse.Namespace, cpus: int) -> list[tuple[table.Case, str, int]]:
    """(case, level, seed) of this batch: causes and controls in a random order, then decoys, then several at once."""
    known = table.table(cpus)
    names = options.cases.split(",") if options.cases else [n for n, c in known.items() if c.kind in options.kinds]
    asked = [(name, level) for name, _, level in (text.partition(":") for text in names)]
    for name, level in asked:
        if name not in known:
            raise ValueError(f"--cases: no case {name!r}; there are: {', '.join(known)}")
        if level and level not in table.LEVELS:
            raise ValueError(f"--cases {name}:{level}: the levels are {', '.join(table.LEVELS)}")
    rank = {"cause": 0, "control": 0, "decoy": 1, "several": 2}
    runs = [(known[name], level, options.seed) for name, one in asked for level in ((one,) if one else options.levels)]
    random.Random(options.seed).shuffle(runs)  # noqa: S311
    runs.sort(key=lambda run: rank[run[0].kind])
    runs = runs[options.batch[0] - 1 :: options.batch[1]]
    done = _done(options.resume)
    return [run for run in runs if (run[0].name, run[1], run[2]) not in done]


def _done(files: list[Path]) -> set[tuple[str, str, int]]:
    """(case, level, seed) that these results have. Raises ValueError naming a file that cannot be read."""
    done = set()
    for file in files:
        try:
            runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
            done |= {(run["case"], run["level"], run["seed"]) for run in runs if "error" not in run}
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise ValueError(f"--resume: {file}: cannot be read as results of an earlier batch ({exc})") from None
    return done


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="faults", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("faults-out"), help="folder for results.json and the recordings")
    add("--cases", default="", help="names, with commas, each with :LEVEL or at --levels (default: all of --kinds)")
    add("--kinds", type=_words(table.KINDS), default=table.KINDS, help="cause,control,decoy,several")
    add("--levels", type=_words(table.LEVELS), default=("medium",), help="mild,medium,severe (default: medium)")
    add("--seed", type=int, default=0, help="draw of parameters and order; 0 is the table itself")
    add("--batch", type=_part, default=(1, 1), metavar="K/N", help="this one of N batches")
    add("--resume", type=Path, action="append", default=[], metavar="RESULTS", help="leave out what this file has run")
    add("--limit-s", type=float, default=570.0, help="begin no case that would end later than this (default 570)")
    add("--record-s", type=float, default=8.0, help="length of a recording (default 8)")
    add("--fix-s", type=float, default=2.5, help="how long a job is measured at least, ailing or repaired (2.5)")
    add("--look-alikes", action="store_true", help="measure the repairs that must not help, too")
    add("--advice", action="store_true", help="measure what the diagnosis advises, where it is none of the repairs")
    add("--no-twins", action="store_true", help="record only")
    add("--no-record", action="store_true", help="measure only")
    add("--recorder", default=f"{shlex.quote(sys.executable)} -m gpuwatch", help="command of gpuwatch")
    add("--python", default=sys.executable, help="interpreter of the jobs: one with torch and Pillow")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny jobs, to see that they run")
    add("--data", type=Path, help="folder for the jobs' files (default: a temporary one)")
    add("--list", action="store_true", help="print the cases and stop")
    return parser.parse_args(arguments)


def _words(allowed: tuple[str, ...]) -> Any:
    def split(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(allowed)}")
        return words

    return split


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected K/N with 1 <= K <= N, such as 1/2")
    return int(found[1]), int(found[2])


def main(arguments: list[str] | None = None) -> int:
    """Run a batch. Exit code 0, 64 for a wrong argument, 69 when nothing can run here."""
    options = parse(arguments)
    try:
        runs = choose(options, len(os.sched_getaffinity(0)))
    except ValueError as exc:
        print(f"faults: {exc}", file=sys.stderr)
        return EXIT_USAGE
    if options.list:
        for case, level, seed in runs:
            print(f"{case.name:22} {case.kind:8} {level:7} seed {seed}  {', '.join(case.causes) or 'nothing wrong'}")
        return 0
    begin = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=options.data) as folder:
        try:
            _batch(options, runs, Path(folder), begin)
        except NotHereError as exc:
            print(f"faults: {exc}", file=sys.stderr)
            return EXIT_UNAVAILABLE
    return 0


def _batch(options: argparse.Namespace, runs: list[tuple[table.Case, str, int]], folder: Path, begin: float) -> None:
    from . import files

    small = options.device == "cpu"
    files.lay_out(folder, 4 if small else 512, 128 if small else files.PIECE_FILES)
    forker = Forker(folder, options.python)
    results: list[Values] = []
    try:
        runner = Runner(options, forker, folder)
        runner.calibrate()
        longest = 0.0
        for place, (case, level, seed) in enumerate(runs):
            now = time.monotonic()
            if now - begin + longest > options.limit_s:
                results += [{"case": c.name, "kind": c.kind, "level": lv, "seed": s, "causes": c.causes,
                             "error": "not run: the time limit of the batch"} for c, lv, s in runs[place:]]  # fmt: skip
                break
            result = runner.run(case, level, seed)
            # The usual case, not one that waited for a timeout, decides whether another fits.
            speeds = 1 + len(result["twins"])
            usual = options.record_s + speeds * (LONGEST * options.fix_s + QUEUE_S)
            longest = max(longest, min(usual, time.monotonic() - now))
            results.append(result)
            _store_results(options, runner, results)
            print(_line(result, time.monotonic() - begin), flush=True)
        _store_results(options, runner, results)
    finally:
        forker.close()


def _store_results(options: argparse.Namespace, runner: Runner, results: list[Values]) -> None:
    """After each case, whole or not at all, so that an interrupted batch keeps what it has."""
    document = {
        "schema": SCHEMA, "begun": runner.begun, "seed": options.seed, "batch": options.batch,
        "device": options.device, "sizes": runner.sizes, "measured": runner.facts,
        "kernel": platform.release(), "runs": results,
    }  # fmt: skip
    name = f"results-{runner.begun}.json"
    part = options.out / f"{name}.part"
    part.write_text(json.dumps(document, indent=1), encoding="utf-8")
    part.replace(options.out / name)


def _line(result: Values, seconds: float) -> str:
    head = f"{seconds:5.0f} s  {result['case']:22} {result['level']:7}"
    if "error" in result:
        return f"{head} {result['error']}"
    rate = result["fault"]["rate"]
    if result["fault"].get("watched") and rate:
        head += f" watched {result['fault']['watched'] / rate:.2f}x"
    gains = [f"{t['name']} " + (f"{t['rate'] / rate:.2f}x" if t["rate"] and rate else str(t.get("error", t["rate"])))
             for t in result["twins"]]  # fmt: skip
    return f"{head} {rate:9.1f}/s  {'  '.join(gains)}"


if __name__ == "__main__":
    sys.exit(main())
