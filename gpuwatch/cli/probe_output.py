"""What the sub-commands of ``gpuwatch probe`` print, and with which exit code they end.

Owns: the choice of the format, the exit code. Refuses: measuring and judging.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from gpuwatch.verdict.verdicts import Judgement

FORMATS = {
    "json": "One JSON object, see docs/probe.md.",
    "csv": "CSV, one line per quantity.",
    "markdown": "A Markdown table, such as for a CI summary.",
    "junit": "JUnit XML: suite is the device, case the quantity.",
    "nagios": "One line with performance data; exit codes 0 to 3 only.",
}


class Output(NamedTuple):
    """How to print and how to end."""

    form: str
    exit_zero: bool
    fail_on: str


def options(command: Callable[..., int]) -> Callable[..., int]:
    """The output options; the command gets them as ``output``, an ``Output``."""

    @functools.wraps(command)
    def with_output(form: str | None, exit_zero: bool, fail_on: str, **others: object) -> int:
        from gpuwatch.errors import GpuwatchError

        try:
            return command(output=Output(form or "text", exit_zero, fail_on), **others)
        except GpuwatchError as exc:
            if form != "nagios":
                raise
            # A monitor reads stdout alone, and takes 64 and more for nothing at all.
            from gpuwatch.verdict import report_nagios

            click.echo(report_nagios.unable(str(exc)))
            return report_nagios.exit_code(exc.exit_code)

    wrapped = click.option(
        "--fail-on",
        type=click.Choice(["warn", "critical"]),
        default="warn",
        show_default=True,
        help="critical: a warning counts as ok.",
    )(with_output)
    wrapped = click.option("--exit-zero", is_flag=True, help="Report only: always end with 0 once it has run.")(wrapped)
    for name, text in reversed(FORMATS.items()):
        wrapped = click.option(f"--{name}", "form", flag_value=name, help=text)(wrapped)
    return wrapped


def emit(
    judgement: Judgement,
    output: Output,
    schema: str,
    body: Mapping[str, object],
    text: Callable[[], str],
    *,
    columns: tuple[str, str] = ("baseline", "now"),
    timed_out: bool = False,
) -> int:
    """Print the judgement in the wanted form and give the exit code."""
    from gpuwatch.errors import EXIT_CRITICAL, EXIT_TIMED_OUT
    from gpuwatch.verdict.verdicts import EXIT_CODES

    lenient = output.fail_on == "critical"
    level, reason = judgement.outcome(lenient)
    code = EXIT_CODES[level]
    if timed_out and code != EXIT_CRITICAL:
        code, reason = EXIT_TIMED_OUT, "the time limit passed before everything was measured"
    if output.form == "nagios":
        from gpuwatch.verdict import report_nagios

        code = report_nagios.exit_code(code)
    if output.exit_zero:
        code = 0
    match output.form:
        case "json":
            from gpuwatch.export.jsonable import document, dumps

            told = {
                "host": os.uname().nodename,
                "verdict": judgement.level,
                "exit_code": code,
                "exit_reason": reason,
                "rows": judgement.rows,
                "changes": judgement.changes,
                "notes": judgement.notes,
            }
            click.echo(dumps(document(schema, {**body, **told})))
        case "csv":
            from gpuwatch.verdict import report_csv

            click.echo(report_csv.report(judgement))
        case "markdown":
            from gpuwatch.verdict import report_markdown

            click.echo(report_markdown.report(judgement, *columns))
        case "junit":
            from gpuwatch.verdict import report_junit

            click.echo(report_junit.report(judgement))
        case "nagios":
            from gpuwatch.verdict import report_nagios

            click.echo(report_nagios.report(judgement, code, reason))
        case _:
            click.echo(text())
    return code
