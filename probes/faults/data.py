"""Samples and how they reach the network.

Owns: the files of a store, reading and decoding one sample, and the three sources of batches. Refuses: the network.
Decoding is Pillow's or cv2's, reads are real reads; nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import io
import mmap
import os
import random
import signal
import threading
import zlib
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

from .files import PIECE_BYTES
from .nets import CLASSES, TINY, VOCABULARY
from .plan import Plan

FILES, SIDE, CROP = 16, 512, 128
SEQUENCE = 512
POOL = 2
PR_SET_PDEATHSIG = 1
_turn = threading.Lock()


def jpeg(seed: int, side: int = SIDE) -> bytes:
    """A smooth picture with some grain: it decodes as a photograph does."""
    from PIL import Image

    chooser = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 24, 24, generator=chooser)
    smooth = F.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)
    pixels = (smooth[0] * 230 + torch.rand(3, side, side, generator=chooser) * 24).to(torch.uint8)
    flat = pixels.permute(1, 2, 0).contiguous().flatten()
    out = io.BytesIO()
    raw = ctypes.string_at(flat.data_ptr(), flat.numel())
    Image.frombytes("RGB", (side, side), raw).save(out, "JPEG", quality=90)
    return out.getvalue()


class Items:
    """A map-style dataset; item ``i`` is a uint8 image (or ``parts`` pieces of it) and a class."""

    def __init__(self, plan: Plan, folder: Path, files: list[bytes], length: int) -> None:
        self.plan, self.folder, self.files, self.length = plan, folder, files, length
        self._open: dict[str, Any] = {}
        self.counts = (max(1, len(list((folder / "b" / "0").glob("*"))) * 64), (folder / "a.bin").stat().st_size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.plan.guard:
            with _turn:
                pass
        x = self.prepare(self.read(index), index)
        if self.plan.parts > 1:
            return [part.clone() for part in x.chunk(self.plan.parts, 1)], index % CLASSES
        return x, index % CLASSES

    def read(self, index: int) -> bytes:
        """The encoded image, from wherever the store has it."""
        plan, data = self.plan, self.files[index % len(self.files)]
        if plan.store == "http":
            return self._request(index % len(self.files))
        if plan.store == "raw":
            self._blocks(plan.read_kib)
        elif plan.store == "pieces":
            for _ in range(plan.pieces):
                self._piece(random.randrange(self.counts[0]))  # noqa: S311
        elif plan.store == "packed" and plan.pieces:
            with (self.folder / "a.bin").open("rb") as file:
                zlib.crc32(file.read(plan.pieces * PIECE_BYTES))
        return data

    def _request(self, number: int) -> bytes:
        link = self._open.get("http")
        if link is None:
            link = self._open["http"] = http.client.HTTPConnection("127.0.0.1", self.plan.port, timeout=30)
        link.request("GET", f"/{number}")
        return bytes(link.getresponse().read())

    def _blocks(self, kib: int) -> None:
        """Reads of 1 MiB past the page cache; where O_DIRECT is refused, dropped from it afterwards."""
        if "raw" not in self._open:
            path = str(self.folder / "a.bin")
            try:
                handle, direct = os.open(path, os.O_RDONLY | os.O_DIRECT), True
            except OSError:
                handle, direct = os.open(path, os.O_RDONLY), False
            self._open["raw"] = (handle, direct, mmap.mmap(-1, 1 << 20))
        handle, direct, room = self._open["raw"]
        left = kib << 10
        while left > 0:
            size = min(left, 1 << 20) & ~4095 or 4096
            at = random.randrange(max(1, self.counts[1] - size)) & ~4095  # noqa: S311
            os.preadv(handle, [memoryview(room)[:size]], at)
            if not direct:
                os.posix_fadvise(handle, at, size, os.POSIX_FADV_DONTNEED)
            left -= size

    def _piece(self, number: int) -> None:
        handle = os.open(str(self.folder / "b" / str(number % 64) / str(number)), os.O_RDONLY)
        try:
            zlib.crc32(os.read(handle, PIECE_BYTES))
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)

    def prepare(self, data: bytes, index: int) -> Any:
        """Decode, blur, shrink, flip."""
        if not self.plan.decode:
            return torch.full((3, CROP, CROP), index % 251, dtype=torch.uint8)
        x = picture(data, self.plan.filters)
        for _ in range(self.plan.mixes):
            large = F.interpolate(x[None].float(), scale_factor=2.0, mode="bicubic")
            x = F.avg_pool2d(large, 2)[0].clamp_(0, 255).to(torch.uint8)
        return x.flip(2) if index % 2 else x


def picture(data: bytes, filters: int) -> Any:
    """uint8, 3 × CROP × CROP, by cv2 when it is there and blurs are asked for, else by Pillow."""
    if filters:
        try:
            cv2, numpy = import_module("cv2"), import_module("numpy")
        except ImportError:
            pass
        else:
            image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
            for _ in range(filters):
                image = cv2.bilateralFilter(image, 5, 30.0, 30.0)
            return torch.from_numpy(cv2.resize(image, (CROP, CROP))).permute(2, 0, 1).contiguous()
    from PIL import Image, ImageFilter

    image = Image.open(io.BytesIO(data)).convert("RGB")
    for _ in range(filters):
        image = image.filter(ImageFilter.GaussianBlur(3))
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(CROP, CROP, 3).permute(2, 0, 1)


def load_libraries() -> None:
    """Load what decodes once, before the forks, and let cv2 make no threads: they would not survive one."""
    with contextlib.suppress(ImportError):
        import_module("PIL.JpegImagePlugin")
        import_module("numpy")
        import_module("cv2").setNumThreads(0)


def die_with_parent() -> None:
    """Who is stuck does not see a channel close: let the kernel end it with the process that forked it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def begin_worker(_number: int) -> None:
    """A worker starts: its own random numbers and its number of threads."""
    die_with_parent()
    info = torch.utils.data.get_worker_info()
    random.seed(info.seed)
    torch.set_num_threads(info.dataset.plan.threads)


def join(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    """A batch of images and classes."""
    images = [torch.cat(x, 1) if isinstance(x, list) else x for x, _ in samples]
    return torch.stack(images), torch.tensor([y for _, y in samples])


def same(samples: list[Any]) -> list[Any]:
    """The samples as they are."""
    return samples


def batches(plan: Plan, folder: Path, files: list[bytes]) -> Generator[tuple[Any, Any], None, None]:
    """Endless batches on the device: images or tokens or rows, and classes."""
    if plan.source == "loader":
        return _loaded(plan, folder, files)
    if plan.source == "pool":
        return _pooled(plan)
    return _resident(plan)


def _resident(plan: Plan) -> Generator[tuple[Any, Any], None, None]:
    shape: tuple[int, ...] = (plan.batch,)
    length = 32 if plan.tiny else SEQUENCE
    count = 0
    made: dict[int, tuple[Any, Any]] = {}
    while True:
        kind = (count // max(1, plan.shape_steps)) if plan.shapes > 1 else 0
        count += 1
        kind %= plan.shapes
        if kind not in made:
            if plan.net == "gpt":
                shape = (plan.batch, length - (length // 2 * kind) // plan.shapes)
                x = torch.randint(VOCABULARY, shape, device=plan.device)
                made[kind] = (x, x.roll(-1, 1))
            elif plan.net == "conv":
                x = torch.rand(plan.batch, 3, CROP, CROP, device=plan.device)
                made[kind] = (x.to(memory_format=torch.channels_last), _classes(plan))
            else:
                width = TINY["mlp"] if plan.tiny else plan.width
                dtype = torch.float32 if plan.device == "cpu" else torch.bfloat16
                made[kind] = (torch.rand(plan.batch, width, device=plan.device, dtype=dtype), _classes(plan))
        yield made[kind]


def _classes(plan: Plan) -> Any:
    return torch.arange(plan.batch, device=plan.device) % CLASSES


def _pooled(plan: Plan) -> Generator[tuple[Any, Any], None, None]:
    dtype = torch.uint8 if plan.payload == "uint8" else torch.float32
    side = CROP
    if plan.payload_mb:
        # The side follows from the fp32 size, so that uint8 is the same picture in a quarter of the bytes.
        side = max(CROP, int((plan.payload_mb * 1e6 / (plan.batch * 3 * 4)) ** 0.5))
    made = [torch.full((plan.batch, 3, side, side), 7, dtype=dtype) for _ in range(POOL)]
    if plan.pinned and plan.device != "cpu":
        made = [x.pin_memory() for x in made]
    y = _classes(plan)
    while True:
        for host in made:
            x = host.to(plan.device, non_blocking=plan.pinned)
            x = x[:, :, : CROP * (side // CROP) : side // CROP, : CROP * (side // CROP) : side // CROP]
            yield normal(x), y


def _loaded(plan: Plan, folder: Path, files: list[bytes]) -> Generator[tuple[Any, Any], None, None]:
    length = plan.epoch_steps * plan.batch if plan.epoch_steps else 1 << 24
    several = plan.workers > 0
    loader = DataLoader(
        Items(plan, folder, files, length), batch_size=plan.batch, num_workers=plan.workers, drop_last=True,
        collate_fn=same if plan.collate == "main" else join, pin_memory=plan.pinned and plan.device != "cpu",
        persistent_workers=several and plan.persistent, prefetch_factor=plan.prefetch if several else None,
        worker_init_fn=begin_worker, multiprocessing_context="fork" if several else None,
    )  # fmt: skip
    while True:
        for batch in loader:
            x, y = join(batch) if plan.collate == "main" else batch
            yield normal(x.to(plan.device, non_blocking=plan.pinned)), y.to(plan.device, non_blocking=plan.pinned)


def normal(x: Any) -> Any:
    """uint8 or float images to what the network takes."""
    return x.float().sub(127.0).div_(64.0).contiguous(memory_format=torch.channels_last)


def lock() -> None:
    """Take the lock that ``guard`` waits for, and keep it."""
    _turn.acquire(blocking=False)


def unlock() -> None:
    """Give it back."""
    if _turn.locked():
        _turn.release()
