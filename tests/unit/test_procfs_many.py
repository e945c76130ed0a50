"""A node full of processes: those that sleep cost little, and nothing that happens is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_procfs import FakeProc

from gpuwatch.collect.procfs import MANY, SLEEPS_KEPT, ProcessReader
from gpuwatch.model import ProcessSample

S = 1_000_000_000
PIDS = range(1000, 1000 + MANY + 1)


class Node:
    """More processes than are looked at closely, on one GPU."""

    def __init__(self, root: Path, pids: range = PIDS) -> None:
        self.proc = FakeProc(root)
        self.pids = pids
        for pid in pids:
            self.proc.add(pid, wchan="do_poll")
        self.reader = ProcessReader(root)
        self.now = S

    def read(self) -> dict[int, ProcessSample]:
        self.now += S
        tick = self.reader.read(dict.fromkeys(self.pids, (0,)), self.now)
        assert {s.mono_ns for s in tick.samples} == {self.now}
        return {s.pid: s for s in tick.samples}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.reader.close()


def test_a_sleeping_process_is_looked_at_again_within_four_ticks(node: Node) -> None:
    node.read()
    for pid in node.pids:
        (node.proc.root / str(pid) / "wchan").write_text("folio_wait_bit")
    seen = [sum(s.wchan == "folio_wait_bit" for s in node.read().values()) for _ in range(SLEEPS_KEPT + 1)]
    assert seen[0] < len(node.pids), "not all in one tick"
    assert seen[-1] == len(node.pids)


def test_a_process_that_wakes_is_seen_at_once(node: Node) -> None:
    node.read()
    node.read()
    node.proc.add(1003, state="R", ticks=50, wchan="0")
    node.proc.add(1004, state="D", wchan="nfs_wait")
    samples = node.read()
    assert samples[1003].state == "R"
    assert samples[1003].cpu_pct == pytest.approx(50.0)
    assert (samples[1004].state, samples[1004].wchan) == ("D", "nfs_wait")


def test_few_processes_are_all_looked_at_closely_in_each_tick(tmp_path: Path) -> None:
    node = Node(tmp_path, PIDS[:MANY])
    node.read()
    for pid in node.pids:
        (node.proc.root / str(pid) / "wchan").write_text("folio_wait_bit")
    assert {s.wchan for s in node.read().values()} == {"folio_wait_bit"}
    node.reader.close()
