"""``gpuwatch probe``: measure what this machine can reach, and whether it still does.

Owns: the list of its sub-commands, and ``list``. Refuses: what the others do (``probe_*.py``).
"""

from __future__ import annotations

import click

from gpuwatch.cli import probe_baseline, probe_check, probe_compare, probe_outliers, probe_run


@click.group("probe", short_help="measure what this machine can reach")
def command() -> None:
    """Measure what this machine can reach: matrix arithmetic, memory, copies, launches, the loading of data.

    A probe runs torch in a process of its own, on a GPU that nobody else uses.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.probe-list/1).")
def list_command(as_json: bool) -> int:
    """Name the probes, the question that each answers, how long it takes and whom it disturbs."""
    from gpuwatch.verdict import catalogue
    from gpuwatch.verdict.probe_run import PROBES

    sets = {name: [spec.name for spec in catalogue.members(name, PROBES)] for name in catalogue.SETS}
    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        probes = [
            {
                "name": spec.name,
                "question": spec.question,
                "on_cpu": spec.on_cpu,
                "kind": spec.kind,
                "gpu_s": spec.gpu_s,
                "cpu_s": spec.cpu_s,
                "disturbs": spec.disturbs,
                "sets": [name for name, names in sets.items() if spec.name in names],
                "quick": spec.name in sets["quick"],
            }
            for spec in PROBES
        ]
        click.echo(dumps(document("probe-list", {"probes": probes})))
        return 0
    width = max((len(spec.name) for spec in PROBES), default=0)
    for spec in PROBES:
        click.echo(f"{spec.name:<{width}}  {spec.question}")
        click.echo(f"{'':<{width}}  on a CPU: {spec.on_cpu}")
        click.echo(f"{'':<{width}}  {spec.kind}, about {spec.gpu_s:g} s on a GPU; a neighbour feels: {spec.disturbs}")
    for name, names in sets.items():
        click.echo(f"--set {name}: {', '.join(names)}")
    return 0


for _sub in (
    probe_run.command,
    probe_baseline.command,
    probe_check.command,
    probe_compare.compare_command,
    probe_compare.selftest_command,
    probe_outliers.command,
):
    command.add_command(_sub)
