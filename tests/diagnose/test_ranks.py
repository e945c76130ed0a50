"""Ranks of one job: nobody must be sent to mend the rank that waits.

The counters are built by hand, after what NCCL does (no machine with two GPUs was there to record one): a rank that
waits has its communication kernel resident, so its GPU reads busy 100 %, and of its SMs only the few that the kernel's
blocks hold read active. Its thread goes on until the next call that waits for the GPU.
"""

from __future__ import annotations

import msgspec
import pytest

from diagnose import builders as b
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.frames import classify
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import (
    Confidence,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    Frame,
    Observation,
    ProcessInfo,
    ProcessTick,
    RankPlace,
    Role,
    ThreadStack,
)

OTHER = 4243
LOSS_ITEM = "total += loss.item()"
BACKWARD = (
    Frame("_engine_run_backward", b.LIB + "torch/autograd/graph.py", 823),
    Frame("backward", b.LIB + "torch/autograd/__init__.py", 347),
    Frame("Tensor.backward", b.LIB + "torch/_tensor.py", 581),
    Frame("fit", "/home/ann/fit.py", 34),
)


def card(
    busy: float, sm: float, *, other: bool = False, nvlink: float = 0.0, pcie: float = 1e7, proxy: bool = False
) -> list[Observation]:
    """One GPU's readings: ours, or that of the other rank."""
    links = {"nvlink_rx_bytes_per_s": nvlink, "nvlink_tx_bytes_per_s": nvlink}
    links |= {"pcie_tx_bytes_per_s": pcie} if pcie > 1e9 else {}
    theirs = {"device_index": 1, "processes": (DeviceProcess(OTHER, 2**34, "C"),)} if other else {}
    samples = b.gpu([busy], sm_of_busy=sm / busy, rx=pcie, util_only=proxy)
    return [msgspec.structs.replace(s, **links, **theirs) for s in samples if isinstance(s, DeviceSample)]


def rank(number: int | None = 1, *, ppid: int = 1, command: str = "python fit.py") -> Observation:
    """The other rank's process; with a number it was started by another shell, and only its environment tells."""
    place = None if number is None else RankPlace(number, 2, "tcp node3:29500")
    info = ProcessInfo(
        OTHER, 8, ppid, OTHER, Role.MAIN, "python", command, "ann", 1000, device_indices=(1,), place=place
    )
    return ProcessTick(b.times()[0], infos=(info,))


def judged(*parts: list[Observation], cores: float = 1.0, ceilings: dict[str, float] | None = None) -> Diagnosis:
    seen = [b.inventory(), *(o for part in parts for o in part), *b.ticks(b.process(b.PID, cores)), *b.host()]
    return diagnose(seen, b.PID, ceilings=ceilings)


LAUNCHES = b.stacks([(b.LAUNCHING, True)])
SYNCS = [*b.stacks([(b.USER_LINE, True)]), b.source(LOSS_ITEM)]


def test_a_rank_that_computes_half_of_the_time_and_waits_for_the_rest_still_points_at_the_slow_one() -> None:
    d = judged(card(99, 55), card(55, 50, other=True), [rank(None)], LAUNCHES)
    assert d.verdict.cause == "nvlink_or_collective_wait"
    assert d.verdict.lost_share == pytest.approx(0.44), "what its GPU is busy longer than the slow one's"
    assert f"pid {OTHER} on GPU 1, whose GPU idles" in d.verdict.summary
    assert f"--pid {OTHER}" in d.verdict.remedy


def test_the_line_at_which_a_waiting_rank_stands_is_not_blamed_for_its_wait() -> None:
    """The host waits at loss.item() while NCCL spins: that line is where the wait ends up, not what causes it."""
    d = judged(card(84, 20), card(30, 27, other=True), [rank(None)], SYNCS)
    assert [f.cause for f in d.findings][:2] == ["nvlink_or_collective_wait", "host_sync"]
    alone = judged(card(84, 75), SYNCS)
    assert alone.verdict.cause == "host_sync"


def test_a_rank_that_loses_more_by_itself_than_by_waiting_is_told_so_first() -> None:
    d = judged(card(60, 20), card(35, 30, other=True), [rank(None)], SYNCS)
    assert [f.cause for f in d.findings][:2] == ["host_sync", "nvlink_or_collective_wait"]


def test_a_rank_whose_card_is_slower_is_waited_for_although_every_gpu_is_busy() -> None:
    waiting = judged(card(99, 48), card(99, 91, other=True), [rank(None)], LAUNCHES)
    assert waiting.verdict.cause == "nvlink_or_collective_wait"
    assert f"pid {OTHER} on GPU 1, whose GPU works longer" in waiting.verdict.summary
    slow = judged(card(99, 91), card(99, 48, other=True), [rank(None)], LAUNCHES)
    assert slow.verdict.cause == "healthy"


def test_a_second_run_of_the_same_command_that_works_less_is_nobody_to_wait_for() -> None:
    d = judged(card(99, 90), card(30, 27, other=True), [rank(None)], LAUNCHES)
    assert d.verdict.cause == "healthy"


def test_without_sm_counters_the_wait_is_named_with_low_confidence() -> None:
    d = judged(card(99, 0, proxy=True), card(30, 0, other=True, proxy=True), [rank(None)], LAUNCHES)
    assert (d.verdict.cause, d.verdict.confidence) == ("nvlink_or_collective_wait", Confidence.LOW)


def test_gradients_that_fill_the_links_are_named_and_no_rank_is_blamed() -> None:
    d = judged(card(99, 25, nvlink=250e9), card(99, 25, other=True, nvlink=250e9), [rank(None)], LAUNCHES)
    assert [f.cause for f in d.findings] == ["nvlink_or_collective_wait"]
    assert "no rank is slower" in d.verdict.summary
    assert "pid" not in d.verdict.summary
    assert d.verdict.lost_share == pytest.approx(250 / 360, abs=0.01), "250 GB/s of 80 % of 450"


def test_what_the_probe_measured_here_is_the_yardstick_of_the_exchange() -> None:
    seen = card(99, 25, nvlink=60e9), card(99, 25, other=True, nvlink=60e9), [rank(None)], LAUNCHES
    assert judged(*seen).verdict.cause == "batch_too_small"
    slow_links = judged(*seen, ceilings={"all_reduce_64MiB_busbw_bytes_per_s": 80e9})
    assert slow_links.verdict.cause == "nvlink_or_collective_wait"
    row = next(r for r in slow_links.verdict.evidence if r.name == "NVLink can carry")
    assert (row.value, row.source) == (80.0, "measured here: probe allreduce")


def test_gradients_over_pcie_are_told_by_traffic_in_both_directions() -> None:
    both = judged(card(99, 30, pcie=26e9), card(99, 30, other=True, pcie=26e9), [rank(None)], LAUNCHES)
    assert both.verdict.cause == "nvlink_or_collective_wait"
    assert "over PCIe" in both.verdict.summary


def test_small_kernels_with_a_small_exchange_stay_small_kernels_and_name_what_they_may_be() -> None:
    d = judged(card(99, 20, nvlink=4e9), card(99, 20, other=True, nvlink=4e9), [rank(None)], LAUNCHES)
    assert d.verdict.cause == "batch_too_small"
    assert "nvlink_or_collective_wait" in d.verdict.alternatives, "a rank on another node may be the slow one"


def test_a_collective_that_blocks_the_thread_is_not_taken_for_work_on_the_cpu() -> None:
    """gloo, or TORCH_NCCL_BLOCKING_WAIT: the thread sleeps in backward and the GPU idles until the others come."""
    asleep = b.stacks([(BACKWARD, False), (BACKWARD, False), (BACKWARD, False), (b.LAUNCHING, True)])
    gpu = b.gpu([0, 0, 0, 90])
    d = judged(gpu, card(20, 18, other=True), [rank(None)], asleep, cores=0.3)
    assert d.verdict.cause == "nvlink_or_collective_wait"
    assert "host_preprocessing" not in [f.cause for f in d.findings]


@pytest.mark.parametrize(
    ("function", "activity"),
    [("DistributedDataParallel._sync_module_buffers", Activity.COMMUNICATING),
     ("DistributedDataParallel.forward", Activity.LAUNCHING)],
)  # fmt: skip
def test_buffers_that_ddp_sends_before_a_step_are_communication_and_its_forward_is_not(
    function: str, activity: Activity
) -> None:
    frames = (Frame(function, b.LIB + "torch/nn/parallel/distributed.py", 2100), Frame("fit", "/home/ann/fit.py", 33))
    assert classify(ThreadStack(1, "MainThread", False, False, frames), {}).activity is activity


def test_ranks_that_two_shells_started_are_known_by_their_environment() -> None:
    ours = RankPlace(0, 2, "tcp node3:29500")
    ticks = [
        msgspec.structs.replace(o, infos=tuple(msgspec.structs.replace(i, place=ours) for i in o.infos))
        for o in b.ticks(b.process(b.PID, 1.0)) if isinstance(o, ProcessTick)
    ]  # fmt: skip
    seen: list[Observation] = [
        b.inventory(), *card(99, 12), *card(30, 27, other=True), *ticks, *b.host(), *LAUNCHES,
    ]  # fmt: skip
    d = diagnose([*seen, rank(1, ppid=77, command="python other_path/fit.py")], b.PID)
    assert d.verdict.cause == "nvlink_or_collective_wait"
    assert "GPU 1, rank 1," in d.verdict.summary
    alone = diagnose([*seen, rank(None, ppid=77, command="python other_path/fit.py")], b.PID)
    assert alone.verdict.cause == "batch_too_small"
