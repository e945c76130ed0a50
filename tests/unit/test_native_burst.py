"""Native frames in a burst: where plain ones leave it open, once, in time, and of nobody who refused before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from stack_stage import MAIN, MS, STACK, Stage, worker

from gpuwatch.collect.native_look import TIMEOUT_S, Look
from gpuwatch.collect.py_spy import Dump, Failure
from gpuwatch.collect.source import Focus
from gpuwatch.model import Frame, Observation, SourceLine, StackSample, ThreadStack

NATIVE = ThreadStack(MAIN, "MainThread", True, False, (Frame("cuLaunchKernel", "libcuda.so.1"), *STACK[0].frames))


class Answer:
    """``Focus.undecided`` that answers from a script and remembers what it was asked about."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[Sequence[StackSample]] = []
        self.texts: list[dict[tuple[str, int], str]] = []

    def __call__(self, stacks: Sequence[StackSample], text_of: Mapping[tuple[str, int], str]) -> bool:
        self.asked.append(stacks)
        self.texts.append(dict(text_of))
        return self.answer


def inquiry(ask: Answer | None, seconds: float = 8.0, stack_seconds: float = 5.0) -> Focus:
    return Focus(MAIN, (0,), seconds, stack_seconds=stack_seconds, undecided=ask)


def test_a_burst_that_leaves_it_open_ends_with_one_look_at_the_main_process_in_time() -> None:
    stage, ask = Stage(), Answer(True)
    stage.looker.answer = Look((NATIVE, NATIVE))
    stage.run(worker(1), focus=inquiry(ask))
    (at_ns, pid), *others = stage.looker.calls
    assert (pid, others) == (MAIN, [])
    assert at_ns + TIMEOUT_S * 1e9 <= 8_000 * MS, "what comes after the focus is not judged"
    assert stage.spy.calls[-1][0] < at_ns, "it has used up the burst's share of the time"
    assert stage.spy.counts()[MAIN] >= 30
    native = [sample for sample in stage.emitted if sample.native]
    assert [sample.threads for sample in native] == [(NATIVE,), (NATIVE,)]
    assert {(sample.pid, sample.root_pid, sample.mono_ns) for sample in native} == {(MAIN, MAIN, at_ns + 3_500 * MS)}


def test_a_burst_that_tells_enough_holds_nobody_and_goes_on_to_its_end() -> None:
    stage, ask = Stage(), Answer(False)
    stage.run(focus=inquiry(ask))
    assert (stage.looker.calls, stage.spy.counts()[MAIN], len(ask.asked)) == ([], 50, 1)


def test_one_that_must_not_look_never_does() -> None:
    stage = Stage()
    stage.run(focus=inquiry(None))
    assert (stage.looker.calls, stage.spy.counts()[MAIN]) == ([], 50)


def test_a_focus_too_short_for_a_look_is_all_plain() -> None:
    stage, ask = Stage(), Answer(False)
    stage.run(focus=inquiry(ask, seconds=TIMEOUT_S - 0.5))
    assert ask.asked == [()], "nothing is known when a look would have to begin"
    assert stage.spy.counts()[MAIN] == 30


def test_the_decision_sees_the_main_processs_own_stacks_and_the_text_of_their_lines(tmp_path: Path) -> None:
    home = tmp_path / str(MAIN) / "root/home/a"
    home.mkdir(parents=True)
    (home / "train.py").write_text("\n" * 6 + "    loss = step(batch)\n")
    stage, ask = Stage(root=tmp_path), Answer(True)
    stage.spy.answers = {1: Dump((ThreadStack(1, "MainThread", True, False, (Frame("f", "/w.py", 1),)),))}
    seen: list[Observation] = []
    stage.sampler.run(inquiry(ask), lambda: (worker(1),), seen.append, stage.now)
    assert {stack.pid for stack in ask.asked[0]} == {MAIN}
    assert ask.texts == [{("/home/a/train.py", 7): "loss = step(batch)"}]
    assert [o.text for o in seen if isinstance(o, SourceLine)] == ["loss = step(batch)"]


def test_a_long_recording_is_decided_by_what_the_job_does_last() -> None:
    stage, ask = Stage(), Answer(True)
    stage.run(focus=inquiry(ask, seconds=60.0, stack_seconds=60.0))
    assert len(ask.asked[0]) == 100
    assert stage.looker.calls[0][0] >= 55_000 * MS
    assert ask.asked[0][-1].mono_ns > 55_000 * MS


@pytest.mark.parametrize("failure", [Failure.PERMISSION, Failure.TIMEOUT, Failure.VERSION, Failure.MISSING])
def test_a_process_whose_native_frames_cannot_be_had_is_told_and_left_alone_from_then_on(
    tmp_path: Path, failure: Failure
) -> None:
    stage, ask = Stage(root=tmp_path), Answer(True)
    stage.start_job(MAIN, start_ticks=500)
    stage.looker.answer = Look((), failure, "native frames: no")
    stage.run(focus=inquiry(ask))
    assert [(s.error, s.native) for s in stage.emitted if s.error] == [("native frames: no", True)]
    stage.emitted.clear()
    before = stage.spy.counts()[MAIN]
    stage.run(focus=inquiry(ask))
    assert (len(stage.looker.calls), stage.errors()) == (1, [])
    assert stage.spy.counts()[MAIN] - before == 50, "a burst without a look is a whole one"
    stage.start_job(MAIN, start_ticks=900)
    stage.run(focus=inquiry(ask))
    assert len(stage.looker.calls) == 2, "another process that got the same pid"


def test_a_look_that_failed_by_chance_is_told_and_tried_again() -> None:
    stage, ask = Stage(), Answer(True)
    stage.looker.answer = Look((), Failure.TORN, "native frames: no thread was on a CPU")
    stage.run(focus=inquiry(ask))
    stage.run(focus=inquiry(ask))
    assert len(stage.looker.calls) == len(stage.errors()) == 2


def test_a_look_that_the_end_of_the_focus_cut_short_says_nothing() -> None:
    stage, ask = Stage(), Answer(True)
    stage.looker.answer = Look((), Failure.STOPPED, "native frames: stopped")
    stage.run(focus=inquiry(ask))
    assert (len(stage.looker.calls), stage.errors()) == (1, [])
