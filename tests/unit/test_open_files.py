"""Where a job's files lie: a loader that waits for NFS is another thing than one that waits for a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.collect import procfs
from gpuwatch.collect.open_files import Look, OpenFiles, is_remote, mount_of
from gpuwatch.collect.proc_parse import Mount, parse_mounts
from gpuwatch.collect.procfs import ProcessReader
from gpuwatch.model import Absent, FileSystem, ProcessInfo, Reason

MOUNTINFO = b"""\
23 60 0:22 / /proc rw,nosuid shared:14 - proc proc rw
60 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
70 60 0:55 / /data\\040sets rw,relatime shared:30 - nfs4 store:/export rw,vers=4.2
71 60 8:0 / /data rw,relatime shared:31 master:2 - xfs /dev/sda rw
72 60 0:60 / /mnt/bucket rw - fuse.s3fs s3fs rw
73 60 0:25 / /dev/shm rw - tmpfs tmpfs rw
broken line
"""
NFS = FileSystem("/data sets", "nfs4", "store:/export", remote=True)
XFS = FileSystem("/data", "xfs", "/dev/sda", remote=False, disk="sda", rotational=True)
ROOT = FileSystem("/", "ext4", "/dev/nvme0n1p2", remote=False, disk="nvme0n1")


class Machine:
    """A /proc with one process, and the disks behind it in /sys."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        (self.proc / "7/fd").mkdir(parents=True)
        (self.proc / "7/mountinfo").write_bytes(MOUNTINFO)
        for disk, turns in (("nvme0n1", "0"), ("sda", "1")):
            (self.sys / "block" / disk / "queue").mkdir(parents=True)
            (self.sys / "block" / disk / "queue/rotational").write_text(turns + "\n")
        (self.sys / "block/nvme0n1/nvme0n1p2").mkdir()
        (self.sys / "block/nvme0n1/nvme0n1p2/partition").write_text("2\n")
        (self.sys / "dev/block").mkdir(parents=True)
        (self.sys / "dev/block/259:2").symlink_to("../../block/nvme0n1/nvme0n1p2")
        (self.sys / "dev/block/8:0").symlink_to("../../block/sda")

    def open(self, *paths: str) -> None:
        for old in (self.proc / "7/fd").iterdir():
            old.unlink()
        for number, path in enumerate(paths):
            (self.proc / "7/fd" / str(number)).symlink_to(path)

    def found(self) -> frozenset[FileSystem]:
        look = OpenFiles(self.proc, self.sys).look(7)
        assert look.absent is None
        return look.found


def test_files_are_told_by_mount_disk_and_whether_a_network_is_behind_them(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.open("/data sets/a.tar", "/data/b.tar", "/home/x/train.py", "socket:[77]", "pipe:[1]", "anon_inode:[eventpoll]")
    assert m.found() == {NFS, XFS, ROOT}


def test_a_name_that_only_begins_like_a_mount_is_not_on_it() -> None:
    mounts = parse_mounts(MOUNTINFO)
    assert [mount_of(path, mounts).point for path in ("/data", "/database/a", "/data/a", "/data sets/a")] == [  # type: ignore[union-attr]
        *("/data", "/", "/data", "/data sets")
    ]
    assert mount_of("/a", ()) is None


def test_what_is_mounted_over_another_hides_it() -> None:
    below, above = Mount("8:0", "/data", "xfs", "/dev/sda"), Mount("0:9", "/data", "nfs4", "store:/x")
    assert mount_of("/data/a", (below, above)) == above


def test_devices_pipes_shared_tensors_and_deleted_files_are_no_storage(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.open("/dev/nvidia0", "/dev/shm/torch_1_2", "/data/gone (deleted)", "/proc/7/stat", "memfd:x (deleted)")
    assert m.found() == frozenset()
    m.open("/dev/shm/images.bin")
    assert {system.kind for system in m.found()} == {"tmpfs"}


@pytest.mark.parametrize(
    ("kind", "remote"),
    [
        *((kind, True) for kind in ("nfs", "ceph", "lustre", "gpfs", "beegfs", "wekafs", "cpfs", "9p", "virtiofs")),
        *((f"fuse.{program}", True) for program in ("s3fs", "sshfs", "gcsfuse", "rclone", "juicefs", "JuiceFS")),
        *((f"fuse.{program}", True) for program in ("quobyte", "ossfs", "mfs", "gpfs", "seaweedfs", "glusterfs")),
        *((kind, False) for kind in ("ext4", "overlay", "fuse.squashfuse", "fuseblk", "fuse", "btrfs", "zfs")),
    ],
)
def test_what_a_network_serves_is_known_by_its_name(kind: str, remote: bool) -> None:
    assert is_remote(Mount("0:1", "/x", kind, "source")) is remote


@pytest.mark.parametrize(
    ("kind", "source", "remote"),
    [
        *(("fuse", source, True) for source in ("mountpoint-s3", "cvmfs2", "blobfuse2", "s3fs", "/usr/bin/blobfuse2")),
        *(("fuse", source, True) for source in ("mfs#host:9421", "JuiceFS:vol", "https://store/x", "u@host:/data")),
        ("fuse.unheard-of", "host:/data", True),
        *(("fuse", source, False) for source in ("/dev/sdb1", "squashfuse", "/home/me/image.sif", "/a:/b")),
        ("fuse.mergerfs", "disk1:/disk2", False),
        ("fuse.squashfuse", "s3fs", False),
    ],
)
def test_a_fuse_file_system_that_does_not_name_its_program_is_known_by_its_source(
    kind: str, source: str, remote: bool
) -> None:
    assert is_remote(Mount("0:1", "/x", kind, source)) is remote


def test_a_sandbox_whose_root_is_a_folder_of_its_host_is_not_said_to_read_from_a_network() -> None:
    assert [is_remote(Mount("0:1", point, "9p", "none")) for point in ("/", "/data")] == [False, True]


def test_the_disk_of_a_file_system_with_a_number_of_its_own_is_that_of_its_source(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    (m.sys / "class/block").mkdir(parents=True)
    (m.sys / "class/block/nvme0n1p2").symlink_to("../../block/nvme0n1/nvme0n1p2")
    lines = "80 1 0:27 / / rw - btrfs /dev/nvme0n1p2 rw\n81 1 0:44 / /tank rw - zfs tank/data rw\n"
    (m.proc / "7/mountinfo").write_text(lines)
    m.open("/home/a", "/tank/b")
    assert m.found() == {
        FileSystem("/", "btrfs", "/dev/nvme0n1p2", remote=False, disk="nvme0n1"),
        # Which disks a pool is on only its own tools say.
        FileSystem("/tank", "zfs", "tank/data", remote=False),
    }


@pytest.mark.parametrize(
    ("error", "reason"), [(PermissionError, Reason.NO_PERMISSION), (FileNotFoundError, Reason.NOT_FOUND)]
)
def test_files_that_may_not_be_listed_are_unknown_and_not_none(
    error: type[OSError], reason: Reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listdir(path: str) -> list[str]:
        raise error(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert OpenFiles(tmp_path).look(7) == (frozenset(), Absent(reason))


def test_what_a_job_has_open_at_different_times_is_gathered_and_looked_for_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    reader = ProcessReader()
    look = reader._open_files.look

    def counted(pid: int) -> Look:
        looked.append(pid)
        return look(pid)

    monkeypatch.setattr(reader._open_files, "look", counted)
    ours = os.getpid()
    file = tmp_path / "samples.bin"
    file.write_bytes(b"x")
    infos: list[ProcessInfo] = []
    now = 10**12
    with file.open("rb"):
        for _ in range(3):
            infos += reader.read({ours: (0,)}, now).infos
            now += 10**9
    assert looked == [ours]
    mount = mount_of(str(file), parse_mounts(Path("/proc/self/mountinfo").read_bytes()))
    assert mount is not None
    before = infos[-1].storage
    assert before is not None
    assert mount.point in {system.mount for system in before.systems}
    assert before.absent is None
    now += procfs.LOOK_EVERY_NS
    later = reader.read({ours: (0,)}, now).infos
    assert looked == [ours] * 2
    for info in later:
        assert info.storage is not None
        assert set(before.systems) <= set(info.storage.systems), "closed since, and still known"
    reader.close()
