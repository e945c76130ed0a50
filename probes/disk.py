"""Files on a disk, read past the page cache or through it.

Owns: O_DIRECT with aligned memory, eviction, how much of a file is resident, the place to put a file. Refuses: timing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

MIB = 1024**2


def default_folder(named: str) -> Path:
    """``named``, else the user's cache folder where it can be written to, else the temporary folder."""
    if named:
        return Path(named)
    home = os.environ.get("HOME", "")
    for place in (os.environ.get("XDG_CACHE_HOME", ""), f"{home}/.cache" if home else "", home):
        if place and os.path.isdir(place) and os.access(place, os.W_OK):  # noqa: PTH112
            return Path(place)
    return Path(tempfile.gettempdir())


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Type of the file system that holds ``folder``, such as "ext4"; "unknown" where the kernel does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    where = str(folder.resolve())
    best, kind = "", "unknown"
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


def free_bytes(folder: Path) -> int:
    """Free space for this user; 0 where it cannot be asked."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return 0
    return state.f_bavail * state.f_frsize


def write_random(path: Path, mib: int) -> tuple[list[int], list[float]]:
    """Write ``mib`` random MiB and flush them to the disk. Gives each block's CRC and MB/s (flush included) once."""
    checks: list[int] = []
    spent_ns = 0
    with path.open("wb", buffering=0) as file:
        for _ in range(mib):
            # Never twice the same bytes: a file system that compresses or deduplicates must not profit.
            block = os.urandom(MIB)
            checks.append(zlib.crc32(block))
            began = time.perf_counter_ns()
            file.write(block)
            spent_ns += time.perf_counter_ns() - began
        began = time.perf_counter_ns()
        os.fsync(file.fileno())
        spent_ns += time.perf_counter_ns() - began
    return checks, [mib * MIB / (spent_ns / 1000.0)]


def write_small(path: Path, count: int, seed: int) -> int:
    """Write ``count`` random bytes and flush them; gives their CRC."""
    content = random.Random(seed).getrandbits(8 * count).to_bytes(count, "little")  # noqa: S311
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return zlib.crc32(content)


def evict_files(paths: list[Path]) -> None:
    """Drop the pages of written files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(path: Path) -> float:
    """Share of a file's pages that are in the page cache, by mincore(2). Raises OSError."""
    size = path.stat().st_size
    if not size:
        return 0.0
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # A private mapping may be handed to ctypes; nothing is ever written through it.
        with mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
            view = (ctypes.c_char * size).from_buffer(mapping)
            pages = -(-size // mmap.PAGESIZE)
            flags = (ctypes.c_ubyte * pages)()
            failed = libc.mincore(ctypes.byref(view), ctypes.c_size_t(size), flags)
            del view
            if failed:
                raise OSError(ctypes.get_errno(), "mincore failed")
            return sum(flag & 1 for flag in flags) / pages
    finally:
        os.close(descriptor)


class CachedReader:
    """Reads blocks through the page cache."""

    def __init__(self, path: Path, block: int) -> None:
        self._path, self._block = path, block
        self._descriptor = os.open(path, self.flags())

    @staticmethod
    def flags() -> int:
        """How the file is opened."""
        return os.O_RDONLY

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self, index: int) -> Any:
        """Block number ``index``."""
        return os.pread(self._descriptor, self._block, index * self._block)

    def evict(self) -> None:
        """Drop the file's pages from the page cache."""
        evict_files([self._path])

    def resident_share(self) -> float:
        """Share of the file in the page cache."""
        return resident_share(self._path)


class DirectReader(CachedReader):
    """Reads blocks past the page cache, into memory that is aligned to pages as O_DIRECT asks."""

    def __init__(self, path: Path, block: int) -> None:
        super().__init__(path, block)
        self._memory = mmap.mmap(-1, block)

    @staticmethod
    def flags() -> int:
        """O_DIRECT besides reading."""
        return os.O_RDONLY | os.O_DIRECT

    def read(self, index: int) -> Any:
        """Block number ``index``; overwritten by the next one."""
        got = os.preadv(self._descriptor, [self._memory], index * self._block)
        return memoryview(self._memory)[:got]


def open_reader(path: Path, block: int) -> tuple[CachedReader, bool]:
    """A reader past the cache where the file system allows it, else one whose pages can be evicted; and which."""
    try:
        reader = DirectReader(path, block)
        reader.read(0)
    except OSError:
        return CachedReader(path, block), False
    return reader, True
