"""How many training steps a second does this machine do, and what does each speed-up bring?

Whole steps (forward, loss, backward, optimiser) of ResNet-50 (batch 256 at 224², batch 128 at 32² as on CIFAR-10) and
of a classifier of BERT-base's size (batch 8 and a batch that fills the GPU, 128 tokens), data already on the device:
eager fp32 (TF32 off), TF32, AMP bf16, channels_last, torch.compile. The CPU is the first row.

Expected signature: on tensor cores TF32 two to three times fp32, AMP again 1.5 to 2 times, channels_last on top for
convolutions, compile 1.1 to 1.5 times more. BERT at batch 8 gains little from types: launches are the limit. AMP no
faster than fp32: tensor cores are not used, or something else is slow.

Validity: the first loss of every case must be that of fp32 within 5 %, from the same weights and data; all losses are
finite; a step changes the weights. ``…_speedup`` is against eager fp32 of the same run. Compile time (empty caches) and
peak memory are apart. A batch that does not fit is halved; the batch is in the name of every figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import clocks, device, harness, steps
from .report import Report, UnavailableError, first_line

NAME = "train"
SECONDS = {"cuda": 1.0, "cpu": 0.5}
LOSS_TOLERANCE = 0.05
LEAST_COMPARED = 8
FILL_SHARE = 0.8
FILL_MOST = 512
TOKENS = 128
FILL = 0
"""In place of a batch: as large as fits."""


class Setup(NamedTuple):
    """A network and its input. ``side``: pixels, or tokens."""

    network: str
    batch: int
    side: int


class Case(NamedTuple):
    """One way to train."""

    name: str
    tf32: bool = False
    amp: bool = False
    channels_last: bool = False
    compiled: bool = False


FP32 = Case("fp32")
RESNET_CASES = (
    FP32,
    Case("tf32", tf32=True),
    Case("amp", tf32=True, amp=True),
    Case("amp_channels_last", tf32=True, amp=True, channels_last=True),
    Case("amp_channels_last_compile", tf32=True, amp=True, channels_last=True, compiled=True),
)
BERT_CASES = (*RESNET_CASES[:3], Case("amp_compile", tf32=True, amp=True, compiled=True))
SETUPS = {
    "cuda": (
        Setup("resnet50", 256, 224),
        Setup("resnet50", 128, 32),
        Setup("bert", 8, TOKENS),
        Setup("bert", FILL, TOKENS),
    ),
    "cpu": (Setup("resnet50", 16, 32), Setup("bert", 2, 32)),
}
CPU_ROW = {"resnet50": 4, "bert": 2}
"""Batch of the first row: a step of the GPU's batch would take a CPU minutes."""


def parse_size(text: str) -> list[Setup]:
    """``--size resnet50:256x224,bert:8x128,bert:fillx128``. Raises ValueError with one line."""
    found = []
    for part in text.split(","):
        network, _, sides = part.partition(":")
        batch, _, side = sides.partition("x")
        least = {"resnet50": 32, "bert": 2, "tiny": 2}.get(network, 0)
        # "fill" needs a GPU and the extrapolation from two small batches, which is BERT's.
        full = batch == "fill" and network == "bert"
        good = least and side.isdigit() and (full or (batch.isdigit() and 1 <= int(batch) <= 65536))
        if not good or not least <= int(side) <= 1024 or (network != "resnet50" and int(side) > 512):
            raise ValueError(
                f"--size {text}: expected NETWORK:BATCHxSIDE,… such as resnet50:256x224,bert:8x128 (bert: up to 512; "
                "bert:fillx128 takes the batch that fills the GPU)"
            )
        found.append(Setup(network, FILL if full else int(batch), int(side)))
    return found


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all networks and cases into the report. Raises UnavailableError when nothing fits."""
    setups = parse_size(size) if size else SETUPS["cuda" if target.is_cuda else "cpu"]
    report.settings.update(data="random, on the device", optimiser="resnet50 SGD with momentum, bert AdamW")
    budget = harness.Budget.of(seconds, intensive=target.is_cuda)
    with steps.empty_compile_caches():
        for setup in setups:
            wanted = setup
            if setup.batch == FILL:
                if not target.is_cuda:
                    raise UnavailableError("a batch that fills the memory is for a GPU: name a batch")
                wanted = setup._replace(batch=filling_batch(target, setup))
                report.notes.append(f"{setup.network}: a batch of {wanted.batch} fills the GPU")
            if target.is_cuda:
                _cpu_row(target, report, setup, seconds, say)
            _measure_setup(target, clock, report, wanted, budget, say)
    if not report.values:
        raise UnavailableError("not even a batch of one fits: use a GPU with more memory or a smaller --size")


def cases(target: device.Target, setup: Setup, report: Report) -> list[Case]:
    """What this device and this torch can do; the rest is noted."""
    table = RESNET_CASES if setup.network == "resnet50" else BERT_CASES
    if not target.is_cuda:
        # bf16 without AMX runs for minutes, and so does compiling these networks for a CPU.
        layouts = [Case("channels_last", channels_last=True)] if setup.network == "resnet50" else []
        return [FP32, *layouts]
    missing = steps.compile_obstacle(target.torch, target.is_cuda)
    found = []
    for case in table:
        if target.capability < 8 and (case.tf32 or case.amp):
            report.notes.append(f"{setup.network} {case.name} is not available: this GPU has no units for it")
        elif case.compiled and missing:
            report.notes.append(f"{setup.network} {case.name} is not available: {missing}")
        else:
            found.append(case)
    return found


def _measure_setup(
    target: device.Target,
    clock: Any,
    report: Report,
    setup: Setup,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> None:
    """All cases at the largest batch that the first one can hold."""
    base: float | None = None
    first_loss: float | None = None
    for case in cases(target, setup, report):
        while True:
            label = f"{setup.network}_b{setup.batch}_{setup.side}"
            try:
                result = _measure(target, clock, report, setup, case, budget, harness.prefixed(say, label))
                break
            except (RuntimeError, MemoryError) as exc:
                if not device.is_out_of_memory(exc):
                    if not case.compiled:
                        raise
                    report.notes.append(f"{label} {case.name} is not available: {first_line(exc)}")
                    return
            # Outside of the handler: the exception's frames hold the tensors.
            device.release(target)
            if base is not None or setup.batch == 1:
                report.notes.append(f"{label} {case.name} left out: it does not fit in memory")
                return
            report.notes.append(f"{label} does not fit in memory: half the batch instead")
            setup = setup._replace(batch=setup.batch // 2)
        if case.compiled:
            target.torch._dynamo.reset()  # it holds the network
        device.release(target)
        rate, loss = result
        name = f"{label}_{case.name}"
        if first_loss is None:
            base, first_loss = rate, loss
        elif setup.network == "resnet50" and setup.batch < LEAST_COMPARED:
            report.settings[f"{name}_loss"] = "not compared: batch norm over so few images is chaotic"
        elif abs(loss - first_loss) > LOSS_TOLERANCE * first_loss:
            report.problems.append(f"{name}: first loss {loss:.4f}, and {first_loss:.4f} in fp32: it computes wrong")
        if base:
            report.add(f"{name}_speedup", "x", [rate / base])
    _cpu_speedup(report, setup, base)


def _measure(
    target: device.Target,
    clock: Any,
    report: Report,
    setup: Setup,
    case: Case,
    budget: harness.Budget,
    say: Callable[[str], None],
) -> tuple[float, float]:
    """(images or sequences per second, first loss)."""
    torch = target.torch
    name = f"{setup.network}_b{setup.batch}_{setup.side}_{case.name}"
    switches = device.set_tf32(torch, case.tf32)
    report.settings[f"{name}_fp32"] = f"{switches['matmul_fp32']}/{switches['conv_fp32']}"
    if target.is_cuda:
        torch.cuda.reset_peak_memory_stats(target.device)
    step = steps.make_step(target, setup, case)
    before = step.weights_sum()
    timing = harness.time_case(
        clock, step.run, budget, lambda text: say(f"{case.name}: {text}"), burst=False, hold=False
    )
    losses = step.losses()
    if not all(loss == loss and abs(loss) != float("inf") for loss in losses):  # noqa: PLR0124 (NaN differs from itself)
        report.problems.append(f"{name}: a loss is not finite")
    if step.weights_sum() == before:
        report.problems.append(f"{name}: the step did not change the weights")
    unit = "images/s" if setup.network == "resnet50" else "sequences/s"
    rates = [setup.batch * 1000.0 / ms if ms > 0 else 0.0 for ms in timing.sustained_ms]
    report.add(name, unit, rates)
    report.add(f"{name}_ms", "ms", timing.sustained_ms, higher_is_better=False)
    cold = "compile_s" if case.compiled else "first_call_s"
    report.add(f"{name}_{cold}", "s", [timing.first_call_ms / 1000.0], higher_is_better=False)
    if target.is_cuda:
        peak = torch.cuda.max_memory_allocated(target.device) / device.GIB
        report.add(f"{name}_peak", "GiB", [peak], higher_is_better=False)
    harness.note_timing(report, name, timing)
    return harness.middle(rates), losses[0]


def _cpu_row(target: device.Target, report: Report, setup: Setup, seconds: float, say: Callable[[str], None]) -> None:
    """The same network on the CPU, at a batch that it finishes: the first row of the table."""
    name = _cpu_name(setup)
    if any(value["name"] == name for value in report.values):
        return
    cpu = device.open_target(target.torch, "cpu")
    small = setup._replace(batch=CPU_ROW.get(setup.network, 2))
    device.set_tf32(target.torch, False)
    say(f"{name}: on the CPU")
    step = steps.make_step(cpu, small, FP32)
    harness.first_call(clocks.CpuClock(), step.run)
    times = harness.series(clocks.CpuClock(), step.run, 1, harness.enough(seconds))
    report.add(
        name, "images/s" if setup.network == "resnet50" else "sequences/s", [small.batch * 1e3 / t for t in times]
    )


def _cpu_name(setup: Setup) -> str:
    return f"{setup.network}_b{CPU_ROW.get(setup.network, 2)}_{setup.side}_cpu"


def _cpu_speedup(report: Report, setup: Setup, base: float | None) -> None:
    """The CPU's row in units of the GPU's eager fp32."""
    name = _cpu_name(setup)
    if any(value["name"] == f"{name}_speedup" for value in report.values):
        return
    for value in list(report.values):
        rate = value["median"]
        if value["name"] == name and base and isinstance(rate, float):
            report.add(f"{name}_speedup", "x", [rate / base])


def filling_batch(target: device.Target, setup: Setup) -> int:
    """The largest power of two that takes 80 % of the free memory, from the peaks of two small batches in fp32."""
    torch = target.torch
    device.set_tf32(torch, False)
    peaks = []
    for batch in (8, 16):
        torch.cuda.reset_peak_memory_stats(target.device)
        step = steps.make_step(target, setup._replace(batch=batch), FP32)
        step.run()
        step.run()  # AdamW makes its state in the first step
        peaks.append(int(torch.cuda.max_memory_allocated(target.device)))
        del step
        device.release(target)
    free = int(torch.cuda.mem_get_info(target.device)[0])
    return batch_for(peaks[0], peaks[1], free)


def batch_for(peak_8_bytes: int, peak_16_bytes: int, free_bytes: int) -> int:
    """Batch whose extrapolated peak is within ``FILL_SHARE`` of the free memory: a power of two, 8 to ``FILL_MOST``."""
    each = max(1, (peak_16_bytes - peak_8_bytes) // 8)
    fixed = max(0, peak_8_bytes - 8 * each)
    batch = 8
    while batch < FILL_MOST and fixed + 2 * batch * each <= FILL_SHARE * free_bytes:
        batch *= 2
    return batch
