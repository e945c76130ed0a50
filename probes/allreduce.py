"""How fast do gradients travel between this machine's GPUs?

``all_reduce``, ``all_gather_into_tensor`` and copies from each rank to the next (``send_recv``) over
``torch.distributed``: NCCL between all visible GPUs, gloo between two processes on a CPU. The probe starts its ranks
itself; under torchrun it takes the ranks that torchrun started, and rank 0 alone prints.

``algbw`` is buffer size over time, ``busbw`` what each link carries, by the definition of nccl-tests: ×2(n-1)/n for
all_reduce; ×(n-1)/n for all_gather, whose buffer is what each rank has in the end; ×1 for send_recv, where each rank
sends and receives one buffer at once. busbw can be compared between machines with different numbers of GPUs. Small
buffers show latency (µs).

Expected signature: busbw near the links' rate for large buffers (in-network reduction may exceed it). Far below: PCIe
instead of NVLink, or a slow rank; send_recv far above all_reduce: the reduction, not the links. ``…_skew`` says by how
much the slowest rank's time exceeds the fastest's.

Validity: ranks meet at a barrier before each sample, and a sample is the slowest rank's time; the buffer is refilled
with small whole numbers each time (repeated sums would grow to inf) and every rank compares every element.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import clocks, device, scratch
from .report import ProbeError, Report, UnavailableError

NAME = "allreduce"
SECONDS = {"cuda": 1.0, "cpu": 0.5}
KIB, MIB = 1024, 1024**2
SIZES = {"cuda": (32 * KIB, 64 * MIB, 1024 * MIB), "cpu": (32 * KIB, 16 * MIB)}
LATENCY_BYTES = 64 * KIB
OPERATIONS = ("all_reduce", "all_gather", "send_recv")
CPU_RANKS = 2
WARM = 5
LEAST, MOST = 10, 200
TIMEOUT_S = 120
STORE = "GPUWATCH_PROBE_STORE"
"""Names the file through which ranks that we started find each other."""


class Ranks(NamedTuple):
    """Who we are among the ranks."""

    rank: int
    world: int
    local: int


def parse_size(text: str) -> list[int]:
    """``--size 32,65536``: KiB of the buffer. Raises ValueError with one line."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and 1 <= int(part) <= 16 * 1024**2 for part in parts):
        raise ValueError(f"--size {text}: expected KiB,KiB,… between 1 and 16777216")
    return [int(part) * KIB for part in parts]


def bus_factor(operation: str, count: int) -> float:
    """busbw = this × algbw."""
    factors = {"all_reduce": 2.0 * (count - 1) / count, "all_gather": (count - 1) / count, "send_recv": 1.0}
    return factors[operation]


def own_rank(env: dict[str, str]) -> Ranks | None:
    """What torchrun, or we, told this process; None when it is nobody's rank."""
    numbers = [env.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(number.isdigit() for number in numbers):
        return None
    rank, world = map(int, numbers)
    local = env.get("LOCAL_RANK", "")
    return Ranks(rank, world, int(local) if local.isdigit() else rank)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Be a rank, or start them. Raises ProbeError when a rank fails, UnavailableError with fewer than two GPUs."""
    torch = target.torch
    if not torch.distributed.is_available():
        raise UnavailableError("this torch was built without torch.distributed")
    me = own_rank(dict(os.environ))
    if me is not None:
        _be_rank(target, report, me, seconds, size, say)
        return
    count = torch.cuda.device_count() if target.is_cuda else CPU_RANKS
    if count < 2:
        raise UnavailableError(
            "one GPU has nobody to exchange gradients with: make two or more visible (gpuwatch probe run: --device all)"
        )
    backend = "nccl" if target.is_cuda else "gloo"
    if not getattr(torch.distributed, f"is_{backend}_available")():
        raise UnavailableError(f"this torch was built without {backend}")
    say(f"starting {count} ranks")
    answer = launch(count, "cuda" if target.is_cuda else "cpu", seconds, size)
    report.values += answer["values"]
    report.settings.update(answer["settings"])
    report.notes += answer["notes"]
    if answer["status"] == "invalid":
        report.problems.append(answer["message"])
    elif answer["status"] != "ok":
        raise ProbeError(f"rank 0: {answer['message']}")


def command(folder: Path, where: str, seconds: float, size: str) -> list[str]:
    """How a rank is started: this folder again, by path, so that it is surely the same code."""
    arguments = [sys.executable, str(folder), NAME, "--json", "--device", where, "--seconds", f"{seconds:g}"]
    return [*arguments, "--size", size] if size else arguments


def launch(count: int, where: str, seconds: float, size: str) -> Any:
    """Rank 0's result object. The ranks share our session, so whoever ends us ends them. Raises ProbeError."""
    with scratch.folder("ranks") as folder:
        return _launch(folder / "store", count, where, seconds, size)


def _launch(store: Path, count: int, where: str, seconds: float, size: str) -> Any:
    import json

    ranks: list[Any] = []
    try:
        for rank in range(count):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            env[STORE] = str(store)
            # A rank per core: else each starts as many threads as there are cores.
            env.setdefault("OMP_NUM_THREADS", "1")
            arguments = command(
                Path(__file__).resolve().parent, where if where == "cpu" else f"{where}:{rank}", seconds, size
            )
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            ranks.append(subprocess.Popen(arguments, env=env, stdout=output, stdin=subprocess.DEVNULL))
        text, _ = ranks[0].communicate(timeout=TIMEOUT_S + 20 * seconds)
        for rank, process in enumerate(ranks):
            code = process.wait(timeout=20)
            if code not in (0, 1) or (code == 1 and rank):
                raise ProbeError(f"rank {rank} ended with {code}{_why(text)}")
        return json.loads(text)
    except subprocess.TimeoutExpired:
        raise ProbeError("the ranks did not finish: one of them hangs") from None
    except ValueError:
        raise ProbeError("rank 0 gave no result") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.wait()


def _why(text: bytes) -> str:
    import json

    try:
        return ": " + str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _be_rank(
    target: device.Target, report: Report, me: Ranks, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    torch = target.torch
    import datetime

    # Under torchrun every rank gets the same arguments: its GPU is that of its local rank.
    if target.is_cuda and target.device.index != me.local:
        target = device.open_target(torch, f"cuda:{me.local}")
    store = os.environ.get(STORE, "")
    torch.distributed.init_process_group(
        "nccl" if target.is_cuda else "gloo",
        init_method=f"file://{store}" if store else "env://",
        rank=me.rank,
        world_size=me.world,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    try:
        sizes = parse_size(size) if size else SIZES["cuda" if target.is_cuda else "cpu"]
        device.require_memory(target, 3 * max(sizes) + 64 * MIB)
        report.settings.update(ranks=str(me.world), backend=str(torch.distributed.get_backend()))
        for size_bytes in sizes:
            for operation in OPERATIONS:
                say(f"{operation} of {size_bytes // KIB} KiB")
                _measure(target, report, me, operation, size_bytes, seconds)
    finally:
        torch.distributed.destroy_process_group()


def elements(size: int, count: int) -> int:
    """fp32 numbers in a buffer of about ``size`` bytes, a multiple of the ranks."""
    return max(1, size // 4 // count) * count


def fill(torch: Any, target: device.Target, rank: int, numbers: int) -> Any:
    """Whole numbers 0 to 255: their sums over 65 000 ranks are exact in fp32."""
    generator = torch.Generator(device=target.device).manual_seed(100 + rank)
    return torch.randint(0, 256, (numbers,), device=target.device, generator=generator).float()


def wrong_elements(torch: Any, target: device.Target, operation: str, result: Any, count: int, sender: int = 0) -> int:
    """Elements that are not the sum, not the parts in order, or not the sender's; computed again from the seeds."""
    numbers = result.numel()
    if operation == "all_reduce":
        expected = torch.zeros_like(result)
        for rank in range(count):
            expected += fill(torch, target, rank, numbers)
    elif operation == "send_recv":
        expected = fill(torch, target, sender, numbers)
    else:
        parts = [fill(torch, target, rank, numbers // count) for rank in range(count)]
        expected = torch.cat(parts)
    return int((result != expected).sum().item())


def _measure(target: device.Target, report: Report, me: Ranks, operation: str, size: int, seconds: float) -> None:
    torch = target.torch
    distributed = torch.distributed
    numbers = elements(size, me.world)
    mine = fill(torch, target, me.rank, numbers // me.world if operation == "all_gather" else numbers)
    buffer = torch.empty(numbers, device=target.device)
    # torch 2.13 calls all_gather_into_tensor by a new name, and warns about the old one.
    gather = getattr(distributed, "all_gather_single", None) or getattr(distributed, "all_gather_into_tensor", None)
    clock = clocks.CudaClock(torch, target.device) if target.is_cuda else clocks.CpuClock()

    def once() -> float:
        buffer.copy_(mine) if operation == "all_reduce" else buffer.fill_(-1.0)
        distributed.barrier(**({"device_ids": [target.device.index]} if target.is_cuda else {}))
        clock.drain()
        start = clock.mark()
        if operation == "all_reduce":
            distributed.all_reduce(buffer)
        elif operation == "send_recv":
            pass_on(distributed, me, mine, buffer)
        elif gather is not None:
            gather(buffer, mine)
        else:
            distributed.all_gather(list(buffer.chunk(me.world)), mine)
        return float(clock.ms(start, clock.mark()))

    name = f"{operation}_{size // MIB}MiB" if size >= MIB else f"{operation}_{size // KIB}KiB"
    first_ms = once()
    each_s = max(_agreed(torch, target, [once() for _ in range(WARM)], distributed.ReduceOp.MAX)) / 1000.0
    rounds = min(MOST, max(LEAST, int(seconds / max(each_s, 1e-6))))
    times = [once() for _ in range(rounds)]
    slowest = _agreed(torch, target, times, distributed.ReduceOp.MAX)
    fastest = _agreed(torch, target, times, distributed.ReduceOp.MIN)
    wrong = wrong_elements(torch, target, operation, buffer, me.world, (me.rank - 1) % me.world)
    bad = torch.tensor([float(wrong)], device=target.device)
    distributed.all_reduce(bad)
    if float(bad.item()):
        report.problems.append(f"{name}: {int(bad.item())} element(s) are wrong on some rank")
    report.settings[f"{name}_first_call_ms"] = f"{first_ms:.2f}"
    if size <= LATENCY_BYTES:
        report.add(name, "µs", [ms * 1000.0 for ms in slowest], higher_is_better=False)
        return
    algorithm = [numbers * 4 / (ms * 1e6) for ms in slowest]
    report.add(f"{name}_algbw", "GB/s", algorithm)
    report.add(f"{name}_busbw", "GB/s", [rate * bus_factor(operation, me.world) for rate in algorithm])
    report.add(f"{name}_skew", "x", [slow / fast for slow, fast in zip(slowest, fastest)], higher_is_better=False)


def pass_on(distributed: Any, me: Ranks, mine: Any, buffer: Any) -> None:
    """Each rank's numbers to the next one, all at once."""
    there = distributed.P2POp(distributed.isend, mine, (me.rank + 1) % me.world)
    back = distributed.P2POp(distributed.irecv, buffer, (me.rank - 1) % me.world)
    for work in distributed.batch_isend_irecv([there, back]):
        work.wait()


def _agreed(torch: Any, target: device.Target, times: list[float], how: Any) -> list[float]:
    """Each sample's largest or smallest time over the ranks."""
    tensor = torch.tensor(times, dtype=torch.float64, device=target.device)
    torch.distributed.all_reduce(tensor, op=how)
    return [float(time_ms) for time_ms in tensor.tolist()]
