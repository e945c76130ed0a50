"""What the job said of its own loop (``gpuwatch.hook``): step time, data wait, and the weight of stack samples by it.

Owns: which loop is the training loop, its share of waiting in the window, when that may stand for what the stacks say.
Refuses: why the data is late: the measure has no line of code and knows nothing of the GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.frames import Doing, last_name
from gpuwatch.model import NOT_READ, Absent, EvidenceRow, Frame, StepReport, StepTimes

COVERED = 0.5
"""Part of the window that the reports must span: a wait that has not ended yet is in none of them."""
APART = 0.2
"""Stacks and measure may differ so much by chance and by phase (50 samples of a burst of 5 s in a window of 20 s). By
more, the stacks see waits outside the watched loop, or the watched loop is not theirs."""
SOURCE = "measured by the job itself (gpuwatch.hook)"

_HOOK_FILE = re.compile(r"(^|/)gpuwatch[_/]hook\.py$")
_IN_NEXT = "_measured"
"""The hook's generator: on the stack while ``next()`` of the loader runs, and never while the loop's body does."""
_DATA = frozenset(
    {Activity.WAITING_FOR_DATA, Activity.PREPARING_DATA, Activity.RECEIVING_DATA, Activity.RESTARTING_WORKERS}
)


_PREPARES = {
    Activity.HOST_WORK: Activity.PREPARING_DATA,
    Activity.USER_LINE: Activity.PREPARING_DATA,
    Activity.WAITING: Activity.WAITING_FOR_DATA,
}


def in_next(frames: Sequence[Frame]) -> bool:
    """Whether this thread was fetching its next batch, by the hook's own frame."""
    return any(last_name(f.function) == _IN_NEXT and _HOOK_FILE.search(f.file) for f in frames)


def named(doing: Doing, *, inside: bool) -> Doing:
    """The job's own word on top of what frames and counters tell: whatever computes inside ``next()`` prepares data."""
    if not inside or doing.activity not in _PREPARES:
        return doing
    return msgspec.structs.replace(doing, activity=_PREPARES[doing.activity], sure=True)


def fetches(doing: Doing, *, inside: bool) -> bool:
    """Whether a sample belongs to the data wait: inside the watched ``next()``, or by the loader's own frames."""
    return inside or doing.activity in _DATA


def step_times(reports: Sequence[StepReport], start_ns: int, end_ns: int) -> StepTimes | None:
    """Of the training loop in the window, None when nothing was said.

    The loop is the one whose steps are marked, else the one whose steps took longest in all: it contains the others.
    Waits are those of all watched loops of its thread.
    """
    inside = [r for r in reports if r.mono_ns > start_ns and r.mono_ns - r.span_ns < end_ns]
    whole: dict[tuple[int, int], int] = defaultdict(int)
    for report in inside:
        whole[report.thread, report.loop] += report.step_ns
    if not whole:
        return None
    marked = [key for key in whole if key[1] == 0]
    thread, loop = max(marked or whole, key=lambda key: (whole[key], key))
    own = [r for r in inside if (r.thread, r.loop) == (thread, loop)]
    steps = sum(r.steps for r in own)
    if not steps:
        return None
    found = StepTimes(steps, sum(r.step_ns for r in own) / steps / 1e9, max(r.step_max_ns for r in own) / 1e9)
    watched = [r for r in inside if r.thread == thread and not isinstance(r.wait_ns, Absent)]
    if not watched:
        return found
    waits_ns = sum(float(r.wait_ns) for r in watched if not isinstance(r.wait_ns, Absent))
    longest_ns = max((float(r.wait_max_ns) for r in watched if not isinstance(r.wait_max_ns, Absent)), default=0.0)
    told_ns = max(r.mono_ns for r in watched) - min(r.mono_ns - r.span_ns for r in watched)
    return msgspec.structs.replace(
        found,
        # By time and not by count: the reports of the waits and those of the steps need not end together.
        wait_s=waits_ns / told_ns * found.step_s if told_ns else NOT_READ,
        wait_max_s=longest_ns / 1e9,
        wait_share=_share(watched, start_ns, end_ns),
    )


def _share(watched: Sequence[StepReport], start_ns: int, end_ns: int) -> float | Absent:
    """Waits as a share of the wall time. A pause between two loops is time without a wait; what comes before the first
    report or after the last one is not known."""
    first_ns = max(start_ns, min(r.mono_ns - r.span_ns for r in watched))
    last_ns = min(end_ns, max(r.mono_ns for r in watched))
    if last_ns - first_ns < COVERED * (end_ns - start_ns) or last_ns <= first_ns:
        return NOT_READ
    waits = 0.0
    for report in watched:
        inside_ns = min(end_ns, report.mono_ns) - max(start_ns, report.mono_ns - report.span_ns)
        if report.span_ns and not isinstance(report.wait_ns, Absent):
            waits += report.wait_ns * inside_ns / report.span_ns
    return min(1.0, waits / (last_ns - first_ns))


def weights(fetching: Sequence[bool], measured: StepTimes | None) -> list[float] | None:
    """What each stack sample counts, so that those that fetch data have the measured share; they sum to their number.

    None, all count the same: nothing was measured, or the stacks do not speak of the same loop.
    """
    if measured is None or isinstance(measured.wait_share, Absent):
        return None
    share, sampled = measured.wait_share, sum(fetching) / max(1, len(fetching))
    # All or none of them: nothing is there to move the rest of the weight to.
    if not 0.0 < sampled < 1.0 or abs(sampled - share) > APART:
        return None
    return [share / sampled if fetch else (1.0 - share) / (1.0 - sampled) for fetch in fetching]


def rows(measured: StepTimes | None, window_s: float) -> tuple[EvidenceRow, ...]:
    """The job's own figures as evidence."""
    if measured is None:
        return ()
    found = [EvidenceRow("step", 1e3 * measured.step_s, "ms", SOURCE, window_s)]
    if not isinstance(measured.wait_s, Absent):
        found.append(EvidenceRow("data wait per step", 1e3 * measured.wait_s, "ms", SOURCE, window_s))
    return tuple(found)


def left_out(measured: StepTimes | None, sampled: float) -> tuple[str, ...]:
    """Why the measure does not stand in the account although there is one. ``sampled``: the stacks' share of it."""
    if measured is None or isinstance(measured.wait_share, Absent) or abs(sampled - measured.wait_share) <= APART:
        return ()
    remedy = "wrap every loader of the training thread" if sampled > measured.wait_share else "watch longer"
    return (
        f"gpuwatch.hook: the job measures {100 * measured.wait_share:.0f} % of the time in next(), "
        f"{100 * sampled:.0f} % of the stack samples fetch data; {remedy}",
    )
