"""Synthetic images that cost the CPU what real ones do.

Owns: the dataset of the loader probe. Refuses: files and network: storage is another question.
"""

from __future__ import annotations

import io
import random
from typing import Any

IMAGES = 4
HEIGHT, WIDTH = 375, 500
"""The usual ImageNet photograph."""
LENGTH = 1 << 24
"""Longer than any run: an epoch's end would be measured as a restart of the workers."""


def have_pillow() -> bool:
    """Whether JPEG can be decoded here."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        return False
    return True


def smooth_pixels(seed: int) -> bytes:
    """An RGB picture, 375 × 500, of coarse patches and a little noise: it compresses as a photograph does."""
    chooser = random.Random(seed)  # noqa: S311 (patterns, not secrets)
    patch = 25
    columns = WIDTH // patch
    rows: list[bytes] = []
    for _ in range(HEIGHT // patch):
        colours = [[chooser.randrange(24, 232) for _ in range(3)] for _ in range(columns)]
        for _ in range(patch):
            noise = chooser.getrandbits(5 * WIDTH)
            row = bytearray()
            for x in range(WIDTH):
                shift = (noise >> (5 * x)) & 31
                row.extend(channel - 16 + shift for channel in colours[x // patch])
            rows.append(bytes(row))
    return b"".join(rows)


def encode_jpeg(pixels: bytes) -> bytes:
    """Quality 90, as cameras and data sets have it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("RGB", (WIDTH, HEIGHT), pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class SyntheticImages:
    """A map-style dataset: item ``i`` is always the same uint8 tensor 3 × side × side.

    With Pillow it decodes a JPEG held in memory and resizes it; without, torch resizes and normalises raw pixels.
    It holds bytes and numbers only, so that it can be pickled for any way of starting workers.
    """

    def __init__(self, side: int, jpeg: bool) -> None:
        pixels = [smooth_pixels(seed) for seed in range(IMAGES)]
        self.side = side
        self.jpeg = jpeg
        self.encoded = [encode_jpeg(picture) for picture in pixels] if jpeg else pixels

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        encoded = self.encoded[index % len(self.encoded)]
        return self._from_jpeg(encoded) if self.jpeg else self._from_pixels(encoded)

    def _from_jpeg(self, encoded: bytes) -> Any:
        import torch
        from PIL import Image

        # Pillow 9.1 moved the names, Pillow 10 dropped the old ones for a while.
        bilinear = getattr(Image, "Resampling", Image).BILINEAR
        with Image.open(io.BytesIO(encoded)) as picture:
            small = picture.convert("RGB").resize((self.side, self.side), bilinear)
        flat = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        return flat.view(self.side, self.side, 3).permute(2, 0, 1).contiguous()

    def _from_pixels(self, pixels: bytes) -> Any:
        import torch

        flat = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        picture = flat.view(1, HEIGHT, WIDTH, 3).permute(0, 3, 1, 2).float()
        small = torch.nn.functional.interpolate(picture, (self.side, self.side), mode="bilinear", align_corners=False)
        return small[0].round().clamp(0, 255).to(torch.uint8)


class ReadyImages:
    """A map-style dataset without work: items are a few random tensors 3 × side × side that exist already."""

    def __init__(self, side: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(31)
        self.pictures = [
            torch.randint(0, 256, (3, side, side), dtype=torch.uint8, generator=generator) for _ in range(IMAGES)
        ]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index % IMAGES]
