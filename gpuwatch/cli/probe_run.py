"""``gpuwatch probe run``: measure, and print what was measured.

Owns: arguments and the table of figures. Refuses: comparing them with anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gpuwatch.cli import probe_measuring, probe_output

if TYPE_CHECKING:
    from gpuwatch.cli.probe_measuring import Asked
    from gpuwatch.model import ProbeResult, ProbeValue


@click.command("run")
@probe_measuring.options
@probe_measuring.PYTHON
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Fresh processes per probe.")
@click.option("--strict", is_flag=True, help="A probe that was skipped is not OK although others ran.")
@probe_output.options
def command(
    asked: Asked,
    python: str | None,
    runs: int,
    strict: bool,
    output: probe_output.Output,
) -> int:
    """Run probes one after another and print what they measured.

    allreduce is run once, over all the GPUs of --device. With --device all, a card that is more than 5 % slower than
    the best of its kind here is named by its UUID.

    Exit codes: 0 ok, 1 a card slower than its neighbours, 2 wrong arithmetic, 3 could not run or a figure that cannot
    be true, 64 usage, 75 the GPU is in use, 124 out of time.
    """
    from gpuwatch.verdict import skew
    from gpuwatch.verdict.measured import measured

    probes = asked.probes()
    seconds = asked.case_seconds()
    turns = asked.turns(probes)
    with asked.session(python) as session:
        results = [session.run(probe, place, seconds) for probe, place in turns for _run in range(runs)]
    judgement = measured(results, strict)
    return probe_output.emit(
        judgement,
        output,
        "probe",
        {"results": results},
        lambda: "\n\n".join("\n".join(part) for part in [*map(result_lines, results), skew.lines(results)] if part),
        columns=("", "median"),
        timed_out=session.timed_out,
    )


def result_lines(result: ProbeResult) -> list[str]:
    """A head line, what went wrong, one aligned row per value, what the GPU did meanwhile, published figures, notes."""
    from gpuwatch.verdict.expectations import published

    marked = ", contaminated" if result.contaminated else ""
    lines = [f"{result.probe} on {result.device_name or result.device}: {result.status.value}{marked}"]
    if result.message:
        lines.append(f"  {result.message}")
    if result.values:
        rows = [("", "median", "p20", "p80", "n", ""), *(_row(value) for value in result.values)]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for name, *numbers, unit in rows:
            cells = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join(["", f"{name:<{widths[0]}}", *cells, unit]).rstrip())
    seen = meanwhile(result.observed)
    if seen:
        lines.append(f"  meanwhile: {seen}")
    for value in result.values:
        told = published(result.probe, value.name, result.device_name, value.median)
        if told:
            lines.append(f"  {value.name}: {told}")
    lines.extend(f"  note: {note}" for note in result.notes)
    return lines


def meanwhile(observed: dict[str, float]) -> str:
    """ "612 W, SM clock 1755 MHz, tensor 61 %", of what was seen."""
    from gpuwatch import units

    shown: dict[str, Callable[[float], str]] = {
        "power_w": units.watts_text,
        "energy_j": lambda value: f"{value:.0f} J",
        "temp_c_max": units.celsius_text,
        "sm_clock_mhz": lambda value: f"SM clock {units.mhz_text(value)}",
        "sm_active_pct": lambda value: f"SM active {units.pct_text(value)}",
        "tensor_active_pct": lambda value: f"tensor {units.pct_text(value)}",
        "dram_active_pct": lambda value: f"DRAM {units.pct_text(value)}",
        "pcie_rx_bytes_per_s": lambda value: f"PCIe in {units.rate_text(value)}",
        "pcie_tx_bytes_per_s": lambda value: f"PCIe out {units.rate_text(value)}",
    }
    parts = [text(observed[name]) for name, text in shown.items() if name in observed]
    if observed.get("throttled_share", 0.0) > 0:
        parts.append(f"slowed down for heat or hardware reasons in {observed['throttled_share']:.0%} of the samples")
    parts += [f"{value:.4g} J per {name[11:-2]}" for name, value in observed.items() if name.startswith("energy_per_")]
    return ", ".join(parts)


def _row(value: ProbeValue) -> tuple[str, ...]:
    return value.name, *map(_number, (value.median, value.p20, value.p80)), str(value.n), value.unit


def _number(value: float) -> str:
    """Four significant digits."""
    digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"
