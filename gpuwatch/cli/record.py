"""``gpuwatch record``: raw evidence of this machine and one job to a file.

Owns: the file's life (never over an existing one, readable when interrupted). Refuses: what is collected.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gpuwatch.cli.options import Duration

MIN_SECONDS, MAX_SECONDS = 1.0, 3600.0
FLUSH_EVERY_S = 1.0


@click.command("record", short_help="write raw evidence to a file, to replay or to attach to a report")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--for", "seconds", type=Duration(MIN_SECONDS, MAX_SECONDS), default="60s", show_default=True,
              help="How long to record.")  # fmt: skip
@click.option("--pid", type=click.IntRange(min=1), help="Look closely at this job (default: the one with most memory).")
@click.option("--note", default="", help="A line of text to keep in the file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object about the file (schema gpuwatch.record/1).")
def command(file: Path, seconds: float, pid: int | None, note: str, force: bool, as_json: bool) -> int:
    """Record everything gpuwatch reads: 10 Hz GPU counters, /proc and stacks of one job, the host.

    The file holds command lines, user names, paths and single source lines of the job: look before you publish it
    (zcat FILE). Play it with: gpuwatch tui --replay FILE, gpuwatch diagnose --replay FILE.
    """
    from gpuwatch.errors import CannotCreateError

    if file.exists() and not force:
        raise CannotCreateError(f"{file} exists; choose another name or overwrite it with --force")
    count, subject_pid = _record(file, seconds, pid, note)
    size = file.stat().st_size
    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        body = {"file": str(file), "bytes": size, "observations": count, "pid": subject_pid, "seconds": seconds}
        click.echo(dumps(document("record", body)))
    else:
        from gpuwatch import units

        who = f"job {subject_pid}" if subject_pid else "no job on a GPU"
        click.echo(f"{file}: {count} observations of {who}, {units.bytes_text(size)}")
    return 0


def _record(file: Path, seconds: float, pid: int | None, note: str) -> tuple[int, int]:
    from gpuwatch.cli.options import undecided_or_none
    from gpuwatch.daemon.jobs import Subject
    from gpuwatch.daemon.watch import here
    from gpuwatch.model import Observation
    from gpuwatch.replay.format import Writer

    undecided = undecided_or_none()
    with here() as watch:
        inventory = watch.open()
        subjects = watch.subjects()
        if pid is not None:
            subject = watch.subject(pid)
        elif subjects:
            subject = max(subjects, key=watch.memory_of)
        else:
            subject = Subject(0, tuple(d.index for d in inventory.devices))
        flushed = time.monotonic()
        with Writer(file, time.time_ns(), note) as writer:

            def keep(observation: Observation) -> None:
                nonlocal flushed
                writer.write(observation)
                if time.monotonic() - flushed >= FLUSH_EVERY_S:
                    writer.flush()
                    flushed = time.monotonic()

            def show(done: float, total: float) -> None:
                if sys.stderr.isatty():
                    click.echo(f"\r\033[Krecording: {done:.0f} of {total:.0f} s", nl=False, err=True)

            try:
                watch.collect(*(subject, seconds), stack_seconds=seconds, undecided=undecided, sink=keep, progress=show)
            except KeyboardInterrupt:
                click.echo("interrupted: keeping what was recorded", err=True)
            finally:
                if sys.stderr.isatty():
                    click.echo("\r\033[K", nl=False, err=True)
        return writer.count, subject.pid
