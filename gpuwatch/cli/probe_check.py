"""``gpuwatch probe check``: does this machine still reach what it did?

Owns: its arguments, which probes are run. Refuses: the verdicts (verdict.check).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatch.cli import probe_measuring, probe_output

if TYPE_CHECKING:
    from gpuwatch.cli.probe_measuring import Asked
    from gpuwatch.model import ProbeResult

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("check")
@probe_measuring.options
@probe_measuring.PYTHON
@click.option(
    "--baseline", "base", type=FILE, help="Results to compare with, of `probe baseline` or `probe run --json`."
)
@click.option("--policy", "policy_file", type=FILE, help="TOML with limits and expected figures, see docs/probe.md.")
@click.option("--max-regression", metavar="PERCENT", help='Changes up to this count as none, such as "5%".')
@click.option("--vary", default="", metavar="KEY,...", help="Settings that may differ, such as torch,cuda,cudnn.")
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Fresh processes per probe.")
@click.option("--results", type=FILE, multiple=True, help="Judge results of `probe run --json` instead of measuring.")
@click.option("--strict", is_flag=True, help="A probe that was skipped is not OK although others ran.")
@probe_output.options
def command(
    asked: Asked,
    python: str | None,
    base: Path | None,
    policy_file: Path | None,
    max_regression: str | None,
    vary: str,
    runs: int,
    results: tuple[Path, ...],
    strict: bool,
    output: probe_output.Output,
) -> int:
    """Measure again and judge against a baseline, a policy or both.

    Without names the probes of the baseline are run, each with the measuring time that it had there.

    Exit codes: 0 ok, 1 warning, 2 critical, 3 could not tell, 64 usage, 75 everything skipped because the GPU is in
    use, 124 out of time.
    """
    from gpuwatch.cli.probe_files import read_document, read_policy
    from gpuwatch.errors import UsageError
    from gpuwatch.verdict.check import Settings, check
    from gpuwatch.verdict.report_text import report

    if base is None and policy_file is None:
        raise UsageError("nothing to check against: give --baseline FILE, --policy FILE or both")
    policy = read_policy(policy_file, max_regression)
    document = read_document(base) if base else None
    known = list(document.results) if document else []
    whole_host = asked.device == "all" and not results and document is not None and document.host == os.uname().nodename
    timed_out = False
    only = frozenset(asked.probes() if asked.names or asked.chosen else ())
    if results:
        new = [result for path in results for result in read_document(path).results]
    else:
        demanded = [probe for probe, _value in policy.demanded()]
        probes = asked.probes([*(result.probe for result in known), *demanded])
        turns = asked.turns(probes)
        with asked.session(python) as session:
            new = [
                session.run(probe, at, asked.seconds or _seconds(known, probe, asked))
                for probe, at in turns
                for _run in range(runs)
            ]
        timed_out = session.timed_out
    settings = Settings(policy, frozenset(filter(None, vary.split(","))), strict, only, whole_host)
    judgement = check(known, new, settings, f"probe check against {base or policy_file}")
    return probe_output.emit(
        judgement,
        output,
        "probe-check",
        {"results": [result for result in new if not only or result.probe in only]},
        lambda: report(judgement),
        timed_out=timed_out,
    )


def _seconds(known: Sequence[ProbeResult], probe: str, asked: Asked) -> float | None:
    """The measuring time that the baseline had: a shorter one would compare a cold GPU with a warm one."""
    told = [result.settings["seconds"] for result in known if result.probe == probe and "seconds" in result.settings]
    try:
        return float(told[-1]) if told else asked.case_seconds()
    except ValueError:
        return None
