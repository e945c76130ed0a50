"""``gpuwatch diagnose``: watch a job for a while and say what holds it back.

Owns: which jobs, for how long, and the exit code. Refuses: judging (diagnose/) and layout (export/).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatch.cli.options import Duration

if TYPE_CHECKING:
    from gpuwatch.daemon.jobs import Subject
    from gpuwatch.daemon.watch import Watch
    from gpuwatch.model import Device, Diagnosis, Observation

MIN_SECONDS, MAX_SECONDS = 4.0, 600.0


@click.command("diagnose", short_help="watch a job for a while and say what holds it back")
@click.option("--pid", type=click.IntRange(min=1), help="The job of this process (default: every job on a GPU).")
@click.option("--gpu", "gpu", type=click.IntRange(min=0), help="The jobs on this GPU.")
@click.option("--for", "seconds", type=Duration(MIN_SECONDS, MAX_SECONDS), default="20s", show_default=True,
              help="How long to watch each job.")  # fmt: skip
@click.option("--no-stacks", is_flag=True, help="Do not sample the job's stacks: counters only, less certain.")
@click.option("--replay", metavar="FILE", type=click.Path(path_type=Path), help="Diagnose a recording.")
@click.option("--partial", is_flag=True, help="With --replay: use what a damaged recording still has.")
@click.option(
    "--watch", "again", is_flag=True, help="Go on until interrupted: a line per window, all of it on a change."
)
@click.option(
    "--json-schema", is_flag=True, is_eager=True, expose_value=False, callback=lambda c, _p, asked: _schema(c, asked),
    help="Print the JSON Schema of --json and stop.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.diagnose/1).")
@click.option("--markdown", is_flag=True, help="Markdown, for a ticket.")
def command(
    pid: int | None, gpu: int | None, seconds: float, no_stacks: bool, replay: Path | None, partial: bool,
    again: bool, as_json: bool, markdown: bool,
) -> int:  # fmt: skip
    """Watch the jobs on the GPUs, then print ranked findings with evidence and remedy.

    Exit code: 0 healthy, 1 a finding of severity warning, 2 critical, 3 could not tell.
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    if partial and replay is None:
        raise click.UsageError("--partial goes with --replay FILE")
    if again and (replay is not None or markdown):
        raise click.UsageError("--watch looks at live jobs, as text or --json")
    if again:
        from gpuwatch.cli.diagnose_watch import follow

        return follow(pid, gpu, seconds, stacks=not no_stacks, as_json=as_json)
    if replay is not None:
        diagnoses, devices = _from_recording(replay, pid, gpu, partial=partial)
    else:
        diagnoses, devices = _live(pid, gpu, seconds, stacks=not no_stacks)
    _print(diagnoses, devices, as_json=as_json, markdown=markdown)
    return exit_code(diagnoses)


def run_text(replay: Path | None, *, partial: bool = False) -> int:
    """Print the diagnosis as text; for callers that are not on a terminal. Exit code as the command's."""
    read = _from_recording(replay, None, None, partial=partial) if replay else None
    diagnoses, devices = read or _live(None, None, 10.0, stacks=True)
    _print(diagnoses, devices, as_json=False, markdown=False)
    return exit_code(diagnoses)


def exit_code(diagnoses: Iterable[Diagnosis]) -> int:
    """The worst of all: critical, then warning, then "could not tell", then healthy."""
    from gpuwatch.errors import EXIT_CRITICAL, EXIT_HEALTHY, EXIT_UNKNOWN, EXIT_WARNING
    from gpuwatch.model import Severity

    of_severity = {Severity.CRITICAL: EXIT_CRITICAL, Severity.WARNING: EXIT_WARNING, Severity.INFO: EXIT_HEALTHY}
    codes: set[int] = set()
    for diagnosis in diagnoses:
        named = [f for f in diagnosis.findings if f.cause != "unattributed"]
        codes.update(of_severity[f.severity] for f in named)
        if diagnosis.verdict.cause == "unattributed":
            codes.add(EXIT_UNKNOWN)
    order = (EXIT_CRITICAL, EXIT_WARNING, EXIT_UNKNOWN, EXIT_HEALTHY)
    return next((code for code in order if code in codes), EXIT_HEALTHY)


def _from_recording(
    path: Path, pid: int | None, gpu: int | None, *, partial: bool = False
) -> tuple[list[Diagnosis], tuple[Device, ...]]:
    from gpuwatch.daemon.jobs import Jobs
    from gpuwatch.diagnose.judge import diagnose
    from gpuwatch.errors import InputNotFoundError
    from gpuwatch.model import DeviceSample, Inventory, ProcessTick
    from gpuwatch.replay.player import load

    observations = load(path, partial=partial)
    jobs = Jobs()
    infos = {i.pid: i for o in observations if isinstance(o, ProcessTick) for i in o.infos}
    for observation in observations:
        if isinstance(observation, DeviceSample):
            jobs.observe([observation])
    inventory = next(o for o in reversed(observations) if isinstance(o, Inventory))
    subjects = tuple(jobs.subjects(infos).values())
    if pid is not None:
        root = infos[pid].root_pid if pid in infos else pid
        chosen: Sequence[Subject] = [s for s in subjects if s.pid == root]
        if not chosen:
            there = ", ".join(str(s.pid) for s in subjects) or "none"
            raise InputNotFoundError(f"{path}: pid {pid} is not a GPU process of this recording (there are: {there})")
    else:
        # What was recorded on purpose has stacks; bystanders are judged only when asked for.
        focused = {getattr(o, "root_pid", 0) for o in observations}
        chosen = [s for s in subjects if s.pid in focused] or subjects
    chosen = _on_gpu(chosen, gpu, inventory.devices, str(path))
    return [diagnose(observations, s.pid, s.device_indices) for s in chosen], inventory.devices


def _live(
    pid: int | None, gpu: int | None, seconds: float, *, stacks: bool
) -> tuple[list[Diagnosis], tuple[Device, ...]]:
    from gpuwatch.cli.options import undecided_or_none
    from gpuwatch.daemon.watch import here
    from gpuwatch.diagnose.judge import diagnose

    undecided = undecided_or_none()
    with here() as watch:
        inventory = watch.open()
        found = []
        for subject in chosen(watch, pid, gpu, inventory.devices):
            seen: Sequence[Observation] = watch.collect(
                subject,
                seconds if subject.pid else min(seconds, MIN_SECONDS),
                stacks=stacks,
                undecided=undecided,
                progress=_progress(subject),
            )
            found.append(diagnose(seen, subject.pid, subject.device_indices))
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    return found, inventory.devices


def chosen(watch: Watch, pid: int | None, gpu: int | None, devices: Sequence[Device]) -> Sequence[Subject]:
    """The jobs that are there now and were asked for. Raises InputNotFoundError."""
    return _on_gpu([watch.subject(pid)] if pid is not None else watch.subjects(), gpu, devices, "here")


def _on_gpu(subjects: Sequence[Subject], gpu: int | None, devices: Sequence[Device], where: str) -> Sequence[Subject]:
    """The jobs to judge; a GPU without one is a subject of its own when it is asked for or nothing else is there."""
    from gpuwatch.daemon.jobs import Subject
    from gpuwatch.errors import InputNotFoundError

    if gpu is not None:
        if gpu not in {d.index for d in devices}:
            there = ", ".join(str(d.index) for d in devices) or "none"
            raise InputNotFoundError(f"no GPU {gpu} {where} (there are: {there})")
        return [s for s in subjects if gpu in s.device_indices] or [Subject(0, (gpu,))]
    return subjects or [Subject(0, (d.index,)) for d in devices]


def _progress(subject: Subject) -> Callable[[float, float], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: float, total: float) -> None:
        who = f"pid {subject.pid}" if subject.pid else f"GPU {subject.device_indices[0]}"
        click.echo(f"\r\033[Kwatching {who}: {done:.0f} of {total:.0f} s", nl=False, err=True)

    return show


def _schema(context: click.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from gpuwatch.export.json_schema import diagnose_schema
        from gpuwatch.export.jsonable import dumps

        click.echo(dumps(diagnose_schema()))
        context.exit()


def _print(diagnoses: Sequence[Diagnosis], devices: tuple[Device, ...], *, as_json: bool, markdown: bool) -> None:
    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        body = {"diagnoses": diagnoses, "devices": devices, "exit_code": exit_code(diagnoses)}
        click.echo(dumps(document("diagnose", body)))
        return
    from gpuwatch.export.diagnosis_text import diagnosis_lines, diagnosis_markdown

    for place, diagnosis in enumerate(diagnoses):
        if markdown:
            click.echo(diagnosis_markdown(diagnosis, devices))
        else:
            click.echo("\n".join([*([""] if place else []), *diagnosis_lines(diagnosis, devices)]))
