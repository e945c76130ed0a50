"""Lines on stderr that are worth having and not worth failing for.

Owns: writing them where that is possible. Refuses: deciding what to say.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click


def say(line: str) -> None:
    """One line on stderr. Where that cannot be written (a full disk, a reader that has gone, closed), nobody reads it:
    the exit code and stdout must not suffer."""
    try:
        click.echo(line, err=True)
    except (OSError, ValueError):
        # What is left in the buffer would make the interpreter end with 120: it goes nowhere from here on.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
