"""``gpuwatch tui``: finds something to watch and starts the UI.

Owns: the order of the search, the environment that Textual reads at import. Refuses: drawing, sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatch.errors import InputNotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.embedded import EmbeddedDaemon
    from gpuwatch.client.state import NodeState
    from gpuwatch.wire import StartDiagnosis

BUNDLED_RECORDING = "starved-loader.gwrec"
NO_DRIVER_NOTE = "no NVIDIA driver here: playing the bundled recording"
_DRIVER_NODES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""The last one is what WSL 2 has instead of the first two."""
_COLOR_SYSTEMS = {"auto": "auto", "16": "standard", "256": "256", "truecolor": "truecolor"}


@click.command("tui")
@click.option("--connect", "endpoints", multiple=True, metavar="ENDPOINT", help="Daemon to watch; exactly one for now.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Play a recording instead.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Of the replay; 0 is as fast as possible.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--mouse", is_flag=True, help="Take the mouse; without it the terminal selects text as usual.")
@click.option("--colors", type=click.Choice(list(_COLOR_SYSTEMS)), default="auto", show_default=True)
def command(
    endpoints: tuple[str, ...], replay: Path | None, speed: float, ascii_only: bool, mouse: bool, colors: str
) -> int:
    """Watch the GPUs of this machine and see why they idle.

    Finds the system's or the user's daemon; with none, starts one for as long as the UI runs. Without an NVIDIA
    driver it says so and plays the bundled recording. When the output is not a terminal, prints the status and the
    diagnosis as text.
    """
    if len(endpoints) > 1:
        raise UsageError(f"--connect given {len(endpoints)} times: one endpoint at a time for now")
    if replay is not None and endpoints:
        raise UsageError("--replay and --connect exclude each other: a recording needs no daemon")
    if speed < 0:
        raise UsageError(f"--speed {speed:g}: must be 0 (as fast as possible) or more")
    if replay is not None and not replay.exists():
        raise InputNotFoundError(f"{replay}: no such recording")
    connect = endpoints[0] if endpoints else None
    if not sys.stdout.isatty():
        return _as_text(replay, connect)
    _set_textual_environment(colors)
    from gpuwatch.tui.app import WatchApp
    from gpuwatch.tui.selection import ViewOptions

    endpoint, open_feed, note = _choose(replay, connect, speed)
    app = WatchApp(open_feed, ViewOptions(ascii_only=ascii_only, note=note), endpoint)
    app.run(mouse=mouse)
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def has_driver() -> bool:
    """NVML can be loaded and a kernel driver is there. False sends the UI to the bundled recording."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return any(Path(node).exists() for node in _DRIVER_NODES)


def bundled_recording() -> Path | None:
    """The recording that ships with the package, or None in an installation without it."""
    path = Path(__file__).parent.parent / "data" / BUNDLED_RECORDING
    return path if path.is_file() else None


class OwnedFeed:
    """A connection to a daemon that was started for it and ends with it."""

    def __init__(self, arguments: list[str]) -> None:
        """Start the daemon and connect to it. Raises GpuwatchError when it does not start."""
        from gpuwatch.client.connection import Connection
        from gpuwatch.client.embedded import EmbeddedDaemon

        with contextlib.ExitStack() as stack:
            self._daemon: EmbeddedDaemon = stack.enter_context(EmbeddedDaemon(arguments))
            self._connection: Connection = Connection(self._daemon.endpoint)
            stack.callback(self._connection.close)
            self._stack = stack.pop_all()

    def step(self, timeout_s: float) -> NodeState:
        """The connection's state. Raises UnavailableError with the daemon's last words when it has died."""
        reason = self._daemon.failure()
        if reason:
            raise UnavailableError(reason)
        return self._connection.step(timeout_s)

    def request(self, message: StartDiagnosis, /) -> None:
        """To the daemon."""
        self._connection.request(message)

    def close(self) -> None:
        """Connection first, then the daemon."""
        self._stack.close()


def _choose(
    replay: Path | None, connect: str | None, speed: float
) -> tuple[str, Callable[[], OwnedFeed | Connection], str]:
    """Name to show while connecting, how to open the feed (in its own thread), remark for the header."""
    from gpuwatch.client import endpoints
    from gpuwatch.client.connection import Connection

    def embedded(*arguments: str) -> Callable[[], OwnedFeed]:
        return lambda: OwnedFeed(list(arguments))

    if replay is not None:
        return replay.name, embedded("--replay", str(replay), "--speed", f"{speed:g}"), ""
    if connect or os.environ.get("GPUWATCH_ENDPOINT"):
        # A daemon that was named is waited for, not replaced by another.
        endpoint: str | None = endpoints.candidates(connect)[0]
    else:
        endpoint = endpoints.find()
    if endpoint is not None:
        return endpoint, partial(Connection, endpoint), ""
    recording = bundled_recording()
    if not has_driver() and recording is not None:
        return recording.name, embedded("--replay", str(recording), "--speed", f"{speed:g}"), NO_DRIVER_NOTE
    return "an embedded daemon", embedded(), ""


def _as_text(replay: Path | None, connect: str | None) -> int:
    """Status, then diagnosis; the exit code is the diagnosis's."""
    from gpuwatch.cli import diagnose, status

    if replay is None and connect is None and not has_driver():
        replay = bundled_recording()
        if replay is not None:
            print(f"gpuwatch: {NO_DRIVER_NOTE}", flush=True)
    status.run_text(replay=replay, connect=connect)
    print(flush=True)
    return diagnose.run_text(replay=replay)


def _set_textual_environment(colors: str) -> None:
    """Textual reads these once, at import: no animation and few frames, because the terminal may be far away."""
    os.environ["TEXTUAL_ANIMATIONS"] = "none"
    os.environ["TEXTUAL_FPS"] = "15"
    os.environ["TEXTUAL_SMOOTH_SCROLL"] = "0"
    if colors != "auto":
        os.environ["TEXTUAL_COLOR_SYSTEM"] = _COLOR_SYSTEMS[colors]
