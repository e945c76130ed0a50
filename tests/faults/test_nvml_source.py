"""The live source over the C ABI: one bad GPU, or a bad driver, must not blind the rest."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakenvml.build import Fake, calls, fake_env, loaded
from msgspec import UNSET

from gpuwatch.collect.host_sampler import Roots
from gpuwatch.collect.node import SURVEY_S, NodeSource
from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.sleep import Sleep
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.model import (
    NOT_SUPPORTED,
    Absent,
    DeviceHealth,
    DeviceSample,
    DriverState,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessTick,
    Reason,
    Role,
    StackSample,
    Unwatched,
)

PATIENCE_S = 20.0
LOST = Absent(Reason.LOST, "the GPU fell off the bus")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread does."""
    ends = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < ends, f"never happened: {what}"
        pause.wait(0.005)


def info(pid: int, root: int, role: Role) -> ProcessInfo:
    return ProcessInfo(
        pid=pid, start_ticks=1, ppid=1, root_pid=root, role=role, comm="py", command="py", user="u", uid=1
    )


class Parts:
    """Host, processes and stacks that answer at once and remember what they were asked."""

    def __init__(self) -> None:
        self.roots: list[Roots] = []
        self.bursts: list[tuple[Focus, tuple[int, ...]]] = []
        self.burst_ended = threading.Event()
        self.emit: Emit | None = None

    def node(self) -> NodeInfo:
        return NodeInfo("host", "6.1", "boot", 8, 1024)

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        self.emit = emit
        self.bursts.append((focus, tuple(worker.pid for worker in workers())))
        if stop.wait(PATIENCE_S):
            self.burst_ended.set()


class Host:
    fails = False

    def read(self, mono_ns: int) -> HostSample:
        if self.fails:
            raise RuntimeError("a bug")
        return HostSample(mono_ns)


class Processes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        self._parts.roots.append(roots)
        infos = tuple(info(pid, pid, Role.MAIN) for pid in roots)
        workers = tuple(info(pid + 1, pid, Role.LOADER_WORKER) for pid in roots)
        return ProcessTick(mono_ns, infos=infos + workers)


class Running:
    def __init__(self, fake: Fake, source: NodeSource, parts: Parts, host: Host | None = None) -> None:
        self.fake = fake
        self.host = host or Host()
        self.source = source
        self.parts = parts
        self.got: list[Observation] = []
        source.start(self.got.append)

    def samples(self, index: int) -> list[DeviceSample]:
        return [o for o in list(self.got) if isinstance(o, DeviceSample) and o.device_index == index]

    def inventories(self) -> list[Inventory]:
        return [o for o in list(self.got) if isinstance(o, Inventory)]

    def hosts(self) -> int:
        return sum(isinstance(o, HostSample) for o in list(self.got))

    def more(self, index: int, count: int = 3) -> list[DeviceSample]:
        """The next samples of a GPU."""
        had = len(self.samples(index))
        until(lambda: len(self.samples(index)) >= had + count, f"{count} more samples of GPU {index}")
        return self.samples(index)[had:]


@contextmanager
def running(
    tmp_path: Path,
    scenario: str,
    patience_s: float = PATIENCE_S,
    sleep: Sleep | None = None,
    survey_s: float = SURVEY_S,
) -> Iterator[Running]:
    with loaded(tmp_path, scenario) as fake:
        parts = Parts()
        host = Host()
        source = NodeSource(
            *(Nvml(), host, Processes(parts), parts, parts.node),
            period_s=0.1,
            retry_s=0.02,
            patience_s=patience_s,
            survey_s=survey_s,
            sleep=sleep,
        )
        run = Running(fake, source, parts, host)
        yield run
        fake.release()
        source.stop()


def until_stuck(run: Running, index: int) -> None:
    """Wait until a reading of this GPU has been under way for three periods."""
    until(lambda: run.source.now_ns() - run.source.stuck_since_ns().get(index, run.source.now_ns()) > 3.5e8, "a hang")


def laptop(tmp_path: Path, status: str) -> Path:
    """The sysfs of a machine with one GPU that may suspend; its status file."""
    power = tmp_path / "pci" / "0000:01:00.0" / "power"
    power.mkdir(parents=True)
    (power.parent / "vendor").write_text("0x10de\n")
    (power.parent / "class").write_text("0x030000\n")
    (power / "control").write_text("auto\n")
    (power / "runtime_status").write_text(f"{status}\n")
    return power / "runtime_status"


def test_a_gpu_that_sleeps_is_not_woken_and_is_watched_once_it_wakes(tmp_path: Path) -> None:
    status = laptop(tmp_path, "suspended")
    with running(tmp_path, "gpus=1", sleep=Sleep(tmp_path / "pci", look_s=0.01)) as run:
        until(lambda: run.hosts() > 2, "the host is watched meanwhile")
        (asleep,) = run.inventories()
        assert (asleep.driver, asleep.devices) == (DriverState.ASLEEP, ())
        assert "asleep" in asleep.driver_hint
        assert not calls(tmp_path), "not one call"
        status.write_text("active\n")
        run.more(0)
        assert run.inventories()[-1].driver is DriverState.OK


def test_a_gpu_that_nobody_uses_or_watches_is_given_back_and_taken_up_when_it_is_used(tmp_path: Path) -> None:
    status = laptop(tmp_path, "active")
    sleep = Sleep(tmp_path / "pci", idle_s=0.0, look_s=0.01)
    with running(tmp_path, "gpus=1\ngpu 0 procs=5:1:C", sleep=sleep) as run:
        run.source.set_demand(True)
        run.more(0, 8)
        assert calls(tmp_path)["nvmlShutdown", None] == 0, "a process is on it"
        run.fake.set("gpu 0 procs=none")
        until(lambda: calls(tmp_path)["nvmlShutdown", None], "NVML is given back")
        status.write_text("suspended\n")
        until(lambda: run.inventories()[-1].driver is DriverState.ASLEEP, "it is told")
        assert [device.name for device in run.inventories()[-1].devices] == ["NVIDIA H200"], "it is still there"
        made = sum(calls(tmp_path).values())
        hosts = run.hosts()
        until(lambda: run.hosts() > hosts + 2, "the host is watched")
        assert sum(calls(tmp_path).values()) == made
        run.source.set_demand(False)  # Somebody looks: it is told that it sleeps, and not woken for that.
        run.fake.set("gpu 0 procs=5:1:C")
        status.write_text("active\n")
        run.more(0)
        assert run.inventories()[-1].driver is DriverState.OK


def test_events_that_are_not_watched_any_more_are_told_with_the_reason_and_the_gpus_go_on(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2") as run:
        run.more(1)
        assert [inventory.unwatched for inventory in run.inventories()] == [UNSET]
        run.fake.set("rc.nvmlEventSetWait_v2=13")
        until(lambda: run.inventories()[-1].unwatched, "the end of the events is told")
        assert run.inventories()[-1].unwatched == (Unwatched("XIDs and other events", NOT_SUPPORTED),)
        run.more(1)
        told = len(run.inventories())
        run.more(1, 5)
        assert len(run.inventories()) == told, "told once"


def test_a_reader_of_ours_that_fails_is_told_and_taken_back(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1") as run:
        run.more(0)
        run.host.fails = True
        until(lambda: run.inventories()[-1].unwatched, "the failure is told")
        assert run.inventories()[-1].unwatched == (Unwatched("the host", Absent(Reason.ERROR, "RuntimeError: a bug")),)
        run.host.fails = False
        until(lambda: not run.inventories()[-1].unwatched, "it is over")


def test_the_inventory_comes_first_with_versions_and_all_gpus(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=8 driver=580.1 cuda=13010") as run:
        until(lambda: all(run.samples(index) for index in range(8)), "a sample of each GPU")
        first = run.got[0]
        assert isinstance(first, Inventory)
        assert (first.driver, first.driver_hint, len(first.devices)) == (DriverState.OK, "", 8)
        assert (first.node.driver_version, first.node.cuda_driver_version) == ("580.1", "13.1")
        assert first.node.hostname == "host"
        assert len(run.inventories()) == 1


def test_counters_flow_at_ten_hertz(tmp_path: Path) -> None:
    with running(tmp_path, "gpu 0 gpm.2=95") as run:
        until(lambda: [s for s in run.samples(0) if s.sm_active_pct == 95.0], "SM activity")
        assert 0.0 not in {s.sm_active_pct for s in run.samples(0)}


def test_gpu_0_goes_on_while_gpu_1_falls_off_the_bus(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2\ngpu * util=50") as run:
        until(lambda: run.samples(1), "a sample of GPU 1")
        run.fake.set("gpu 1 rc.*=15")
        until(lambda: run.samples(1)[-1].power_w == LOST, "the loss")
        assert all(s.gpu_util_pct == LOST for s in run.more(1, 4))
        assert all(s.power_w == 76.0 for s in run.more(0, 4))
        assert run.fake.calls()["nvmlInitWithFlags", None] == 1


def test_gpu_0_goes_on_while_a_call_on_gpu_1_hangs_and_its_age_is_visible(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2") as run:
        until(lambda: run.samples(1), "a sample of GPU 1")
        run.fake.set("gpu 1 hang.nvmlDeviceGetUtilizationRates=1")
        until(lambda: 1 in run.source.stuck_since_ns(), "the hang")
        until(lambda: run.source.now_ns() - run.source.stuck_since_ns().get(1, run.source.now_ns()) > 3e8, "its age")
        had = len(run.samples(1))
        assert all(s.power_w == 76.0 for s in run.more(0, 5))
        assert len(run.samples(1)) == had
        assert run.source.progress_ns() > run.source.stuck_since_ns()[1]
        run.fake.set("gpu 1 hang.nvmlDeviceGetUtilizationRates=0")
        assert run.more(1)[-1].power_w == 76.0


def test_stop_returns_while_a_call_hangs_and_leaves_the_driver_open(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=2\ngpu 1 hang.nvmlDeviceGetPowerUsage=1") as fake:
        parts = Parts()
        source = NodeSource(Nvml(), Host(), Processes(parts), parts, parts.node, period_s=0.1)
        run = Running(fake, source, parts)
        until(lambda: run.samples(0) and 1 in source.stuck_since_ns(), "the hang")
        source.stop()
        assert 1 in source.stuck_since_ns()
        # Shutting down under a call that still runs is how exporters have hung GPUs.
        assert fake.calls()["nvmlShutdown", None] == 0
        had = len(run.got)
        fake.set("gpu 1 hang.nvmlDeviceGetPowerUsage=0")
        until(lambda: not source.stuck_since_ns(), "the end of the hang")
        assert len(run.got) == had


def test_stop_gives_the_driver_and_its_samples_back(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2") as run:
        until(lambda: run.samples(0) and run.samples(1), "samples")
        run.source.stop()
        made = run.fake.calls()
        assert made["nvmlShutdown", None] == 1
        assert made["nvmlGpmSampleFree", None] == made["nvmlGpmSampleAlloc", None] == 4


def test_a_hanging_counter_call_on_gpu_1_takes_the_counters_of_gpu_0_only_for_a_while(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2\ngpu * gpm.2=95") as run:
        until(lambda: run.samples(0) and run.samples(0)[-1].sm_active_pct == 95.0, "SM activity")
        run.fake.set("gpu 1 hang.nvmlGpmSampleGet=1")
        until(lambda: isinstance(run.samples(0)[-1].sm_active_pct, Absent), "the shared gate is held")
        assert run.samples(0)[-1].power_w == 76.0
        until(lambda: run.samples(0)[-1].sm_active_pct == 95.0, "the gate is abandoned")
        assert 1 in run.source.stuck_since_ns()


def test_an_init_that_hangs_is_told_and_the_host_is_watched_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path, "hang.nvmlInitWithFlags=1", patience_s=0.02) as run:
        until(lambda: run.hosts() >= 2, "host samples")
        (told,) = run.inventories()
        assert run.got[0] is told
        assert told.driver is DriverState.UNKNOWN
        assert "not answered" in told.driver_hint
        run.fake.set("hang.nvmlInitWithFlags=0")
        until(lambda: run.samples(0), "a sample once the driver answers")
        assert run.inventories()[-1].driver is DriverState.OK


def test_stop_returns_while_init_hangs(tmp_path: Path) -> None:
    with running(tmp_path, "hang.nvmlInitWithFlags=1", patience_s=0.02) as run:
        until(run.inventories, "an inventory")
        run.source.stop()
        assert run.fake.calls()["nvmlShutdown", None] == 0


def test_stop_while_a_gpu_is_being_identified_leaves_the_driver_open(tmp_path: Path) -> None:
    with running(tmp_path, "gpu 0 hang.nvmlDeviceGetName=1", patience_s=0.02) as run:
        until(lambda: run.fake.calls()["nvmlDeviceGetName", 0], "the hang")
        run.source.stop()
        assert run.fake.calls()["nvmlShutdown", None] == 0


def test_a_driver_loaded_later_is_found_without_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, "rc.nvmlInitWithFlags=9,9,0") as run:
        until(lambda: run.samples(0), "a sample")
        assert [i.driver for i in run.inventories()] == [DriverState.NO_DRIVER, DriverState.OK]
        assert run.hosts() > 0


def test_a_mismatch_is_told_and_not_tried_again(tmp_path: Path) -> None:
    with running(tmp_path, "rc.nvmlInitWithFlags=18") as run:
        until(lambda: run.hosts() >= 5, "host samples")
        assert [i.driver for i in run.inventories()] == [DriverState.MISMATCH]
        assert run.fake.calls()["nvmlInitWithFlags", None] == 1


def test_a_container_without_gpus_still_shows_its_host(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=0") as run:
        until(lambda: run.hosts() >= 2, "host samples")
        assert [i.driver for i in run.inventories()] == [DriverState.NO_DEVICES]


def test_a_driver_reloaded_under_us_is_opened_again(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2") as run:
        until(lambda: run.samples(0) and run.samples(1), "samples")
        run.fake.set("gpu * rc.*=1")
        until(lambda: run.fake.calls()["nvmlInitWithFlags", None] >= 2, "a second nvmlInit")
        run.fake.set("gpu * rc.*=0")
        until(lambda: run.samples(0)[-1].power_w == 76.0 and run.samples(1)[-1].power_w == 76.0, "samples again")
        until(lambda: {d.name for d in run.inventories()[-1].devices} == {"NVIDIA H200"}, "their identity")


def test_nvml_that_stayed_open_under_a_call_that_hung_is_given_back_once_it_returned(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2", survey_s=0.05) as run:
        until(lambda: run.samples(1), "samples")
        run.fake.set("gpu 1 hang.nvmlDeviceGetPowerUsage=1")
        until_stuck(run, 1)
        run.fake.set("gpus=3")
        until(lambda: run.samples(2), "another opening, under the hang")
        assert run.fake.calls()["nvmlShutdown", None] == 0
        run.fake.set("gpu 1 hang.nvmlDeviceGetPowerUsage=0")
        run.more(1)
        made = run.fake.calls()
        assert made["nvmlShutdown", None] == made["nvmlInitWithFlags", None] - 1, "only the opening of now is held"
        run.fake.set("reloads=1")
        until(lambda: isinstance(run.samples(0)[-1].power_w, Absent), "a driver that was reloaded")
        until(lambda: all(run.samples(i)[-1].power_w == 76.0 for i in range(3)), "readings of the reloaded driver")
        run.source.stop()
        made = run.fake.calls()
        assert made["nvmlShutdown", None] == made["nvmlInitWithFlags", None]


def test_a_driver_reloaded_while_a_gpu_hangs_is_told_and_taken_up_when_the_hang_ends(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2") as run:
        until(lambda: run.samples(1), "samples")
        run.fake.set("gpu 1 hang.nvmlDeviceGetPowerUsage=1")
        until_stuck(run, 1)
        run.fake.set("reloads=1")
        until(
            lambda: run.inventories()[-1].driver is DriverState.UNKNOWN, "NVML cannot be initialised anew: it is told"
        )
        run.fake.set("gpu 1 hang.nvmlDeviceGetPowerUsage=0")
        until(lambda: run.inventories()[-1].driver is DriverState.OK, "the driver again")
        assert all(run.more(index)[-1].power_w == 76.0 for index in (0, 1))


def test_a_gpu_that_hangs_in_the_look_for_changes_hides_none_on_the_others(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=3\ngpu * mig=0", survey_s=0.05) as run:
        until(lambda: run.samples(2), "samples")
        run.fake.set("gpu 1 hang.nvmlDeviceGetMigMode=1 hang.nvmlDeviceGetPowerUsage=1")
        until_stuck(run, 1)
        run.fake.set("gpu 0 mig=1")
        run.fake.set("gpu 100 there=1")
        until(lambda: 100 in [d.index for d in run.inventories()[-1].devices], "the MIG instance of GPU 0")
        run.fake.set("gpus=4")
        until(lambda: run.samples(3), "another GPU")
        run.more(0)
        looks = [thread for thread in threading.enumerate() if thread.name == "survey"]
        assert len(looks) <= 2, "the one that hangs, and one that looks"


def test_a_driver_that_is_reloaded_while_the_look_for_changes_hangs_is_opened_again(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2", survey_s=0.05) as run:
        # The first slow reading counts the GPUs, too: past it only the look for changes does.
        until(lambda: {o.device_index for o in list(run.got) if isinstance(o, DeviceHealth)} == {0, 1}, "slow readings")
        run.fake.set("hang.nvmlDeviceGetCount_v2=1")
        until(lambda: any(thread.name == "survey" for thread in threading.enumerate()), "a look")
        opened = run.fake.calls()["nvmlInitWithFlags", None]
        run.fake.set("gpu * rc.*=1")
        until(lambda: run.fake.calls()["nvmlInitWithFlags", None] > opened, "another opening")


def test_a_look_for_changes_that_fails_through_a_bug_is_told_and_the_gpus_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Nvml, "changed", fails)
    with running(tmp_path, "gpus=1", survey_s=0.05) as run:
        until(lambda: run.inventories() and run.inventories()[-1].unwatched, "the failure is told")
        part = Unwatched("GPUs and MIG instances that come or go", Absent(Reason.ERROR, "RuntimeError: a bug"))
        assert run.inventories()[-1].unwatched == (part,)
        run.more(0)


def test_mig_that_is_switched_off_without_an_instance_left_gives_the_gpu_its_utilization_back(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1\ngpu 0 mig=1 util=50", survey_s=0.05) as run:
        until(lambda: run.samples(0) and run.samples(0)[-1].gpu_util_pct == NOT_SUPPORTED, "MIG without an instance")
        run.fake.set("gpu 0 mig=0")
        until(lambda: run.samples(0)[-1].gpu_util_pct == 50, "utilization")
        run.fake.set("gpu 0 mig=1")
        until(lambda: run.samples(0)[-1].gpu_util_pct == NOT_SUPPORTED, "MIG again")


def test_processes_are_looked_up_under_every_gpu_that_lists_them(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2\ngpu 0 procs=42:1:C,43:1:C\ngpu 1 procs=42:1:C") as run:
        until(lambda: {42: (0, 1), 43: (0,)} in run.parts.roots, "the roots")
        run.fake.set("gpu 0 rc.*=15")
        until(lambda: run.samples(0)[-1].power_w == LOST, "the loss")
        asked = len(run.parts.roots)
        until(lambda: len(run.parts.roots) > asked + 1, "two more process readings")
        assert run.parts.roots[-1] == {42: (0, 1), 43: (0,)}


def test_a_focus_looks_closely_at_the_job_and_ends_by_itself(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=2\ngpu * procs=42:1:C") as fake:
        parts = Parts()
        source = NodeSource(Nvml(), Host(), Processes(parts), parts, parts.node, period_s=5.0, retry_s=0.02)
        run = Running(fake, source, parts)
        until(lambda: {42: (0, 1)} in parts.roots, "the roots")
        before = len(run.samples(1))
        source.focus(Focus(42, (0,), seconds=1.0))
        run.more(0, 3)
        assert len(run.samples(1)) == before
        until(lambda: parts.bursts, "a stack burst")
        assert parts.bursts[0][1] == (43,)
        until(parts.burst_ended.is_set, "the end of the focus")
        until(lambda: source._gpus.samplers[0].period_s == 5.0, "the old rate")
        source.stop()


def test_a_gpu_with_a_probe_is_read_more_often_and_the_others_are_not(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=2") as fake:
        parts = Parts()
        source = NodeSource(Nvml(), Host(), Processes(parts), parts, parts.node, period_s=5.0, retry_s=0.02)
        run = Running(fake, source, parts)
        until(lambda: bool(run.samples(0)) and bool(run.samples(1)), "the first readings")
        before = len(run.samples(1))
        source.hasten(frozenset({0}), 0.25)
        run.more(0, 2)
        assert len(run.samples(1)) == before
        source.focus(Focus(42, (0,), seconds=600.0))
        assert source._gpus.samplers[0].period_s == 0.1, "a focus is closer still"
        source.focus(None)
        assert [sampler.period_s for sampler in source._gpus.samplers] == [0.25, 5.0]
        source.hasten(frozenset(), 0.25)
        assert [sampler.period_s for sampler in source._gpus.samplers] == [5.0, 5.0]
        source.stop()


def test_a_new_focus_ends_the_burst_of_the_old_one(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1\ngpu 0 procs=42:1:C") as run:
        until(lambda: {42: (0,)} in run.parts.roots, "the roots")
        run.source.focus(Focus(42, (0,), seconds=600.0))
        until(lambda: run.parts.bursts, "a stack burst")
        run.source.focus(Focus(0, (0,), seconds=600.0))
        until(run.parts.burst_ended.is_set, "the end of the first burst")
        run.source.focus(None)
        assert len(run.parts.bursts) == 1


def test_a_stack_that_comes_after_stop_is_not_emitted(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1") as run:
        run.source.focus(Focus(42, (0,), seconds=600.0))
        until(lambda: run.parts.emit, "a stack burst")
        run.source.stop()
        had = len(run.got)
        assert run.parts.emit is not None
        run.parts.emit(StackSample(42, 42, 0))
        assert len(run.got) == had


CHILD = """
import queue, sys
from gpuwatch.collect.node import live_source
from gpuwatch.model import DeviceSample, HostSample, Inventory
got = queue.SimpleQueue()
source = live_source(0.2)
source.start(got.put)
inventory = got.get(timeout=30)
assert isinstance(inventory, Inventory), inventory
print(inventory.driver, *(d.name for d in inventory.devices), sep="|")
seen = {}
while len(seen) < 3:
    o = got.get(timeout=30)
    if isinstance(o, DeviceSample) and isinstance(o.sm_active_pct, float):
        seen[o.device_index] = o
    if isinstance(o, HostSample):
        seen["host"] = o
print(seen[0].sm_active_pct, seen[1].sm_active_pct, seen["host"].cpus_online > 0)
source.stop()
"""


def test_the_whole_source_runs_on_the_unmodified_binding_by_library_path(tmp_path: Path) -> None:
    scenario = 'gpus=2\ngpu 0 name="NVIDIA H200" gpm.2=95.8\ngpu 1 name="NVIDIA L40S" gpm.2=4.2\n'
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=fake_env(tmp_path, scenario),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["ok|NVIDIA H200|NVIDIA L40S", "95.8 4.2 True"]
    made = calls(tmp_path)
    assert made["nvmlShutdown", None] == 1
    assert not [function for function, _ in made if "PcieThroughput" in function]


def test_a_mistake_in_a_scenario_is_named_by_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"],
        env=fake_env(tmp_path, "gpus=2\ngpu 0 utl=5\n"),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (64, "fake_nvml: line 2 of the scenario: unknown key: utl\n")
