"""Cgroups: the container a job runs in, and the CPU quota that throttles it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.collect.cgroup import RESOLVE_EVERY_NS, CgroupReader, container_label, container_of, levels, main_path
from gpuwatch.collect.proc_parse import (
    CgroupPaths,
    Throttling,
    parse_cfs_quota,
    parse_cgroup,
    parse_cgroup_mounts,
    parse_cpu_max,
    parse_cpu_stat,
)
from gpuwatch.model import Absent, Reason

ID = "3f2a1b4c5d6e" + "0" * 52
INNER = "9e" + "0" * 62
UID = "0fb7e4a1-1234-4c5d-9e8f-0123456789ab"
NO_QUOTA = Absent(Reason.NOT_FOUND, "no CPU quota")


@pytest.mark.parametrize(
    ("path", "label"),
    [
        (f"/docker/{ID}", "docker 3f2a1b4c5d6e"),
        (f"/system.slice/docker-{ID}.scope", "docker 3f2a1b4c5d6e"),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
            "podman 3f2a1b4c5d6e",
        ),
        (f"/machine.slice/libpod-conmon-{ID}.scope", ""),
        (f"/system.slice/nerdctl-{ID}.scope", "containerd 3f2a1b4c5d6e"),
        (f"/default/{ID}", "containerd 3f2a1b4c5d6e"),
        (f"/system.slice/crio-{ID}.scope", "cri-o 3f2a1b4c5d6e"),
        (
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
            f"k8s pod {UID} container 3f2a1b4c5d6e",
        ),
        (f"/kubepods/besteffort/pod{UID}/{ID}", f"k8s pod {UID} container 3f2a1b4c5d6e"),
        (f"/kubepods/burstable/pod{UID}", f"k8s pod {UID}"),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "slurm job 42 step 0"),
        ("/slurm/uid_1000/job_42/step_batch/task_0", "slurm job 42 step batch"),
        ("/slurm_node7/uid_1000/job_42", "slurm job 42"),
        ("/system.slice/n1_slurmstepd.scope/job_77/step_4294967291/user/task_0", "slurm job 77 step batch"),
        ("/../../job_77/step_0/user/task_0", "slurm job 77 step 0"),
        (f"/system.slice/train.service/libpod-payload-{ID}", "podman 3f2a1b4c5d6e"),
        (f"/user.slice/user-7.slice/user@7.service/app.slice/t.service/libpod-payload-{ID}", "podman 3f2a1b4c5d6e"),
        (f"/user.slice/user-7.slice/user@7.service/user.slice/docker-{ID}.scope", "docker 3f2a1b4c5d6e"),
        (f"/docker/{ID}/docker/{INNER}", "docker 9e0000000000"),
        (f"/docker/{ID}/system.slice/containerd.service", "docker 3f2a1b4c5d6e"),
        (f"/docker/{ID}/kubelet/kubepods/besteffort/pod{UID}/{INNER}", f"k8s pod {UID} container 9e0000000000"),
        (f"/ecs/0123456789abcdef0123456789abcdef/{ID}", "docker 3f2a1b4c5d6e"),
        (f"/foo/{ID}", "container 3f2a1b4c5d6e"),
        (f"/k8s.io/{ID}", "containerd 3f2a1b4c5d6e"),
        (f"/../{ID}", "container 3f2a1b4c5d6e"),
        (f"/../../../pod{UID}/{ID}", f"k8s pod {UID} container 3f2a1b4c5d6e"),
        (f"/kubepods/pod{UID}/{ID}", f"k8s pod {UID} container 3f2a1b4c5d6e"),
        (
            f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope/container",
            f"k8s pod {UID} container 3f2a1b4c5d6e",
        ),
        ("/lxc.payload.trainer/system.slice/x.service", "lxc trainer"),
        ("/lxc/101/ns/user.slice", "lxc 101"),
        ("/lxc.payload/old-name", "lxc old-name"),
        ("/lxc.monitor.trainer", ""),
        (f"/lxc.payload.trainer/docker/{ID}", "docker 3f2a1b4c5d6e"),
        ("/machine.slice/systemd-nspawn@box.service/payload", "machine box"),
        ("/machine.slice/machine-my\\x2dbox.scope", "machine my-box"),
        ("/user.slice/user-1000.slice/session-3.scope", ""),
        ("/system.slice/ssh.service", ""),
        ("/", ""),
    ],
)
def test_a_job_in_a_container_is_shown_with_the_name_its_owner_knows(path: str, label: str) -> None:
    assert container_of(path) == label


def test_a_container_is_found_when_only_one_v1_controller_knows_it() -> None:
    paths = parse_cgroup(f"9:name=systemd:/\n4:memory:/docker/{ID}\n1:cpu,cpuacct:/\n0::/\n".encode())
    assert container_label(paths) == "docker 3f2a1b4c5d6e"
    assert main_path(paths) == f"/docker/{ID}"


def test_a_plain_login_session_is_no_container() -> None:
    paths = parse_cgroup(b"0::/user.slice/user-1000.slice/session-3.scope\n")
    assert container_label(paths) == Absent(Reason.NOT_FOUND)
    assert main_path(paths) == "/user.slice/user-1000.slice/session-3.scope"


def test_an_apptainer_job_that_has_no_cgroup_of_its_own_is_named_by_its_image() -> None:
    paths = parse_cgroup(b"0::/user.slice/user-1000.slice/session-3.scope\n")
    assert container_label(paths, {"APPTAINER_CONTAINER": "/images/train.sif"}) == "apptainer train.sif"
    assert container_label(paths, {"SINGULARITY_CONTAINER": "/images/sandbox/"}) == "apptainer sandbox"
    assert container_label(paths, {"RANK": "0"}) == Absent(Reason.NOT_FOUND)
    docker = parse_cgroup(f"0::/docker/{ID}\n".encode())
    assert container_label(docker, {"APPTAINER_CONTAINER": "/a.sif"}) == "docker 3f2a1b4c5d6e"


def test_cgroup_lines_keep_colons_in_paths_and_lose_the_deleted_mark() -> None:
    paths = parse_cgroup(b"2:cpu,cpuacct:/system.slice/a:b:c\n1:name=systemd:/x\n0::/gone (deleted)\n")
    assert paths == CgroupPaths(
        "/gone", {"cpu": "/system.slice/a:b:c", "cpuacct": "/system.slice/a:b:c", "name=systemd": "/x"}
    )
    with pytest.raises(ValueError, match="is not 'id:controllers:path'"):
        parse_cgroup(b"garbage\n")


def test_quota_files_are_read_in_cores() -> None:
    assert parse_cpu_max(b"150000 100000\n") == 1.5
    assert parse_cpu_max(b"max 100000\n") is None
    assert parse_cfs_quota(b"-1\n", b"100000\n") is None
    assert parse_cfs_quota(b"50000\n", b"100000\n") == 0.5
    with pytest.raises(ValueError, match=r"cpu\.max"):
        parse_cpu_max(b"\n")
    with pytest.raises(ValueError, match="period of 0"):
        parse_cfs_quota(b"50000", b"0")


def test_throttled_time_is_microseconds_in_both_cgroup_versions() -> None:
    recorded = (
        b"usage_usec 16990904\nuser_usec 15749991\nsystem_usec 1240912\nnice_usec 0\n"
        b"nr_periods 137\nnr_throttled 66\nthrottled_usec 42064146\nnr_bursts 0\nburst_usec 0\n"
    )
    assert parse_cpu_stat(recorded) == Throttling(137, 66, 42064146)
    assert parse_cpu_stat(b"nr_periods 137\nnr_throttled 66\nthrottled_time 42064146000\n").throttled_us == 42064146
    with pytest.raises(ValueError, match="cpu controller is not enabled"):
        parse_cpu_stat(b"usage_usec 1\nuser_usec 1\nsystem_usec 0\n")


def test_mounts_with_spaces_and_a_container_root_are_understood() -> None:
    mounts = parse_cgroup_mounts(
        b"30 25 0:26 / /sys/fs/cgroup\\040x ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
        b"33 30 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro master:14 - cgroup cgroup rw,cpu,cpuacct\n"
        b"34 30 0:30 / /proc rw - proc proc rw\n"
    )
    assert [(m.root, m.point, m.v2) for m in mounts] == [
        ("/", "/sys/fs/cgroup x", True),
        ("/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", False),
    ]
    assert {"cpu", "cpuacct"} <= mounts[1].controllers


class Tree:
    """A fake /proc and cgroup file system."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.top = folder / "cg"
        (self.proc / "self").mkdir(parents=True)
        self.top.mkdir()

    def mount(self, kind: str, options: str, root: str = "/") -> None:
        line = f"30 25 0:26 {root} {self.top} rw - {kind} cgroup {options}\n"
        (self.proc / "self" / "mountinfo").write_text(line)

    def process(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(cgroup)

    def level(self, path: str, **files: str) -> None:
        folder = self.top / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def stat(periods: int, throttled: int, usec: int) -> str:
    return f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {usec}\n"


def test_the_smallest_quota_above_the_job_is_the_one_reported_with_its_own_throttling(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    tree.process(7, "0::/pods/pod1/box\n")
    tree.level("pods", cpu__max="800000 100000\n", cpu__stat=stat(10, 0, 0))
    tree.level("pods/pod1", cpu__max="150000 100000\n", cpu__stat=stat(137, 66, 42064146))
    tree.level("pods/pod1/box", cpu__max="max 100000\n", cpu__stat=stat(0, 0, 0))
    sample = CgroupReader(tree.proc).read(7, 1)
    assert (sample.root_pid, sample.quota_cores) == (7, 1.5)
    assert (sample.nr_periods, sample.nr_throttled, sample.throttled_us) == (137, 66, 42064146)


def test_throttling_is_fresh_at_each_reading_and_a_new_quota_is_seen_within_ten_seconds(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    tree.process(7, "0::/box\n")
    tree.level("box", cpu__max="150000 100000\n", cpu__stat=stat(1, 0, 0))
    reader = CgroupReader(tree.proc)
    assert reader.read(7, 0).nr_throttled == 0
    tree.level("box", cpu__max="400000 100000\n", cpu__stat=stat(2, 1, 50))
    second = reader.read(7, RESOLVE_EVERY_NS - 1)
    assert (second.quota_cores, second.nr_throttled) == (1.5, 1)
    assert reader.read(7, RESOLVE_EVERY_NS).quota_cores == 4.0


def test_no_quota_is_absent_and_not_zero_cores(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    tree.process(7, "0::/box\n")
    tree.level("box", cpu__max="max 100000\n", cpu__stat=stat(0, 0, 0))
    sample = CgroupReader(tree.proc).read(7, 1)
    assert (sample.quota_cores, sample.nr_periods, sample.throttled_us) == (NO_QUOTA, NO_QUOTA, NO_QUOTA)


def test_the_v1_cpu_controller_decides_on_a_mixed_host(tree: Tree) -> None:
    tree.mount("cgroup", "rw,cpu,cpuacct")
    tree.process(7, "3:cpu,cpuacct:/slurm/job_42\n2:memory:/other\n0::/\n")
    tree.level(
        "slurm/job_42",
        cpu__cfs_quota_us="250000\n",
        cpu__cfs_period_us="100000\n",
        cpu__stat="nr_periods 9\nnr_throttled 4\nthrottled_time 7000000\n",
    )
    tree.level("slurm", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    sample = CgroupReader(tree.proc).read(7, 1)
    assert (sample.quota_cores, sample.nr_throttled, sample.throttled_us) == (2.5, 4, 7000)


def test_inside_a_container_the_quota_at_the_mounted_root_is_found(tree: Tree) -> None:
    tree.mount("cgroup", "rw,cpu", root=f"/docker/{ID}")
    tree.process(7, f"3:cpu:/docker/{ID}\n")
    tree.level(
        ".",
        cpu__cfs_quota_us="100000",
        cpu__cfs_period_us="100000",
        cpu__stat="nr_periods 1\nnr_throttled 1\nthrottled_time 1000\n",
    )
    assert CgroupReader(tree.proc).read(7, 1).quota_cores == 1.0


@pytest.mark.parametrize("path", ["/../../elsewhere", "/docker/other"])
def test_a_job_whose_cgroup_lies_outside_our_view_is_not_said_to_have_no_quota(tree: Tree, path: str) -> None:
    tree.mount("cgroup2", "rw", root="/docker/mine")
    tree.process(7, f"0::{path}\n")
    assert CgroupReader(tree.proc).read(7, 1).quota_cores == Absent(
        Reason.NOT_FOUND, "its cgroup is not visible from here"
    )


def test_a_job_that_ends_with_its_cgroup_leaves_a_reason(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    tree.process(7, "0::/box\n")
    tree.level("box", cpu__max="150000 100000\n", cpu__stat=stat(1, 0, 0))
    reader = CgroupReader(tree.proc)
    reader.read(7, 0)
    (tree.top / "box" / "cpu.stat").unlink()
    assert reader.read(7, 1).nr_throttled == Absent(Reason.NOT_FOUND)
    (tree.proc / "7" / "cgroup").unlink()
    assert reader.read(7, 2).quota_cores == Absent(Reason.NOT_FOUND)


def test_garbage_in_a_quota_file_is_a_reason_that_names_the_file(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    tree.process(7, "0::/box\n")
    tree.level("box", cpu__max="what\n")
    quota = CgroupReader(tree.proc).read(7, 1).quota_cores
    assert isinstance(quota, Absent)
    assert quota.reason is Reason.ERROR
    assert "cpu.max" in quota.detail


def test_forgotten_jobs_do_not_pile_up(tree: Tree) -> None:
    tree.mount("cgroup2", "rw")
    reader = CgroupReader(tree.proc)
    for pid in range(100):
        reader.read(pid, 0)
        reader.keep(frozenset({pid}))
    assert len(reader._limits) == 1


OURS = "1 0 0:30 /docker/ours /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"


@pytest.mark.parametrize(
    ("mounts", "path", "directories"),
    [
        (OURS + "2 0 0:30 / /host/cpu ro - cgroup cgroup rw,cpu\n", "/docker/job", ["/docker/job", "/docker", ""]),
        # With a cgroup namespace of our own the host's tree and the job lie above us.
        ("2 0 0:30 /../.. /host/cpu ro - cgroup cgroup rw,cpu\n", "/../../docker/job", ["/docker/job", "/docker", ""]),
        ("2 0 0:30 /.. /host/cpu ro - cgroup cgroup rw,cpu\n", "/../../docker/job", []),
        (OURS, "/docker/job", []),
    ],
)
def test_the_quota_is_looked_for_in_every_mount_that_shows_the_job(
    mounts: str, path: str, directories: list[str]
) -> None:
    found = levels(CgroupPaths(None, {"cpu": path}), parse_cgroup_mounts(mounts.encode()))
    assert found == (False, [f"/host/cpu{directory}" for directory in directories])
