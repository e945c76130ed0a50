"""The ``gpuwatch`` command: finds the sub-command's file, turns expected errors into one line and an exit code.

Owns: the list of sub-commands, exit codes of usage errors. Refuses: what any of them does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from gpuwatch import __version__
from gpuwatch.cli.stderr import say
from gpuwatch.errors import GpuwatchError

COMMANDS = {
    "tui": "watch the GPUs of this machine and see why they idle",
    "status": "one reading, one screen",
    "diagnose": "watch a job for a while and say what holds it back",
    "events": "what was found and what happened since the daemon runs",
    "record": "write raw evidence to a file, to replay or to attach to a report",
    "probe": "measure what this machine can reach",
    "daemon": "the service that the others connect to",
    "config": "show or check the effective configuration",
}
"""Name to short help. Help is written here so that ``gpuwatch --help`` imports no sub-command."""

EX_USAGE = 64
"""click's own 2 means "critical" for diagnose and probes."""
EX_OUTPUT, EX_READER_GONE = 73, 141


class _OutputLostError(Exception):
    """Stdout cannot be written. Not an OSError, for which click ends with 1 itself: that means "warning" for probes."""


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Turns an error of stdout, and no other one, into _OutputLostError."""
    try:
        yield
    except OSError as exc:
        if not _of_stdout(exc):
            raise
        raise _OutputLostError(exc.strerror or str(exc)) from exc


def _of_stdout(exc: OSError) -> bool:
    """Whether it was stdout that could not be written: what is left in its buffer still cannot be."""
    if isinstance(exc, BrokenPipeError):
        return True
    if exc.filename is not None:
        return False
    try:
        with _output():
            sys.stdout.flush()
    except OSError:
        return True
    return bool(getattr(sys.stdout, "write_through", False))  # python -u keeps nothing in a buffer


class LazyGroup(click.Group):
    """A group whose sub-commands are imported when they are run: ``gpuwatch.cli.NAME:command``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; ``--help`` prints here."""
        with _output():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command."""
        with _output():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of a user's day, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one sub-command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpuwatch.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="gpuwatch %(version)s")
def cli() -> None:
    """Tell why a GPU is idle and what to change, without touching the job's code."""


def entry() -> NoReturn:
    """Console script. Exit codes: see gpuwatch/errors.py."""
    _fill_closed()
    sys.exit(run(sys.argv[1:]))


def _fill_closed() -> None:
    """Streams that whoever started us has closed (cron, ``>&-``) lead nowhere: else the next file that is opened gets
    their number, and a child writes into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 (for the whole process)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def run(argv: list[str]) -> int:
    """Run one command line and give its exit code; expected errors become one line on stderr."""
    try:
        code = cli.main(argv, prog_name="gpuwatch", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as exc:
        hint = f" (see: {exc.ctx.command_path} --help)" if exc.ctx else ""
        say(f"gpuwatch: {exc.format_message()}{hint}")
        return EX_USAGE
    except click.ClickException as exc:
        say(f"gpuwatch: {exc.format_message()}")
        return EX_USAGE
    except GpuwatchError as exc:
        say(f"gpuwatch: {exc}")
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except _OutputLostError as exc:
        # Nothing more can be said there, and the interpreter must not try it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(exc.__cause__, BrokenPipeError):
            return EX_READER_GONE  # head, less
        say(f"gpuwatch: cannot write the output: {exc}")
        return EX_OUTPUT
    return code if isinstance(code, int) else 0
