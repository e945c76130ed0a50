"""Native frames that were seen once: a job is not held again for what is known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from daemon_parts import S, ScriptedSource, info, inventory, processes, runtime_dir, sample, serving, until, verdict
from msgspec.structs import replace

from gpuwatch import wire
from gpuwatch.client.connection import Connection
from gpuwatch.config import Config, DiagnosisConfig
from gpuwatch.daemon import looks
from gpuwatch.daemon.looks import Looks
from gpuwatch.daemon.watch import Watch
from gpuwatch.model import Diagnosis, Frame, Observation, StackSample, ThreadStack


def look(pid: int, mono_ns: int, *, native: bool = True) -> StackSample:
    frames = (Frame("cudaLaunchKernel", "libcudart.so.13", 0), Frame("step", "train.py", 7))
    return StackSample(pid, pid, mono_ns, (ThreadStack(pid, "MainThread", True, False, frames),), native=native)


def test_each_stack_of_a_look_counts_and_no_look_counts_twice() -> None:
    """The stacks of one look carry one time and may be equal; the ring shows them to every inquiry within a minute."""
    known, infos = Looks(), {7: info(7)}
    seen = [look(7, S), look(7, S), look(7, S, native=False)]
    known.learn(seen, infos)
    known.learn(seen, infos)
    assert known.of(7, infos, 2 * S) == (look(7, S), look(7, S))
    known.learn([*seen, look(7, 3 * S)], infos)
    assert [stack.mono_ns for stack in known.of(7, infos, 4 * S)] == [S, S, 3 * S]


def test_a_pid_that_was_given_to_another_process_and_a_look_of_long_ago_tell_nothing() -> None:
    known, infos = Looks(), {7: info(7)}
    known.learn([look(7, S), look(8, S)], infos)
    assert known.of(8, {8: info(8)}, 2 * S) == (), "nobody knew that process when it was looked at"
    assert known.of(7, {7: replace(info(7), start_ticks=99)}, 2 * S) == ()
    assert known.of(7, {}, 2 * S) == ()
    assert known.of(7, infos, S + looks.KEEP_NS) == ()
    known.learn([], {})
    assert known.of(7, infos, 2 * S) == (), "what has ended is forgotten"


def test_a_process_that_is_looked_at_for_hours_keeps_a_few_looks() -> None:
    known, infos = Looks(), {7: info(7)}
    for second in range(3 * looks.MOST):
        known.learn([look(7, second * S)], infos)
    assert len(known.of(7, infos, 3 * looks.MOST * S)) == looks.MOST


class Asked:
    """Rules that want a look unless they have seen one."""

    def __init__(self) -> None:
        self.stacks: list[tuple[StackSample, ...]] = []

    def __call__(self, stacks: Sequence[StackSample], _texts: Mapping[tuple[str, int], str]) -> bool:
        self.stacks.append(tuple(stacks))
        return not any(stack.native for stack in stacks)


def test_the_second_window_in_the_foreground_holds_the_job_no_more_and_is_judged_by_the_first_look() -> None:
    pid = os.getpid()
    source, rules, answers = ScriptedSource(inventory(1)), Asked(), list[bool]()

    def asked(observation: Observation) -> None:
        focus = next((f for f in reversed(source.focused) if f is not None), None)
        if isinstance(observation, StackSample) and not observation.native and focus is not None:
            assert focus.undecided is not None
            answers.append(focus.undecided((observation,), {}))

    with Watch(source) as watch:
        source.emit(sample(0, source.now_ns(), pids=(pid,)), processes(source.now_ns(), info(pid)))
        watch.open()
        subject = watch.subject(pid)
        first = look(pid, source.now_ns())
        source.emit(look(pid, source.now_ns(), native=False), first)
        watch.collect(subject, 0.05, undecided=rules, sink=asked)
        source.emit(look(pid, source.now_ns(), native=False))
        second = watch.collect(subject, 0.05, undecided=rules, sink=asked)
    assert answers == [True, False]
    assert first in second


def test_the_daemon_looks_once_and_judges_every_diagnosis_of_the_job_by_it() -> None:
    source, given = ScriptedSource(), list[list[Observation]]()

    def judge(observations: Sequence[Observation], pid: int, indices: tuple[int, ...]) -> Diagnosis:
        given.append([o for o in observations if isinstance(o, StackSample) and o.native])
        return verdict(observations, pid, indices)

    config = Config(period_s=0.1, diagnosis=DiagnosisConfig(automatic=False))
    with runtime_dir() as path, serving(source, path, config, judge=judge), Connection(str(path)) as client:
        now = source.now_ns()
        source.emit(processes(now, info(17)), sample(0, now, pids=(17,)))
        until(client, lambda s: 17 in s.infos and 0 in s.devices)
        for number in (1, 2):
            client.request(wire.StartDiagnosis(0, pid=17, seconds=2.0))
            until(client, lambda s: s.progress is not None)
            if number == 1:
                first = look(17, source.now_ns())
                source.emit(first)
            until(client, lambda s: s.progress is None and len(given) == number)  # noqa: B023
        last = next(f for f in reversed(source.focused) if f is not None)
        assert last.undecided is not None
    assert first in given[0]
    assert given[1].count(first) >= 1
