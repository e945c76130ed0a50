"""The host: CPU shares, pressure, memory; what an old kernel or an odd machine lacks is absent with a reason."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType

from gpuwatch.collect.host import INIT_PID_NAMESPACE, HostReader, node_info
from gpuwatch.collect.proc_parse import (
    CpuTimes,
    PressureTotals,
    parse_cpu_lines,
    parse_cpu_list,
    parse_meminfo,
    parse_pressure,
)
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, Pressure, Reason

FIXTURES = Path(__file__).parent / "procfixtures"
S = 1_000_000_000


class Machine:
    """A fake /proc and /sys of four CPUs on two NUMA nodes and a third node of GPU memory."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys, self.shm = folder / "proc", folder / "sys", folder / "shm"
        (self.proc / "pressure").mkdir(parents=True)
        self.shm.mkdir()
        self.cpus(dict.fromkeys(range(4), (0, 0, 0, 0)))
        for node, cpus in (("node0", "0-1"), ("node1", "2-3"), ("node2", "")):
            path = self.sys / "devices/system/node" / node
            path.mkdir(parents=True)
            (path / "cpulist").write_text(cpus + "\n")
        (self.proc / "meminfo").write_text(
            "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 100 kB\nSwapFree: 70 kB\nHugePages_Total: 0\n"
        )
        (self.proc / "loadavg").write_text("1.50 0.37 0.14 2/223 1003\n")
        self.psi("cpu", 0, 0)
        self.psi("io", 0, 0)
        self.psi("memory", 0, 0)

    def cpus(self, cpus: dict[int, tuple[int, int, int, int]]) -> None:
        """Per CPU: user, idle, iowait, steal ticks."""
        lines = [
            f"cpu{n} {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0" for n, (user, idle, iowait, steal) in cpus.items()
        ]
        (self.proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5 1 2", "ctxt 9"]) + "\n")

    def psi(self, resource: str, some_us: int, full_us: int | None) -> None:
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some_us}\n"
        if full_us is not None:
            text += f"full avg10=0.00 avg60=0.00 avg300=0.00 total={full_us}\n"
        (self.proc / "pressure" / resource).write_text(text)

    def reader(self) -> HostReader:
        return HostReader(self.proc, self.sys, self.shm)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cpu_shares_are_those_between_two_readings_and_per_numa_node(machine: Machine) -> None:
    reader = machine.reader()
    first = reader.read(1 * S)
    assert first.cpu_busy_pct == NOT_READ
    assert first.cpus_online == 4
    machine.cpus({0: (100, 0, 0, 0), 1: (50, 25, 25, 0), 2: (0, 100, 0, 0), 3: (0, 100, 0, 0)})
    second = reader.read(2 * S)
    assert second.cpu_busy_pct == 37.5
    assert [(g.name, g.cpus, g.busy_pct, g.iowait_pct) for g in second.core_groups] == [
        ("node0", 2, 75.0, 12.5),
        ("node1", 2, 0.0, 0.0),
    ]


def test_time_stolen_by_the_hypervisor_is_neither_our_work_nor_idle(machine: Machine) -> None:
    reader = machine.reader()
    reader.read(1 * S)
    machine.cpus({0: (50, 0, 0, 50), 1: (50, 0, 0, 50), 2: (50, 0, 0, 50), 3: (50, 0, 0, 50)})
    assert reader.read(2 * S).cpu_busy_pct == 50.0


def test_a_cpu_that_goes_offline_and_comes_back_does_not_spoil_the_share(machine: Machine) -> None:
    reader = machine.reader()
    reader.read(1 * S)
    machine.cpus({0: (100, 0, 0, 0), 2: (0, 100, 0, 0), 3: (0, 100, 0, 0)})
    without = reader.read(2 * S)
    assert without.cpus_online == 3
    assert without.cpu_busy_pct == pytest.approx(100 / 3)
    assert [(g.name, g.cpus, g.busy_pct) for g in without.core_groups] == [("node0", 1, 100.0), ("node1", 2, 0.0)]
    machine.cpus({0: (200, 0, 0, 0), 1: (7, 9000, 0, 0), 2: (0, 200, 0, 0), 3: (0, 200, 0, 0)})
    back = reader.read(3 * S)
    assert back.cpu_busy_pct == pytest.approx(100 / 3)
    assert back.core_groups[0].busy_pct == 100.0


def test_counters_that_step_back_do_not_make_a_negative_share(machine: Machine) -> None:
    reader = machine.reader()
    machine.cpus({0: (0, 100, 50, 0)})
    reader.read(1 * S)
    machine.cpus({0: (10, 90, 40, 0)})
    assert reader.read(2 * S).core_groups[0].busy_pct == 100.0


def test_a_machine_without_numa_folders_is_one_group(machine: Machine, tmp_path: Path) -> None:
    sample = HostReader(machine.proc, tmp_path / "nothing", machine.shm).read(S)
    assert [(g.name, g.cpus) for g in sample.core_groups] == [("node0", 4)]


def test_pressure_is_our_own_delta_over_the_tick(machine: Machine) -> None:
    reader = machine.reader()
    assert reader.read(1 * S).psi_io == Pressure(NOT_READ, NOT_READ, 0, 0)
    machine.psi("io", 250_000, 100_000)
    assert reader.read(2 * S).psi_io == Pressure(25.0, 10.0, 250_000, 100_000)


def test_the_zero_that_the_kernel_prints_for_full_cpu_pressure_is_not_taken_for_a_measurement(machine: Machine) -> None:
    reader = machine.reader()
    reader.read(1 * S)
    machine.psi("cpu", 500_000, 0)
    assert reader.read(2 * S).psi_cpu == Pressure(50.0, NOT_SUPPORTED, 500_000, NOT_SUPPORTED)


def test_a_kernel_without_pressure_files_says_so(machine: Machine) -> None:
    for file in (machine.proc / "pressure").iterdir():
        file.unlink()
    (machine.proc / "pressure").rmdir()
    sample = machine.reader().read(S)
    assert sample.psi_io == Pressure(NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED)


def test_memory_swap_load_and_shared_memory_are_in_their_units(machine: Machine) -> None:
    sample = machine.reader().read(S)
    assert (sample.mem_total_bytes, sample.mem_available_bytes) == (1000 * 1024, 400 * 1024)
    assert (sample.swap_used_bytes, sample.load_1m) == (30 * 1024, 1.5)
    assert isinstance(sample.shm_total_bytes, int)
    assert isinstance(sample.shm_used_bytes, int)
    assert 0 < sample.shm_used_bytes <= sample.shm_total_bytes


def test_files_that_are_missing_or_broken_are_absent_each_with_its_reason(machine: Machine, tmp_path: Path) -> None:
    (machine.proc / "meminfo").write_text("Garbage\n")
    (machine.proc / "stat").write_text("intr 5\n")
    (machine.proc / "loadavg").unlink()
    sample = HostReader(machine.proc, machine.sys, tmp_path / "no-shm").read(S)
    assert isinstance(sample.mem_total_bytes, Absent)
    assert sample.mem_total_bytes.reason is Reason.ERROR
    assert isinstance(sample.cpu_busy_pct, Absent)
    assert "no CPU line" in sample.cpu_busy_pct.detail
    assert (sample.cpus_online, sample.core_groups) == (0, ())
    assert sample.load_1m == Absent(Reason.NOT_FOUND)
    assert sample.shm_total_bytes == Absent(Reason.NOT_FOUND)


def test_recorded_files_of_a_gpu_host_are_read(machine: Machine) -> None:
    for name, target in (("proc_stat", "stat"), ("psi_io", "pressure/io"), ("meminfo", "meminfo")):
        (machine.proc / target).write_bytes((FIXTURES / f"{name}.txt").read_bytes())
    reader = machine.reader()
    first = reader.read(0)
    assert (first.cpus_online, first.mem_total_bytes, first.swap_used_bytes) == (16, 131981020 * 1024, 0)
    assert first.psi_io.some_total_us == 1982503
    (machine.proc / "stat").write_bytes((FIXTURES / "proc_stat_later.txt").read_bytes())
    busy = reader.read(S // 2).cpu_busy_pct
    # One loader worker and a waiting main process on 16 CPUs.
    assert isinstance(busy, float)
    assert 5.0 < busy < 12.0


def test_parsers_name_the_file_they_cannot_read() -> None:
    assert parse_cpu_lines(b"cpu  9 9\ncpu3 1 2 3 4\n") == {3: CpuTimes(6, 4, 0, 0)}
    assert parse_pressure(b"some avg10=0.00 total=7\n") == PressureTotals(7, None)
    assert parse_cpu_list(b"0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    with pytest.raises(ValueError, match="cpu0 has 2 fields"):
        parse_cpu_lines(b"cpu0 1 2\n")
    with pytest.raises(ValueError, match="pressure"):
        parse_pressure(b"")
    with pytest.raises(ValueError, match="MemTotal"):
        parse_meminfo(b"MemFree: 1 kB\n")


def test_this_machine_is_described() -> None:
    node = node_info()
    assert node.kernel == os.uname().release
    assert node.cpu_count == len(os.sched_getaffinity(0))
    assert len(node.boot_id) == 36
    assert isinstance(node.mem_total_bytes, int)
    assert node.driver_version == NOT_READ


@pytest.mark.parametrize(("readable", "hides"), [(False, ("hidepid=2", "gid=20")), (True, UNSET)])
def test_a_proc_that_hides_processes_is_told_to_whom_it_does(
    tmp_path: Path, readable: bool, hides: tuple[str, ...] | UnsetType
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw,gid=20,hidepid=2\n")
    if readable:
        # Root and the group of gid= see the first process in spite of it.
        (tmp_path / "1").mkdir()
        (tmp_path / "1/stat").write_text("1 (init) S 0")
    assert node_info(tmp_path).proc_hides == hides


def test_this_machine_is_read() -> None:
    reader = HostReader()
    reader.read(time.monotonic_ns())
    sample = reader.read(time.monotonic_ns() + S)
    assert sample.cpus_online >= len(os.sched_getaffinity(0)) > 0
    assert isinstance(sample.mem_available_bytes, int)
    assert sum(group.cpus for group in sample.core_groups) == sample.cpus_online


@pytest.mark.parametrize(
    ("namespace", "marked", "containerised"),
    [
        (INIT_PID_NAMESPACE, True, False),  # --pid=host, or a virtual machine made of a container image
        ("pid:[4026532841]", False, True),
        (None, True, True),
        (None, False, False),
    ],
)
def test_foreign_pids_are_expected_only_inside_a_pid_namespace(
    tmp_path: Path, namespace: str | None, marked: bool, containerised: bool
) -> None:
    mark = tmp_path / ".dockerenv"
    if marked:
        mark.touch()
    if namespace is not None:
        (tmp_path / "self/ns").mkdir(parents=True)
        (tmp_path / "self/ns/pid").symlink_to(namespace)
    node = node_info(tmp_path, (mark,))
    assert node.containerised is containerised
    assert node.mem_total_bytes == Absent(Reason.NOT_FOUND)
