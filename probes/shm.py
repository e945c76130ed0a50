"""How fast do tensors pass between processes, and does shared memory suffice for a loader?

Another process writes random bytes into tensors in shared memory and hands them over a queue, as a loader's worker does
with its batches: small (1 MiB) and as large as a batch of 64 images of 3 × 224 × 224 in fp32 (37 MiB). Beside it the
copy of the same tensor inside one process, the pinning of memory for a GPU, and the size of /dev/shm.

Expected signature: hand-over of large tensors limited by filling them (memory bandwidth of one core, page faults on new
pages), small ones by the queue. Far below ``copy``: look at the sharing strategy, transparent huge pages and the number
of open files. Pinning is slow (1 to 5 GB/s): a loader that pins anew each batch, instead of reusing, pays it each time.

Validity: every tensor carries the CRC that its sender computed outside of the timed part; the first and the last of a
series are checked. A receiver that gets nothing for 30 s ends with a failure, not with a slow figure.
"""

from __future__ import annotations

import os
import queue
import time
import zlib
from collections.abc import Callable
from typing import Any

from . import clocks, device, harness
from .report import ProbeError, Report

NAME = "shm"
SECONDS = {"cuda": 1.0, "cpu": 0.5}
MIB = 1024**2
SHM = "/dev/shm"  # noqa: S108 (torch's workers put their batches there)
SIZES = (MIB, 37 * MIB)
WAITING = 2
"""Tensors on their way, as a worker's prefetch."""
PATIENCE_S = 30.0
CHECKED = 64 * 1024
"""Bytes at the end of a tensor that are compared."""


def parse_size(text: str) -> list[int]:
    """``--size 1024,37888``: KiB of a tensor. Raises ValueError with one line."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and 64 <= int(part) <= 4 * 1024**2 for part in parts):
        raise ValueError(f"--size {text}: expected KiB,KiB,… between 64 and 4194304")
    return [int(part) * 1024 for part in parts]


def capacity(path: str = SHM) -> tuple[int, int]:
    """(total, free) bytes of shared memory; (0, 0) where there is none."""
    try:
        state = os.statvfs(path)
    except OSError:
        return 0, 0
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def label(size: int) -> str:
    """Such as "37MiB"."""
    return f"{size // MIB}MiB" if size >= MIB and size % MIB == 0 else f"{size // 1024}KiB"


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all sizes into the report. Raises ProbeError when the sender dies or stays silent."""
    torch = target.torch
    total, free = capacity()
    report.settings.update(shm_total_bytes=str(total), shm_free_bytes=str(free))
    report.settings["sharing_strategy"] = str(torch.multiprocessing.get_sharing_strategy())
    if total:
        report.add("shm_total", "GiB", [total / device.GIB])
    for size_bytes in parse_size(size) if size else SIZES:
        name = label(size_bytes)
        say(f"{name}: copy")
        report.add(f"copy_{name}", "GB/s", copy_rates(torch, size_bytes, seconds))
        if target.is_cuda:
            say(f"{name}: pinning")
            report.add(f"pin_memory_{name}", "GB/s", pin_rates(torch, report, size_bytes, seconds))
        # The sender holds up to WAITING and makes one; the receiver holds one.
        if (WAITING + 2) * size_bytes > free // 2:
            report.notes.append(f"transfer_{name} is not available: shared memory ({SHM}) is too small for it")
            continue
        say(f"{name}: transfer")
        report.add(f"transfer_{name}", "GB/s", transfer_rates(torch, report, size_bytes, seconds))


def copy_rates(torch: Any, size: int, seconds: float) -> list[float]:
    """GB/s of a copy inside this process, into memory that exists: the ceiling."""
    source = device.host_random_bytes(torch, size, 1)
    destination = torch.empty_like(source)
    destination.copy_(source)
    clock = clocks.CpuClock()
    inner = harness.calibrate(clock, lambda: destination.copy_(source))
    times = harness.series(clock, lambda: destination.copy_(source), inner, harness.enough(seconds / 2))
    return [size / (ms * 1e6) for ms in times]


def pin_rates(torch: Any, report: Report, size: int, seconds: float) -> list[float]:
    """GB/s at which new memory is pinned and filled; torch's cache of pinned memory is emptied in between."""
    source = device.host_random_bytes(torch, size, 2)
    empty = getattr(torch._C, "_host_emptyCache", None) or getattr(torch._C, "_cuda_cudaHostEmptyCache", None)
    if empty is None:
        report.notes.append(
            f"pin_memory_{label(size)}: this torch keeps pinned memory, so only the first time is pinned"
        )
    rates: list[float] = []
    finished = harness.enough(seconds / 2)
    while True:
        if empty is not None:
            empty()
        began = time.perf_counter_ns()
        pinned = source.pin_memory()
        rates.append(size / (time.perf_counter_ns() - began))
        del pinned
        if finished(rates):
            return rates


def send(size: int, outgoing: Any, stop: Any) -> None:
    """The other process: new tensors in shared memory, each with the CRC of its end, until told to stop."""
    import torch

    torch.set_num_threads(1)
    pattern = device.host_random_bytes(torch, size, os.getpid() & 0xFFFF)
    check = zlib.crc32(bytes(pattern[-CHECKED:].tolist()))
    while not stop.is_set():
        # As a loader's collate does: straight into new shared memory.
        shared = torch.empty(0, dtype=torch.uint8).set_(
            torch.empty(0, dtype=torch.uint8).untyped_storage()._new_shared(size)
        )
        shared.resize_(size).copy_(pattern)
        while not stop.is_set():
            try:
                outgoing.put((shared, check), timeout=0.2)
                break
            except queue.Full:
                continue
    outgoing.cancel_join_thread()


def transfer_rates(torch: Any, report: Report, size: int, seconds: float) -> list[float]:
    """GB/s at which tensors arrive; the first ones, which were prepared ahead, are not counted."""
    context = torch.multiprocessing.get_context("fork")
    incoming, stop = context.Queue(WAITING), context.Event()
    sender = context.Process(target=send, args=(size, incoming, stop), daemon=True)
    sender.start()
    rates: list[float] = []
    group = max(1, 4 * MIB // size)
    finished = harness.enough(seconds)
    try:
        for _ in range(WAITING + 2):
            tensor, check = _receive(incoming, sender)
        _compare(report, tensor, check, size)
        while True:
            began = time.perf_counter_ns()
            for _ in range(group):
                tensor, check = _receive(incoming, sender)
            rates.append(group * size / (time.perf_counter_ns() - began))
            if finished(rates):
                _compare(report, tensor, check, size)
                return rates
    finally:
        stop.set()
        sender.join(2.0)
        if sender.is_alive():
            sender.kill()
            sender.join()


def _receive(incoming: Any, sender: Any) -> tuple[Any, int]:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            tensor, check = incoming.get(timeout=0.5)
        except queue.Empty:
            if not sender.is_alive():
                raise ProbeError(f"the sending process ended with {sender.exitcode}: is {SHM} full?") from None
            if time.monotonic() >= give_up:
                raise ProbeError(f"no tensor arrived for {PATIENCE_S:.0f} s") from None
        else:
            return tensor, check


def _compare(report: Report, tensor: Any, check: int, size: int) -> None:
    if tensor.numel() != size or zlib.crc32(bytes(tensor[-CHECKED:].tolist())) != check:
        report.problems.append(f"transfer_{label(size)}: a tensor arrived damaged")
