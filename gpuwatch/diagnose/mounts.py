"""Where the files lie that the workers read.

Owns: which mounts are the data's, whether they are remote, how they are named. Refuses: judging.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.diagnose.evidence import ProcessUse
from gpuwatch.model import FileSystem

_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_OF_A_HOST = frozenset({"9p", "virtiofs", "vboxsf", "fakeowner", "prl_fs"})
"""Shared by the host of a virtual machine: what lies behind is not to be seen."""
NAMED = 3


def data_mounts(main: ProcessUse | None, workers: Sequence[ProcessUse]) -> tuple[FileSystem, ...]:
    """Those that the workers have files open on, commonest first, without memory. What the main process has open as
    well is left out if something remains: workers inherit its logs. Empty where no open file was seen."""
    counts: dict[FileSystem, int] = {}
    for worker in workers:
        for system in worker.storage:
            if system.kind not in _MEMORY:
                counts[system] = counts.get(system, 0) + 1
    inherited = set(main.storage) if main is not None else set()
    own = {system: n for system, n in counts.items() if system not in inherited} or counts
    return tuple(sorted(own, key=lambda system: (-own[system], system)))


def remote(mounts: Sequence[FileSystem]) -> bool | None:
    """Whether they are served over a network; None when that is not known, or true of some only."""
    kinds = {_remote(mount) for mount in mounts}
    return kinds.pop() if len(kinds) == 1 else None


def _remote(mount: FileSystem) -> bool | None:
    if mount.remote:
        return True
    unknown = mount.kind.startswith("fuse.") or mount.kind in _OF_A_HOST
    return None if unknown else False


def text(mounts: Sequence[FileSystem]) -> str:
    """ "/data (nfs4, server:/export)", or "" without any."""
    named = [f"{m.mount} ({m.kind}, {_source(m)})" for m in mounts[:NAMED]]
    more = f" and {len(mounts) - NAMED} more" if len(mounts) > NAMED else ""
    return ", ".join(named) + more


def _source(mount: FileSystem) -> str:
    if mount.remote or not mount.disk:
        return mount.source
    return f"{mount.source} on {mount.disk}{', which turns' if mount.rotational else ''}"
