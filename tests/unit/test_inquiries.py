"""When a diagnosis starts by itself, of which job, and over which observations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec
import pytest

from gpuwatch.collect.source import Focus
from gpuwatch.config import DiagnosisConfig
from gpuwatch.daemon.inquiries import Decider, Inquiries, Progress, evidence, resolve
from gpuwatch.daemon.jobs import Jobs, Subject
from gpuwatch.daemon.ring import Timed
from gpuwatch.model import (
    NOT_READ,
    Absent,
    Confidence,
    Device,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    Finding,
    Inventory,
    NodeInfo,
    Num,
    Observation,
    ProcessInfo,
    ProcessTick,
    Reason,
    Role,
    Severity,
    SourceLine,
)

S = 1_000_000_000
INVENTORY = Inventory(
    NodeInfo("n", "k", "b", 8, 1), tuple(Device(i, f"GPU-{i}", "H200", f"0000:0{i}:00.0") for i in range(3))
)
JOB = Subject(17, (0,))


def sample(
    second: int, busy: Num = 95.0, sm: Num = 60.0, index: int = 0, pids: Iterable[int] = (17,), kind: str = "C"
) -> DeviceSample:
    return DeviceSample(
        index,
        second * S,
        busy_pct=busy,
        sm_active_pct=sm,
        processes=tuple(DeviceProcess(pid, 100 + pid, kind) for pid in pids),
        processes_absent=None,
    )


def info(pid: int, root: int = 0, indices: tuple[int, ...] = ()) -> ProcessInfo:
    role = Role.LOADER_WORKER if root else Role.MAIN
    return ProcessInfo(pid, pid, 1, root or pid, role, f"py{pid}", "cmd", "ada", 1, device_indices=indices)


def first_due(
    decider: Decider, make: Callable[[int], tuple[DeviceSample, ...]], seconds: range, begin: bool = False
) -> int:
    """The first second in which something is due; -1 for never."""
    for second in seconds:
        decider.observe(make(second), {}, second * S)
        subject = decider.due(second * S)
        if subject is not None:
            if begin:
                decider.started(subject, second * S)
            return second
    return -1


def test_a_starved_gpu_is_diagnosed_once_its_job_is_past_its_start() -> None:
    low = lambda second: (sample(second, busy=12.0),)  # noqa: E731 -- one-line script of a GPU
    assert first_due(Decider(DiagnosisConfig()), low, range(100, 200)) == 120
    assert first_due(Decider(DiagnosisConfig(after_s=25.0)), low, range(100, 200)) == 125


def test_a_job_that_was_there_before_us_is_not_kept_waiting() -> None:
    decider = Decider(DiagnosisConfig())
    old = {17: info(17)}  # started at 17 ticks, 0.17 s after boot
    for second in range(100, 105):
        decider.observe((sample(second, busy=12.0),), old, second * S)
        assert decider.due(second * S) == (JOB if second == 104 else None)


def test_a_start_up_or_an_unclear_verdict_is_looked_at_again_as_soon_as_a_burst_is_allowed() -> None:
    low = lambda second: (sample(second, busy=12.0),)  # noqa: E731
    unclear, told = Severity.WARNING, Severity.INFO
    # A server that waits for requests is unattributed too, told without a fault: nothing is left to be found out.
    for cause, severity, again in (
        ("warming_up", told, 180),
        ("unattributed", unclear, 180),
        ("unattributed", told, 420),
        ("launch_bound", told, 420),
    ):
        decider = Decider(DiagnosisConfig())
        assert first_due(decider, low, range(100, 200), begin=True) == 120
        finding = Finding(cause, "s", severity, 0.1, 1.0, "b", Confidence.LOW)
        decider.concluded(Diagnosis(17, (0,), 8.0, (finding,)))
        assert first_due(decider, low, range(121, 1000)) == again


def test_short_bursts_do_not_hide_a_starved_gpu() -> None:
    """Busy one second in four: never low for ten seconds in a row, low on average."""
    bursts = lambda second: (sample(second, busy=100.0 if second % 4 == 0 else 5.0),)  # noqa: E731
    assert first_due(Decider(DiagnosisConfig()), bursts, range(100, 200)) == 120


def test_a_gpu_that_is_busy_with_empty_sms_is_diagnosed() -> None:
    hollow = lambda second: (sample(second, busy=100.0, sm=4.0),)  # noqa: E731
    assert first_due(Decider(DiagnosisConfig()), hollow, range(100, 200)) == 120


def test_without_gpm_the_utilization_of_nvml_decides() -> None:
    def old_card(second: int) -> tuple[DeviceSample, ...]:
        absent = Absent(Reason.NOT_SUPPORTED)
        return (msgspec.structs.replace(sample(second, busy=absent, sm=absent), gpu_util_pct=30),)

    assert first_due(Decider(DiagnosisConfig()), old_card, range(100, 200)) == 120


@pytest.mark.parametrize(("busy", "sm", "wanted"), [(95.0, 60.0, True), (95.0, 4.0, False), (40.0, 60.0, False)])
def test_a_job_that_uses_its_gpu_well_is_known_and_need_not_be_held(busy: float, sm: float, wanted: bool) -> None:
    decider = Decider(DiagnosisConfig())
    assert not decider.well_used(JOB), "not known is not well used"
    for second in range(100, 115):
        decider.observe((sample(second, busy, sm),), {}, second * S)
    assert decider.well_used(JOB) is wanted


def test_a_healthy_job_is_looked_at_after_30_s_and_then_every_five_minutes() -> None:
    decider = Decider(DiagnosisConfig())
    healthy = lambda second: (sample(second),)  # noqa: E731
    assert first_due(decider, healthy, range(100, 200), begin=True) == 130
    assert first_due(decider, healthy, range(131, 1000)) == 430


def test_a_job_that_holds_memory_and_does_nothing_has_its_minute_first() -> None:
    idle = lambda second: (sample(second, busy=0.0, sm=0.0),)  # noqa: E731
    assert first_due(Decider(DiagnosisConfig()), idle, range(100, 300)) == 160
    assert first_due(Decider(DiagnosisConfig(idle_after_s=20.0)), idle, range(100, 300)) == 120


def test_a_job_that_gets_worse_is_looked_at_again_at_once_but_at_most_once_a_minute() -> None:
    decider = Decider(DiagnosisConfig())
    assert first_due(decider, lambda s: (sample(s),), range(100, 200), begin=True) == 130
    worse = lambda second: (sample(second, busy=95.0 if second < 140 else 20.0),)  # noqa: E731
    assert first_due(decider, worse, range(131, 1000), begin=True) == 190
    assert first_due(decider, worse, range(191, 1000)) == 490, "and not every minute while nothing changes"


def test_no_readings_and_no_processes_start_nothing() -> None:
    decider = Decider(DiagnosisConfig())
    assert first_due(decider, lambda s: (sample(s, pids=()),), range(100, 200)) == -1
    assert (
        first_due(decider, lambda s: (sample(s, busy=NOT_READ, sm=NOT_READ, index=1, pids=()),), range(200, 300)) == -1
    )
    assert first_due(decider, lambda s: (sample(s, busy=10.0, kind="G"),), range(300, 400)) == -1, "a desktop"


def test_a_hung_gpu_does_not_count_its_old_reading_again_and_again() -> None:
    decider = Decider(DiagnosisConfig())
    for second in range(100, 160):
        decider.observe((sample(100, busy=10.0),), {}, second * S)
        assert decider.due(second * S) is None


def test_switched_off_means_off() -> None:
    decider = Decider(DiagnosisConfig(automatic=False))
    assert first_due(decider, lambda s: (sample(s, busy=10.0),), range(100, 300)) == -1
    assert decider.due_recorded(60 * S, True, {}) is None


def test_a_pid_on_several_devices_is_one_job_and_its_emptiest_device_decides() -> None:
    decider = Decider(DiagnosisConfig())
    for second in range(100, 121):
        decider.observe((sample(second, index=0), sample(second, busy=0.0, sm=0.0, index=2)), {}, second * S)
    assert decider.due(120 * S) == Subject(17, (0, 2))


def test_a_job_that_appears_on_one_more_device_is_not_looked_at_twice_a_minute() -> None:
    decider = Decider(DiagnosisConfig())
    assert first_due(decider, lambda s: (sample(s, busy=10.0),), range(100, 200), begin=True) == 120
    both = lambda s: (sample(s, busy=10.0), sample(s, busy=10.0, index=1))  # noqa: E731
    assert first_due(decider, both, range(121, 1000)) == 420


def test_our_own_probe_is_not_diagnosed_by_itself() -> None:
    decider = Decider(DiagnosisConfig())
    decider.occupied = {0}
    assert first_due(decider, lambda s: (sample(s, busy=10.0),), range(100, 200)) == -1
    decider.occupied = ()
    assert decider.due(200 * S) == JOB


def test_two_jobs_take_turns_by_who_has_waited_longest() -> None:
    decider = Decider(DiagnosisConfig())
    order = []
    for second in range(100, 200):
        decider.observe((sample(second, busy=10.0, pids=(17, 18)),), {}, second * S)
        subject = decider.due(second * S)
        if subject is not None:
            decider.started(subject, second * S)
            order.append((second, subject.pid))
    assert order == [(120, 17), (121, 18)]


def test_a_list_of_processes_that_could_not_be_read_does_not_end_a_job() -> None:
    jobs = Jobs()
    jobs.observe([sample(1)])
    jobs.observe([DeviceSample(0, 2 * S)])
    assert jobs.subjects({}) == {17: JOB}
    jobs.observe([sample(3, pids=())])
    assert jobs.subjects({}) == {}


def test_a_recording_is_judged_once_there_is_enough_of_it_and_again_at_its_end() -> None:
    decider = Decider(DiagnosisConfig())
    decider.observe((sample(1, pids=(17, 18)),), {}, S)
    assert decider.due_recorded(7 * S, False, {}) is None
    assert [decider.due_recorded(8 * S, False, {}) for _ in range(3)] == [JOB, Subject(18, (0,)), None]
    assert [decider.due_recorded(30 * S, True, {}) for _ in range(3)] == [JOB, Subject(18, (0,)), None]


def test_a_recording_played_at_once_is_judged_once() -> None:
    decider = Decider(DiagnosisConfig())
    decider.observe((sample(1),), {}, S)
    assert [decider.due_recorded(3 * S, True, {}) for _ in range(2)] == [JOB, None]


# ------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("pid", "index", "meant"),
    [
        (17, -1, JOB),
        (171, -1, JOB),
        (0, 0, JOB),
        (0, 1, Subject(19, (1,))),
        (0, 2, Subject(0, (2,))),
        (4, -1, "process 4 is not on a GPU; GPU processes: 17 (py17), 18, 19"),
        (5, -1, "no process 5; GPU processes: 17 (py17), 18, 19"),
        (0, 7, "no GPU 7; GPUs here: 0, 1, 2"),
        (0, -1, "name a process with its pid or a GPU with its index"),
    ],
)
def test_what_a_request_means(pid: int, index: int, meant: Subject | str) -> None:
    jobs = Jobs()
    more = DeviceProcess(18, 5, "C")
    first = sample(1)
    jobs.observe([msgspec.structs.replace(first, processes=(more, *first.processes)), sample(1, index=1, pids=(19,))])
    infos = {17: info(17), 171: info(171, root=17)}
    assert resolve(pid, index, jobs, INVENTORY, infos, lambda asked: asked == 4) == meant


# ------------------------------------------------------------------ evidence


def test_what_was_learnt_before_the_window_is_in_the_evidence() -> None:
    """Infos and source lines are observed once; a diagnosis an hour later needs them."""
    old, new = info(17), info(18)
    line = SourceLine(17, 5 * S, "train.py", 3, "loss.item()")
    window: list[Timed] = [sample(100), ProcessTick(101 * S, infos=(new,)), ProcessTick(102 * S), sample(102)]
    got = evidence(INVENTORY, {17: old, 18: new}, [line], window)
    assert got[:3] == [INVENTORY, line, window[0]]
    assert got[3] == ProcessTick(101 * S, infos=(old, new))
    assert got[4:] == window[2:]


def test_a_window_without_process_readings_still_names_the_processes() -> None:
    got = evidence(INVENTORY, {17: info(17)}, [], [sample(100)])
    assert got == [INVENTORY, ProcessTick(100 * S, infos=(info(17),)), sample(100)]


# ------------------------------------------------------------------ the inquiry


def healthy(observations: list[Observation], pid: int, indices: tuple[int, ...]) -> Diagnosis:
    finding = Finding("healthy", f"{len(observations)}", Severity.INFO, 0.0, 1.0, "b", Confidence.HIGH)
    return Diagnosis(pid, indices, 8.0, (finding,))


class Bench:
    """An inquiry with its clock and its window in the test's hands."""

    def __init__(self, judge: Callable[..., Diagnosis] = healthy) -> None:
        self.focused: list[Focus | None] = []
        self.judged = threading.Event()
        self.asked: list[int] = []
        self.inquiries = Inquiries(judge, self.focused.append, self.judged.set)

    def window(self, since_ns: int) -> list[Observation]:
        self.asked.append(since_ns)
        return [sample(1), sample(2)]

    def step(self, second: float) -> Progress | Diagnosis | None:
        return self.inquiries.step(int(second * S), self.window)


def test_an_inquiry_looks_closely_tells_each_second_and_ends_with_a_verdict() -> None:
    bench = Bench()
    begun = bench.inquiries.begin(JOB, 8.0, True, 0, 1000 * S)
    assert begun == Progress(JOB, 0.0, 8.0, "watching")
    assert bench.focused == [Focus(17, (0,), 8.0, stacks=True)]
    told = [bench.step(second / 2) for second in range(1, 16)]
    assert [p.done_s for p in told if isinstance(p, Progress)] == [1, 2, 3, 4, 5, 6, 7]
    assert bench.asked == []
    bench.step(8.0)
    assert bench.asked == [1000 * S], "what came before may be another phase"
    assert bench.judged.wait(10)
    verdict = bench.step(8.1)
    assert isinstance(verdict, Diagnosis)
    assert (verdict.pid, verdict.verdict.summary) == (17, "2")
    assert bench.inquiries.running is None
    assert bench.step(9.0) is None


def test_stacks_are_not_taken_where_nobody_is_or_nobody_wants_them() -> None:
    for subject, wanted in ((Subject(0, (1,)), True), (JOB, False)):
        bench = Bench()
        bench.inquiries.begin(subject, 8.0, wanted, 0, 0)
        focus = bench.focused[0]
        assert focus is not None
        assert not focus.stacks


def test_a_rule_that_fails_costs_one_verdict_and_says_so() -> None:
    def slips(*_: object) -> Diagnosis:
        raise ZeroDivisionError("no windows")

    bench = Bench(slips)
    bench.inquiries.begin(JOB, 0.0, True, 0, 0)
    bench.step(0.1)
    assert bench.judged.wait(10)
    assert bench.step(0.2) == Progress(JOB, -1.0, 0.0, "the diagnosis failed: ZeroDivisionError: no windows")
    assert bench.inquiries.running is None


def test_a_judge_that_never_ends_does_not_block_the_next_inquiry() -> None:
    release = threading.Event()

    def endless(*args: object) -> Diagnosis:
        release.wait(30)
        return healthy([], 17, (0,))

    bench = Bench(endless)
    bench.inquiries.begin(JOB, 2.0, True, 0, 0)
    bench.step(2.0)
    given_up = bench.step(63.0)
    assert given_up == Progress(JOB, -1.0, 2.0, "no verdict within 60 s")
    bench.inquiries.begin(JOB, 5.0, True, 70 * S, 70 * S)
    release.set()
    assert bench.judged.wait(10)
    assert bench.step(70.1) is None, "the late verdict belongs to nobody"
    assert bench.inquiries.running == JOB
