"""Jobs that get less CPU than they ask for, whatever keeps it from them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diagnose import builders as b
from gpuwatch.diagnose import cores
from gpuwatch.diagnose.evidence import ProcessUse
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import Absent, Confidence, Diagnosis, Observation, ProcessSample, ProcessTick, Reason, Standing

PID = b.PID
STARVED = [(b.WAITING, False)] * 4 + [(b.LAUNCHING, True)]


def bound(ticks: list[Observation], cpus: str) -> list[Observation]:
    """The same job, which may run on these CPUs only."""
    found: list[Observation] = []
    for o in ticks:
        assert isinstance(o, ProcessTick)
        infos = tuple(msgspec.structs.replace(i, cpus_allowed=cpus) for i in o.infos)
        found.append(msgspec.structs.replace(o, infos=infos))
    return found


def delayed(samples: Sequence[ProcessSample], share: float) -> list[ProcessSample]:
    """Ready to run and without a CPU for this share of the time."""
    start = samples[0].mono_ns
    return [msgspec.structs.replace(s, run_wait_ns=int(share * (s.mono_ns - start))) for s in samples]


def loader(
    cores_each: float,
    *,
    count: int = 8,
    host: float = 12.0,
    cpus: str = "",
    wait: float = 0.0,
    quota: tuple[float, float] | None = None,
    stacks: bool = True,
) -> Diagnosis:
    workers = [delayed(b.process(5001 + i, cores_each), wait) for i in range(count)]
    seen: list[Observation] = [b.inventory(), *b.gpu([0, 0, 0, 40]), *b.host(host)]
    seen += bound(b.ticks(b.process(PID, 0.05, state="S"), workers, quota), cpus)
    if stacks:
        seen += b.stacks(STARVED)
        for i in range(count):
            seen += b.stacks([(b.WORKER_FETCH, True)], pid=5001 + i, every=20)
    return diagnose(seen, PID)


def launching(cores: float, *, state: str = "R", wait: float = 0.0, cpus: str = "", stacks: bool = True) -> Diagnosis:
    main = delayed(b.process(PID, cores, state=state), wait)
    seen = [b.inventory(), *b.gpu([7, 10]), *bound(b.ticks(main), cpus), *b.host(12)]
    return diagnose([*seen, *(b.stacks([(b.LAUNCHING, True)]) if stacks else ())], PID)


def test_workers_on_one_allowed_cpu_are_told_their_real_limit_and_not_to_be_fifteen() -> None:
    d = loader(0.12, cpus="3", wait=0.86)
    assert (d.verdict.cause, d.verdict.confidence) == ("cpu_oversubscribed", Confidence.HIGH)
    assert "the job may run on 1 CPU (Cpus_allowed_list 3)" in d.verdict.summary
    assert "--cpus-per-task" in d.verdict.remedy
    assert "taskset" in d.verdict.remedy
    assert "num_workers=15" not in d.verdict.remedy


def test_workers_that_are_runnable_without_a_cpu_are_short_of_it_where_no_limit_can_be_read() -> None:
    d = loader(0.12)
    assert (d.verdict.cause, d.verdict.confidence) == ("cpu_oversubscribed", Confidence.MEDIUM)
    assert "not visible from here" in d.verdict.summary
    assert "cpu_quota_throttled" in d.verdict.alternatives
    assert "num_workers=" not in d.verdict.remedy


def test_the_same_is_said_without_stacks() -> None:
    d = loader(0.12, cpus="3", stacks=False)
    assert d.verdict.cause == "cpu_oversubscribed"
    assert "Cpus_allowed_list 3" in d.verdict.remedy


def test_workers_that_fill_the_allowed_cpus_are_not_sent_to_cores_that_they_may_not_use() -> None:
    d = loader(1.0, cpus="0-7")
    assert d.verdict.cause == "loader_slow_transform"
    assert "no more than 8 CPUs (Cpus_allowed_list 0-7)" in d.verdict.summary
    assert "num_workers=" not in d.verdict.remedy


def test_the_advice_ends_at_the_cpus_that_the_job_may_use() -> None:
    few = loader(1.0, count=2, cpus="8-13")
    assert few.verdict.cause == "loader_too_few_workers"
    assert "num_workers=5 (now 2)" in few.verdict.remedy
    assert "the 6 CPUs that the job may use" in few.verdict.remedy


def test_a_kernel_that_lists_more_cpus_than_the_machine_has_binds_nobody() -> None:
    d = loader(1.0, count=2, cpus="0-255")
    assert d.verdict.cause == "loader_too_few_workers"
    assert "num_workers=13 (now 2)" in d.verdict.remedy


def test_an_allowed_set_shared_with_others_is_told_from_one_that_the_job_fills() -> None:
    d = loader(0.2, cpus="0-7", wait=0.7)
    assert d.verdict.cause == "cpu_oversubscribed"
    assert "does not have for itself" in d.verdict.summary
    assert d.verdict.confidence is Confidence.MEDIUM


def test_workers_pushed_off_a_machine_that_others_fill_are_not_told_to_rewrite_their_transform() -> None:
    d = loader(0.3, count=4, host=99.0, wait=0.65)
    assert d.verdict.cause == "cpu_oversubscribed"


def test_workers_with_their_cores_are_still_too_few() -> None:
    d = loader(0.98, count=2, cpus="0-15", wait=0.01)
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_too_few_workers", Confidence.HIGH)


def test_under_a_throttled_quota_no_finding_asks_for_more_workers() -> None:
    d = loader(0.15, quota=(1.5, 0.9), wait=0.8)
    assert d.verdict.cause == "cpu_quota_throttled"
    symptoms = [f for f in d.findings if f.standing is Standing.SYMPTOM]
    assert symptoms
    assert all("num_workers=" not in f.remedy and "num_workers" not in f.experiment for f in symptoms)
    assert any("First the CPU limit" in f.remedy for f in symptoms)


def test_a_quota_caps_the_advice_before_it_throttles() -> None:
    d = loader(1.0, count=2, quota=(4.0, 0.0))
    assert d.verdict.cause == "loader_too_few_workers"
    assert "num_workers=3 (now 2)" in d.verdict.remedy


def test_a_launching_thread_without_a_core_is_not_told_to_compile_its_model() -> None:
    hidden = launching(0.1)
    assert (hidden.verdict.cause, hidden.verdict.confidence) == ("cpu_oversubscribed", Confidence.MEDIUM)
    assert "cpu_quota_throttled" in hidden.verdict.alternatives
    queued = launching(0.3, state="S", wait=0.6, cpus="5")
    assert queued.verdict.cause == "cpu_oversubscribed"
    assert "Cpus_allowed_list 5" in queued.verdict.remedy
    assert launching(0.1, stacks=False).verdict.cause == "cpu_oversubscribed"


def test_a_launching_thread_that_has_its_core_is_launch_bound() -> None:
    assert launching(0.98, wait=0.01, cpus="0-15").verdict.cause == "launch_bound"
    assert launching(0.75, wait=0.1).verdict.cause == "launch_bound"


def test_a_recording_without_a_scheduler_count_or_allowed_cpus_is_judged_as_before() -> None:
    workers = [msgspec.structs.replace(s, run_wait_ns=Absent(Reason.NOT_SUPPORTED)) for s in b.process(5001, 0.99)]
    seen = [b.inventory(), *b.gpu([0, 0, 0, 40]), *b.host(), *b.stacks(STARVED)]
    d = diagnose([*seen, *b.ticks(b.process(PID, 0.05, state="S"), [workers])], PID)
    assert d.verdict.cause == "loader_too_few_workers"


def test_cpu_lists_are_read_as_the_kernel_writes_them() -> None:
    use = ProcessUse(1, 1.0, {}, None, None, None, None, 1, cpus_allowed="0-3,8,10-11")
    assert cores.allowed([use]) == {0, 1, 2, 3, 8, 10, 11}
    assert cores.list_text(cores.allowed([use])) == "0-3,8,10-11"
    assert cores.allowed([msgspec.structs.replace(use, cpus_allowed=text) for text in ("", "?", "a-b")]) == frozenset()
