"""When a burst's plain stacks leave it open what the job does: only then is it held for its native frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose import builders as b
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.undecided import undecided
from gpuwatch.model import Frame, SourceLine, StackSample, ThreadStack
from gpuwatch.replay.player import load

RECORDINGS = Path(__file__).parent.parent / "recordings"
LINE = ("/home/ann/fit.py", 35)


def stacks(*frames: tuple[Frame, ...], native: bool = False, active: bool = True) -> list[StackSample]:
    return [
        StackSample(b.PID, b.PID, i, (ThreadStack(b.PID, "MainThread", active, True, stack),), native=native)
        for i, stack in enumerate(frames)
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("loss = step(batch)", True),
        ("", True),
        ("total += loss.item()", False),
        ("batch = batch.to(device)", False),
        ("torch.cuda.empty_cache()", False),
    ],
)
def test_a_line_that_says_itself_what_it_does_needs_no_native_frames(text: str, wanted: bool) -> None:
    assert undecided(stacks(*[b.USER_LINE] * 20), {LINE: text} if text else {}) is wanted


def test_torchs_own_python_and_waiting_for_data_are_plain_enough() -> None:
    assert not undecided(stacks(*[b.LAUNCHING] * 20, *[b.WAITING] * 20), {})
    assert not undecided(stacks(*[b.USER_LINE] * 20, active=False), {}), "off the CPU it does nothing to divide"


def test_a_line_too_rare_to_carry_a_finding_holds_nobody() -> None:
    assert not undecided(stacks(*[b.USER_LINE] * 4, *[b.LAUNCHING] * 41), {})
    assert undecided(stacks(*[b.USER_LINE] * 5, *[b.LAUNCHING] * 41), {})


def test_too_few_stacks_or_native_ones_decide_nothing() -> None:
    assert not undecided(stacks(*[b.USER_LINE] * 7), {})
    assert not undecided(stacks(*[b.USER_LINE] * 20, native=True), {})


def test_of_the_known_jobs_those_are_held_whose_time_native_frames_divide() -> None:
    held = set()
    for path in RECORDINGS.glob("*.gwrec"):
        observations = load(path)
        text_of = {(o.file, o.line): o.text for o in observations if isinstance(o, SourceLine)}
        pids = {o.root_pid for o in observations if isinstance(o, StackSample)}
        if any(
            undecided([o for o in observations if isinstance(o, StackSample) and o.pid == p and not o.native], text_of)
            for p in pids
        ):
            held.add(path.stem)
    assert held == {"augment_in_loop", "item_each_layer", "unpinned_volumes"}


def test_where_it_asks_for_them_native_frames_change_the_verdict() -> None:
    observations = load(RECORDINGS / "item_each_layer.gwrec")
    plain = [o for o in observations if not (isinstance(o, StackSample) and o.native)]
    pid = next(o.root_pid for o in observations if isinstance(o, StackSample))
    assert diagnose(observations, pid).verdict.cause == "host_sync"
    assert diagnose(plain, pid).verdict.cause == "launch_bound"


def test_a_verdict_that_rests_on_an_undivided_line_says_why_there_were_no_native_frames() -> None:
    why = "native frames: permission denied (ptrace_scope=1, not root): CAP_SYS_PTRACE"
    failed = StackSample(b.PID, b.PID, b.times()[-1], error=why, native=True)
    job = [b.inventory(), *b.gpu([10.0]), *b.ticks(b.process(b.PID, 1.0)), *b.host()]
    assert why in diagnose([*job, *b.stacks([(b.USER_LINE, True)]), failed], b.PID).missing
    launching = diagnose([*job, *b.stacks([(b.LAUNCHING, True)]), failed], b.PID)
    assert why not in launching.missing, "nothing was left open"


def test_a_line_whose_c_calls_an_earlier_look_has_seen_needs_no_other() -> None:
    """A look holds the job: once for a line, not once for each diagnosis."""
    calls = Frame("cudaLaunchKernel", "libcudart.so.13", 0)
    (leaf, *outer) = b.USER_LINE
    below = (calls, Frame(leaf.function, leaf.file.rsplit("/", 1)[-1], leaf.line), *outer)
    plain = stacks(*[b.USER_LINE] * 20)
    assert not undecided([*stacks(below, below, native=True), *plain], {})
    assert undecided([*stacks(below, native=True), *plain], {}), "a single stack may be the exception"
    elsewhere = (calls, Frame(leaf.function, leaf.file.rsplit("/", 1)[-1], leaf.line + 1), *outer)
    assert undecided([*stacks(elsewhere, elsewhere, native=True), *plain], {})
