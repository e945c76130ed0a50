"""How fast do files come from the disk itself, and how fast from the page cache?

A file of random bytes is written and flushed, then read in order (1 MiB at a time) and at random (4 KiB, by one and by
sixteen readers) past the page cache, in order again through it, and as a thousand small files. In the folder that
``--path`` names, else in the user's cache folder.

Expected signature: cached reads at several GB/s, far above the disk. Random reads with sixteen readers many times those
with one on an NVMe drive, hardly more on a network file system or a disk with heads. Small files far below the
sequential rate: metadata are the limit, and a data set of small files will be slow here whatever its loader does.

Validity: reads bypass the cache (O_DIRECT) or evict first and count what is still resident (mincore): above 5 % the
figure is called ``…_in_cache``. Each block read is compared with what was written. On tmpfs there is no disk:
unavailable.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import device, disk, harness, scratch
from .report import Report, UnavailableError

NAME = "storage"
SECONDS = {"cuda": 1.5, "cpu": 1.5}
MIB = 1024**2
BLOCK = MIB
PAGE = 4096
DEFAULT_MIB = 1024
READERS = 16
SMALL_FILES, SMALL_BYTES = 1000, 100 * 1024
"""An ImageNet photograph is about 110 KB."""
CACHED_LIMIT = 0.05
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def parse_size(text: str) -> int:
    """``--size 1024``: MiB of the file. Raises ValueError with one line."""
    if not text.isdigit() or not 1 <= int(text) <= 1024**2:
        raise ValueError(f"--size {text}: expected MiB of the file, 1 to 1048576")
    return int(text)


def run(
    target: device.Target, clock: Any, report: Report, seconds: float, size: str, say: Callable[[str], None]
) -> None:
    """Measure all ways of reading into the report. Raises UnavailableError when there is no place or no disk."""
    mib = parse_size(size) if size else DEFAULT_MIB
    base = disk.default_folder(report.settings.get("path", ""))
    small = min(SMALL_FILES, max(10, mib * MIB // SMALL_BYTES))
    kind = disk.file_system(base)
    report.settings.update(path=str(base), file_system=kind, file_bytes=str(mib * MIB), small_files=str(small))
    if kind in MEMORY_FILE_SYSTEMS:
        raise UnavailableError(f"{base} is in memory ({kind}), not on a disk: name another folder with --path")
    scratch.sweep(base)
    need = mib * MIB + small * SMALL_BYTES
    free = disk.free_bytes(base)
    if need > free // 2:
        raise UnavailableError(
            f"{base} has {free / 1e9:.1f} GB free, and at most half of it may be used for {need / 1e9:.1f} GB: "
            "use a smaller --size or another --path"
        )
    try:
        with scratch.folder("storage", str(base)) as folder, scratch.nameless(folder / "file") as path:
            _measure(report, folder, path, mib, small, seconds, say)
    except OSError as exc:
        raise UnavailableError(
            f"{base} cannot be used: {exc.strerror or exc}; name another folder with --path"
        ) from None


def _measure(
    report: Report, folder: Path, path: Path, mib: int, small: int, seconds: float, say: Callable[[str], None]
) -> None:
    """``path``: of the large file. The small ones lie in ``folder``."""
    say("writing")
    checks, rates = disk.write_random(path, mib)
    report.add("write", "MB/s", rates)
    reader, direct = disk.open_reader(path, BLOCK)
    report.settings["cache_bypass"] = "O_DIRECT" if direct else "posix_fadvise(DONTNEED)"
    with reader:
        say("sequential")
        reader.evict()
        cached = cache_suffix(report, "sequential", 0.0 if direct else reader.resident_share())
        report.add("sequential" + cached, "MB/s", _sequential(report, reader, checks, seconds, cold=True))
    for readers in (1, READERS):
        say(f"random, {readers} readers")
        report.add(f"random_4KiB_{readers}{cached}", "IOPS", _random(report, path, mib, readers, seconds))
    say("through the cache")
    with disk.CachedReader(path, BLOCK) as through:
        for index in range(mib):  # fill the cache
            through.read(index)
        report.add("sequential_cached", "MB/s", _sequential(report, through, checks, seconds, cold=False))
    say("small files")
    paths = [folder / f"{index:05d}" for index in range(small)]
    checks = [disk.write_small(path, SMALL_BYTES, seed) for seed, path in enumerate(paths)]
    disk.evict_files(paths)
    cached = cache_suffix(report, "small_files", max(disk.resident_share(path) for path in paths[:10]))
    report.add("small_files" + cached, "files/s", _small_files(report, paths, checks, seconds))


def cache_suffix(report: Report, name: str, share: float) -> str:
    """What a figure is called besides its name, given the share of the file that was in the page cache."""
    report.settings[f"{name}_resident_share"] = f"{share:.3f}"
    if share <= CACHED_LIMIT:
        return ""
    report.notes.append(f"{name}: {share:.0%} is still in the page cache after eviction: this is not the disk")
    return "_in_cache"


def _sequential(report: Report, reader: Any, checks: list[int], seconds: float, cold: bool) -> list[float]:
    """MB/s of runs of blocks; every block is checked outside of its timed part."""
    rates: list[float] = []
    finished = harness.enough(seconds, 0.005)
    index = 0
    while True:
        began = time.perf_counter_ns()
        block = reader.read(index)
        elapsed = time.perf_counter_ns() - began
        rates.append(BLOCK / (elapsed / 1000.0))
        if zlib.crc32(block) != checks[index]:
            report.problems.append(f"sequential: block {index} is not what was written")
            return rates
        index += 1
        if index == len(checks):
            index = 0
            if cold:
                reader.evict()
        if finished(rates):
            return rates


def _random(report: Report, path: Path, mib: int, readers: int, seconds: float) -> list[float]:
    """Reads per second of ``readers`` threads, each at random places past the cache; one figure per round."""
    found = [disk.open_reader(path, PAGE) for _ in range(readers)]
    opened, direct = [reader for reader, _ in found], found[0][1]
    pages = mib * MIB // PAGE
    chooser = random.Random(23)  # noqa: S311 (places, not secrets)
    rates: list[float] = []
    finished = harness.enough(seconds, 0.005)
    batch = 32

    def some(reader: Any, places: list[int]) -> None:
        for place in places:
            if len(reader.read(place)) != PAGE:
                raise OSError(f"short read at {place}")

    with ThreadPoolExecutor(readers) as pool:
        try:
            while True:
                if not direct or not rates:
                    opened[0].evict()
                places = [[chooser.randrange(pages) for _ in range(batch)] for _ in opened]
                began = time.perf_counter_ns()
                for future in [pool.submit(some, reader, mine) for reader, mine in zip(opened, places)]:
                    future.result()
                rates.append(readers * batch * 1e9 / (time.perf_counter_ns() - began))
                if finished(rates):
                    return rates
        finally:
            for reader in opened:
                reader.close()


def _small_files(report: Report, paths: list[Path], checks: list[int], seconds: float) -> list[float]:
    """Files opened, read and closed per second, evicted before; one figure per fifty files."""
    rates: list[float] = []
    finished = harness.enough(seconds, 0.005)
    group = 50
    while True:
        for start in range(0, len(paths), group):
            chunk = paths[start : start + group]
            began = time.perf_counter_ns()
            contents = [path.read_bytes() for path in chunk]
            rates.append(len(chunk) * 1e9 / (time.perf_counter_ns() - began))
            for offset, content in enumerate(contents):
                if zlib.crc32(content) != checks[start + offset]:
                    report.problems.append(f"small_files: {chunk[offset].name} is not what was written")
                    return rates
            if finished(rates):
                return rates
        disk.evict_files(paths)
