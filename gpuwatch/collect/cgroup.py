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

CONTAINER_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
RESOLVE_EVERY_NS = 10_000_000_000
"""Quotas change rarely: all levels are read every 10 s, the throttling counters of the binding one at each call."""

_ID = r"(?P<id>[0-9a-f]{64})(?![0-9a-f])"
_UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_POD = re.compile(rf"[/-]pod(?P<pod>{_UID}|[0-9a-f]{{32}})(?![0-9a-f])")
"""Seen from another cgroup namespace the path begins with "/.." and has no "kubepods" in it."""
_SLURM = re.compile(r"(?:slurm.*|^(?:/\.\.)+)/job_(?P<job>\d+)(?:/step_(?P<step>\w+))?")
_SLURM_STEPS = {"4294967290": "interactive", "4294967291": "batch", "4294967292": "extern"}
"""slurm.h; most versions write the word."""
_ENGINES = (
    ("docker", re.compile(rf"(?:/docker/|/docker-|/ecs/[^/]+/){_ID}")),
    # libpod-payload-… is what a Quadlet unit has below its service. libpod-conmon-… holds podman's monitor, not the
    # container.
    ("podman", re.compile(rf"/libpod-(?:payload-)?{_ID}")),
    ("cri-o", re.compile(rf"/crio-{_ID}")),
    ("containerd", re.compile(rf"(?:/cri-containerd-|/nerdctl-|/default/|/k8s\.io/|:cri-containerd:){_ID}")),
    # lxc.monitor.NAME holds the monitor. LXD and Incus use the same names.
    ("lxc", re.compile(r"/lxc(?:\.payload[./]|/)(?P<id>[^/]+)")),
    ("machine", re.compile(r"/systemd-nspawn@(?P<id>[^/]+)\.service|/machine-(?P<scope>[^/]+)\.scope")),
)
_ANY_ID = re.compile(_ID)
_NAMELESS = re.compile(rf"/{_ID}(?=/|$)")
"""Such as Docker's with a ``--cgroup-parent`` of one's own: a container, and whose is not said."""


def container_of(path: str) -> str:
    """The container that a cgroup path names, such as "docker 3f2a1b…", or "". Of nested ones the inner; of what runs
    inside a pod or a Slurm job these, by which their owner knows them."""
    if pod := _last(_POD, path):
        container = _ANY_ID.search(path, pod.end())
        uid = pod["pod"].replace("_", "-")
        return f"k8s pod {uid}" + (f" container {container['id'][:12]}" if container else "")
    if slurm := _SLURM.search(path):
        step = _SLURM_STEPS.get(slurm["step"], slurm["step"])
        return f"slurm job {slurm['job']}" + (f" step {step}" if step else "")
    found = [(match.start(), engine, match) for engine, pattern in _ENGINES if (match := _last(pattern, path))]
    if not found:
        nameless = _last(_NAMELESS, path)
        return f"container {nameless['id'][:12]}" if nameless else ""
    _, engine, match = max(found, key=lambda item: item[0])
    return f"{engine} {_name(match)}"


def _last(pattern: re.Pattern[str], path: str) -> re.Match[str] | None:
    return max(pattern.finditer(path), key=lambda match: match.start(), default=None)


def _name(match: re.Match[str]) -> str:
    """Twelve digits of an id, as the engines print it, or the whole of a name."""
    name = match["id"] or match["scope"]
    if _ANY_ID.fullmatch(name):
        return name[:12]
    # systemd writes "-" in the name of a scope as \x2d.
    return re.sub(r"\\x([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), name)


def container_by_environment(environ: dict[str, str] | None) -> str:
    """Apptainer and Singularity make no cgroup: "apptainer train.sif" by the variable that they set inside, or ""."""
    image = next((environ[name] for name in CONTAINER_VARIABLES if environ.get(name)), "") if environ else ""
    return f"apptainer {image.rstrip('/').rsplit('/', 1)[-1]}" if image else ""


def main_path(paths: CgroupPaths) -> Text:
    """The path that says most: unified, else that of the cpu controller, else the longest."""
    candidates = [paths.v2 or "/", paths.v1.get("cpu", "/"), *sorted(paths.v1.values(), key=len, reverse=True)]
    path = next((path for path in candidates if path != "/"), "/")
    return path if paths.v1 or paths.v2 is not None else Absent(Reason.NOT_FOUND)


def container_label(paths: CgroupPaths, environ: dict[str, str] | None = None) -> Text:
    """The container by any hierarchy's path, or by the environment; Absent(NOT_FOUND) outside containers and for plain
    user sessions."""
    for path in (paths.v2 or "", *paths.v1.values()):
        if label := container_of(path):
            return label
    return container_by_environment(environ) or Absent(Reason.NOT_FOUND)


def levels(paths: CgroupPaths, mounts: tuple[CgroupMount, ...]) -> tuple[bool, list[str]]:
    """(is v2, directories from the process's own cgroup up to the top that is visible here).

    The v1 cpu controller decides where it is mounted: then v2 has no cpu controller. An empty list: the cgroup lies
    outside what is mounted here.
    """
    v2 = "cpu" not in paths.v1
    path = paths.v2 if v2 else paths.v1["cpu"]
    if path is None:
        return v2, []
    # Several mounts may show the hierarchy, such as the host's in a container: the one that shows most of the way up.
    seen = [m for m in mounts if (m.v2 if v2 else "cpu" in m.controllers)]
    for mount in sorted(seen, key=lambda m: len(m.root)):
        parts = _below(path, mount.root)
        if parts is not None:
            return v2, ["/".join((mount.point, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    return v2, []


def _below(path: str, root: str) -> list[str] | None:
    """The names from ``root`` to ``path``; None when it is not below it.

    Both are as seen from our cgroup namespace: a mount of the host's tree has "/../.." as its root there, and a job
    beside us a path that begins so.
    """
    if root not in ("/", path) and not path.startswith(root + "/"):
        return None
    parts = [part for part in path.removeprefix(root).split("/") if part]
    return None if ".." in parts else parts


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
