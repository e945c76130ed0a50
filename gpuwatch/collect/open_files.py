"""Which file systems and disks the open files of a process lie on.

Owns: which open files count, the mount that a path is on, the disk behind it, what is served over a network. Refuses:
reading the files, judging their speed. A look sees what is open at that moment, so who calls gathers several.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from gpuwatch.collect.proc_files import absent, reading
from gpuwatch.collect.proc_parse import Mount, parse_mounts
from gpuwatch.model import Absent, FileSystem

FILES_PER_LOOK: Final = 512
"""Of one process; a read of a link takes about a microsecond."""
_NOT_STORAGE: Final = frozenset(
    {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "mqueue", "bpf"}
)
_NOT_DATA: Final = ("/dev/shm/torch_", "/dev/shm/sem.")  # noqa: S108 - names of torch's own tensors, not opened
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "beegfs_nodev", "afs", "orangefs",
     "pvfs2", "wekafs", "panfs", "glusterfs", "cpfs", "curvefs", "quobyte", "dvs", "objectivefs"}
)  # fmt: skip
_OF_HOST: Final = frozenset({"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"})
"""A folder of this virtual machine's host, or under WSL of Windows: each read leaves the machine, as over a network.
Under gVisor and Kata the root itself is one, which says nothing of the data."""
_REMOTE_PROGRAMS: Final = frozenset(
    {"sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "juicefs", "ceph-fuse", "ceph", "glusterfs", "mountpoint-s3",
     "mount-s3", "geesefs", "blobfuse", "blobfuse2", "alluxio-fuse", "alluxio", "lustre", "cvmfs2", "quobyte", "ossfs",
     "ossfs2", "obsfs", "cosfs", "tosfs", "mfs", "mfsmount", "moosefs", "lizardfs", "saunafs", "gpfs", "beegfs",
     "seaweedfs", "weed", "curvefs", "wekafs", "hf-mount", "dfuse", "daos", "s3ql", "s3backer", "yas3fs", "riofs",
     "tigrisfs", "cunofs", "objectivefs", "davfs", "curlftpfs", "smbnetfs", "hadoop-fuse-dfs", "fuse_dfs", "afs",
     "grpcfuse", "vmhgfs-fuse"}
)  # fmt: skip
"""In lower case. FUSE programs name themselves after "fuse." in the kind, or, without that, as the source."""
_LOCAL_PROGRAMS: Final = frozenset({"mergerfs", "unionfs", "unionfs-fuse", "bindfs", "fuse-overlayfs"})
"""Their source is a list of folders with colons."""
_ADDRESS: Final = re.compile(r"[\w+.-]+://|[^/:]+:/")
"""A source such as "https://store/x" or "user@host:/data"."""


class Look(NamedTuple):
    """What one look gave."""

    found: frozenset[FileSystem]
    absent: Absent | None
    """Why there was nothing to see; None when the open files could be listed."""


class OpenFiles:
    """Looks at one process at a time. Keeps nothing but the disks' names."""

    def __init__(self, root: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._root = str(root)
        self._sys = sys
        self._disks: dict[str, tuple[str, bool]] = {}

    def look(self, pid: int) -> Look:
        """The file systems of what the process has open now. Another user's files may be listed by root only."""
        folder = f"{self._root}/{pid}/fd"
        try:
            numbers = os.listdir(folder)[:FILES_PER_LOOK]  # noqa: PTH208 - hot path
        except OSError as error:
            return Look(frozenset(), absent(error))
        # By folder: a loader has hundreds of files open in a few.
        folders = {os.path.dirname(p) for number in numbers if _is_data(p := _target(f"{folder}/{number}"))}  # noqa: PTH120
        if not folders:
            return Look(frozenset(), None)
        mounts = reading(f"{self._root}/{pid}/mountinfo", parse_mounts)
        if isinstance(mounts, Absent):
            return Look(frozenset(), mounts)
        on = {mount for path in folders if (mount := mount_of(path, mounts)) is not None}
        return Look(frozenset(self._system(mount) for mount in on if mount.kind not in _NOT_STORAGE), None)

    def _system(self, mount: Mount) -> FileSystem:
        disk, rotational = self._disk(mount)
        return FileSystem(mount.point, mount.kind, mount.source, is_remote(mount), disk, rotational)

    def _disk(self, mount: Mount) -> tuple[str, bool]:
        """The whole disk behind a mount and whether it turns; "" for what has none, such as overlay and tmpfs."""
        # A file system of several disks (btrfs, bcachefs) has a number of its own: its source is one of the disks.
        device = mount.source.split(":")[0] if mount.device.startswith("0:") else mount.device
        known = self._disks.get(device)
        if known is None:
            known = self._disks[device] = self._read_disk(device)
        return known

    def _read_disk(self, device: str) -> tuple[str, bool]:
        """Of "259:2" or "/dev/nvme0n1p2". Only names below /dev are followed: any other path could hang."""
        if device.startswith("/dev/"):
            place = self._sys / "class/block" / os.path.basename(os.path.realpath(device))  # noqa: PTH119 - a name
        elif ":" in device:
            place = self._sys / "dev/block" / device
        else:
            return "", False
        try:
            place = place.resolve(strict=True)
        except OSError:
            return "", False
        # A partition's folder lies in its disk's.
        disk = place.parent if (place / "partition").exists() else place
        turns = reading(disk / "queue/rotational", lambda data: data.strip() == b"1")
        return disk.name, turns is True


def is_remote(mount: Mount) -> bool:
    """Served by another machine, by the name of the file system or, of FUSE, of its program or its source."""
    kind, _, program = mount.kind.partition(".")
    if kind in _OF_HOST:
        return mount.point != "/"
    if kind != "fuse":
        return kind in _REMOTE
    # "mfs#host:9421", "JuiceFS:volume" and "/usr/bin/blobfuse2" begin or end with the program.
    source = re.split(r"[#:]", mount.source, maxsplit=1)[0].rsplit("/", 1)[-1]
    known = (program or source).lower() in _REMOTE_PROGRAMS
    return known or (program not in _LOCAL_PROGRAMS and _ADDRESS.match(mount.source) is not None)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that a path lies on: the deepest, and of several at one point the last, which hides the others."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _is_data(path: str) -> bool:
    """A file by name: not a pipe, a socket, a device, one of torch's shared tensors or one that is deleted."""
    if not path.startswith("/") or path.endswith(" (deleted)") or path.startswith(_NOT_DATA):
        return False
    return not path.startswith("/dev/") or path.startswith("/dev/shm/")  # noqa: S108 - a name, not opened


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - hot path
    except OSError:
        return ""
