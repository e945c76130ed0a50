"""What happens to the node as a whole, in a real daemon: the driver comes, goes, is replaced, or says no."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakenvml.build import LIBRARY, built, calls
from fault_daemon import Watched, fake_module, watched

from gpuwatch.client.state import NodeState
from gpuwatch.model import NOT_SUPPORTED, Absent, DeviceSample, DriverState, Reason

OK_AGAIN = "rc.nvmlInitWithFlags=0"


@dataclass(frozen=True)
class Start:
    """A driver that does not start."""

    name: str
    source: str
    scenario: str
    driver: DriverState
    words: str
    cured_by: str = ""
    """A statement after which readings come without a restart."""
    pynvml: str = ""
    """Text of a module that stands in for the binding."""
    library: bool = True
    """False: a file that is no library, which hides an installed one."""


STARTS = (
    Start(
        *("kernel module not loaded, then loaded", "nvtop#95", "rc.nvmlInitWithFlags=9", DriverState.NO_DRIVER),
        *("modprobe nvidia", OK_AGAIN),
    ),
    Start(
        *("library and module differ", "nvidia_gpu_exporter#65", "rc.nvmlInitWithFlags=18", DriverState.MISMATCH),
        "reboot",
    ),
    Start(
        *("container lost its devices, then has them", "nvidia-container-toolkit#48", "rc.nvmlInitWithFlags=999"),
        *(DriverState.UNKNOWN, "daemon-reload", OK_AGAIN),
    ),
    Start(
        *("the same with the code of other drivers", "nvidia-container-toolkit#1227", "rc.nvmlInitWithFlags=17"),
        *(DriverState.UNKNOWN, "daemon-reload", OK_AGAIN),
    ),
    Start(
        *("rootless container", "nvidia-container-toolkit#210", "rc.nvmlInitWithFlags=4", DriverState.NO_PERMISSION),
        *("/dev/nvidia", OK_AGAIN),
    ),
    Start(
        *("no GPU, then one is plugged in", "nvidia_gpu_exporter refuses it", "gpus=0", DriverState.NO_DEVICES),
        *("--gpus all", "gpus=1"),
    ),
    Start(
        *("an init that never returns, then does", "go-nvml#152", "hang.nvmlInitWithFlags=1", DriverState.UNKNOWN),
        *("not answered", "hang.nvmlInitWithFlags=0"),
    ),
    Start(
        *("a library that cannot be loaded", "own: as without a driver", "gpus=1", DriverState.NO_LIBRARY),
        "install the NVIDIA driver",
        library=False,
    ),
    Start(
        *("a foreign pynvml", "own: several packages install one", "gpus=1", DriverState.NO_LIBRARY),
        "pip uninstall pynvml",
        pynvml="class NVMLError(Exception): pass\ndef nvmlInit(): pass\n",
    ),
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Watched]]:
    """A daemon for each, started together: one of them waits for 5 s."""
    with ExitStack() as stack:
        found: dict[str, Watched] = {}
        for start in STARTS:
            folder = tmp_path_factory.mktemp("start")
            env = fake_module(folder, "pynvml", start.pynvml) if start.pynvml else {}
            if not start.library:
                (folder / LIBRARY).write_bytes(b"")
                env = {"LD_LIBRARY_PATH": str(folder)}
            found[start.name] = stack.enter_context(watched(folder, start.scenario, env=env))
        yield found
        for node in found.values():
            node.end()


def alive(state: NodeState, *indices: int) -> bool:
    """These GPUs have readings."""
    return all(i in state.devices and state.devices[i].power_w == 76.0 for i in indices)


def newer(state: NodeState, sample: DeviceSample, periods: int = 3) -> bool:
    """The GPU has been read again, some periods later."""
    return state.devices[sample.device_index].mono_ns > sample.mono_ns + periods * 200_000_000


@pytest.mark.parametrize("start", STARTS, ids=[f"{s.name} [{s.source}]" for s in STARTS])
def test_a_driver_that_does_not_start_is_told_with_the_remedy(start: Start, started: dict[str, Watched]) -> None:
    node = started[start.name]
    node.until_driver(start.driver)
    assert start.words in node.hint
    node.until(lambda s: s.host is not None, "the host, which is watched meanwhile")
    if start.cured_by:
        node.steer(start.cured_by)
        node.until(lambda s: alive(s, 0), "readings without a restart")
        assert node.driver is DriverState.OK
    assert node.log().count(f"driver {start.driver.value}") == 1


def test_a_mismatch_is_not_tried_again_and_again(started: dict[str, Watched]) -> None:
    node = started["library and module differ"]
    node.until_driver(DriverState.MISMATCH)
    node.ticks(5)
    assert calls(node.folder)["nvmlInitWithFlags", None] == 1, "each attempt adds a line to the kernel's log"


def test_seven_of_eight_gpus_stay_on_time_while_one_hangs_and_it_comes_back(tmp_path: Path) -> None:
    # NVSentinel#1576, gpud#500: Xid 119 blocks each call on the GPU for 45 s.
    with watched(tmp_path, "gpus=8\ngpu * util=50 gpm.2=40") as node:
        node.until(lambda s: alive(s, *range(8)), "eight GPUs")
        node.steer("gpu 3 hang.nvmlDeviceGetPowerUsage=1")
        node.until(lambda s: s.age_ns(s.devices[3]) > 1_000_000_000, "GPU 3 to grow old")
        state = node.ticks(3)
        assert all(state.age_ns(state.devices[i]) < 600_000_000 for i in range(8) if i != 3)
        assert state.devices[3].power_w == 76.0, "the last reading stands, its age shows"
        assert all(state.devices[i].sm_active_pct == 40.0 for i in range(8) if i != 3)
        node.steer("gpu 3 hang.nvmlDeviceGetPowerUsage=0")
        node.until(lambda s: s.age_ns(s.devices[3]) < 600_000_000, "GPU 3 again")
    assert calls(tmp_path)["nvmlInitWithFlags", None] == 1


def test_a_gpu_that_falls_off_the_bus_does_not_take_the_other_with_it_and_may_be_reset(tmp_path: Path) -> None:
    # k8s-test-infra#746, gpud#810.
    with watched(tmp_path, "gpus=2") as node:
        before = node.until(lambda s: alive(s, 0, 1), "two GPUs").devices[0]
        node.steer("gpu 1 rc.*=15")
        node.until(lambda s: isinstance(s.devices[1].power_w, Absent), "the loss")
        node.until(lambda s: newer(s, before), "GPU 0 goes on")
        node.steer("gpu 1 rc.*=0")
        node.until(lambda s: alive(s, 0, 1), "GPU 1 after its reset")
        node.until(lambda _: "GPU 1 answers again" in node.log(), "a line about it")
        log = node.log()
    assert log.count("GPU 1: no readings: the GPU fell off the bus") == 1
    assert log.count("GPU 1 answers again") == 1
    assert "GPU 0" not in log.replace("GPUs: 0", "")


@pytest.mark.parametrize("code", [1, 9], ids=["reloaded", "unloaded"])
def test_a_driver_that_goes_under_a_running_daemon_is_found_again(tmp_path: Path, code: int) -> None:
    # nvtop#95.
    with watched(tmp_path, "gpus=2") as node:
        node.until(lambda s: alive(s, 0, 1), "two GPUs")
        node.steer(f"gpu * rc.*={code}\nrc.nvmlInitWithFlags=9")
        node.until_driver(DriverState.NO_DRIVER)
        node.steer("gpu * rc.*=0\nrc.nvmlInitWithFlags=0")
        node.until(lambda s: alive(s, 0, 1) and node.driver is DriverState.OK, "two GPUs again")


@pytest.mark.parametrize(
    "scenario",
    [
        "gpus=2",
        "gpus=2\ngpu 1 rc.nvmlDeviceGetPowerUsage=3",
        "gpus=2\ngpu 1 mig=1",
        "gpus=2\ngpu 1 mig=1\ngpu 200 there=1 rc.nvmlDeviceGetPowerUsage=3 rc.nvmlDeviceGetClockInfo=3 gpm=0",
        "gpus=2\ngpu 1 rc.*=15",
    ],
    ids=["all", "one without a power reading", "MIG without an instance", "MIG", "beside a lost one"],
)
def test_a_container_that_loses_its_devices_while_running_is_told_so(tmp_path: Path, scenario: str) -> None:
    # nvidia-container-toolkit#251: systemctl daemon-reload takes the devices from a running container.
    with watched(tmp_path, scenario) as node:
        node.until(lambda s: alive(s, 0) and 1 in s.devices, "two GPUs")
        gone = "0" if "rc.*=15" in scenario else "*"
        node.steer(f"gpu {gone} rc.*=999\nrc.nvmlInitWithFlags=999")
        node.until_driver(DriverState.UNKNOWN)
        assert "daemon-reload" in node.hint


def test_a_driver_upgraded_underneath_is_followed_by_a_new_process_at_the_same_endpoint(tmp_path: Path) -> None:
    # nvidia_gpu_exporter#65, mozilla/translations#1167.
    library = tmp_path / LIBRARY
    shutil.copy(built(), library)
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    with watched(tmp_path, "kernel=580 gpus=1", env=env) as node:
        epoch = node.until(lambda s: alive(s, 0), "readings").epoch
        inits = calls(tmp_path)["nvmlInitWithFlags", None]
        # An upgrade replaces the file; the running process keeps the old one mapped.
        upgraded = tmp_path / "new"
        shutil.copy(built(version=590), upgraded)
        upgraded.rename(library)
        node.steer("kernel=590 driver=590.1")
        state = node.until(lambda s: s.epoch != epoch and alive(s, 0), "readings by the new library")
        assert state.inventory is not None
        assert state.inventory.node.driver_version == "590.1"
        assert node.child.poll() is None, "the process is the same to systemd"
        assert node.log().count("upgraded underneath") == 1
        assert calls(tmp_path)["nvmlInitWithFlags", None] == inits + 2


def test_a_gpu_that_appears_and_one_that_vanishes_are_followed(tmp_path: Path) -> None:
    # koordinator#2706: the numbers of the others must not shift.
    with watched(tmp_path, "gpus=1") as node:
        node.until(lambda s: alive(s, 0), "one GPU")
        node.steer("gpus=2")
        node.until(lambda s: alive(s, 0, 1), "the second GPU")
        node.steer("gpus=1")
        state = node.until(lambda s: s.inventory and len(s.inventory.devices) == 1, "the second one to go")
        state = node.until(lambda s: 1 not in s.devices and alive(s, 0), "its readings to go")
        assert set(state.devices) == {0}


MIG = """gpus=2
gpu 0 mig=1 gpm.2=60 procs={pid}:9:C
gpu 0 rc.nvmlDeviceGetMemoryInfo=4 rc.nvmlDeviceGetMemoryInfo_v2=4
gpu 100 there=1 gpm.2=90 total=19000000000 used=5000 procs={pid}:9:C
gpu 102 there=1 gpm.2=30 total=38000000000 used=7000 slices=2 name="NVIDIA H200"
"""


def test_mig_instances_are_children_of_their_gpu_and_have_counters(tmp_path: Path) -> None:
    # btop#1167, gpustat#106, nvidia-container-toolkit#842: no utilization, a hole in the slots, no memory for the GPU.
    with watched(tmp_path, MIG.format(pid=os.getpid())) as node:
        state = node.until(
            lambda s: s.devices.get(100) and not isinstance(s.devices[100].sm_active_pct, Absent), "counters"
        )
        parent, first, second = node.device(0), node.device(100), node.device(102)
        assert state.inventory is not None
        assert [d.index for d in state.inventory.devices] == [0, 100, 102, 1]
        assert (first.parent_uuid, second.parent_uuid, parent.parent_uuid) == (parent.uuid, parent.uuid, "")
        assert (first.mig_profile, second.mig_profile, parent.mig_profile) == ("1g.18gb", "2g.36gb", "")
        node.until(lambda s: s.devices[102].sm_active_pct == 30.0, "counters of the second")
        node.until(lambda s: s.devices[0].gpu_util_pct == s.devices[100].gpu_util_pct == NOT_SUPPORTED, "utilization")
        state = node.state
        assert (state.devices[100].sm_active_pct, state.devices[100].mem_used_bytes) == (90.0, 5000)
        assert state.devices[0].mem_used_bytes == Absent(Reason.NO_PERMISSION)
        job = node.until(lambda s: os.getpid() in s.infos, "the job").infos[os.getpid()]
        assert job.device_indices == (100,), "a job belongs to its instance, not to the whole GPU as well"


def test_mig_reconfigured_under_a_running_daemon_is_followed(tmp_path: Path) -> None:
    # nvidia_gpu_exporter#466: a handle of a destroyed instance answers INVALID_ARGUMENT.
    with watched(tmp_path, MIG.format(pid=os.getpid())) as node:
        node.until(lambda s: alive(s, 1, 100, 102), "two instances")
        node.steer("gpu 100 there=0\ngpu 103 there=1 uuid=MIG-new gpm.2=11")
        node.until(lambda s: s.devices.get(103) and s.devices[103].sm_active_pct == 11.0, "the new instance")
        state = node.until(lambda s: 100 not in s.devices and alive(s, 1, 102, 103), "the old one to go")
        assert state.inventory is not None
        assert [d.index for d in state.inventory.devices] == [0, 102, 103, 1]
        assert node.device(103).uuid == "MIG-new"
        node.steer("gpu 0 mig=0\ngpu 102 there=0\ngpu 103 there=0")
        node.until(lambda s: s.inventory and [d.index for d in s.inventory.devices] == [0, 1], "whole GPUs again")
        node.until(lambda s: alive(s, 0, 1) and s.devices[0].gpu_util_pct == 0, "utilization again")
