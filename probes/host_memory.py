"""How much of the host's memory a probe may take, and how large the caches before it are.

Owns: MemAvailable, the limits of the cgroups that this process is in, the caches of the CPUs that it may use. Refuses:
memory of GPUs (``device.py``), deciding what is worth measuring.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of cgroup v2 and v1: the limit, what counts against it, and the part of that which the kernel gives up first."""


def cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu"), cpus: Iterable[int] | None = None) -> int:
    """All last-level caches of ``cpus`` (default: those this process may use) together; 0 when the kernel is silent.

    Together, because the threads of a pass use all of them: an EPYC with twelve caches of 32 MiB keeps 384 MiB.
    """
    if cpus is None:
        cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    found: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        level, sharers, size = max(_caches(root / f"cpu{cpu}" / "cache"), default=(0, "", 0))
        found[level, sharers or str(cpu)] = size
    return sum(found.values())


def _caches(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Level, the CPUs that share it and bytes of each cache of one CPU; sizes are written as "32768K"."""
    for index in sorted(folder.glob("index*")):
        try:
            level, size = int(_text(index / "level")), _text(index / "size")
            unit = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(size[-1:], 1)
            yield level, _text(index / "shared_cpu_list"), int(size.rstrip("KMG")) * unit
        except (OSError, ValueError):
            continue


def free_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What this process can take before something is swapped or killed; 0 when the kernel does not say."""
    available = [_available(proc), *_left(proc, cgroups)]
    return min((count for count in available if count >= 0), default=0)


def _available(proc: Path) -> int:
    try:
        lines = _text(proc / "meminfo").splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), -1)


def _left(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each cgroup from this process's own up to the root still grants."""
    try:
        lines = _text(proc / "self" / "cgroup").splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            roots = [cgroups / controllers, cgroups / "memory"]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # In a container the path may be the host's, and what is mounted only the container's own part: its root counts.
        for root in roots:
            for folder in (root / inside, *(root / parent for parent in inside.parents)):
                yield _grants(folder)


def _grants(folder: Path) -> int:
    """What is left of one cgroup's limit; -1 without a limit."""
    for limit, usage, reclaimed in LIMITS:
        try:
            most, used = int(_text(folder / limit)), int(_text(folder / usage))
        except (OSError, ValueError):
            continue  # "max" is no number: no limit
        return max(0, most - max(0, used - _statistic(folder, reclaimed)))
    return -1


def _statistic(folder: Path, name: str) -> int:
    try:
        words = [line.split() for line in _text(folder / "memory.stat").splitlines()]
        return next((int(pair[1]) for pair in words if pair[:1] == [name]), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip()
