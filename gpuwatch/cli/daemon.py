"""``gpuwatch daemon``: the service in the foreground.

Owns: its flags, and putting source, judge and probes together. Refuses: what the service does with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuwatch.collect.source import ObservationSource
    from gpuwatch.config import Config
    from gpuwatch.daemon.inquiries import Judge
    from gpuwatch.daemon.probe_service import ProbeRunner
    from gpuwatch.daemon.restart import Restart
    from gpuwatch.model import Diagnosis


@click.command("daemon", short_help="the service that the others connect to")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read this file instead of the default ones.")
@click.option("--replay", type=click.Path(path_type=Path), help="Play this recording instead of reading the machine.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Replay speed; 0 is as fast as possible.")
@click.option("--partial", is_flag=True, help="With --replay: play what a damaged recording still has.")
@click.option("--period", type=float, help="Seconds between two publishes, 0.1 to 5.")
@click.option("--runtime-dir", help="Where the sockets go, such as /run/gpuwatch.")
@click.option("--retry", type=float, default=30.0, hidden=True, help="Seconds between attempts to open the driver.")
@click.option("--embedded", is_flag=True, hidden=True, help="End when standard input ends.")
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON.")
def command(
    file: Path | None,
    replay: Path | None,
    speed: float,
    partial: bool,
    period: float | None,
    runtime_dir: str | None,
    retry: float,
    embedded: bool,
    as_json: bool,
) -> int:
    """Watch the GPUs and serve what is seen to `gpuwatch tui`, `status` and `diagnose`.

    Needs no privileges. SIGHUP reads the configuration again, SIGTERM ends it.
    """
    import os
    import sys

    from gpuwatch.config import load
    from gpuwatch.daemon.endpoint import choose_directory
    from gpuwatch.daemon.journal import setup
    from gpuwatch.daemon.service import Service
    from gpuwatch.errors import UsageError

    if speed < 0:
        raise UsageError(f"--speed {speed:g}: expected 0 (as fast as possible) or a positive factor")
    flags = {"period_s": period}
    if partial and replay is None:
        raise UsageError("--partial goes with --replay FILE")
    _one_arena()
    config = load(file, flags).config
    directory = choose_directory(runtime_dir, config.endpoint, os.environ, os.getuid())
    setup(config.log_level, as_json)
    source = _source(replay, speed, config, retry, partial=partial)
    restart = _restart(source)
    service = Service(
        source,
        config,
        _judge(),
        None if replay else _probes(config),
        directory=directory,
        # In a terminal SIGHUP means that the terminal is gone: nobody would see or end what stays.
        reload=None if sys.stdin is not None and sys.stdin.isatty() else lambda: load(file, flags).config,
        restart=restart,
        stop_fd=0 if embedded else -1,
        private=embedded and replay is None,
    )
    try:
        code = service.run()
        if service.replacing and restart is not None:
            restart.replace_process()
        return code
    finally:
        if embedded:
            _remove(directory)


def _one_arena() -> None:
    """Let all threads share one malloc arena: 60 MiB resident instead of 69 on an H200 (15 of them NVML's own), and
    nothing here allocates in parallel for long. glibc only; elsewhere it stays as it is."""
    import contextlib
    import ctypes

    arena_max = -8  # M_ARENA_MAX of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(arena_max, 1)


def _restart(source: ObservationSource) -> Restart | None:
    """A recording never needs one."""
    from gpuwatch.collect.node import NodeSource
    from gpuwatch.daemon.restart import Restart

    return Restart(source.restart_wanted) if isinstance(source, NodeSource) else None


def _source(replay: Path | None, speed: float, config: Config, retry_s: float, *, partial: bool) -> ObservationSource:
    if replay is not None:
        from gpuwatch.replay.player import ReplaySource

        return ReplaySource(replay, speed, partial=partial)
    from gpuwatch.collect.node import live_source

    return live_source(config.period_s, retry_s, let_sleep=config.let_gpus_sleep)


def _judge() -> Judge:
    """The rules are loaded with the first diagnosis, in its thread: a node without trouble never needs them."""

    def judge(*asked: Any, **known: Any) -> Diagnosis:
        from gpuwatch.diagnose.judge import diagnose

        return diagnose(*asked, **known)

    return judge


def _probes(config: Config) -> ProbeRunner | None:
    from gpuwatch.daemon.probing import probe_runner

    return probe_runner(config.probes)


def _remove(directory: Path) -> None:
    """The private directory of an embedded daemon, should its parent not be there any more to remove it."""
    from contextlib import suppress

    from gpuwatch.config import LOCK_FILE

    with suppress(OSError):
        for name in (LOCK_FILE, "stderr"):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
