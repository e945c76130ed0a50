"""``gpuwatch tui``: finds something to watch and starts the UI.

Owns: the order of the search, the environment that Textual reads at import. Refuses: drawing, sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuwatch.errors import EXIT_UNKNOWN, InputNotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.embedded import EmbeddedDaemon
    from gpuwatch.client.feed import Asked, OpenFeed
    from gpuwatch.client.state import NodeState

BUNDLED_RECORDING = "starved-loader.gwrec"
NO_DRIVER_NOTE = "no NVIDIA driver here: playing the bundled recording"
_DRIVER_NODES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""The last one is what WSL 2 has instead of the first two."""
_COLOR_SYSTEMS = {"auto": "auto", "16": "standard", "256": "256", "truecolor": "truecolor"}


@click.command("tui")
@click.option(
    "--connect",
    "endpoints",
    multiple=True,
    metavar="ENDPOINT",
    help="Daemon to watch: a directory, ipc://… or ssh://host; may be given many times.",
)
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Play a recording instead.")
@click.option("--partial", is_flag=True, help="With --replay: play what a damaged recording still has.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Of the replay; 0 is as fast as possible.")
@click.option("--readonly", is_flag=True, help="Only look: no signals, no diagnosis, no probe.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--mouse", is_flag=True, help="Take the mouse; without it the terminal selects text as usual.")
@click.option("--colors", type=click.Choice(list(_COLOR_SYSTEMS)), default="auto", show_default=True)
def command(
    endpoints: tuple[str, ...],
    replay: Path | None,
    partial: bool,
    speed: float,
    readonly: bool,
    ascii_only: bool,
    mouse: bool,
    colors: str,
) -> int:
    """Watch the GPUs of this machine, or of many, and see why they idle.

    Finds the system's or the user's daemon; with none, starts one for as long as the UI runs. Without an NVIDIA
    driver it says so and plays the bundled recording. When input or output is not a terminal, prints the status and
    the diagnosis as text; so it does with TERM=dumb.
    """
    _check(endpoints, replay, partial=partial, speed=speed)
    recording = Recording(replay, speed, partial) if replay is not None else None
    if not _can_draw():
        if len(endpoints) > 1:
            raise UsageError(f"--connect given {len(endpoints)} times: without a terminal one at a time")
        return _as_text(recording, endpoints[0] if endpoints else None)
    _set_textual_environment(colors)
    sources = _choose_all(recording, endpoints, speed)
    endpoint = sources[0][0]
    note = "" if recording is not None or not endpoint.endswith(BUNDLED_RECORDING) else NO_DRIVER_NOTE
    with contextlib.ExitStack() as stack:
        for _, open_feed in sources:
            if isinstance(open_feed, OwnDaemon):
                # Before Textual is imported: the daemon gets ready in the meantime.
                stack.enter_context(open_feed)
        return _on_screen(sources, note, readonly=readonly, ascii_only=ascii_only, mouse=mouse)


def _on_screen(sources: list[tuple[str, OpenFeed]], note: str, *, readonly: bool, ascii_only: bool, mouse: bool) -> int:
    """Until the person quits; the exit code. Raises the GpuwatchError that ended the only feed."""
    # Nothing that an import makes is garbage: looking for it took 9 of 143 ms.
    gc.disable()
    from gpuwatch.tui.app import WatchApp
    from gpuwatch.tui.selection import ViewOptions

    gc.freeze()
    gc.enable()
    (endpoint, open_feed), *more = sources
    view = "hosts" if more else "overview"
    options = ViewOptions(view=view, ascii_only=ascii_only or not _has_unicode(), note=note, readonly=readonly)
    app = WatchApp(open_feed, options, endpoint, more=more)
    app.run(mouse=mouse)
    if os.environ.get("STY"):
        # GNU screen without "altscreen on" (its default) leaves the picture there: the prompt belongs below it.
        sys.stdout.write("\x1b[999;1H\n")
        sys.stdout.flush()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def _can_draw() -> bool:
    """A terminal at both ends, of which one can address the lines: an editor's shell (TERM=dumb) cannot."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _has_unicode() -> bool:
    """The terminal's encoding has braille and boxes: every Unicode encoding, none of the others."""
    try:
        "⣿─".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


class Recording(NamedTuple):
    """What to play, and how."""

    path: Path
    speed: float = 1.0
    partial: bool = False

    def arguments(self) -> list[str]:
        """Of the daemon that plays it."""
        return ["--replay", str(self.path), "--speed", f"{self.speed:g}", *(["--partial"] if self.partial else [])]


def _check(endpoints: tuple[str, ...], replay: Path | None, *, partial: bool, speed: float) -> None:
    """Raises UsageError, InputNotFoundError."""
    if replay is not None and endpoints:
        raise UsageError("--replay and --connect exclude each other: a recording needs no daemon")
    if partial and replay is None:
        raise UsageError("--partial goes with --replay FILE")
    if speed < 0:
        raise UsageError(f"--speed {speed:g}: must be 0 (as fast as possible) or more")
    if replay is not None and not replay.exists():
        raise InputNotFoundError(f"{replay}: no such recording")
    twice = [name for name in endpoints if endpoints.count(name) > 1]
    if twice:
        raise UsageError(f"--connect {twice[0]} is given twice")


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


class OwnDaemon:
    """A daemon that is started for this screen and ends with it; calling it waits for it and connects."""

    def __init__(self, arguments: list[str]) -> None:
        """``arguments``: of ``gpuwatch daemon``, such as what it plays."""
        from gpuwatch.client.embedded import EmbeddedDaemon

        self._daemon: EmbeddedDaemon = EmbeddedDaemon(arguments)

    def __enter__(self) -> OwnDaemon:
        """Start it, without waiting for it."""
        self._daemon.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End it."""
        self._daemon.close()

    def __call__(self) -> OwnedFeed:
        """A connection, once the daemon serves. Raises UnavailableError with its last words when it does not."""
        from gpuwatch.client.connection import Connection

        self._daemon.wait_serving()
        return OwnedFeed(self._daemon, Connection(self._daemon.endpoint))


class OwnedFeed:
    """A connection that ends in an error when the daemon has ended, which nobody would start again."""

    def __init__(self, daemon: EmbeddedDaemon, connection: Connection) -> None:
        """``daemon`` is not ours to end."""
        self._daemon = daemon
        self._connection = connection

    def step(self, timeout_s: float) -> NodeState:
        """The connection's state. Raises UnavailableError with the daemon's last words when it has died."""
        reason = self._daemon.failure()
        if reason:
            raise UnavailableError(reason)
        return self._connection.step(timeout_s)

    def request(self, message: Asked, /) -> None:
        """To the daemon."""
        self._connection.request(message)

    def close(self) -> None:
        """The connection."""
        self._connection.close()


def _choose_all(recording: Recording | None, endpoints: tuple[str, ...], speed: float) -> list[tuple[str, OpenFeed]]:
    """Name to show while connecting, and how to open the feed in its own thread, of each host. Raises UsageError."""
    from gpuwatch.client.connection import Connection
    from gpuwatch.client.endpoints import normal
    from gpuwatch.client.hosts import FEW_HOSTS, KEEP_TICKS_OF_MANY
    from gpuwatch.client.ssh import SCHEME, SshFeed, target
    from gpuwatch.client.state import HISTORY_TICKS

    keep = HISTORY_TICKS if len(endpoints) <= FEW_HOSTS else KEEP_TICKS_OF_MANY
    named = endpoints or ((os.environ["GPUWATCH_ENDPOINT"],) if os.environ.get("GPUWATCH_ENDPOINT") else ())
    if recording is not None or not named:
        return [_choose_here(recording, speed)]
    out: list[tuple[str, OpenFeed]] = []
    for name in named:
        # A daemon that was named is waited for, not replaced by another.
        if name.startswith(SCHEME):
            target(name)
            out.append((name, partial(SshFeed, name, keep_ticks=keep)))
        else:
            out.append((normal(name), partial(Connection, normal(name), keep_ticks=keep)))
    return out


def _choose_here(recording: Recording | None, speed: float) -> tuple[str, OpenFeed]:
    """The recording, this machine's daemon, or one of our own: of the hardware, or of the bundled recording."""
    from gpuwatch.client import endpoints
    from gpuwatch.client.connection import Connection

    if recording is None:
        endpoint = endpoints.find()
        if endpoint is not None:
            return endpoint, partial(Connection, endpoint)
        bundled = bundled_recording()
        if has_driver() or bundled is None:
            return "an embedded daemon", OwnDaemon([])
        recording = Recording(bundled, speed)
    return recording.path.name, OwnDaemon(recording.arguments())


def _as_text(recording: Recording | None, connect: str | None) -> int:
    """Status, then diagnosis; the exit code is the diagnosis's."""
    if recording is not None:
        return _recording_as_text(recording)
    from gpuwatch.client import endpoints

    if connect is None and not os.environ.get("GPUWATCH_ENDPOINT") and endpoints.find() is None:
        bundled = bundled_recording()
        if not has_driver() and bundled is not None:
            print(f"gpuwatch: {NO_DRIVER_NOTE}", flush=True)
            return _recording_as_text(Recording(bundled))
        from gpuwatch.cli import diagnose, status

        status.run_text(replay=None, connect=None)
        print(flush=True)
        return diagnose.run_text(replay=None)
    return _daemon_as_text(connect)


def _recording_as_text(recording: Recording) -> int:
    from gpuwatch.cli import diagnose, status

    status.print_status(status.read(recording.path, None, partial=recording.partial))
    print(flush=True)
    return diagnose.run_text(replay=recording.path, partial=recording.partial)


def _daemon_as_text(connect: str | None) -> int:
    """What that daemon knows, its newest diagnoses included: a look of our own would be at another machine."""
    from gpuwatch.cli import diagnose, status
    from gpuwatch.export.diagnosis_text import diagnosis_lines

    view = status.read(None, connect)
    status.print_status(view)
    for found in view.diagnoses:
        print("\n" + "\n".join(diagnosis_lines(found, view.inventory.devices)))
    if not view.diagnoses:
        print("\nno diagnosis by that daemon yet", flush=True)
        return EXIT_UNKNOWN
    return diagnose.exit_code(view.diagnoses)


def _set_textual_environment(colors: str) -> None:
    """Textual reads these once, at import: no animation and few frames, because the terminal may be far away.

    A change waits for the next frame, so at 15 a second each key and the first readings came 67 ms late; keys repeat
    30 times a second."""
    os.environ["TEXTUAL_ANIMATIONS"] = "none"
    os.environ["TEXTUAL_FPS"] = "30"
    os.environ["TEXTUAL_SMOOTH_SCROLL"] = "0"
    if colors != "auto":
        os.environ["TEXTUAL_COLOR_SYSTEM"] = _COLOR_SYSTEMS[colors]
