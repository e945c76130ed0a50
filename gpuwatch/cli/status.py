"""``gpuwatch status``: one reading, one screen.

Owns: the order in which a reading is looked for (recording, daemon, hardware) and when it is complete.
Refuses: the layout, which is export.text's, and the JSON shape, which is export.jsonable's.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.state import NodeState
    from gpuwatch.collect.source import ObservationSource
    from gpuwatch.export.jsonable import Json
    from gpuwatch.export.reading import NodeView
    from gpuwatch.model import Inventory, Observation

PERIOD_S = 0.5
"""Two readings are needed for every rate (GPM window, CPU): at this period they are there after about a second."""
OPEN_WAIT_S = 30.0
"""Without persistence mode the driver starts each GPU first, which takes seconds per GPU; and it stops them again when
we end, so that trying again would be no quicker."""
DIRECT_WAIT_S = 3.0
"""Once the driver is open: a GPU that has not answered by then is shown as such, the others are not held up."""
DAEMON_WAIT_S = 3.0
TELEMETRY_WAIT_S = 0.3
"""Slow readings follow the daemon's snapshot in a message of their own; an older daemon, or a recording, has none."""
RECORDED_MEAN_S = 10.0
"""Of a recording, the GPM columns are means over its last seconds: one window of 100 ms would be a lottery."""


@click.command("status", short_help="one reading, one screen")
@click.option("--connect", metavar="ENDPOINT", help="Ask the daemon there instead of looking for one.")
@click.option("--replay", metavar="FILE", type=click.Path(path_type=Path), help="Show the end of a recording.")
@click.option("--partial", is_flag=True, help="With --replay: use what a damaged recording still has.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.status/1).")
def command(connect: str | None, replay: Path | None, partial: bool, as_json: bool) -> int:
    """Print one reading of every GPU, its processes and the host.

    BUSY, SM, TENSOR and DRAM are shares of the time, each a closer look than the one before: something was resident,
    the multiprocessors had work, the tensor cores, the memory. Asks the daemon if there is one, else reads the
    hardware for about a second. Exit code 0, or 69 when there is no driver or no daemon at ENDPOINT.
    """
    if connect and replay:
        raise click.UsageError("--connect and --replay exclude each other: a daemon or a recording")
    if partial and replay is None:
        raise click.UsageError("--partial goes with --replay FILE")
    view = read(replay, connect, partial=partial)
    if as_json:
        from gpuwatch.export.jsonable import dumps

        click.echo(dumps(status_document(view)))
    else:
        print_status(view)
    return 0


def run_text(replay: Path | None, connect: str | None) -> int:
    """Print the status as text; for callers that are not on a terminal. Errors as ``read``."""
    print_status(read(replay, connect))
    return 0


def print_status(view: NodeView) -> None:
    """The status table on stdout, as wide as the terminal but never narrower than 80 columns."""
    import shutil

    from gpuwatch.export.text import status_lines

    width = max(80, shutil.get_terminal_size((80, 24)).columns)
    click.echo("\n".join(status_lines(view, width)))


def status_document(view: NodeView) -> dict[str, Json]:
    """The ``--json`` answer: every device and process with its identity, its reading and its age."""
    from gpuwatch.export.jsonable import document

    devices = [
        {
            "device": device,
            "sample": sample,
            "age_s": view.age_s(sample) if sample else None,
            "health": view.health.get(device.index),
            "burst": view.bursts.get(device.index),
        }
        for device in view.inventory.devices
        for sample in [view.devices.get(device.index)]
    ]
    processes = [{"info": info, "sample": view.processes.get(pid)} for pid, info in sorted(view.infos.items())]
    return document(
        "status",
        {
            "origin": view.origin,
            "source": view.inventory.source,
            "node": view.inventory.node,
            "driver": view.inventory.driver,
            "unwatched": view.inventory.unwatched or (),
            "host": view.host,
            "devices": devices,
            "processes": processes,
            "diagnoses": view.diagnoses,
            "events": view.events,
        },
    )


def read(replay: Path | None, connect: str | None, *, partial: bool = False) -> NodeView:
    """One reading: of the recording, of the daemon, or of the hardware, in this order.

    Raises UnavailableError (no driver, no daemon at ``connect``), RecordingError, InputNotFoundError, ProtocolError.
    """
    if replay is not None:
        from gpuwatch.replay.player import load

        return recorded_view(load(replay, partial=partial), replay.name)
    view = _from_daemon(connect)
    if view is None:
        from gpuwatch.collect.node import live_source

        view = direct_view(live_source(PERIOD_S))
    _require_driver(view.inventory)
    return view


def _from_daemon(connect: str | None) -> NodeView | None:
    """What the daemon knows; None when there is none and nobody has named one."""
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.endpoints import absence, candidates, find
    from gpuwatch.errors import UnavailableError

    endpoint = find(connect)
    named = bool(connect or os.environ.get("GPUWATCH_ENDPOINT"))
    if endpoint is None:
        if named:
            raise UnavailableError(absence(candidates(connect)[0]))
        return None
    with Connection(endpoint) as connection:
        try:
            view = daemon_view(connection.step)
            return view if view.health or not view.devices else _with_telemetry(view, connection)
        except UnavailableError:
            if named:
                raise
            return None  # It holds the lock and does not answer: the hardware may.


def _with_telemetry(view: NodeView, connection: Connection) -> NodeView:
    """The same with slow readings, which follow the snapshot; without them from a daemon that has none."""
    import msgspec

    deadline = time.monotonic() + TELEMETRY_WAIT_S
    while (left := deadline - time.monotonic()) > 0:
        state = connection.step(left)
        if state.health:
            events = state.device_events
            return msgspec.structs.replace(view, health=state.health, bursts=state.bursts, events=events)
    return view


def daemon_view(step: Callable[[float], NodeState], now_s: Callable[[], float] = time.monotonic) -> NodeView:
    """The daemon's latest tick, waited for at most ``DAEMON_WAIT_S``. Raises UnavailableError, ProtocolError."""
    from gpuwatch.client.state import Link
    from gpuwatch.errors import ProtocolError, UnavailableError
    from gpuwatch.model import DriverState

    deadline = now_s() + DAEMON_WAIT_S
    state = step(0.0)
    while True:
        if state.link is Link.INCOMPATIBLE:
            raise ProtocolError(f"{state.endpoint}: {state.detail}")
        if state.inventory and (state.devices or state.inventory.driver is not DriverState.OK):
            return view_of_state(state, state.inventory)
        left = deadline - now_s()
        if left <= 0:
            break
        state = step(min(left, 0.2))
    raise UnavailableError(
        f"the daemon at {state.endpoint} gave no reading within {DAEMON_WAIT_S:.0f} s: {state.detail}"
    )


def view_of_state(state: NodeState, inventory: Inventory) -> NodeView:
    """A client's picture as one reading; ages are at the daemon's last tick."""
    from gpuwatch.export.reading import NodeView

    recorded = f", recorded, {inventory.source.name}" if state.recorded else ""
    return NodeView(
        inventory=inventory,
        devices=state.devices,
        host=state.host,
        infos=state.infos,
        processes=state.processes,
        diagnoses=state.diagnoses,
        now_ns=state.tick_mono_ns,
        health=state.health,
        bursts=state.bursts,
        events=state.device_events,
        origin=f"daemon at {state.endpoint.removeprefix('ipc://')}{recorded}",
    )


def recorded_view(observations: Iterable[Observation], name: str) -> NodeView:
    """The end of a recording; its device columns are means over the last ``RECORDED_MEAN_S``."""
    from gpuwatch.errors import RecordingError
    from gpuwatch.export.reading import Gathering

    gathering = Gathering(RECORDED_MEAN_S)
    for observation in observations:
        gathering.add(observation)
    view = gathering.view(gathering.newest_ns, f"recorded, {name}")
    if view is None:
        raise RecordingError(f"{name}: holds no inventory of a machine; record again")
    return view


def direct_view(source: ObservationSource, now_s: Callable[[], float] = time.monotonic) -> NodeView:
    """What the hardware says within ``DIRECT_WAIT_S`` of the driver's opening, sooner when everything has answered."""
    from gpuwatch.errors import UnavailableError
    from gpuwatch.export.reading import Gathering

    gathering = Gathering(DIRECT_WAIT_S)
    arrived: queue.SimpleQueue[Observation] = queue.SimpleQueue()
    deadline, opened = now_s() + OPEN_WAIT_S, False
    source.start(arrived.put)
    try:
        while not gathering.complete() and (left := deadline - now_s()) > 0:
            try:
                gathering.add(arrived.get(timeout=left))
            except queue.Empty:
                break
            if gathering.opened and not opened:
                deadline, opened = now_s() + DIRECT_WAIT_S, True
        view = gathering.view(source.now_ns(), "read directly")
    finally:
        source.stop()
    if view is None:
        raise UnavailableError(f"the NVIDIA driver did not answer within {OPEN_WAIT_S:.0f} s; see dmesg for Xid errors")
    return view


def _require_driver(inventory: Inventory) -> None:
    from gpuwatch.errors import UnavailableError
    from gpuwatch.model import DriverState

    if inventory.driver is not DriverState.OK:
        raise UnavailableError(inventory.driver_hint or f"no GPU can be read: {inventory.driver.value}")
