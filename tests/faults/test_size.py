"""A big node: sixteen GPUs with sixty-four processes each, and eight GPUs that share their counter windows."""

from __future__ import annotations

import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_daemon import watched

from gpuwatch import wire
from gpuwatch.client.state import NodeState

GPUS, PROCESSES, REAL = 16, 64, 4
SHARED_WINDOW_US = 20_000
JUNK = 4_000_000
"""Pids that NVML may list and that are not here: they belong to another PID namespace."""


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Some real processes."""
    running = [subprocess.Popen(["sleep", "300"]) for _ in range(REAL)]
    try:
        yield [child.pid for child in running]
    finally:
        for child in running:
            child.kill()
            child.wait()


def trace(folder: Path) -> list[tuple[str, str, int]]:
    """(function, GPU, microseconds) of each call that is written completely."""
    lines = (folder / "nvml.trace").read_text().split("\n")[:-1]
    return [(function, gpu, int(us)) for function, gpu, us in (line.split() for line in lines)]


def everything(state: NodeState, gpus: int) -> bool:
    """Each GPU has been read twice."""
    return all(i in state.history and len(state.history[i].samples) >= 3 for i in range(gpus))


def test_a_node_of_16_gpus_with_64_processes_each_is_watched_with_few_calls_and_bytes(
    tmp_path: Path, children: list[int]
) -> None:
    junk = [JUNK + n for n in range(PROCESSES - REAL)]
    listed = ",".join(f"{pid}:{1 << 30}:C" for pid in (*children, *junk))
    with watched(tmp_path, f"gpus={GPUS}\ngpu * procs={listed} gpm.2=50\n", period_s=1.0) as node:
        state = node.until(lambda s: everything(s, GPUS) and set(children) <= set(s.infos), "all of it")
        made = trace(tmp_path)
    assert {len(state.devices[i].processes) for i in range(GPUS)} == {PROCESSES}
    assert set(state.infos) == set(children), "who is not in /proc is not made up"
    assert all(state.infos[pid].device_indices == tuple(range(GPUS)) for pid in children)
    tick = wire.Tick(
        *(2**62, 1, state.tick_mono_ns, 2, tuple(state.devices.values()), state.host, tuple(state.processes.values())),
        tuple(state.cgroups.values()),
    )
    assert len(wire.encode(tick)) <= GPUS * (250 + 16 * PROCESSES)
    reads = Counter(gpu for function, gpu, _ in made if function == "nvmlGpmSampleGet")
    lists = Counter(gpu for function, gpu, _ in made if function == "nvmlDeviceGetComputeRunningProcesses_v3")
    assert len(reads) == GPUS
    # The binding asks for the length, then for the list; never more than once a reading.
    assert all(lists[gpu] <= 2 * (reads[gpu] + 1) for gpu in reads)
    assert not [function for function, _, _ in made if "PcieThroughput" in function]


def test_eight_gpus_are_sampled_within_20_ms_of_each_other(tmp_path: Path) -> None:
    with watched(tmp_path, "gpus=8\ngpu * gpm.2=50", period_s=0.2) as node:
        node.until(lambda s: all(i in s.history and len(s.history[i].samples) >= 7 for i in range(8)), "some windows")
        made = trace(tmp_path)
    taken: dict[str, list[int]] = defaultdict(list)
    for function, gpu, us in made:
        if function == "nvmlGpmSampleGet":
            taken[gpu].append(us)
    # The first reading comes as each thread starts; from the second on the grid holds.
    windows = list(zip(*(times[1:] for times in taken.values()), strict=False))
    spread_us = [max(window) - min(window) for window in windows]
    assert len(windows) >= 5
    assert statistics.median(spread_us) <= SHARED_WINDOW_US, spread_us
