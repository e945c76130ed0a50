"""``gpuwatch events``: what was found and what happened since the daemon runs.

Owns: asking the daemon. Refuses: layout (export/events_text.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.client.state import NodeState

WAIT_S = 3.0
SETTLE_S = 0.4
"""Findings and driver events follow the snapshot as messages of their own."""


@click.command("events", short_help="what was found and what happened since the daemon runs")
@click.option("--connect", metavar="ENDPOINT", help="Ask the daemon there instead of looking for one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.events/1).")
def command(connect: str | None, as_json: bool) -> int:
    """Print findings in time (since when, worst, when over) and driver events such as XIDs, oldest first.

    Needs a running daemon: exit code 69 without one.
    """
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.endpoints import find
    from gpuwatch.errors import UnavailableError

    endpoint = find(connect)
    if endpoint is None:
        raise UnavailableError("no gpuwatch daemon is running here; start one with: gpuwatch daemon")
    with Connection(endpoint) as connection:
        state = known(connection.step)
    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        click.echo(dumps(document("events", {"findings": state.spans, "events": state.device_events})))
    else:
        from gpuwatch.export.events_text import event_lines

        click.echo("\n".join(event_lines(state.spans, state.device_events, time.time_ns())))
    return 0


def known(step: Callable[[float], NodeState], clock: Callable[[], float] = time.monotonic) -> NodeState:
    """The daemon's picture with what follows its snapshot. Raises UnavailableError."""
    from gpuwatch.errors import UnavailableError

    deadline = clock() + WAIT_S
    state = step(0.0)
    while state.inventory is None and clock() < deadline:
        state = step(0.2)
    if state.inventory is None:
        raise UnavailableError(f"{state.endpoint}: the daemon does not answer ({state.detail or 'silence'})")
    settled = clock() + SETTLE_S
    while clock() < settled:
        state = step(0.1)
    return state
