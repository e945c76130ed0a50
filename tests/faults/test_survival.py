"""What is published for a GPU in trouble, by a real daemon on the fake library: one test per reported condition.

All conditions of a group are GPUs of one node: that the others go on is part of each test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from fault_daemon import Watched, watched
from scenarios import CASES, Case, nodes, scenario_of

from gpuwatch.model import DeviceSample

Nodes = dict[tuple[str, str], Watched]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One daemon per group, started together."""
    with ExitStack() as stack:
        found = {
            key: stack.enter_context(
                watched(tmp_path_factory.mktemp("-".join(key)), scenario_of(cases, os.getpid()), key[1], period_s=0.2)
            )
            for key, cases in nodes().items()
        }
        yield found
        for node in found.values():
            node.end()


def fits(samples: Sequence[DeviceSample], case: Case) -> bool:
    """A published sample is as expected; pid 0 in the table stands for ours."""
    return any(_fits(sample, case) for sample in samples)


def _fits(sample: DeviceSample, case: Case) -> bool:
    for name, wanted in case.sample.items():
        got = getattr(sample, name)
        if name == "processes":
            got = tuple(msgspec.structs.replace(p, pid=0) if p.pid == os.getpid() else p for p in got)
        if got != wanted:
            return False
    return True


@pytest.mark.parametrize("case", CASES, ids=[f"{case.name} [{case.source}]" for case in CASES])
def test_survives(case: Case, running: Nodes) -> None:
    key = (case.group, case.generation)
    index = nodes()[key].index(case) + 1
    node = running[key]
    # The history, because a reading between two full ones leaves utilization and temperature out.
    node.until(lambda s: index in s.history and fits(s.history[index].samples, case), f"{case.sample} of GPU {index}")
    assert node.sample(0).power_w == 76.0, "the healthy GPU of the node"
    device = node.device(index)
    for name, wanted in case.device.items():
        assert getattr(device, name) == (f"unreadable-{index}" if wanted == "unreadable-INDEX" else wanted)


def test_a_unified_gpu_has_the_memory_of_the_machine_as_its_total(running: Nodes) -> None:
    node = running["unified", ""]
    inventory = node.until(lambda s: s.inventory and s.inventory.devices, "the inventory").inventory
    assert inventory is not None
    shared = [device for device in inventory.devices if device.mem_shared_with_host]
    assert len(shared) == 5
    assert {device.mem_total_bytes for device in shared} == {inventory.node.mem_total_bytes}


def test_the_others_are_on_time_while_two_gpus_hang(running: Nodes) -> None:
    node = running["losses", ""]
    hung = [n for n, case in enumerate(nodes()["losses", ""], 1) if "hang." in case.statements]
    node.until(lambda s: all(n in s.devices for n in hung), "samples of the GPUs that hang")
    before = {n: node.state.devices[n].mono_ns for n in (0, *hung)}
    state = node.ticks(5)
    assert state.devices[0].mono_ns > before[0]
    assert {n: state.devices[n].mono_ns for n in hung} == {n: before[n] for n in hung}
    assert all(state.age_ns(state.devices[n]) > state.age_ns(state.devices[0]) for n in hung)


def test_each_trouble_is_logged_once(running: Nodes) -> None:
    node = running["losses", ""]
    node.ticks(3)
    for n, case in enumerate(nodes()["losses", ""], 1):
        lines = [line for line in node.log().splitlines() if f"GPU {n}: no readings" in line]
        assert len(lines) == 1, (case.name, lines)


def test_there_are_forty_conditions_with_a_source_each() -> None:
    assert len(CASES) >= 40
    assert all(case.source for case in CASES)
    assert sum("#" in case.source for case in CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)


def test_no_driver_that_lacks_a_call_was_asked_for_pcie_throughput(running: Nodes, tmp_path: Path) -> None:
    for node in running.values():
        assert "PcieThroughput" not in (node.folder / "nvml.trace").read_text()
