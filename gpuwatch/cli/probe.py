"""``gpuwatch probe``: measure what this machine can reach.

Owns: arguments, the wait for a probe in the foreground, the table. Refuses: measuring (the probe's child process does)
and judging a figure.
"""

from __future__ import annotations

import math
import queue
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from gpuwatch.daemon.probing import Runner
    from gpuwatch.model import Device, DeviceSample, ProbeResult, ProbeValue

LOOK_S = 0.25
"""How often the GPU's processes are read while a probe runs: somebody's job must not wait a second for us."""
SETTLE_S = 2.0
"""After one of our own probes, its process and utilization may still be listed for a moment."""


@click.group("probe", short_help="measure what this machine can reach")
def command() -> None:
    """Measure what this machine can reach: matrix arithmetic, convolutions, the loading of data.

    A probe runs torch in a process of its own, on a GPU that nobody else uses.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.probe-list/1).")
def list_command(as_json: bool) -> int:
    """Name the probes and the question that each answers."""
    from gpuwatch.verdict.probe_run import PROBES, QUICK

    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        probes = [{"name": spec.name, "question": spec.question, "quick": spec.name in QUICK} for spec in PROBES]
        click.echo(dumps(document("probe-list", {"probes": probes})))
        return 0
    width = max(len(spec.name) for spec in PROBES)
    for spec in PROBES:
        click.echo(f"{spec.name:<{width}}  {spec.question}")
        click.echo(f"{'':<{width}}  on a CPU: {spec.on_cpu}")
    return 0


@command.command("run")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--device", default="cuda:0", show_default=True, help="cuda:N, as numbered by `gpuwatch status`, or cpu.")
@click.option("--python", metavar="PATH", help="Interpreter that has torch; default: probes.python, else our own.")
@click.option("--seconds", type=click.FloatRange(0.01, 600), help="Measuring time of each case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema gpuwatch.probe/1).")
@click.option("--force", is_flag=True, help="Run beside other jobs. The result is marked as contaminated.")
def run_command(
    names: tuple[str, ...], device: str, python: str | None, seconds: float | None, as_json: bool, force: bool
) -> int:
    """Run probes one after another and print what they measured.

    Exit codes: 0 ok, 1 a result that cannot be true, 3 could not run, 64 usage, 75 the GPU is in use.
    """
    from gpuwatch.config import load
    from gpuwatch.daemon.probing import Runner
    from gpuwatch.verdict import probe_run

    probes = [probe_run.find_probe(name).name for name in names]
    index = device_index(device)
    gpu = None if index is None else find_gpu(index)
    if isinstance(gpu, str):
        results = [unavailable(probe, device, gpu) for probe in probes]
    else:
        runner = Runner(python or load().config.probes.python)
        with ending(runner):
            results = [run_one(runner, probe, gpu, seconds, force) for probe in probes]
    code = probe_run.exit_code(results)
    if as_json:
        from gpuwatch.export.jsonable import document, dumps

        click.echo(dumps(document("probe", {"results": results, "exit_code": code})))
    else:
        click.echo("\n\n".join("\n".join(result_lines(result)) for result in results))
    return code


class Gpu(NamedTuple):
    """The GPU to measure, and a way to read who is on it."""

    device: Device
    read: Callable[[], DeviceSample]


def device_index(text: str) -> int | None:
    """N of "cuda:N" (0 for "cuda"), None for "cpu". Raises UsageError."""
    from gpuwatch.errors import UsageError

    if text == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", text)
    if match is None:
        raise UsageError(f"--device {text}: expected cpu or cuda:N, such as cuda:0")
    return int(match[1] or 0)


def find_gpu(index: int) -> Gpu | str:
    """The GPU with NVML's number ``index``, or why there is none to be had. Raises UsageError for a wrong number."""
    from gpuwatch.collect.nvml import Nvml
    from gpuwatch.errors import UsageError
    from gpuwatch.model import DriverState

    nvml = Nvml()
    state, hint = nvml.open()
    if state is not DriverState.OK:
        return f"{(hint or state.value).rstrip('.')}; without a GPU use --device cpu"
    devices = nvml.devices()
    device = next((device for device in devices if device.index == index), None)
    if device is None:
        raise UsageError(f"--device cuda:{index}: this machine has cuda:0 to cuda:{len(devices) - 1}")
    reader = nvml.reader(index)
    return Gpu(device, lambda: reader.read(time.monotonic_ns(), gpm=False))


def run_one(runner: Runner, probe: str, gpu: Gpu | None, seconds: float | None, force: bool) -> ProbeResult:
    """One probe from start to end, watching for others on its GPU; its progress goes to stderr."""
    from gpuwatch.model import ProbeStatus

    results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
    give_up = time.monotonic() + (SETTLE_S if runner.has_run else 0.0)
    while True:
        refusal = runner.begin(
            probe,
            gpu.device if gpu else None,
            gpu.read() if gpu else None,
            results.put,
            seconds=seconds,
            force=force,
            progress=lambda line: click.echo(line, err=True),
        )
        if refusal is None:
            break
        if refusal.status is not ProbeStatus.BUSY or time.monotonic() >= give_up:
            return refusal
        time.sleep(LOOK_S)
    while True:
        try:
            return results.get(timeout=LOOK_S)
        except queue.Empty:
            if gpu:
                runner.check(gpu.read())


@contextmanager
def ending(runner: Runner) -> Iterator[None]:
    """However we end, the probe must not stay on the GPU: it has a session of its own and hears no Ctrl-C or hangup."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        runner.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def unavailable(probe: str, device: str, message: str) -> ProbeResult:
    """The result of a probe that has no GPU to run on."""
    from gpuwatch.model import ProbeResult, ProbeStatus

    return ProbeResult(probe, ProbeStatus.UNAVAILABLE, device, message=message)


def result_lines(result: ProbeResult) -> list[str]:
    """A head line, what went wrong, one aligned row per value, the notes."""
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
    lines.extend(f"  note: {note}" for note in result.notes)
    return lines


def _row(value: ProbeValue) -> tuple[str, ...]:
    return value.name, *map(_number, (value.median, value.p20, value.p80)), str(value.n), value.unit


def _number(value: float) -> str:
    """Four significant digits."""
    digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"
