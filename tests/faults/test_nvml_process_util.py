"""Utilization of each process through the C ABI: what the last-seen contract of the driver means."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakenvml.bench import Ticking, ticking

from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, ProcessUtil, Reason

NEWER = "nvmlDeviceGetProcessesUtilizationInfo"
OLDER = "nvmlDeviceGetProcessUtilization"
PROCS = "procs=7:1000:C,8:2000:C"


def sm(t: Ticking, ticks: int = 3) -> dict[int, object]:
    return {util.pid: util.sm_pct for util in t.health(ticks).process_utils}


def test_a_listed_process_that_the_driver_does_not_name_was_idle(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:93:12") as t:
        health = t.health(3)
    assert health.process_utils == (ProcessUtil(7, 93, 12, 0, 0), ProcessUtil(8, 0, 0, 0, 0))
    assert health.process_utils_absent is None


def test_not_found_means_that_all_were_idle_and_is_no_error(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=none") as t:
        health = t.health(3)
    assert health.process_utils == (ProcessUtil(7, 0, 0, 0, 0), ProcessUtil(8, 0, 0, 0, 0))
    assert health.process_utils_absent is None


def test_a_process_that_went_idle_does_not_keep_its_old_figure(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:93:12\nat 3500 gpu 0 putil=7:93:12:9000") as t:
        assert sm(t)[7] == 93
        # The driver would still give the entry of nine seconds ago to whoever asks from zero.
        assert sm(t, 4)[7] == 0


def test_of_several_entries_the_newest_counts(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:10:1:600,7:90:2:20,7:20:3:400") as t:
        assert sm(t)[7] == 90


def test_junk_is_dropped_and_only_listed_processes_are_shown(tmp_path: Path) -> None:
    junk = ",".join(f"{1000 + i}:{i}:1" for i in range(100))
    with ticking(tmp_path, f"gpu 0 {PROCS} putil={junk},7:4294967295:101,8:40:4") as t:
        health = t.health(3)
    assert [util.pid for util in health.process_utils] == [7, 8]
    assert health.process_utils[0].sm_pct == Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert health.process_utils[0].mem_pct == Absent(Reason.OUT_OF_RANGE, "101")
    assert health.process_utils[1].sm_pct == 40


def test_more_processes_than_there_is_room_for_are_asked_for_again(tmp_path: Path) -> None:
    many = ",".join(f"{pid}:{pid % 100}:1" for pid in range(5, 205))
    with ticking(tmp_path, f"gpu 0 procs=203:1:C,204:1:C putil={many}") as t:
        assert t.tick().calls[NEWER] == 2
        again = t.tick(2000)
    assert again.calls[NEWER] == 1
    assert again.health is not None
    assert again.health.process_utils == (ProcessUtil(203, 3, 1, 0, 0), ProcessUtil(204, 4, 1, 0, 0))


@pytest.mark.parametrize("code", [3, 13, 25])
def test_an_older_driver_is_asked_the_older_way_and_the_newer_call_not_again(tmp_path: Path, code: int) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:93:12 rc.{NEWER}={code}") as t:
        assert sm(t)[7] == 93
        later = t.tick(2000)
    assert (later.calls.get(NEWER, 0), later.calls[OLDER]) == (0, 1)


def test_blackwell_which_lacks_the_older_call_is_asked_only_the_newer(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:93:12 rc.{OLDER}=3") as t:
        assert sm(t)[7] == 93


def test_without_either_call_nothing_is_claimed(tmp_path: Path) -> None:
    with ticking(tmp_path, f"gpu 0 {PROCS} rc.{NEWER}=3 rc.{OLDER}=3") as t:
        t.tick()
        health = t.tick(2000).health
    assert health is not None
    assert (health.process_utils, health.process_utils_absent) == ((), NOT_SUPPORTED)


def test_the_first_answer_counts_only_when_a_recent_stamp_is_known(tmp_path: Path) -> None:
    # Without rings there is none, and from zero the driver averages ten seconds of the past.
    with ticking(tmp_path, f"gpu 0 {PROCS} putil=7:50:1 rc.nvmlDeviceGetSamples=3") as t:
        first = t.health()
        second = t.health(2)
    assert (first.process_utils, first.process_utils_absent) == ((), NOT_READ)
    assert second.process_utils[0] == ProcessUtil(7, 50, 1, 0, 0)


def test_a_list_that_cannot_be_read_gives_no_zeros(tmp_path: Path) -> None:
    scenario = f"gpu 0 {PROCS} putil=7:50:1 rc.nvmlDeviceGetComputeRunningProcesses_v3=4"
    with ticking(tmp_path, scenario) as t:
        health = t.health(3)
    assert (health.process_utils, health.process_utils_absent) == ((), Absent(Reason.NO_PERMISSION))
