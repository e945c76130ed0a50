"""A job that tells how far it is, so that somebody else can see what slows it down.

    python steps.py --loop small      # bound by launching: 50 small kernels a step
    python steps.py --loop loader     # bound by its DataLoader: two workers, crops and resizes

About twenty times a second one JSON line on stdout: CLOCK_MONOTONIC in nanoseconds and the steps done since the start.
The first line has ``"ready"``. Runs until its reader has gone or the seconds are over. Needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

# Nothing here uses NumPy; a torch without it warns at its first tensor.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

REPORT_NS = 50_000_000
KERNELS = 50
SIDE, CROP = 256, 128


class Crops(Dataset[Tensor]):
    """Random crops of a few images, made by the CPU: about a millisecond each."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 256, (16, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> Tensor:
        top, left = (int(place) for place in torch.randint(0, SIDE - CROP, (2,)))
        crop = self.images[index % len(self.images), :, top : top + CROP, left : left + CROP].float()
        grown = nn.functional.interpolate(crop[None], size=(CROP * 2, CROP * 2), mode="bilinear", align_corners=False)
        return nn.functional.avg_pool2d(grown, 2)[0].sub_(127.0).div_(64.0)


class InOrder(torch.utils.data.Sampler[int]):
    """Indices without a list of them: a shuffled one of a billion would take the memory of the machine."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


def small(device: torch.device) -> Callable[[], None]:
    """One step: kernels that are over before the next is launched."""
    x = torch.zeros(1024, device=device)

    def step() -> None:
        for _ in range(KERNELS):
            x.add_(1.0)

    return step


def loader(device: torch.device, batch: int, workers: int) -> Callable[[], None]:
    """One step: a batch from the workers, forward, backward, update."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(1))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    crops = Crops()
    batches = iter(
        DataLoader(
            crops, batch_size=batch, num_workers=workers, sampler=InOrder(len(crops)),
            pin_memory=device.type == "cuda", persistent_workers=True,
        )
    )  # fmt: skip

    def step() -> None:
        loss = model(next(batches).to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def run(options: argparse.Namespace) -> None:
    """Step and report."""
    device = torch.device(options.device)
    step = small(device) if options.loop == "small" else loader(device, options.batch, options.workers)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(5):  # Libraries are loaded and workers are started before anybody counts.
        step()
    wait()
    ends = time.monotonic() + options.seconds
    steps, told_ns = 0, time.monotonic_ns()
    print(json.dumps({"ready": options.loop, "mono_ns": told_ns, "steps": 0}), flush=True)
    while time.monotonic() < ends:
        step()
        steps += 1
        if time.monotonic_ns() - told_ns >= REPORT_NS:
            wait()
            told_ns = time.monotonic_ns()
            print(json.dumps({"mono_ns": told_ns, "steps": steps}), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="a loop that tells its steps")
    parser.add_argument("--loop", choices=("small", "loader"), required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError):  # The reader has gone: that is how it ends.
        run(options)


if __name__ == "__main__":
    main()
