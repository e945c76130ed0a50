"""How many samples a second can this machine prepare, and how many workers does that take?

JPEG photographs (375 × 500) held in memory are decoded and resized to 224 × 224 by ``torch.utils.data.DataLoader`` with
0, 1, 2, 4, … workers up to the usable cores. The best setting runs once more with images that need no work
(``ready``): what is left is collating and the way through shared memory. On a GPU it also runs with copies to the GPU,
from pageable memory and with ``pin_memory``.

Expected signature: samples/s grow with the workers until the cores are full; the knee is the smallest count within 5 %
of the best. Flat from 1 worker on: the main process, shared memory or a CPU quota is the limit. Falling beyond the
knee: too many workers. ``ready`` below the decoding rates: the hand-over is the limit, not the decoding. ``pinned`` no
faster than ``pageable``: the pinning thread is short of a core. A job that gets far less than this from its own loader
is slow in its own transform or storage.

Validity: the first batch of each setting must equal the items computed in the main process, bit by bit; a worker that
dies (shared memory too small) is a failure, not a slow result. The worker counts are limited by free shared memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import device, disk, harness, images, stats
from .report import ProbeError, Report

NAME = "dataloader"
SECONDS = {"cuda": 2.0, "cpu": 1.0}
BATCH = 32
PREFETCH = 2
SHM = "/dev/shm"  # noqa: S108 (torch's workers put their batches there)
SAMPLE_S = 0.05
"""A sample covers whole rounds of the workers, since batches arrive in bunches, and at least this long."""
LEAST_SAMPLES = 3


class Rate(NamedTuple):
    """One setting."""

    samples_per_s: list[float]
    start_s: float
    """Until the iterator existed, that is until the workers had been forked."""
    first_batch_s: float


def parse_size(text: str) -> int:
    """``--size 224``: side of the prepared image in pixels. Raises ValueError with one line."""
    if not text.isdigit() or not 16 <= int(text) <= 2048:
        raise ValueError(f"--size {text}: expected the side of the prepared image, 16 to 2048 pixels")
    return int(text)


def allowed_workers(cores: int, free_bytes: int, batch_bytes: int) -> int:
    """Workers whose prefetched batches, and one in hand, fill at most half of the free shared memory."""
    each = (PREFETCH + 1) * batch_bytes
    return min(cores, free_bytes // 2 // each)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all worker counts into the report. Raises ProbeError when a worker dies."""
    torch = target.torch
    # One thread per process, as in a worker: else 0 workers would use all cores for one item and look best.
    torch.set_num_threads(1)
    side = parse_size(size) if size else 224
    jpeg = images.have_pillow()
    say("making images")
    dataset = images.SyntheticImages(side, jpeg)
    cores = device.usable_cpus()
    most = allowed_workers(cores, disk.free_bytes(Path(SHM)), BATCH * 3 * side * side)
    if most < cores:
        report.notes.append(f"{most} workers at most instead of {cores}: shared memory ({SHM}) is too small")
    report.settings.update(
        work=f"jpeg 375x500 decode and resize to {side}" if jpeg else f"resize 375x500 to {side} in torch (no Pillow)",
        batch=str(BATCH),
        prefetch_factor=str(PREFETCH),
        start_method="fork",
        threads="1",
    )
    rates: dict[int, Rate] = {}
    for workers in stats.worker_counts(cores) if most else [0]:
        if workers <= most:
            say(f"{workers} workers")
            rates[workers] = measure(target, report, dataset, workers, seconds)
            report.add(f"workers_{workers}", "samples/s", rates[workers].samples_per_s)
    _conclude(target, report, dataset, rates, seconds, say)


def _conclude(
    target: device.Target,
    report: Report,
    dataset: Any,
    rates: dict[int, Rate],
    seconds: float,
    say: Callable[[str], None],
) -> None:
    best = stats.knee({count: stats.median(rate.samples_per_s) for count, rate in rates.items()})
    report.add_count("knee", "workers", best, len(rates))
    report.add("knee_first_batch", "s", [rates[best].first_batch_s], higher_is_better=False)
    if best:
        report.add("knee_worker_start", "s", [rates[best].start_s], higher_is_better=False)
    say(f"{best} workers, nothing to decode")
    ready = measure(target, report, images.ReadyImages(dataset.side), best, seconds)
    report.add("knee_ready", "samples/s", ready.samples_per_s)
    item_bytes = 3 * dataset.side * dataset.side
    report.add("knee_ready_rate", "GB/s", [rate * item_bytes / 1e9 for rate in ready.samples_per_s])
    if target.is_cuda:
        for name, pin in (("knee_pageable_to_gpu", False), ("knee_pinned_to_gpu", True)):
            say(f"{best} workers, to the GPU")
            report.add(name, "samples/s", measure(target, report, dataset, best, seconds, pin, True).samples_per_s)


def measure(
    target: device.Target,
    report: Report,
    dataset: Any,
    workers: int,
    seconds: float,
    pin: bool = False,
    to_gpu: bool = False,
) -> Rate:
    """One setting: start, first batch, then whole rounds for ``seconds``."""
    loader = make_loader(target.torch, dataset, workers, pin)
    started = time.perf_counter()
    try:
        batches = iter(loader)
        start_s = time.perf_counter() - started
        first = next(batches)
        first_batch_s = time.perf_counter() - started
        check_batch(target.torch, report, dataset, first, workers)
        del first
        samples = _steady(target, batches, workers, seconds, to_gpu)
    except RuntimeError as exc:
        raise ProbeError(f"{workers} workers: {' '.join(str(exc).split())}") from None
    return Rate(samples, start_s, first_batch_s)


def make_loader(torch: Any, dataset: Any, workers: int, pin: bool) -> Any:
    """The DataLoader under test. Fork, explicitly: Python 3.14's default would start workers another way."""
    options: dict[str, Any] = {}
    if workers:
        options = {"multiprocessing_context": "fork", "prefetch_factor": PREFETCH}
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, pin_memory=pin, **options)


def check_batch(torch: Any, report: Report, dataset: Any, batch: Any, workers: int) -> None:
    """The batch must hold exactly the first items, and they must be pictures."""
    expected = torch.stack([dataset[index] for index in range(BATCH)])
    if batch.dtype != torch.uint8 or not torch.equal(batch, expected):
        report.problems.append(f"workers_{workers}: the first batch is not what the dataset holds")
    elif int(expected.min()) == int(expected.max()):
        report.problems.append(f"workers_{workers}: the images are blank")


def _steady(target: device.Target, batches: Any, workers: int, seconds: float, to_gpu: bool) -> list[float]:
    """Samples per second of each round, after what was prefetched while the first batch was checked is used up."""
    round_batches = max(workers, 1)
    for _ in range(PREFETCH * workers):
        next(batches)
    rates: list[float] = []
    started = round_start = time.perf_counter()
    done = 0
    while True:
        for _ in range(round_batches):
            batch = next(batches)
            if to_gpu:
                batch.to(target.device, non_blocking=True)
        done += round_batches
        if to_gpu:
            target.torch.cuda.synchronize(target.device)
        now = time.perf_counter()
        if now - round_start < SAMPLE_S:
            continue
        rates.append(done * BATCH / (now - round_start))
        round_start, done = now, 0
        enough = now - started >= seconds and len(rates) >= LEAST_SAMPLES
        if enough or len(rates) >= harness.MOST_N:
            return rates
