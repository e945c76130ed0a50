"""``gpuwatch probe compare`` and ``selftest``: two environments in alternation, and one with itself.

Owns: arguments, the alternation, cooling down between runs. Refuses: the verdicts (verdict.compare).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuwatch.cli import probe_measuring, probe_output, probe_places
from gpuwatch.cli.stderr import say

if TYPE_CHECKING:
    from gpuwatch.cli.probe_measuring import Asked, Session
    from gpuwatch.cli.probe_places import Place
    from gpuwatch.model import ProbeResult
    from gpuwatch.verdict.compare import Options, Pair

COOL_WITHIN_C = 3
COOL_MOST_S = 30.0
"""Longest wait for the GPU to be as cool as it was at the start of the first run."""
COOL_LOOK_S = 1.0

PAIRS = click.option(
    "--pairs", type=click.IntRange(3, 100), default=5, show_default=True, help="Pairs of fresh processes per probe."
)
SEED = click.option("--seed", type=click.IntRange(0, 2**31), help="Of the order of the runs; printed when not given.")
MAX_REGRESSION = click.option(
    "--max-regression", metavar="PERCENT", help='Changes up to this count as none, such as "5%".'
)


@click.command("compare")
@probe_measuring.options
@click.option("--a", "python_a", required=True, metavar="PYTHON", help="The interpreter to compare with.")
@click.option("--b", "python_b", required=True, metavar="PYTHON", help="The interpreter that is judged.")
@PAIRS
@SEED
@MAX_REGRESSION
@click.option("--vary", default="", metavar="KEY,...", help="Hard settings that differ on purpose.")
@probe_output.options
def compare_command(
    asked: Asked,
    python_a: str,
    python_b: str,
    pairs: int,
    seed: int | None,
    max_regression: str | None,
    vary: str,
    output: probe_output.Output,
) -> int:
    """Compare two Python environments on this machine: fresh processes, AB and BA in random order.

    Every row has the change of B against A, positive is better, its 95 % interval and a verdict: FASTER, SLOWER, SAME,
    AMBIGUOUS (too few or too noisy runs), NOT_AVAILABLE, INVALID. Exit codes as for check.
    """
    from gpuwatch.cli.probe_files import regression
    from gpuwatch.daemon.probing import interpreter
    from gpuwatch.verdict.compare import Options

    seed = secrets.randbelow(2**31) if seed is None else seed
    options = Options(seed, regression(max_regression), frozenset(filter(None, vary.split(","))))
    probes = asked.probes()
    seconds = asked.case_seconds()
    place = _one(asked)
    with asked.session(python_a) as session:
        found = _measure(session, probes, place, seconds, (python_a, python_b), pairs, seed)
    sides = [interpreter(python) or python for python in (python_a, python_b)]
    return _report(found, options, "probe compare: A {}, B {}".format(*sides), output, session.timed_out)


@click.command("selftest")
@probe_measuring.options
@probe_measuring.PYTHON
@PAIRS
@SEED
@MAX_REGRESSION
@probe_output.options
def selftest_command(
    asked: Asked,
    python: str | None,
    pairs: int,
    seed: int | None,
    max_regression: str | None,
    output: probe_output.Output,
) -> int:
    """Compare this environment with itself: learn the machine's noise, print the smallest change it can detect.

    What it writes with --json keeps the noise: check takes it as --baseline, and baseline as --from.

    Exit codes: 0 steady, 1 it differs from itself, 3 could not run, 75 the GPU is in use.
    """
    from gpuwatch.cli.probe_files import regression
    from gpuwatch.config import load
    from gpuwatch.verdict.compare import Options

    seed = secrets.randbelow(2**31) if seed is None else seed
    options = Options(seed, regression(max_regression), same_side=True)
    probes = asked.probes()
    seconds = asked.case_seconds()
    place = _one(asked)
    chosen_python = python or load().config.probes.python
    with asked.session(python) as session:
        found = _measure(session, probes, place, seconds, (chosen_python, chosen_python), pairs, seed)
    return _report(found, options, "probe selftest", output, session.timed_out)


def _measure(
    session: Session,
    probes: Sequence[str],
    place: Place,
    seconds: float | None,
    pythons: tuple[str, str],
    pairs: int,
    seed: int,
) -> list[Pair]:
    """All pairs of all probes. One pair before them is dropped: it reads files into the page cache."""
    from gpuwatch.verdict.compare import Pair, order

    start_c = _temperature(place)

    def once(probe: str, side: str) -> ProbeResult:
        _cool(place, start_c)
        return session.run(probe, place, seconds, python=pythons["AB".index(side)])

    for side in "AB":
        once(probes[0], side)
    found = []
    for number, probe in enumerate(probes):
        for turn, sides in enumerate(order(pairs, seed + number), 1):
            say(f"{probe}: pair {turn} of {pairs}")
            runs = {side: once(probe, side) for side in sides}
            found.append(Pair(runs["A"], runs["B"]))
    return found


def _report(found: Sequence[Pair], options: Options, title: str, output: probe_output.Output, timed_out: bool) -> int:
    from gpuwatch.verdict.compare import compare
    from gpuwatch.verdict.report_text import detectable_lines, report

    judgement = compare(found, options, title)
    results = [result for pair in found for result in (pair.a, pair.b)]
    sides = ["A" if index % 2 == 0 else "B" for index in range(len(results))]

    def text() -> str:
        lines = detectable_lines(judgement) if options.same_side else []
        # Which interpreters were measured is told where the figures are, and not only what was typed.
        return "\n".join([report(judgement, "A", "B"), *lines, judgement.title, f"seed: {options.seed}"])

    return probe_output.emit(
        judgement,
        output,
        "probe-selftest" if options.same_side else "probe-compare",
        {"title": title, "seed": options.seed, "sides": sides, "results": results},
        text,
        columns=("A", "B"),
        timed_out=timed_out,
    )


def _one(asked: Asked) -> Place:
    from gpuwatch.errors import UsageError

    if asked.device == "all" or "," in asked.device:
        raise UsageError(f"--device {asked.device}: sides are compared on one device; give cuda:N or cpu")
    return asked.places()[0]


def _temperature(place: Place) -> float | None:
    if not isinstance(place, probe_places.Gpu):
        return None
    reading = place.read().temp_c
    return float(reading) if isinstance(reading, int) else None


def _cool(place: Place, start_c: float | None) -> None:
    """Wait until the GPU is as cool as it was at the start: each run ends warmer than it began."""
    end = time.monotonic() + COOL_MOST_S
    while start_c is not None and time.monotonic() < end:
        now_c = _temperature(place)
        if now_c is None or now_c <= start_c + COOL_WITHIN_C:
            return
        time.sleep(COOL_LOOK_S)
