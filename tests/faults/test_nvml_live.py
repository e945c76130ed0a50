"""The live source over the C ABI: slow readings, the driver's own samples and events come out of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fakenvml.build import Fake, loaded

from gpuwatch.collect.host_sampler import Roots
from gpuwatch.collect.node import NodeSource
from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.model import (
    Burst,
    DeviceHealth,
    EventRecord,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessTick,
)

PATIENCE_S = 20.0


class Rest:
    """Host, processes and stacks that have nothing to tell."""

    def node(self) -> NodeInfo:
        return NodeInfo("host", "6.1", "boot", 8, 1024)

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        stop.wait(PATIENCE_S)


class Host:
    def read(self, mono_ns: int) -> HostSample:
        return HostSample(mono_ns)


class Processes:
    def read(self, roots: Roots, mono_ns: int) -> ProcessTick:
        return ProcessTick(mono_ns)


@contextmanager
def running(tmp_path: Path, scenario: str) -> Iterator[tuple[Fake, NodeSource, list[Observation]]]:
    with loaded(tmp_path, scenario) as fake:
        rest, got = Rest(), list[Observation]()
        source = NodeSource(Nvml(), Host(), Processes(), rest, rest.node, period_s=0.1, retry_s=0.02)
        source.start(got.append)
        try:
            yield fake, source, got
        finally:
            fake.release()
            source.stop()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    ends, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, f"never happened: {what}"
        pause.wait(0.005)


def kinds(got: list[Observation], kind: type, index: int) -> list[Observation]:
    found = [o for o in list(got) if isinstance(o, kind)]
    return [o for o in found if getattr(o, "device_index", -1) == index]


def test_every_gpu_tells_its_health_and_its_own_samples(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2\ngpu 1 margin=-2") as (_, _, got):
        for index in (0, 1):
            for kind in (DeviceHealth, Burst):
                wait_for(lambda i=index, k=kind: bool(kinds(got, k, i)), f"{kind.__name__} of GPU {index}")  # type: ignore[misc]
        health = kinds(got, DeviceHealth, 1)[0]
    assert isinstance(health, DeviceHealth)
    assert health.temp_margin_c == -2


def test_an_xid_comes_through_also_after_the_driver_was_opened_again(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1") as (fake, _, got):
        wait_for(lambda: bool(kinds(got, DeviceHealth, 0)), "a first reading")
        fake.set("gpu 0 event=8:31")
        wait_for(lambda: len(kinds(got, EventRecord, 0)) == 1, "the first XID")
        opened = fake.calls()["nvmlInitWithFlags", None]
        fake.set("gpu 0 rc.*=1")
        wait_for(lambda: fake.calls()["nvmlInitWithFlags", None] > opened, "another opening")
        fake.set("gpu 0 rc.*=0")
        fake.set("gpu 0 event=8:79")
        wait_for(lambda: len(kinds(got, EventRecord, 0)) == 2, "an XID of the reloaded driver")
    told = [o.xid for o in kinds(got, EventRecord, 0) if isinstance(o, EventRecord)]
    assert told == [31, 79]


def test_an_xid_comes_through_while_another_gpu_hangs_and_the_inventory_names_that_gpu(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=4\ngpu 2 hang.nvmlDeviceGetHandleByIndex_v2=1") as (fake, _, got):
        fake.set("gpu 0 event=8:79")
        fake.set("gpu 3 event=8:48")
        wait_for(lambda: bool(kinds(got, EventRecord, 0) and kinds(got, EventRecord, 3)), "the XIDs of 0 and 3")

        def parts() -> list[str]:
            inventories = [o for o in list(got) if isinstance(o, Inventory)]
            return [part.part for part in inventories[-1].unwatched or ()]

        wait_for(lambda: parts() == ["XIDs and other events of GPU 2"], "GPU 2 to be named")


def test_a_slow_reading_that_hangs_leaves_the_samples_of_the_other_gpu_and_can_be_stopped(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=2\ngpu 1 hang.nvmlDeviceGetRemappedRows=1") as (_, source, got):
        wait_for(lambda: 1 in source.stuck_since_ns() and bool(kinds(got, DeviceHealth, 0)), "GPU 1 stuck, GPU 0 not")
        had = len(kinds(got, Burst, 0))
        wait_for(lambda: len(kinds(got, Burst, 0)) > had, "more of GPU 0")
        assert not kinds(got, DeviceHealth, 1)


def test_nobody_watching_is_passed_on_and_a_close_look_overrides_it(tmp_path: Path) -> None:
    with running(tmp_path, "gpus=1") as (_, source, got):
        wait_for(lambda: bool(kinds(got, DeviceHealth, 0)), "a first reading")
        reader = source._gpus.samplers[0].reader
        source.set_demand(True)
        assert vars(reader)["_low_demand"] is True
        source.focus(Focus(0, (0,), 60.0, stacks=False))
        assert vars(reader)["_low_demand"] is False
        source.focus(None)
        assert vars(reader)["_low_demand"] is True
