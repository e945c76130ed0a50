"""``gpuwatch probe outliers``: which node of many is worse than its peers, from a folder of results.

Owns: reading the folder. Refuses: the verdicts (verdict.outliers).
"""

from __future__ import annotations

from pathlib import Path

import click

from gpuwatch.cli import probe_output


@click.command("outliers")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--max-regression", metavar="PERCENT", help='Worse than the peers by more than this, such as "5%".')
@probe_output.options
def command(folder: Path, max_regression: str | None, output: probe_output.Output) -> int:
    """Compare the results of many nodes, one file of `probe run --json` per node, and name those that are worse.

    Files of one host are taken together. Exit codes: 0 none, 1 an outlier or a probe that only one node lacks, 2 far
    off or wrong arithmetic, 3 too few nodes to say or a file that holds no result.
    """
    from gpuwatch.cli.probe_files import read_document, regression
    from gpuwatch.errors import GpuwatchError, InputNotFoundError
    from gpuwatch.model import ProbeResult
    from gpuwatch.verdict.outliers import Node, outliers
    from gpuwatch.verdict.report_text import report

    if not folder.is_dir():
        raise InputNotFoundError(f"{folder}: no such folder")
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.is_file())
    except OSError as exc:
        raise InputNotFoundError(f"{folder}: {exc.strerror}") from None
    if not paths:
        raise InputNotFoundError(f"{folder}: no file that ends in .json")
    found: dict[str, list[ProbeResult]] = {}
    unread: dict[str, str] = {}
    for path in paths:
        try:
            document = read_document(path)
        except GpuwatchError as exc:
            # One node whose disk was full must not hide what the others say, nor be taken for a good one.
            unread[path.name] = " ".join(str(exc).split()).removeprefix(f"{path}: ")
            continue
        if document.results:
            found.setdefault(document.host or path.stem, []).extend(document.results)
        else:
            unread[path.name] = "no result in it"
    nodes = [Node(name, tuple(results)) for name, results in found.items()]
    share = regression(max_regression)
    judgement = outliers(nodes, share, f"probe outliers among {len(nodes)} nodes", unread)
    return probe_output.emit(
        judgement,
        output,
        "probe-outliers",
        {"nodes": list(found)},
        lambda: report(judgement, "peers", "node"),
        columns=("peers", "node"),
    )
