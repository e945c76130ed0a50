"""The recordings of known-cause jobs: what their owners would be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import Confidence, Diagnosis, Observation, ProcessTick, Role, StackSample
from gpuwatch.replay.player import load

RECORDINGS = Path(__file__).parent.parent / "recordings"

CAUSES = {
    "resnet_on_device": {"healthy"},
    "one_worker_jpeg": {"loader_too_few_workers"},
    "remote_store": {"loader_storage_latency"},
    "augment_in_loop": {"host_preprocessing"},
    "item_each_layer": {"host_sync"},
    "many_small_kernels": {"launch_bound"},
    "elementwise_chain": {"memory_bandwidth_bound"},
    "unpinned_volumes": {"pageable_copies"},
    "save_often": {"checkpoint_stall"},
    "cgroup_quota": {"cpu_quota_throttled"},
    "forgotten_notebook": {"idle_process_holds_memory"},
    "two_tenants": {"gpu_shared"},
}


def observations(name: str) -> tuple[Observation, ...]:
    return load(RECORDINGS / f"{name}.gwrec")


def judged(seen: tuple[Observation, ...]) -> Diagnosis:
    """The job that was recorded on purpose: the one whose stacks were taken."""
    pid = next(
        (o.root_pid for o in seen if isinstance(o, StackSample)),
        next(i.pid for o in seen if isinstance(o, ProcessTick) for i in o.infos if i.role is Role.MAIN),
    )
    return diagnose(seen, pid)


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_the_cause_is_named(name: str) -> None:
    assert judged(observations(name)).verdict.cause in CAUSES[name]


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_the_account_sums_to_the_whole_wall_time(name: str) -> None:
    account = judged(observations(name)).account
    assert account
    assert sum(share.share for share in account) == pytest.approx(1.0)
    assert all(share.share >= 0 for share in account)


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_every_finding_has_numbers_a_remedy_and_a_bound(name: str) -> None:
    for finding in judged(observations(name)).findings:
        assert finding.evidence
        assert finding.remedy
        assert finding.gain_max >= 1.0
        assert 0.0 <= finding.lost_share <= 1.0
        assert finding.gain_basis


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_the_same_recording_gives_the_same_diagnosis(name: str) -> None:
    assert judged(observations(name)) == judged(observations(name))


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_without_stacks_nothing_is_claimed_with_certainty_that_needs_them(name: str) -> None:
    seen = tuple(o for o in observations(name) if not isinstance(o, StackSample))
    pid = judged(observations(name)).pid
    diagnosis = diagnose(seen, pid)
    # A synchronising line cannot be told from a launching one by counters: the finding names both.
    allowed = CAUSES[name] | {"unattributed"} | ({"launch_bound"} if name == "item_each_layer" else set())
    assert diagnosis.verdict.cause in allowed
    by_counters = {"cpu_quota_throttled", "memory_bandwidth_bound", "idle_process_holds_memory", "gpu_shared"}
    if diagnosis.verdict.cause not in by_counters:
        assert diagnosis.verdict.confidence is not Confidence.HIGH


def test_the_advised_workers_follow_from_the_measured_pace() -> None:
    finding = judged(observations("one_worker_jpeg")).verdict
    # One worker kept the loop waiting 95.4 % of the time: 1 / 0.046 = 22 are needed, and 16 CPUs allow 15.
    assert "num_workers=15" in finding.remedy
    assert "22" in finding.remedy
    assert finding.gain_max == pytest.approx(15.0), "fifteen workers at the pace of one, which GPU and loop could take"


def test_the_loop_and_the_line_that_burns_the_workers_are_named() -> None:
    finding = judged(observations("one_worker_jpeg")).verdict
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("/home/user/cases.py", 52)
    hot = next(row for row in finding.evidence if "time goes to" in row.name)
    assert "cases.py:74" in str(hot.value)


def test_a_synchronising_line_is_told_from_preprocessing_by_its_text_where_there_are_no_native_frames() -> None:
    from gpuwatch.model import SourceLine

    seen = tuple(o for o in observations("item_each_layer") if not (isinstance(o, StackSample) and o.native))
    pid = judged(seen).pid
    lines = tuple(SourceLine(pid, 10**12, "/home/user/cases.py", n, "bad = h.isnan().any().item()") for n in (168, 169))
    causes = [f.cause for f in diagnose((*seen, *lines), pid).findings]
    assert "host_sync" in causes
    assert "host_preprocessing" not in causes


def test_the_bound_on_the_gain_is_one() -> None:
    """The bundled recording's job went from 420-448 to 4608 images/s when its advice was followed (docs/loader.md)."""
    from importlib.resources import files

    finding = judged(load(Path(str(files("gpuwatch.data") / "starved-loader.gwrec")))).verdict
    assert "num_workers=14" in finding.remedy
    assert 4608 / 448 <= finding.gain_max <= 14


FAULTS = RECORDINGS / "faults"
# A slow metric in neutral code is Python work; that it belongs to an evaluation only its maker knows.
ALSO = {"long_review": {"python_bound"}}


def fault_runs() -> list[dict[str, object]]:
    runs: list[dict[str, object]] = json.loads((FAULTS / "labels.json").read_text())["runs"]
    return runs


@pytest.mark.parametrize("run", fault_runs(), ids=lambda run: str(run["case"]))
def test_the_jobs_of_the_labelled_benchmark_are_told_their_cause(run: dict[str, object]) -> None:
    causes = run.get("causes") or ["healthy"]
    assert isinstance(causes, list)
    pid = run["pid"]
    assert isinstance(pid, int)
    diagnosis = diagnose(load(FAULTS / str(run["file"])), pid)
    assert diagnosis.verdict.cause in {*causes, *ALSO.get(str(run["case"]), set())}
    assert sum(share.share for share in diagnosis.account) == pytest.approx(1.0)
