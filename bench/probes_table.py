"""Figures of ``bench/probes_h200.py`` as Markdown, put between two marker lines of docs/probes.md.

    python bench/probes_table.py probes.json [more.json …] docs/probes.md
    python bench/probes_table.py probes.json                                # print it

Owns: the tables. Refuses: measuring, rounding to what looks better, and figures of results that are not ok.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HIDDEN = ("_first_call_ms", "_first_call_s", "_p95_ms")
"""One sample a run: not comparable from day to day."""


class Row(NamedTuple):
    """One figure over all fresh processes."""

    probe: str
    name: str
    unit: str
    medians: list[float]
    p20: float
    p80: float


def main(arguments: list[str]) -> int:
    """Print, or rewrite the page when one is named last."""
    if not arguments:
        print("probes_table: name the JSON files of bench/probes_h200.py", file=sys.stderr)
        return 64
    page = Path(arguments[-1]) if arguments[-1].endswith(".md") else None
    files = arguments[:-1] if page else arguments
    parts = [json.loads(Path(name).read_text(encoding="utf-8")) for name in files]
    text = document([r for part in parts for r in part["results"]], [r for part in parts for r in part["reference"]])
    if page is None:
        print(text)
        return 0
    old = page.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        print(f"probes_table: {page} lacks the lines {BEGIN} and {END}", file=sys.stderr)
        return 1
    head, _, rest = old.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def document(results: list[dict[str, Any]], reference: list[dict[str, Any]]) -> str:
    """Where it was measured, the figures, the speed-ups, and what could not be measured."""
    good = [result for result in results if result["status"] == "ok"]
    lines = [origin(good), ""]
    rows = collected(good)
    if any(row.probe != "train" for row in rows):
        lines += figures(rows, reference, good[0]["device_name"])
    lines += speedups(rows)
    other = [result for result in results if result["status"] != "ok"]
    lines += [""] * bool(other) + [f"* `{r['probe']}`: {r['status']}, {r['message']}" for r in other]
    return "\n".join(lines)


def origin(good: list[dict[str, Any]]) -> str:
    """Device, versions and the number of fresh processes, as the results have them."""
    if not good:
        return "Nothing was measured."
    first = good[0]
    settings = first["settings"]
    runs = max(sum(1 for other in good if other["probe"] == result["probe"]) for result in good)
    processes = "one process" if runs == 1 else f"{runs} fresh processes"
    return (
        f"{first['device_name']}, torch {settings['torch']}, CUDA {settings['cuda']}, cuDNN {settings['cudnn']}, "
        f"Python {settings['python']}, {settings['cpus']} CPUs; {processes} per probe."
    )


def collected(good: list[dict[str, Any]]) -> list[Row]:
    """A row per figure, in the order of the results."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in good:
        for value in result["values"]:
            if not value["name"].endswith(HIDDEN):
                found.setdefault((result["probe"], value["name"]), []).append(value)
    return [
        Row(
            probe,
            name,
            values[0]["unit"],
            [value["median"] for value in values],
            min(value["p20"] for value in values),
            max(value["p80"] for value in values),
        )
        for (probe, name), values in found.items()
    ]


def figures(rows: list[Row], reference: list[dict[str, Any]], device_name: str) -> list[str]:
    """The table of figures with the published one and do_bench's beside them."""
    names = {(row.probe, row.name) for row in rows}
    lines = ["| probe | figure | median | 20 % to 80 % | unit | do_bench | published |"]
    lines += ["| --- | --- | --: | --- | --- | --- | --- |"]
    for row in rows:
        # The time beside a rate, and the training steps, which have a table of their own.
        if (row.name.endswith("_ms") and (row.probe, row.name[:-3]) in names) or row.probe == "train":
            continue
        median = statistics.median(row.medians)
        spread = f"{number(row.p20)} to {number(row.p80)}"
        beside = compared(row, median, reference)
        published = expectation(row, device_name, median)
        cells = (row.probe, f"`{row.name}`", number(median), spread, row.unit, beside, published)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def compared(row: Row, median: float, reference: list[dict[str, Any]]) -> str:
    """do_bench's figure and the difference in per cent, or ""."""
    found = [other["figure"] for other in reference if (other["probe"], other["value"]) == (row.probe, row.name)]
    if not found:
        return ""
    theirs = statistics.median(found)
    return f"{number(theirs)} ({100.0 * (median / theirs - 1.0):+.1f} %)"


def expectation(row: Row, device_name: str, median: float) -> str:
    """What gpuwatch says was published about this quantity, or ""."""
    from gpuwatch.verdict import expectations

    return expectations.published(row.probe, row.name, device_name, median)


def speedups(rows: list[Row]) -> list[str]:
    """Training steps: rate, peak memory, compile time, and times eager fp32."""
    train = {row.name: row for row in rows if row.probe == "train"}
    steps = [row for row in train.values() if row.unit.endswith("s/s")]
    if not steps:
        return []
    lines = ["", "| training steps | per second | × eager fp32 | peak GiB | compile s |"]
    lines += ["| --- | --: | --: | --: | --: |"]
    # The CPU first, as the row that everything else is measured from.
    for row in sorted(steps, key=lambda row: not row.name.endswith("_cpu")):
        cells = [f"`{row.name}`", f"{number(statistics.median(row.medians))} {row.unit.partition('/')[0]}"]
        for suffix in ("_speedup", "_peak", "_compile_s"):
            other = train.get(row.name + suffix)
            cells.append(number(statistics.median(other.medians)) if other else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def number(value: float) -> str:
    """Three significant digits, or all before the point."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
