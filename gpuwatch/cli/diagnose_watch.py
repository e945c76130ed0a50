"""``gpuwatch diagnose --watch``: one diagnosis after the other until interrupted or until the job ends.

Owns: what is printed when. Refuses: judging, and the first look (diagnose.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuwatch.daemon.watch import Watch
    from gpuwatch.model import Diagnosis


def follow(pid: int | None, gpu: int | None, seconds: float, *, stacks: bool, as_json: bool) -> int:
    """Watch windows of ``seconds`` for ever. The exit code of the last window, also when interrupted."""
    from gpuwatch.cli.diagnose import chosen, exit_code
    from gpuwatch.cli.options import undecided_or_none
    from gpuwatch.daemon.watch import here
    from gpuwatch.diagnose.judge import diagnose

    causes: dict[int, tuple[str, ...]] = {}
    code = 0
    undecided = undecided_or_none()
    with here() as watch:
        devices = watch.open().devices
        try:
            while True:
                found = []
                for subject in chosen(watch, pid, gpu, devices):
                    seen = watch.collect(subject, seconds, stacks=stacks, undecided=undecided)
                    diagnosis = diagnose(seen, subject.pid, subject.device_indices)
                    found.append(diagnosis)
                    _tell(diagnosis, causes, as_json=as_json, watch=watch)
                code = exit_code(found)
                if pid is not None and any("ended during" in note for d in found for note in d.missing):
                    return code
        except KeyboardInterrupt:
            return code


def _tell(diagnosis: Diagnosis, causes: dict[int, tuple[str, ...]], *, as_json: bool, watch: Watch) -> None:
    if as_json:
        import json

        from gpuwatch.export.jsonable import document

        click.echo(json.dumps(document("diagnose", {"diagnoses": [diagnosis]})))
        return
    now = tuple(f.cause for f in diagnosis.findings)
    if causes.get(diagnosis.pid) != now:
        from gpuwatch.export.diagnosis_text import diagnosis_lines

        causes[diagnosis.pid] = now
        assert watch.inventory is not None
        click.echo("\n".join([*diagnosis_lines(diagnosis, watch.inventory.devices), ""]))
    click.echo(line(diagnosis, time.localtime()))


def line(diagnosis: Diagnosis, at: time.struct_time) -> str:
    """ "18:04:11 pid 505 loader_too_few_workers 92 % lost; computing 7 %, waiting_for_data 92 %"."""
    from gpuwatch import units

    who = f"pid {diagnosis.pid}" if diagnosis.pid else f"GPU {diagnosis.device_indices[0]}"
    verdict = diagnosis.verdict
    shares: Sequence[str] = [f"{s.activity} {units.pct_text(100 * s.share)}" for s in diagnosis.account[:3]]
    account = f"; {', '.join(shares)}" if shares else ""
    clock, lost = time.strftime("%H:%M:%S", at), units.pct_text(100 * verdict.lost_share)
    return f"{clock} {who} {verdict.cause} {lost} lost{account}"
