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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.page import write_part

PART = "figures"
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
    text = document([json.loads(Path(name).read_text(encoding="utf-8")) for name in files])
    if page is None:
        print(text)
        return 0
    try:
        write_part(page, PART, text)
    except ValueError as exc:
        print(f"probes_table: {exc}", file=sys.stderr)
        return 1
    return 0


def document(parts: list[dict[str, Any]]) -> str:
    """Where it was measured, the figures, the speed-ups, the noise, and what could not be measured."""
    results = [result for part in parts for result in part["results"]]
    good = [result for result in results if result["status"] == "ok"]
    lines = [origin(good), ""]
    rows = collected(good + again(parts, good))
    if any(row.probe != "train" for row in rows):
        lines += figures(rows, good[0]["device_name"])
    lines += speedups(rows)
    lines += meanwhile(good)
    for part in parts:
        lines += noise(part.get("selftest")) + with_itself(part.get("compare"))
    other = [result for result in results if result["status"] != "ok"]
    lines += [""] * bool(other) + [f"* `{r['probe']}`: {r['status']}, {r['message']}" for r in other]
    missing = left_out(parts)
    lines += [""] * bool(missing) + [f"* not run: {line}" for line in missing]
    return "\n".join(lines)


def again(parts: list[dict[str, Any]], good: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of selftest and compare that are fresh processes of the very same measurement: as long for each case."""
    seconds = {result["probe"]: result["settings"].get("seconds") for result in good}
    found = [
        run
        for part in parts
        for kind in ("selftest", "compare")
        for run in part.get(kind, {}).get("results", [])
        if run["status"] == "ok" and run["settings"].get("seconds") == seconds.get(run["probe"], "")
    ]
    return [run for run in found if not run["contaminated"]]


def left_out(parts: list[dict[str, Any]]) -> list[str]:
    """What no file has."""
    done = {key for part in parts for key in part.get("done", [])}
    told = {one["step"]: one["why"] for part in parts for one in part.get("left_out", [])}
    return [f"`{step}`: {why}" for step, why in told.items() if step not in done]


def origin(good: list[dict[str, Any]]) -> str:
    """Device and versions, as the results have them."""
    if not good:
        return "Nothing was measured."
    first = good[0]
    settings = first["settings"]
    return (
        f"{first['device_name']}, torch {settings['torch']}, CUDA {settings['cuda']}, cuDNN {settings['cudnn']}, "
        f"Python {settings['python']}, {settings['cpus']} CPUs."
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


def figures(rows: list[Row], device_name: str) -> list[str]:
    """The table of figures with the published one beside them."""
    names = {(row.probe, row.name) for row in rows}
    lines = ["| probe | figure | median | 20 % to 80 % | unit | processes | published |"]
    lines += ["| --- | --- | --: | --- | --- | --- | --- |"]
    for row in rows:
        # The time beside a rate, and the training steps, which have a table of their own.
        if (row.name.endswith("_ms") and (row.probe, row.name[:-3]) in names) or row.probe == "train":
            continue
        median = statistics.median(row.medians)
        spread = f"{number(row.p20)} to {number(row.p80)}"
        published = expectation(row, device_name, median)
        cells = (row.probe, f"`{row.name}`", number(median), spread, row.unit, processes(row), published)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def processes(row: Row) -> str:
    """How many fresh processes, and half of what their medians range over: "7, ±0.4 %"."""
    if len(row.medians) < 2:
        return str(len(row.medians))
    middle = statistics.median(row.medians)
    return f"{len(row.medians)}, ±{50.0 * (max(row.medians) - min(row.medians)) / middle:.1f} %" if middle else ""


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


MEANWHILE = (
    ("power_w", "W"),
    ("sm_clock_mhz", "SM MHz"),
    ("sm_active_pct", "SM active %"),
    ("tensor_active_pct", "tensor %"),
    ("dram_active_pct", "DRAM %"),
    ("energy_j", "J in all"),
)


def meanwhile(good: list[dict[str, Any]]) -> list[str]:
    """What gpuwatch read from the GPU while each probe ran: means under load."""
    seen = [result for result in good if result.get("observed")]
    if not seen:
        return []
    lines = ["", f"| while it ran | {' | '.join(head for _name, head in MEANWHILE)} |"]
    lines.append("| --- |" + " --: |" * len(MEANWHILE))
    for result in seen:
        told = result["observed"]
        cells = [number(told[name]) if name in told else "" for name, _head in MEANWHILE]
        lines.append(f"| `{result['probe']}` | {' | '.join(cells)} |")
    return lines


def noise(selftest: dict[str, Any] | None) -> list[str]:
    """What this machine can detect."""
    rows = [row for row in (selftest or {}).get("rows", []) if row.get("noise") is not None]
    if not rows:
        return []
    head = f"| selftest, {rows[0]['n_after']} pairs | noise of a process | smallest change found | verdict |"
    lines = ["", head, "| --- | --: | --: | --- |"]
    for row in rows:
        least = f"{100 * row['detectable']:.1f} %" if row["detectable"] < 1 else "more than twofold"
        lines.append(f"| `{row['probe']}.{row['value']}` | {100 * row['noise']:.2f} % | {least} | {row['verdict']} |")
    return lines


def with_itself(compare: dict[str, Any] | None) -> list[str]:
    """One environment against itself: no row should be FASTER or SLOWER."""
    rows = [row for row in (compare or {}).get("rows", []) if row.get("improvement") is not None]
    if not rows:
        return []
    lines = ["", f"| this environment against itself, {rows[0]['n_after']} pairs | change | 95 % interval | verdict |"]
    lines.append("| --- | --: | --- | --- |")
    for row in rows:
        low, high = (f"{100 * row[end]:+.2f} %" for end in ("low", "high"))
        change = f"{100 * row['improvement']:+.2f} %"
        lines.append(f"| `{row['probe']}.{row['value']}` | {change} | {low} … {high} | {row['verdict']} |")
    return lines


def number(value: float) -> str:
    """Three significant digits, or all before the point."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
