"""The two-rank jobs on CPU processes, and two cards of the fake library that follow them.

Owns: what the cards are made to show, from the ranks' own step logs, and asking gpuwatch about them. Refuses:
expectations. Processes, /proc, stacks and the collectives (gloo) are real; the cards' counters are computed here from
the measured times, as NCCL on NVLink would make them read (``SPIN_SM`` and the like): no GPU was there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from fakenvml.build import fake_env

from probes.faults.ddp_run import RANKS, Case, Job

ROOT = Path(__file__).resolve().parents[2]
WORK_SM = 0.9
"""SM active over busy of a convolution net that computes (H200 set: 0.92)."""
SPIN_SM = 0.12
"""The same of a collective kernel: NCCL gives each channel one block, which holds one SM, and uses at most 16 to 32
channels of 132 SMs."""
LINK_BYTES_PER_S = 300e9
"""While gradients travel; a rank that waits sends nothing."""
STEPS = 8
"""Of each rank before its card is drawn."""


def train_s(job: Job, rank: int) -> tuple[float, float]:
    """Mean (fetch, train) seconds of the newest steps."""
    steps = job.steps(rank)[-STEPS:]
    return fmean(step["fetch_s"] for step in steps), fmean(step["train_s"] for step in steps)


def scenario(job: Job, computing_s: float | None = None) -> str:
    """Statements for both cards.

    The rank that trains fastest did not wait: what the other needs longer is its wait, during which its card spins.
    ``computing_s``: of a step of a job that only exchanges; the rest of a step is the exchange.
    """
    times = [train_s(job, rank) for rank in range(RANKS)]
    own_s = min(train for _, train in times) if computing_s is None else computing_s
    lines = [f"gpus={RANKS}"]
    for rank, (pid, (fetch, train)) in enumerate(zip(job.pids(), times, strict=True)):
        step = fetch + train
        busy, work = train / step, min(own_s, train) / step
        sm = WORK_SM * work + SPIN_SM * (busy - work)
        link = LINK_BYTES_PER_S * (busy - work) if computing_s is not None else 0.0
        lines.append(
            f"gpu {rank} uuid=GPU-{rank + 1} procs={pid}:{20 << 30}:C used={20 << 30} util={round(100 * busy)} "
            f"gpm.1={100 * busy:.1f} gpm.2={100 * sm:.1f} gpm.5={100 * work / 8:.1f} gpm.10={100 * work / 3:.1f} "
            f"gpm.60={link / 2**20:.0f} gpm.61={link / 2**20:.0f} sm=1980"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def running(case: Case, folder: Path) -> Iterator[tuple[Job, dict[str, str]]]:
    """The job, past its first steps, and the environment in which gpuwatch sees its cards."""
    with Job(case, folder) as job:
        job.until_steps(STEPS + 3, 50.0)
        computing = 0.02 if case.name == "exchange" else None
        env = fake_env(folder, scenario(job, computing))
        yield job, env


def ask(env: dict[str, str], *arguments: str) -> Any:
    """What a sub-command says as JSON."""
    command = [sys.executable, "-m", "gpuwatch", *arguments, "--json"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)
