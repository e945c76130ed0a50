"""Two ranks of one job, really run: the slow one is named with its cause, the waiting one is sent to nobody's door.

The eight recordings are of real processes (torchrun, gloo, /proc, stacks) beside two cards of the fake library, whose
counters follow the ranks' measured times as NCCL would make them read: see ``two_cards.py``. No GPU was there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import DeviceSample, Diagnosis, Observation, ProcessTick, Role
from gpuwatch.replay.player import load
from probes.faults import ddp_run
from probes.faults.host import NotHereError
from probes.faults.run import EXIT_UNAVAILABLE
from ranks.two_cards import ROOT, ask, running

RECORDINGS = ROOT / "tests" / "recordings" / "ranks"
LABELS = json.loads((RECORDINGS / "labels.json").read_text())
SLOW = {"starved": "rank 1", "filtered": "rank 1"}


def recorded(name: str) -> tuple[Observation, ...]:
    return load(RECORDINGS / f"{name}.gwrec")


def judged(name: str) -> Diagnosis:
    return diagnose(recorded(name), LABELS[name]["pid"])


def test_every_job_and_rank_of_the_batch_has_a_recording() -> None:
    assert set(LABELS) == {f"{name}-{rank}" for name in ddp_run.table(2, 0, "cpu") for rank in range(ddp_run.RANKS)}


@pytest.mark.parametrize("name", sorted(LABELS))
def test_each_rank_is_told_what_is_true_of_it(name: str) -> None:
    found = judged(name)
    assert found.verdict.cause in LABELS[name]["truth"]
    assert sum(share.share for share in found.account) == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_waiting_rank_names_the_slow_one_and_has_no_fault_of_its_own(name: str) -> None:
    waiting = judged(f"{name}-0")
    slow = LABELS[f"{name}-0"]["other_pid"]
    assert f"pid {slow} on GPU 1, {SLOW[name]}, whose GPU idles" in waiting.verdict.summary
    assert {f.cause for f in waiting.findings} == {"nvlink_or_collective_wait"}
    culprit = judged(f"{name}-1")
    assert culprit.pid == slow
    assert "nvlink_or_collective_wait" not in {f.cause for f in culprit.findings}


def test_nobody_is_blamed_for_an_exchange_that_all_wait_for() -> None:
    for rank in range(ddp_run.RANKS):
        assert "no rank is slower" in judged(f"exchange-{rank}").verdict.summary


@pytest.mark.parametrize("name", sorted(LABELS))
def test_both_ranks_are_known_as_one_job_each_on_its_own_card(name: str) -> None:
    infos = {i.pid: i for o in recorded(name) if isinstance(o, ProcessTick) for i in o.infos}
    first, second = sorted((i for i in infos.values() if i.role is Role.MAIN), key=lambda i: i.device_indices)
    assert (first.device_indices, second.device_indices) == ((0,), (1,))
    assert first.same_job(second)
    assert (first.place and first.place.rank, second.place and second.place.rank) == (0, 1)
    # Both cards' counters were read: a rank is judged by the other's.
    assert {o.device_index for o in recorded(name) if isinstance(o, DeviceSample)} == {0, 1}


YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
MAY_READ_STACKS = os.getuid() == 0 or not YAMA.exists() or YAMA.read_text().strip() == "0"


@pytest.mark.skipif(
    not MAY_READ_STACKS, reason="only root may read stacks of a process that is no child (ptrace_scope)"
)
def test_a_starved_rank_is_found_while_the_job_runs(tmp_path: Path) -> None:
    case = ddp_run.table(2, 0, "cpu")["starved"]
    with running(case, tmp_path) as (job, env):
        waiting, slow = job.pids()
        said = ask(env, "diagnose", "--for", "4s")
    verdicts = {d["pid"]: d["findings"][0] for d in said["diagnoses"]}
    assert verdicts[waiting]["cause"] == "nvlink_or_collective_wait"
    assert f"pid {slow} on GPU 1, rank 1" in verdicts[waiting]["summary"]
    assert verdicts[slow]["cause"] in ddp_run.LOADING


def test_a_machine_without_two_gpus_is_told_what_the_batch_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ddp_run.main(["--out", str(tmp_path / "out")]) == EXIT_UNAVAILABLE
    assert "two GPUs of one host are needed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "no empty results that look like a run"


def test_ranks_that_cannot_start_end_with_the_reason_and_leave_nobody_behind(tmp_path: Path) -> None:
    broken = ddp_run.Case("broken", ({"device": "cpu", "net": "none"},) * 2, ((), ()))
    with ddp_run.Job(broken, tmp_path) as job, pytest.raises(NotHereError, match="did not train"):
        job.until_steps(1, 30.0)
    assert job.process.poll() is not None
