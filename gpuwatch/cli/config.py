"""``gpuwatch config``: show the effective configuration, check a file.

Owns: its two outputs. Refuses: the rules, which are gpuwatch.config's.
"""

from __future__ import annotations

from pathlib import Path

import click


@click.group("config", short_help="show or check the effective configuration")
def command() -> None:
    """Show or check the effective configuration.

    Read in this order, later wins: /etc/gpuwatch/config.toml, $XDG_CONFIG_HOME/gpuwatch/config.toml, GPUWATCH_*
    variables, flags of a command.
    """


@command.command("show")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read this file instead of the default ones.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: key to value and origin.")
def show(file: Path | None, as_json: bool) -> int:
    """Print every key, its value and where the value came from."""
    import json

    from gpuwatch.config import KEYS, load, value_of

    loaded = load(file)
    rows = [(key, value_of(loaded.config, key), loaded.origins[key]) for key in KEYS]
    if as_json:
        click.echo(json.dumps({key: {"value": value, "origin": origin} for key, value, origin in rows}, indent=2))
        return 0
    texts = [(key, json.dumps(value), origin) for key, value, origin in rows]
    widths = [max(len(row[column]) for row in texts) for column in (0, 1)]
    for key, value, origin in texts:
        click.echo(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
    return 0


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> int:
    """Check one file and say what is wrong with it."""
    from gpuwatch.config import read_file

    keys = read_file(file)
    click.echo(f"{file}: ok, {len(keys)} key{'' if len(keys) == 1 else 's'} set")
    return 0
