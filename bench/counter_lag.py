"""How late GPM's counters are, from recordings of jobs: ``python -m bench.counter_lag``.

Owns: the table: how well the training steps of a job agree with the GPU's busy share at each shift. Refuses: using it
(``gpuwatch.diagnose.timeline``). It needs no GPU and says the same everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.accuracy.__main__ import FOLDERS
from bench.accuracy.labels import Run, read
from bench.accuracy.score import subject
from gpuwatch.diagnose.assemble import assemble
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.frames import Phase, phase_of
from gpuwatch.diagnose.timeline import agreement, alternates
from gpuwatch.replay.player import load

SHIFTS_MS = tuple(range(0, 221, 20))
CLEAR = 0.6
"""Below this at its best shift a job says nothing of the lag."""


def main() -> int:
    """Print the table. Exit code 0."""
    rows = [(run, found) for run in read(FOLDERS) if run.file and (found := by_shift(run))]
    clear = [(run, found) for run, found in rows if max(found) >= CLEAR]
    print(f"{'job':24}" + "".join(f"{shift:>6}" for shift in SHIFTS_MS) + "  ms")
    for run, found in clear:
        print(f"{run.case + f' #{run.seed}':24}" + "".join(f"{value:6.2f}" for value in found))
    mean = [sum(found[i] for _, found in clear) / len(clear) for i in range(len(SHIFTS_MS))]
    print(f"{'mean':24}" + "".join(f"{value:6.2f}" for value in mean))
    best = sorted(SHIFTS_MS[found.index(max(found))] for _, found in clear)
    print(f"{len(clear)} of {len(rows)} jobs that alternate agree by {CLEAR:g}; best shifts {best[0]} to {best[-1]} ms")
    return 0


def by_shift(run: Run) -> list[float]:
    """Correlation at each of ``SHIFTS_MS``; empty for a job that does not alternate."""
    observations = load(Path(run.folder) / run.file)
    evidence = assemble(observations, subject(run, observations))
    steps = [
        (stack.mono_ns, phase_of(thread.frames) is not Phase.NONE) for stack, thread in driven(evidence.main_stacks)
    ]
    if not evidence.windows or not alternates(steps):
        return []
    return [agreement(evidence.windows, steps, shift * 1_000_000) for shift in SHIFTS_MS]


if __name__ == "__main__":
    sys.exit(main())
