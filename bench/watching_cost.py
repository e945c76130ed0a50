"""What being watched costs a job: with and without the daemon, with and without a close look with stacks.

    python -m bench.watching_cost --loop small --out cost.json

Owns: the daemon, the close look and the job of this measurement. Refuses: statistics (``bench/paired.py``), tables.

"at rest": a daemon at 1 Hz with a client, its automatic diagnosis off, stopped with SIGSTOP for the turns without it.
A stopped daemon keeps NVML open, so what an open NVML costs is in neither. "close look": the daemon's own collector in
this process at 1 Hz; in the turns with it a focus of 10 Hz counters, 4 Hz /proc and 10 Hz stacks, no native frames.
"burst with a native look": a whole burst a turn, in which native frames are always needed. It is the most that a
diagnosis costs; of most jobs the plain frames decide, so few pay it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.children import started, wait_until
from bench.paired import Mark, Paired, measure
from bench.stream import Listener
from bench.talking import Job
from gpuwatch.collect.node import live_source
from gpuwatch.collect.source import Focus
from gpuwatch.config import STREAM_SOCKET
from gpuwatch.model import DriverState, Inventory, Observation, ProcessTick, StackSample

READY_S = 60.0
"""torch's libraries may have to come from a cold disk."""
SETTLE_S = 8.0
"""Of a daemon, before the first turn: its first readings ask everything once, which is no rest."""
BURST_S = 5.0
"""Of a turn with a native look: as long as ``gpuwatch diagnose`` looks by default."""
TREATMENTS = {
    "rest": "daemon at 1 Hz with a client",
    "look": "close look with stacks",
    "native": "burst with a native look",
}
CONFIG = "period_s = 1.0\n[diagnosis]\nautomatic = false\n"


class StepJob:
    """``bench/jobs/steps.py`` with all the marks that it told."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._marks: list[Mark] = []

    def marks(self) -> Sequence[Mark]:
        """All so far. Raises RuntimeError when the job has ended."""
        self._marks += [(line["mono_ns"], line["steps"]) for line in self._job.waiting() if "mono_ns" in line]
        return self._marks


class Stopped:
    """Switches a process off by SIGSTOP and on by SIGCONT."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def __call__(self, on: bool) -> None:
        """Raises RuntimeError when the process has ended: a turn without it would look like one with it."""
        if self._child.poll() is not None:
            raise RuntimeError(f"the daemon ended with code {self._child.returncode}")
        self._child.send_signal(signal.SIGCONT if on else signal.SIGSTOP)


class Seen:
    """What the collector told, counted: a close look that saw nothing would cost nothing."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.error = ""
        self.inventory: Inventory | None = None
        self.told = threading.Event()

    def __call__(self, observation: Observation) -> None:
        """From the collector's threads."""
        if isinstance(observation, Inventory):
            self.inventory = observation
            self.told.set()
        elif isinstance(observation, StackSample):
            self.error = observation.error or self.error
            kind = "native stacks" if observation.native else "stacks"
            self.counts[kind if observation.threads else f"{kind} that failed"] += 1
        elif isinstance(observation, ProcessTick):
            self.counts["processes"] = max(self.counts["processes"], len(observation.samples))
        else:
            self.counts[type(observation).__name__] += 1


def at_rest(job: StepJob, folder: Path, turns: Callable[..., Paired]) -> dict[str, Any]:
    """With and without the daemon. Raises RuntimeError."""
    runtime, log, config = folder / "run", folder / "daemon.log", folder / "config.toml"
    config.write_text(CONFIG, encoding="utf-8")
    argv = [sys.executable, "-m", "gpuwatch", "daemon", "--config", str(config), "--runtime-dir", str(runtime)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUWATCH_")}
    with started(argv, env, log) as child:
        wait_until((runtime / STREAM_SOCKET).is_socket, child, log, timeout_s=30.0)
        client = Listener(f"ipc://{runtime}")
        client.start()
        try:
            time.sleep(SETTLE_S)
            paired = turns(job, Stopped(child))
        finally:
            messages = client.end()
    if not messages:
        raise RuntimeError("the daemon published nothing")
    return {"treatment": TREATMENTS["rest"], "messages": messages, **_shown(paired)}


def close_look(
    job: StepJob, pid: int, turn_s: float, turns: Callable[..., Paired], *, native: bool = False
) -> dict[str, Any]:
    """With and without a focus of the collector, ``native`` with a look at native frames in each. Raises RuntimeError,
    also when no stack could be had."""
    seen, source = Seen(), live_source(1.0)
    source.start(seen)
    try:
        if not seen.told.wait(20.0):
            raise RuntimeError("the driver does not answer")
        assert seen.inventory is not None
        if seen.inventory.driver is not DriverState.OK:
            raise RuntimeError(seen.inventory.driver_hint)
        time.sleep(2.0)
        indices = tuple(device.index for device in seen.inventory.devices[:1])

        look_s = turn_s if native else turn_s + 1.0
        asked = (lambda stacks, texts: True) if native else None
        focus = Focus(pid, indices, look_s, stack_seconds=look_s, undecided=asked)

        def switch(on: bool) -> None:
            source.focus(focus if on else None)

        paired = turns(job, switch)
    finally:
        source.stop()
    if not seen.counts["stacks"]:
        raise RuntimeError(f"no stack of the job could be read: {seen.error or 'py-spy gave none'}")
    if native and not seen.counts["native stacks"]:
        raise RuntimeError(f"no native frames of the job could be read: {seen.error or 'py-spy gave none'}")
    name = TREATMENTS["native" if native else "look"]
    return {"treatment": name, "seen": dict(seen.counts), "error": seen.error, **_shown(paired)}


def _shown(paired: Paired) -> dict[str, Any]:
    return {**paired._asdict(), "pairs": [pair._asdict() for pair in paired.pairs]}


def main() -> int:
    """Measure one loop and write JSON after each treatment. Exit code 0, 1 when something could not be measured."""
    options = arguments()
    ends_s = time.monotonic() + options.limit_s
    answer: dict[str, Any] = {"loop": options.loop, "turn_s": options.turn_s, "results": [], "failures": []}
    with tempfile.TemporaryDirectory(prefix="gpuwatch-") as name:
        folder = Path(name)
        flags = ["--loop", options.loop, *(["--device", options.device] if options.device else [])]
        try:
            with Job("steps.py", flags, folder / "job.log") as talking:
                talking.until("ready", READY_S)
                list_on_gpu(talking.child.pid)
                job = StepJob(talking)
                time.sleep(2.0)
                wanted = options.only or ("rest", "look")
                for place, treatment in enumerate(wanted):
                    # Each leaves the others theirs, should everything be slow.
                    until_s = time.monotonic() + (ends_s - time.monotonic()) / (len(wanted) - place)
                    try:
                        answer["results"].append(_treated(treatment, job, talking.child.pid, folder, options, until_s))
                    except (RuntimeError, OSError) as exc:
                        answer["failures"].append(f"{options.loop}, {treatment}: {exc}")
                    options.out.write_text(json.dumps(answer))
        except (RuntimeError, OSError) as exc:
            answer["failures"].append(f"{options.loop}: {exc}")
    options.out.write_text(json.dumps(answer))
    return 1 if answer["failures"] else 0


def _treated(
    treatment: str, job: StepJob, pid: int, folder: Path, options: argparse.Namespace, until_s: float
) -> dict[str, Any]:
    turn_s = max(BURST_S, options.turn_s) if treatment == "native" else options.turn_s

    def turns(job: StepJob, switch: Callable[[bool], None]) -> Paired:
        return measure(job, switch, pairs=options.pairs, turn_s=turn_s, ends_s=until_s - ENDING_S)

    if treatment == "rest":
        return at_rest(job, folder, turns)
    return close_look(job, pid, turn_s, turns, native=treatment == "native")


ENDING_S = 3.0
"""A daemon, a collector and a job have to end within the limit too."""


def list_on_gpu(pid: int) -> None:
    """The tests' library cannot know that the job is on its GPU: tell it. The real one needs no telling."""
    scenario = os.environ.get("FAKE_NVML_SCENARIO")
    if scenario:
        with Path(scenario).open("a", encoding="utf-8") as file:
            file.write(f"gpu 0 procs={pid}:1000000000:C\n")


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="watching_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loop", choices=("small", "loader"), required=True, help="which job")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--only", action="append", choices=tuple(TREATMENTS), help="one treatment; may be repeated")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of turns for each treatment (default 12)")
    parser.add_argument("--turn-s", type=float, default=2.0, help="seconds of a turn (default 2)")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for everything; fewer pairs then (default 120)")
    parser.add_argument("--device", default="", help="of the job: cuda, cuda:N or cpu; default what torch has")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
