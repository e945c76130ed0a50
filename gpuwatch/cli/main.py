"""The ``gpuwatch`` command: finds the sub-command's file, turns expected errors into one line and an exit code.

Owns: the list of sub-commands, exit codes of usage errors. Refuses: what any of them does.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

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


class LazyGroup(click.Group):
    """A group whose sub-commands are imported when they are run: ``gpuwatch.cli.NAME:command``."""

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
    sys.exit(run(sys.argv[1:]))


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
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing to say, and the interpreter must not say it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code if isinstance(code, int) else 0
