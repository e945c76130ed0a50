"""The driving thread at single instants, each with what the GPU did then.

Owns: Moment, and joining stack samples with GPM windows in time; what the neighbours of a sample, and the counters,
say about it that its own stack cannot. Refuses: sums over the window (account.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.driver import competes, driven, waits_in_python
from gpuwatch.diagnose.episodes import function_of_episodes
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.frames import Doing, Phase, classify, compiles, outside_modules, phase_of
from gpuwatch.diagnose.origin import is_users
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
        for stack, thread in driven(evidence.main_stacks)
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
        leaf = moment.doing.leaf
        known = leaf is not None and (leaf.file, leaf.line) in evidence.source
        # Asleep in backward, beside other ranks: in a collective that blocks (gloo, TORCH_NCCL_BLOCKING_WAIT).
        held_up = bool(evidence.ranks) and not thread.active and phase is Phase.BACKWARD
        counted = _with_counters(moment, ceiling, line_known=known, held_up=held_up)
        inside = in_next(thread.frames)
        doing = named(counted.doing, inside=inside)
        found.append(msgspec.structs.replace(counted, doing=doing, fetching=fetches(doing, inside=inside)))
    return _with_starts(_with_episodes(_with_savers(found)))


def _with_starts(found: list[Moment]) -> list[Moment]:
    """Loading weights or data is how a job starts. Between training steps it is work like any other."""
    first = next((place for place, m in enumerate(found) if m.phase is not Phase.NONE), len(found))
    return [
        msgspec.structs.replace(m, doing=_guess(m.doing, Activity.HOST_WORK))
        if place > first and m.doing.activity is Activity.STARTING and not m.doing.sure
        else m
        for place, m in enumerate(found)
    ]


def _guess(doing: Doing, activity: Activity) -> Doing:
    return msgspec.structs.replace(doing, activity=activity, sure=False)


_SAVING = frozenset({Activity.LOGGING, Activity.WAITING, Activity.HOST_WORK, Activity.USER_LINE})


def _with_savers(found: list[Moment]) -> list[Moment]:
    """A function that saves a checkpoint also opens, flushes and syncs its file: all of that is saving."""
    savers = {
        (m.doing.where.file, m.doing.where.function)
        for m in found
        if m.doing.activity is Activity.CHECKPOINTING and m.doing.where is not None
    }
    return [
        msgspec.structs.replace(m, doing=Doing(Activity.CHECKPOINTING, where, m.doing.leaf))
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
        msgspec.structs.replace(m, doing=Doing(Activity.EVALUATING, m.doing.where, m.doing.leaf))
        if function in m.functions and m.doing.activity in _OPEN
        else m
        for m in found
    ]


def _of_process(doing: Doing, phase: Phase, thread: ThreadStack, threads: Sequence[ThreadStack]) -> Doing:
    """What the driving thread waits for when other threads of its process work for it.

    Autograd runs backward in a thread of its own, and compiles it there. A checkpoint that a thread writes is waited
    for before the next one.
    """
    others = [other for other in threads if other != thread and other.active]
    if phase is Phase.BACKWARD and any(compiles(other.frames) for other in others):
        return Doing(Activity.COMPILING, doing.where, doing.leaf)
    if doing.activity is Activity.WAITING and waits_in_python(thread):
        for other in others:
            if classify(other, {}).activity is Activity.CHECKPOINTING:
                return _guess(doing, Activity.CHECKPOINTING)
    return doing


def _with_counters(moment: Moment, ceiling: float, *, line_known: bool, held_up: bool = False) -> Moment:
    """Let the GPU's counters correct what a stack alone cannot know.

    * A line that calls C, and whose text is not known, is a copy while PCIe carries gigabytes.
    * Framework code during a whole window in which the GPU did nothing was not launching: it computed on the CPU, or
      (``held_up``) slept until other ranks came.
    * Nobody waits for a GPU that does nothing: the value that such a line reads is not on it.
    """
    doing, slept = moment.doing, moment.gpu_slept
    activity = doing.activity
    traffic = max(moment.rx_bytes_per_s or 0.0, moment.tx_bytes_per_s or 0.0)
    if activity is Activity.USER_LINE and not line_known and traffic >= t.SLOW_COPY_LINK_SHARE * ceiling:
        corrected = msgspec.structs.replace(doing, activity=Activity.COPYING, sure=True)
    elif activity is Activity.LAUNCHING and slept and held_up:
        corrected = _guess(doing, Activity.COMMUNICATING)
    elif activity is Activity.LAUNCHING and slept and moment.phase not in (Phase.BACKWARD, Phase.UPDATE):
        corrected = _guess(doing, Activity.HOST_WORK)
    elif activity is Activity.SYNCHRONISING and slept and not doing.sure:
        corrected = _guess(doing, Activity.USER_LINE)
    else:
        return moment
    return msgspec.structs.replace(moment, doing=corrected)


def pinned_ceiling(evidence: Evidence) -> float:
    """Bytes per second that pinned copies reach on this GPU's link: measured here, or typical of the card at the speed
    that its link has now."""
    measured = evidence.ceilings.get("h2d_pinned_bytes_per_s")
    if measured:
        return measured
    capability = next((d.compute_capability for d in evidence.devices), "")
    typical = t.PINNED_BYTES_PER_S.get(capability if isinstance(capability, str) else "", t.PINNED_BYTES_PER_S_DEFAULT)
    return typical * evidence.link_share
