"""What a probe may take of a host and what its caches hold, from files as kernels write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from probes import device, host_memory, memory

MIB, GIB = 1024**2, 1024**3


def written(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def caches(cpu: int, *levels: tuple[int, str, str]) -> dict[str, object]:
    """Files of one CPU: level, CPUs that share it, size."""
    files: dict[str, object] = {}
    for index, (level, sharers, size) in enumerate(levels):
        folder = f"cpu{cpu}/cache/index{index}"
        files |= {f"{folder}/level": level, f"{folder}/shared_cpu_list": sharers, f"{folder}/size": size}
    return files


def test_caches_of_all_used_cores_count_together(tmp_path: Path) -> None:
    """With 32 MiB of one complex taken for all of it, arrays of 256 MiB were called memory in 384 MiB of cache."""
    for cpu in range(24):
        first = cpu // 2 * 2
        written(tmp_path, caches(cpu, (1, f"{cpu}", "32K"), (2, f"{cpu}", "1024K"), (3, f"{first}-{first + 1}", "32M")))
    assert host_memory.cpu_cache_bytes(tmp_path, range(24)) == 384 * MIB
    assert host_memory.cpu_cache_bytes(tmp_path, [4, 5]) == 32 * MIB, "a process bound to two of them has theirs"


def test_cores_without_a_shared_cache_have_their_own(tmp_path: Path) -> None:
    for cpu in range(4):
        written(tmp_path, caches(cpu, (1, f"{cpu}", "64K"), (2, f"{cpu}", "512K")))
    assert host_memory.cpu_cache_bytes(tmp_path, range(4)) == 2 * MIB


def test_a_kernel_that_does_not_tell_its_caches_is_not_one_without(tmp_path: Path) -> None:
    written(tmp_path, {"cpu0/cache/index0/level": 3, "cpu1/cache/index0/size": "huge"})
    assert host_memory.cpu_cache_bytes(tmp_path, range(3)) == 0
    assert device.cache_state(1, 1, 0) == "unknown"


def machine(root: Path, cgroup: str, limits: Mapping[str, object]) -> int:
    written(root, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * GIB // 1024} kB", "proc/self/cgroup": cgroup})
    written(root / "cgroup", limits)
    return host_memory.free_bytes(root / "proc", root / "cgroup")


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/", {}, 64 * GIB),
        ("0::/a", {"a/memory.max": "max", "a/memory.current": 5}, 64 * GIB),
        ("0::/a/b", {"a/memory.max": 4 * GIB, "a/memory.current": GIB}, 3 * GIB),
        (
            "0::/a",
            {"a/memory.max": 4 * GIB, "a/memory.current": 4 * GIB, "a/memory.stat": f"anon 1\ninactive_file {GIB}"},
            GIB,
        ),
        # In a container: the path of the host, the files of its own part.
        ("0::/docker/0123", {"memory.max": GIB, "memory.current": 0}, GIB),
        (
            "4:memory:/slurm/job_1\n0::/",
            {"memory/slurm/job_1/memory.limit_in_bytes": 2 * GIB, "memory/slurm/job_1/memory.usage_in_bytes": 0},
            2 * GIB,
        ),
        # Without a limit version 1 writes the largest number of pages.
        ("4:memory:/", {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.usage_in_bytes": 0}, 64 * GIB),
        ("0::/a", {"a/memory.max": GIB, "a/memory.current": 2 * GIB}, 0),
    ],
)
def test_a_probe_takes_no_more_than_its_cgroup_grants(
    tmp_path: Path, cgroup: str, limits: dict[str, object], expected: int
) -> None:
    assert machine(tmp_path, cgroup, limits) == expected


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert host_memory.free_bytes(tmp_path, tmp_path) == 0


@pytest.mark.parametrize(("free", "sets"), [(24 * GIB, 15), (2 * GIB, 1), (0, 1)])
def test_a_large_cache_is_got_past_where_there_is_memory_to_spare(
    monkeypatch: pytest.MonkeyPatch, free: int, sets: int
) -> None:
    """With 768 MiB at most every server CPU above 64 MiB of cache read "in cache"."""
    monkeypatch.setattr(host_memory, "free_bytes", lambda: free)
    target = device.Target(None, "cpu", False, "", "a CPU with 480 MiB of cache", 0, 0, 0, 480 * MIB)
    assert memory.sets_of(target, memory.DEFAULT_MIB["cpu"]) == sets
