"""A job that says of itself how long it waits: what its owner is told more, and when its word is not taken."""

from __future__ import annotations

import pytest

from diagnose import builders as b
from gpuwatch import hook
from gpuwatch.diagnose.assemble import assemble
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.steps import in_next, step_times
from gpuwatch.export.diagnosis_text import diagnosis_lines, diagnosis_markdown, steps_text
from gpuwatch.model import NOT_READ, Diagnosis, Frame, Observation, StepReport, StepTimes

PID = b.PID
MS = 1_000_000
HALF_S = 500 * MS
HOOK = Frame("_measured", b.LIB + "gpuwatch/hook.py", 97)


def reports(
    wait: float, *, step_ms: int = 100, loop: int = 7, thread: int = PID, seconds: float = b.SECONDS, pid: int = PID
) -> list[Observation]:
    """Half a second each: so many steps, of which ``wait`` is data wait."""
    steps, start = HALF_S // (step_ms * MS), b.times()[0]
    waited = int(wait * HALF_S)
    return [
        StepReport(
            *(pid, start + n * HALF_S, HALF_S, steps, HALF_S, step_ms * MS * 2),
            *(waited, 2 * waited // steps, loop, thread),
        )
        for n in range(1, int(seconds * 2))
    ]


def marks(step_ms: int, thread: int = PID) -> list[Observation]:
    start = b.times()[0]
    return [
        StepReport(PID, start + n * HALF_S, HALF_S, HALF_S // (step_ms * MS), HALF_S, step_ms * MS, thread=thread)
        for n in range(1, 20)
    ]


def judged(*parts: list[Observation]) -> Diagnosis:
    return diagnose([b.inventory(), *(o for part in parts for o in part)], PID)


def starved(*more: list[Observation]) -> Diagnosis:
    """GPU busy a fifth of the time; 3 of 5 stack samples wait for the loader."""
    return judged(b.gpu([0, 0, 0, 50, 50]), b.ticks(b.process(PID, 0.4), [b.process(5001, 1.0)]), b.host(),
                  b.stacks([(b.WAITING, False)] * 3 + [(b.LAUNCHING, True)] * 2), *more)  # fmt: skip


def share(found: Diagnosis, activity: str) -> float:
    return next(part.share for part in found.account if part.activity == activity)


def test_the_measured_wait_stands_in_the_account_instead_of_the_sampled_one() -> None:
    before, after = starved(), starved(reports(0.75))
    assert before.steps is None
    assert after.steps is not None
    assert after.steps.in_account
    # Of five samples three wait with an idle GPU and two launch with one half busy: 3 to 1. At the measured 75 % of the
    # time it is 0.75 * 1 to 0.25 * 0.5 of the lost 80 %.
    assert share(before, "waiting_for_data") == pytest.approx(0.8 * 3 / 4)
    assert share(after, "waiting_for_data") == pytest.approx(0.8 * 0.75 / (0.75 + 0.125))
    assert sum(part.share for part in after.account) == pytest.approx(1.0)


def test_step_time_and_data_wait_are_evidence_and_text() -> None:
    found = starved(reports(0.75))
    rows = {row.name: row for row in found.verdict.evidence}
    assert rows["step"].value == pytest.approx(100.0)
    assert rows["step"].unit == "ms"
    assert rows["data wait per step"].value == pytest.approx(75.0)
    assert rows["step"].source == "measured by the job itself (gpuwatch.hook)"
    text = " ".join(" ".join(diagnosis_lines(found)).split())
    said = (
        "steps 100 ms a step (longest 200 ms, n=95), of which 75.0 ms data wait, 75 % of the time; measured by the job "
        "itself, and so in the account"
    )
    assert said in text
    assert said.removeprefix("steps ") in diagnosis_markdown(found)
    assert "weighted by the job's own data wait" in text
    assert max(map(len, diagnosis_lines(found))) <= 80


def test_a_job_that_says_nothing_is_told_nothing_of_steps() -> None:
    text = "\n".join(diagnosis_lines(starved()))
    assert "  steps " not in text
    assert "hook" not in text
    assert "job itself" not in text


def test_the_word_of_another_process_is_nothing_to_this_job() -> None:
    assert starved(reports(0.75, pid=5001)).steps is None


def test_a_loader_outside_the_watched_loop_is_not_measured_away() -> None:
    found = starved(reports(0.05))
    assert found.steps is not None
    assert not found.steps.in_account
    assert share(found, "waiting_for_data") == pytest.approx(0.8 * 3 / 4)
    assert found.missing[-1] == (
        "gpuwatch.hook: the job measures 5 % of the time in next(), 60 % of the stack samples fetch data; wrap every "
        "loader of the training thread"
    )
    assert "and so in the account" not in steps_text(found.steps)


def test_a_wait_that_has_not_ended_is_not_taken_for_none() -> None:
    """The job hangs in next() since the second second: its last report is from before."""
    found = starved(reports(0.1, seconds=2.0))
    assert found.steps is not None
    assert found.steps.wait_share == NOT_READ
    assert share(found, "waiting_for_data") == pytest.approx(0.8 * 3 / 4)
    assert not any("gpuwatch.hook" in note for note in found.missing)


def test_a_generator_that_computes_inside_next_prepares_data_and_its_line_is_named() -> None:
    inside = (Frame("batches", "/home/ann/photos.py", 30), HOOK, Frame("fit", "/home/ann/fit.py", 30))
    found = judged(b.gpu([0, 0, 0, 50, 50]), b.ticks(b.process(PID, 1.0)), b.host(),
                   b.stacks([(inside, True)] * 3 + [(b.LAUNCHING, True)] * 2), reports(0.6))  # fmt: skip
    assert found.verdict.cause == "loader_in_main_process"
    assert found.verdict.location is not None
    assert (found.verdict.location.file, found.verdict.location.line) == ("/home/ann/photos.py", 30)


@pytest.mark.parametrize("file", [b.LIB + "gpuwatch/hook.py", "/home/ann/gpuwatch_hook.py", "gpuwatch/hook.py"])
def test_the_hook_is_never_the_line_to_change(file: str) -> None:
    waiting = (*b.WAITING[:-1], Frame("_measured", file, 97), b.WAITING[-1])
    found = judged(b.gpu([0, 0, 0, 50, 50]), b.ticks(b.process(PID, 0.4), [b.process(5001, 1.0)]), b.host(),
                   b.stacks([(waiting, False)] * 3 + [(b.LAUNCHING, True)] * 2), reports(0.6))  # fmt: skip
    assert found.verdict.location is not None
    assert found.verdict.location.file == "/home/ann/fit.py"


def test_the_frame_that_the_diagnosis_knows_is_the_hooks_own() -> None:
    generator = hook.watch(iter([1]))
    own = Frame(generator.__name__, hook.__file__, 1)  # type: ignore[attr-defined]
    assert in_next((own,))
    assert not in_next((Frame("step", hook.__file__, 1), Frame("_measured", "/home/ann/fit.py", 1)))


def test_without_stacks_the_jobs_figures_are_told_all_the_same() -> None:
    found = judged(b.gpu([0, 0, 0, 50, 50]), b.ticks(b.process(PID, 0.4), [b.process(5001, 1.0)]), reports(0.75))
    assert found.account == ()
    assert found.steps is not None
    assert not found.steps.in_account
    assert "75 % of the time; measured by the job itself" in " ".join(" ".join(diagnosis_lines(found)).split())


# ------------------------------------------------------------------ which loop, which window


def times(*parts: list[Observation]) -> StepTimes | None:
    said = [o for part in parts for o in part if isinstance(o, StepReport)]
    return step_times(said, b.times()[0], b.times()[-1])


def test_marked_steps_have_no_wait_rather_than_none() -> None:
    assert times(marks(250)) == StepTimes(38, 0.25, 0.25)


def test_marks_say_what_a_step_is_and_the_watched_loop_how_long_it_waits() -> None:
    found = times(marks(250), reports(0.4, step_ms=50))
    assert found is not None
    assert found.step_s == 0.25
    assert found.wait_s == pytest.approx(0.1)
    assert found.wait_share == pytest.approx(0.4)


def test_the_outer_of_two_loops_is_the_training_loop_and_waits_add_up() -> None:
    outer = reports(0.2, step_ms=250, loop=1)
    inner = [StepReport(PID, outer[4].mono_ns, 100 * MS, 10, 90 * MS, 9 * MS, 50 * MS, 9 * MS, 2, PID)]  # type: ignore[union-attr]
    found = times(outer, list(inner))
    assert found is not None
    assert found.step_s == pytest.approx(0.25)
    assert found.wait_share == pytest.approx(0.2 + 0.05 / 9.5)


def test_another_threads_loader_is_not_waited_for_by_the_training_thread() -> None:
    found = times(reports(0.2), reports(0.9, loop=8, thread=99, seconds=5.0))
    assert found is not None
    assert found.wait_share == pytest.approx(0.2)


def test_a_report_that_began_before_the_window_counts_for_its_part_inside() -> None:
    start, end = b.times()[0], b.times()[-1]
    said = [StepReport(PID, start + 6000 * MS, 12_000 * MS, 1, 12_000 * MS, 12_000 * MS, 6000 * MS, 6000 * MS, 1, PID)]
    found = step_times(said, start, end)
    assert found is not None
    assert found.wait_share == pytest.approx(0.5)
    assert step_times(said, start + 7000 * MS, end) is None


def test_a_pause_between_two_epochs_is_time_without_a_wait() -> None:
    said = reports(0.5)
    found = times(said[:5], said[14:])
    assert found is not None
    assert found.wait_share == pytest.approx(10 / 19 * 0.5)


def test_reports_reach_the_evidence_of_the_steady_state_only() -> None:
    seen = [b.inventory(), *b.gpu([50]), *reports(0.5)]
    middle = b.times()[50]
    late = assemble(seen, PID, since_ns=middle).steps
    assert late is not None
    assert late.steps < sum(o.steps for o in seen if isinstance(o, StepReport))
