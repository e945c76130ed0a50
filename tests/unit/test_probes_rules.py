"""Who may measure, what an answer is worth, when a probe runs by itself: the rules without processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.config import ProbesConfig
from gpuwatch.daemon import probe_process
from gpuwatch.daemon.probing import Schedule
from gpuwatch.errors import UsageError
from gpuwatch.model import Absent, Device, DeviceProcess, DeviceSample, Int, Reason
from gpuwatch.verdict import catalogue, probe_run

GPU = Device(index=1, uuid="GPU-11", name="NVIDIA H200", pci_bus_id="0000:61:00.0")


def reading_of(
    *pids: int, kind: str = "C", mem: Int = 0, util: Int = 0, absent: Absent | None = None, index: int = 1
) -> DeviceSample:
    processes = tuple(DeviceProcess(pid, 1024, kind) for pid in pids)
    return DeviceSample(index, 1, gpu_util_pct=util, mem_used_bytes=mem, processes=processes, processes_absent=absent)


def test_the_busy_rule_sees_tenants_that_nvml_does_not_list() -> None:
    def reason(sample: DeviceSample, own: bool = False) -> str:
        return probe_run.busy_reason(sample, lambda pid: f"pid {pid}", own)

    assert reason(reading_of()) == ""
    assert reason(reading_of(5, 6)) == "GPU 1 is in use by pid 5 and 1 more: wait until it ends"
    assert reason(reading_of(5, kind="G", mem=3 << 30, util=7)) == ""
    assert "holds 3.0 GiB" in reason(reading_of(mem=3 << 30))
    assert "is 40 % busy" in reason(reading_of(util=40))
    assert reason(reading_of(util=40), own=True) == ""
    assert reason(reading_of(util=2, mem=Absent(Reason.NOT_SUPPORTED))) == ""
    assert "cannot be read (lost)" in reason(reading_of(absent=Absent(Reason.LOST)))
    assert "cannot be read (not_read)" in reason(DeviceSample(1, 1))
    assert reason(reading_of(absent=Absent(Reason.NO_PERMISSION))) == ""
    assert "no_permission" in probe_run.blind_note(reading_of(absent=Absent(Reason.NO_PERMISSION)))


def test_a_container_that_lists_host_pids_does_not_end_its_own_probe() -> None:
    assert probe_run.intruder([900_001], own=set(), invisible={900_001}) is None
    assert probe_run.intruder([900_001, 900_002], own=set(), invisible={900_001, 900_002}) == 900_002
    assert probe_run.intruder([10, 900_001], own={10}, invisible={900_001}) == 900_001
    assert probe_run.intruder([900_001, 10], own={10}, invisible={900_001}) == 900_001
    assert probe_run.intruder([7], own=set(), invisible=set()) == 7


def test_escape_sequences_of_a_probe_do_not_reach_the_terminal() -> None:
    assert probe_run.printable("\x1b[31mred\x1b[0m\tx\n") == "[31mred [0m x"
    assert len(probe_run.printable("x" * 999)) == 200


def test_the_probes_of_the_checkout_are_found_and_a_users_folder_is_not(tmp_path: Path) -> None:
    found = catalogue.folder()
    assert found is not None
    assert (found / "matmul.py").is_file()
    package = tmp_path / "gpuwatch"
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "__main__.py").write_text("")
    assert catalogue.folder(package) is None
    (tmp_path / "gpuwatch_probes").mkdir()
    for name in ("__main__.py", "command.py"):
        (tmp_path / "gpuwatch_probes" / name).write_text("")
    assert catalogue.folder(package) == tmp_path / "gpuwatch_probes"


def test_the_list_of_probes_is_the_one_that_the_probes_have() -> None:
    from probes.command import PROBES, parse

    assert [spec.name for spec in probe_run.PROBES] == list(PROBES)
    for spec in probe_run.PROBES:
        assert (PROBES[spec.name].__doc__ or "").splitlines()[0] == spec.question
    assert parse(["matmul", "--device", "cuda", "--seconds", "0.5", "--json"]).seconds == 0.5


def test_a_process_is_described_even_when_it_is_not_here() -> None:
    assert probe_process.describe_pid(os.getpid()).startswith(f"pid {os.getpid()} (")
    assert probe_process.describe_pid(0x7FFFFFFF) == f"pid {0x7FFFFFFF} (not visible from here)"


# --------------------------------------------------------------------------- schedule

SECOND = 1_000_000_000


def test_nothing_runs_by_itself_unless_asked_for() -> None:
    schedule = Schedule(ProbesConfig())
    assert [schedule.due(GPU, reading_of(), now * SECOND) for now in (0, 10**6)] == ["", ""]


def test_probes_wait_for_an_idle_gpu_and_run_once_per_interval() -> None:
    schedule = Schedule(ProbesConfig(automatic=True, idle_after_s=60, every_s=1000, set=("matmul", "conv")))

    def due(now_s: int, *pids: int) -> str:
        return schedule.due(GPU, reading_of(*pids), now_s * SECOND)

    assert [due(0), due(59), due(60)] == ["", "", "matmul"]
    assert due(61) == "matmul", "a refused start comes again"
    schedule.started(GPU, "matmul", 61 * SECOND)
    assert [due(62, 4242), due(70), due(129), due(130)] == ["", "", "", "conv"]
    schedule.started(GPU, "conv", 130 * SECOND)
    assert [due(140), due(1060), due(1061)] == ["", "", "matmul"]


def test_without_a_choice_the_quick_set_runs_for_it_holds_what_a_diagnosis_compares_with() -> None:
    schedule = Schedule(ProbesConfig(automatic=True, idle_after_s=60, every_s=1000))
    seen = []
    for turn in range(len(probe_run.QUICK)):
        for now_s in (100 * turn, 100 * turn + 60):
            name = schedule.due(GPU, reading_of(), now_s * SECOND)
        seen.append(name)
        schedule.started(GPU, name, (100 * turn + 60) * SECOND)
    assert tuple(seen) == probe_run.QUICK
    assert {"matmul", "copies", "memory", "launch"} == set(seen)


def test_a_job_resets_the_idle_time_and_each_gpu_has_its_own() -> None:
    schedule = Schedule(ProbesConfig(automatic=True, idle_after_s=60, every_s=1000, set=("dataloader",)))
    other = Device(index=0, uuid="GPU-00", name="NVIDIA H200", pci_bus_id="")
    assert schedule.due(GPU, reading_of(), 0) == ""
    assert schedule.due(GPU, reading_of(4242), 50 * SECOND) == ""
    assert schedule.due(GPU, reading_of(), 100 * SECOND) == ""
    assert schedule.due(other, reading_of(index=0), 100 * SECOND) == ""
    assert schedule.due(GPU, reading_of(), 160 * SECOND) == "dataloader"


def test_a_schedule_with_an_unknown_probe_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="did you mean conv"):
        Schedule(ProbesConfig(set=("convv",)))
