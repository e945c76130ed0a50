"""What a cgroup path says: the container's name, the CPU quota that binds, and its throttling.

Owns: cgroup v1, v2 and mixed hierarchies, as seen from the host and from inside a container. Refuses: memory and I/O
controllers, and asking any container runtime.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gpuwatch.collect.proc_files import absent, read_all, reading
from gpuwatch.collect.proc_parse import (
    CgroupMount,
    CgroupPaths,
    parse_cfs_quota,
    parse_cgroup,
    parse_cgroup_mounts,
    parse_cpu_max,
    parse_cpu_stat,
)
from gpuwatch.model import Absent, CgroupSample, Reason, Text

RESOLVE_EVERY_NS = 10_000_000_000
"""Quotas change rarely: all levels are read every 10 s, the throttling counters of the binding one at each call."""

_ID = r"(?P<id>[0-9a-f]{64})"
_POD = re.compile(r"pod(?P<pod>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_SLURM = re.compile(r"slurm.*/job_(?P<job>\d+)(?:/step_(?P<step>\w+))?")
_ENGINES = (
    ("docker", re.compile(rf"(?:/docker/|/docker-){_ID}")),
    # libpod-conmon-… holds podman's monitor, not the container.
    ("podman", re.compile(rf"/libpod-{_ID}")),
    ("cri-o", re.compile(rf"/crio-{_ID}")),
    ("containerd", re.compile(rf"(?:/cri-containerd-|/nerdctl-|/default/|:cri-containerd:){_ID}")),
)
_ANY_ID = re.compile(_ID)


def container_of(path: str) -> str:
    """The container that a cgroup path names, such as "docker 3f2a1b…", or ""."""
    if "kubepods" in path and (pod := _POD.search(path)):
        container = _ANY_ID.search(path, pod.end())
        uid = pod["pod"].replace("_", "-")
        return f"k8s pod {uid}" + (f" container {container['id'][:12]}" if container else "")
    if slurm := _SLURM.search(path):
        return f"slurm job {slurm['job']}" + (f" step {slurm['step']}" if slurm["step"] else "")
    for engine, pattern in _ENGINES:
        if found := pattern.search(path):
            return f"{engine} {found['id'][:12]}"
    return ""


def main_path(paths: CgroupPaths) -> Text:
    """The path that says most: unified, else that of the cpu controller, else the longest."""
    candidates = [paths.v2 or "/", paths.v1.get("cpu", "/"), *sorted(paths.v1.values(), key=len, reverse=True)]
    path = next((path for path in candidates if path != "/"), "/")
    return path if paths.v1 or paths.v2 is not None else Absent(Reason.NOT_FOUND)


def container_label(paths: CgroupPaths) -> Text:
    """The container by any hierarchy's path; Absent(NOT_FOUND) outside containers and for plain user sessions."""
    for path in (paths.v2 or "", *paths.v1.values()):
        if label := container_of(path):
            return label
    return Absent(Reason.NOT_FOUND)


def levels(paths: CgroupPaths, mounts: tuple[CgroupMount, ...]) -> tuple[bool, list[str]]:
    """(is v2, directories from the process's own cgroup up to the top that is visible here).

    The v1 cpu controller decides where it is mounted: then v2 has no cpu controller. An empty list: the cgroup lies
    outside what is mounted here.
    """
    v2 = "cpu" not in paths.v1
    path = paths.v2 if v2 else paths.v1["cpu"]
    mount = next((m for m in mounts if (m.v2 if v2 else "cpu" in m.controllers)), None)
    if path is None or mount is None or path.startswith("/..") or mount.root.startswith("/.."):
        return v2, []
    if mount.root != "/":
        if path != mount.root and not path.startswith(mount.root + "/"):
            return v2, []
        path = path[len(mount.root) :]
    parts = [part for part in path.split("/") if part]
    return v2, ["/".join((mount.point, *parts[:depth])) for depth in range(len(parts), -1, -1)]


class _Limit(NamedTuple):
    """The level whose quota is smallest."""

    quota_cores: float
    directory: str


class CgroupReader:
    """CPU quota and throttling of processes. Keeps what it resolved per process; ``keep`` drops the others."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._limits: dict[int, tuple[int, _Limit | Absent]] = {}

    def paths(self, pid: int) -> CgroupPaths | Absent:
        """Cgroup paths of a process."""
        return reading(self._root / str(pid) / "cgroup", parse_cgroup)

    def keep(self, pids: frozenset[int]) -> None:
        """Forget all but these."""
        self._limits = {pid: limit for pid, limit in self._limits.items() if pid in pids}

    def read(self, pid: int, mono_ns: int) -> CgroupSample:
        """Quota in cores and the counters of the level that sets it. All Absent(NOT_FOUND) without a quota."""
        due_ns, limit = self._limits.get(pid, (mono_ns, Absent(Reason.NOT_READ)))
        if mono_ns >= due_ns:
            limit = self._resolve(pid)
            self._limits[pid] = (mono_ns + RESOLVE_EVERY_NS, limit)
        if isinstance(limit, Absent):
            return CgroupSample(pid, mono_ns, limit, limit, limit, limit)
        counters = reading(f"{limit.directory}/cpu.stat", parse_cpu_stat)
        if isinstance(counters, Absent):
            del self._limits[pid]
            return CgroupSample(pid, mono_ns, limit.quota_cores, counters, counters, counters)
        return CgroupSample(pid, mono_ns, limit.quota_cores, *counters)

    def _resolve(self, pid: int) -> _Limit | Absent:
        """The smallest quota on the way up; of equal ones the innermost."""
        paths = self.paths(pid)
        if isinstance(paths, Absent):
            return paths
        mounts = reading(self._root / "self" / "mountinfo", parse_cgroup_mounts)
        if isinstance(mounts, Absent):
            return mounts
        v2, directories = levels(paths, mounts)
        if not directories:
            return Absent(Reason.NOT_FOUND, "its cgroup is not visible from here")
        best: _Limit | None = None
        for directory in directories:
            quota = _quota(directory, v2)
            if isinstance(quota, Absent):
                return quota
            if quota is not None and (best is None or quota < best.quota_cores):
                best = _Limit(quota, directory)
        return best or Absent(Reason.NOT_FOUND, "no CPU quota")


def _quota(directory: str, v2: bool) -> float | Absent | None:
    """Cores of one level; None without a quota or without a cpu controller at that level (the top has none)."""
    try:
        if v2:
            return parse_cpu_max(read_all(f"{directory}/cpu.max"))
        return parse_cfs_quota(read_all(f"{directory}/cpu.cfs_quota_us"), read_all(f"{directory}/cpu.cfs_period_us"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return absent(error)
