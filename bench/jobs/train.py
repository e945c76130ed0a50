"""A ResNet-50 training job whose only bottleneck is the number of DataLoader workers.

    python train.py --workers 1 --seconds 60

Synthetic JPEGs (smooth noise, so that they decode like photographs) are held in memory; each sample is decoded,
cropped, resized and flipped on the CPU. The model is defined here: no download, no torchvision. Every five seconds one
JSON line: images per second and the share of the loop that waited for data. Needs torch and Pillow.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import random
import time
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Jpegs(Dataset[tuple[Tensor, int]]):
    """``length`` samples out of 64 distinct JPEGs."""

    def __init__(self, length: int, side: int, crop: int) -> None:
        self.length, self.crop = length, crop
        self.files = [_jpeg(seed, side) for seed in range(64)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        side = random.randint(image.width // 2, image.width)
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        image = image.resize((self.crop, self.crop), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self.crop, self.crop, 3), index % 1000


def _jpeg(seed: int, side: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 24, 24, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)
    grain = torch.rand(3, side, side, generator=generator) * 24
    pixels = (smooth[0] * 230 + grain).to(torch.uint8).permute(1, 2, 0).contiguous()
    out = io.BytesIO()
    Image.frombytes("RGB", (side, side), ctypes.string_at(pixels.data_ptr(), pixels.numel())).save(
        out, "JPEG", quality=90
    )
    return out.getvalue()


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet50() -> nn.Sequential:
    """ResNet-50 for 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inside, width, stride if block == 0 else 1))
            inside = width * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def train(options: argparse.Namespace) -> None:
    """Train until the time is up, printing a line every five seconds."""
    device = torch.device(options.device)
    model = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(
        Jpegs(10_000_000, options.side, options.crop), batch_size=options.batch, num_workers=options.workers,
        pin_memory=device.type == "cuda", persistent_workers=options.workers > 0, drop_last=True,
    )  # fmt: skip
    batches = iter(loader)
    end = time.monotonic() + options.seconds
    while (start := time.monotonic()) < end:
        waited, images = 0.0, 0
        while time.monotonic() - start < 5.0:
            before = time.monotonic()
            pixels, labels = next(batches)
            waited += time.monotonic() - before
            _step(model, optimizer, pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True))
            images += len(labels)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - start
        line = {
            "workers": options.workers,
            "images_per_s": round(images / seconds, 1),
            "data_wait": round(waited / seconds, 4),
        }
        print(json.dumps(line), flush=True)


def _step(model: nn.Module, optimizer: Any, pixels: Tensor, labels: Tensor) -> None:
    x = pixels.permute(0, 3, 1, 2).float().sub_(127.0).div_(64.0)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="ResNet-50 on synthetic JPEGs, bound by its loader")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=512, help="side of the JPEGs, pixels")
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
