"""``gpuwatch probe baseline``: keep results as what this machine is to reach.

Owns: its arguments, what is refused. Refuses: comparing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatch.cli import probe_measuring
from gpuwatch.cli.stderr import say

if TYPE_CHECKING:
    from gpuwatch.cli.probe_measuring import Asked


@click.command("baseline")
@probe_measuring.options
@probe_measuring.PYTHON
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Take results of `probe run --json` instead of measuring; may be given several times.",
)
@click.option("--runs", type=click.IntRange(1, 100), default=5, show_default=True, help="Fresh processes per probe.")
@click.option("--append", is_flag=True, help="Add to the file: the first five runs and the newest 25 are kept.")
def command(
    asked: Asked,
    python: str | None,
    out: Path,
    sources: tuple[Path, ...],
    runs: int,
    append: bool,
) -> int:
    """Measure each probe in fresh processes and keep the good results as a baseline.

    Results that are invalid, contaminated or throttled never enter it. Exit codes: 0 written, 1 written but some
    results were left out, 3 nothing to write, 75 the GPU is in use.
    """
    from gpuwatch.cli.probe_files import read_document, write_results
    from gpuwatch.errors import EXIT_UNKNOWN, CannotCreateError, UsageError
    from gpuwatch.verdict import baseline
    from gpuwatch.verdict.measured import measured

    if out.exists() and not append:
        raise CannotCreateError(f"{out}: exists already; --append adds to it")
    # Minutes of measuring end there: whether it can be written is asked before.
    if not out.parent.is_dir():
        raise CannotCreateError(f"{out}: no folder {out.parent}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise CannotCreateError(f"{out}: the folder {out.parent} may not be written to")
    if asked.force:
        raise UsageError("--force: a result measured beside others is no baseline")
    old = list(read_document(out).results) if append and out.exists() else []
    if sources:
        if asked.names or asked.chosen:
            raise UsageError("--from: the results are already there, no probe can be named")
        results = [result for source in sources for result in read_document(source).results]
    else:
        probes = asked.probes()
        seconds = asked.case_seconds()
        turns = asked.turns(probes)
        with asked.session(python) as session:
            results = [session.run(probe, at, seconds) for probe, at in turns for _run in range(runs)]
    good, refused = baseline.accepted(results)
    for line in refused:
        say(line)
    if not good:
        judged = measured(results)
        say(f"nothing to keep: {judged.exit_reason}")
        return judged.exit_code or EXIT_UNKNOWN
    kept = baseline.appended(old, good)
    write_results(out, kept, os.uname().nodename)
    for (probe, _device), group in baseline.grouped(kept).items():
        hint = (
            "" if len(group) >= baseline.ENOUGH_RUNS else f", provisional: {baseline.ENOUGH_RUNS} runs tell the noise"
        )
        click.echo(f"{probe} on {group[-1].device_name or group[-1].device}: {len(group)} run(s){hint}")
    return 1 if refused else 0
