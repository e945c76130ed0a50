"""The driving thread at single instants, each with what the GPU did then.

Owns: Moment, and joining stack samples with GPM windows in time; what the neighbours of a sample, and the counters,
say about it that its own stack cannot. Refuses: sums over the window (account.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.episodes import function_of_episodes
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.frames import (
    Activity,
    Doing,
    Phase,
    classify,
    competes,
    compiles,
    driving_thread,
    is_users,
    outside_modules,
    phase_of,
)
from gpuwatch.diagnose.steps import fetches, in_next, named
from gpuwatch.diagnose.timeline import Timeline, lag_ns
from gpuwatch.model import ThreadStack

WHOLE_WINDOW_NS = 80_000_000
"""A shorter one may fall between two kernels."""


class Moment(Struct, frozen=True):
    """One stack sample of the driving thread, with the GPU beside it."""

    doing: Doing
    busy: float
    rx_bytes_per_s: float | None
    tx_bytes_per_s: float | None
    window_ns: int
    mono_ns: int = 0
    gil_elsewhere: bool = False
    phase: Phase = Phase.NONE
    functions: frozenset[tuple[str, str]] = frozenset()
    """(file, function) of the user's own frames, those within a model left out."""
    fetching: bool = False
    """Within the wait for the next batch."""

    @property
    def gpu_slept(self) -> bool:
        """The GPU did nothing in the whole window around this instant."""
        return self.busy < t.NO_ACTIVITY_BUSY and self.window_ns >= WHOLE_WINDOW_NS


def moments(evidence: Evidence) -> list[Moment]:
    """The driving thread's samples that a GPM window covers. Several devices: the mean of their windows."""
    ceiling = pinned_ceiling(evidence)
    sampled = [
        (stack, thread, classify(thread, evidence.source), phase_of(thread.frames))
        for stack in evidence.main_stacks
        if (thread := driving_thread(stack.pid, stack.threads)) is not None
    ]
    fed = [(stack.mono_ns, phase is not Phase.NONE) for stack, _, _, phase in sampled]
    timeline = Timeline(evidence.windows, lag_ns(evidence.windows, fed))
    found = []
    for stack, thread, seen, phase in sampled:
        covering = timeline.at(stack.mono_ns)
        if not covering:
            continue
        rx = [w.rx_bytes_per_s for w in covering if w.rx_bytes_per_s is not None]
        tx = [w.tx_bytes_per_s for w in covering if w.tx_bytes_per_s is not None]
        moment = Moment(
            doing=_of_process(seen, phase, thread, stack.threads),
            busy=sum(w.busy for w in covering) / len(covering),
            rx_bytes_per_s=max(rx, default=None),
            tx_bytes_per_s=max(tx, default=None),
            window_ns=max(w.end_ns - w.start_ns for w in covering),
            mono_ns=stack.mono_ns,
            gil_elsewhere=any(other.owns_gil and other is not thread and competes(other) for other in stack.threads),
            phase=phase,
            functions=frozenset((f.file, f.function) for f in outside_modules(thread.frames) if is_users(f)),
        )
        where = moment.doing.where
        known = where is not None and (where.file, where.line) in evidence.source
        # Asleep in backward, beside other ranks: in a collective that blocks (gloo, TORCH_NCCL_BLOCKING_WAIT).
        held_up = bool(evidence.ranks) and not thread.active and phase is Phase.BACKWARD
        counted = _with_counters(moment, ceiling, line_known=known, held_up=held_up)
        inside = in_next(thread.frames)
        doing = named(counted.doing, inside=inside)
        found.append(msgspec.structs.replace(counted, doing=doing, fetching=fetches(doing, inside=inside)))
    return _with_episodes(_with_savers(found))


_SAVING = frozenset({Activity.LOGGING, Activity.WAITING, Activity.HOST_WORK, Activity.USER_LINE})


def _with_savers(found: list[Moment]) -> list[Moment]:
    """A function that saves a checkpoint also opens, flushes and syncs its file: all of that is saving."""
    savers = {
        (m.doing.where.file, m.doing.where.function)
        for m in found
        if m.doing.activity is Activity.CHECKPOINTING and m.doing.where is not None
    }
    return [
        msgspec.structs.replace(m, doing=Doing(Activity.CHECKPOINTING, where))
        if m.doing.activity in _SAVING
        and (where := m.doing.where) is not None
        and (where.file, where.function) in savers
        else m
        for m in found
    ]


_OPEN = frozenset(
    {Activity.LAUNCHING, Activity.HOST_WORK, Activity.USER_LINE, Activity.SYNCHRONISING, Activity.EVALUATING}
)
"""Activities that any part of a job shows; only where they happen tells whether it is training."""


def _with_episodes(found: list[Moment]) -> list[Moment]:
    """Samples of work between the training steps as such, by the function that it stands in."""
    function = function_of_episodes(
        [m.functions for m in found], [m.phase for m in found], open_=[m.doing.activity in _OPEN for m in found]
    )
    if function is None:
        return found
    return [
        msgspec.structs.replace(m, doing=Doing(Activity.EVALUATING, m.doing.where))
        if function in m.functions and m.doing.activity in _OPEN
        else m
        for m in found
    ]


def _of_process(doing: Doing, phase: Phase, thread: ThreadStack, threads: Sequence[ThreadStack]) -> Doing:
    """Autograd runs backward in a thread of its own, and compiles it there: the thread that drives only waits."""
    if phase is Phase.BACKWARD and any(other.active and compiles(other.frames) for other in threads if other != thread):
        return Doing(Activity.COMPILING, doing.where)
    return doing


def _with_counters(moment: Moment, ceiling: float, *, line_known: bool, held_up: bool = False) -> Moment:
    """Let the GPU's counters correct what a stack alone cannot know.

    * A line of the user's that calls C, and whose text is not known, is a copy while PCIe carries gigabytes.
    * Framework code during a whole window in which the GPU did nothing was not launching: it computed on the CPU, or
      (``held_up``) slept until other ranks came.
    """
    doing = moment.doing
    activity = doing.activity
    traffic = max(moment.rx_bytes_per_s or 0.0, moment.tx_bytes_per_s or 0.0)
    if activity is Activity.USER_LINE and not line_known and traffic >= t.SLOW_COPY_LINK_SHARE * ceiling:
        activity = Activity.COPYING
    elif activity is Activity.LAUNCHING and moment.gpu_slept:
        if held_up:
            activity = Activity.COMMUNICATING
        elif moment.phase not in (Phase.BACKWARD, Phase.UPDATE):
            activity = Activity.HOST_WORK
    if activity is doing.activity:
        return moment
    return msgspec.structs.replace(moment, doing=Doing(activity, doing.where))


def pinned_ceiling(evidence: Evidence) -> float:
    """Bytes per second that pinned copies reach on this GPU's link: measured here, or typical of the card at the speed
    that its link has now."""
    measured = evidence.ceilings.get("h2d_pinned_bytes_per_s")
    if measured:
        return measured
    capability = next((d.compute_capability for d in evidence.devices), "")
    typical = t.PINNED_BYTES_PER_S.get(capability if isinstance(capability, str) else "", t.PINNED_BYTES_PER_S_DEFAULT)
    return typical * evidence.link_share
