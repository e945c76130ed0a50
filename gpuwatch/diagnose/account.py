"""Where the wall time of the window went: stack samples joined in time with GPM windows.

Owns: the account, which sums to 1, and the loss of each activity. Refuses: naming causes.

For each stack sample of the driving thread we look up the GPM window that covers its instant. The part of that window
in which the GPU was busy counts as *computing*; the rest is charged to what the thread was doing then. So a data wait
that the GPU's queue hides costs nothing, and one that leaves it idle costs what it leaves: two averages multiplied
would get both wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.episodes import runs_forward_only
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.line_text import only_copies
from gpuwatch.diagnose.moments import Moment, pinned_ceiling
from gpuwatch.diagnose.native_frames import driving_leaves, line_of, native_activity
from gpuwatch.diagnose.steps import weights
from gpuwatch.diagnose.undecided import DIVISIBLE
from gpuwatch.model import AccountShare, CodeLocation, Frame

_Split = dict[tuple[str, int], dict[Activity, float]]
"""(file name, line) to what native frames saw there, as shares."""
COMPUTING = "computing"
UNATTRIBUTED = "unattributed"

ACCOUNT_NAME = {
    Activity.WAITING_FOR_DATA: "waiting_for_data",
    Activity.PREPARING_DATA: "preparing_data",
    Activity.RECEIVING_DATA: "waiting_for_data",
    Activity.RESTARTING_WORKERS: "waiting_for_data",
    Activity.CHECKPOINTING: "checkpointing",
    Activity.COMPILING: "compiling",
    Activity.STARTING: "compiling",
    Activity.SYNCHRONISING: "synchronising",
    Activity.COPYING: "copying",
    Activity.COPY_WAIT: "synchronising",
    Activity.LAUNCHING: "launching",
    Activity.COMMUNICATING: "communicating",
    Activity.LOGGING: "other_host_work",
    Activity.EVALUATING: "other_host_work",
    Activity.ALLOCATING: "allocating",
    Activity.COLLECTING: "other_host_work",
    Activity.HOST_WORK: "other_host_work",
    Activity.USER_LINE: "other_host_work",
    Activity.WAITING: "idle",
    Activity.WAITING_FOR_WORK: "idle",
}


DRAINS = (Activity.SYNCHRONISING, Activity.COPYING, Activity.COPY_WAIT, Activity.ALLOCATING)
"""What lets the GPU's queue run dry: afterwards every launch is in the open."""


class Account(Struct, frozen=True):
    """The wall time of the window, split. All shares are of the wall time, 0..1."""

    computing: float
    lost: dict[Activity, float]
    """GPU time lost while the driving thread did this."""
    held: dict[Activity, float]
    """Share of the samples in this activity, whether the GPU was busy or not."""
    where: dict[Activity, dict[Frame, float]]
    """Lines of the user's code per activity, with the samples on each."""
    samples: int
    lines: dict[Activity, float]
    """Samples per activity; a sample that native frames split counts in parts."""
    unsure: dict[Activity, float] = {}
    """Of them, those that are a guess: the frames may stand for something else, and no native frames told."""
    natively: frozenset[Activity] = frozenset()
    """What native frames have seen the driving thread do."""
    copy_rx_bytes_per_s: float | None = None
    """Mean PCIe rate towards the GPU while the thread was copying."""
    copy_tx_bytes_per_s: float | None = None
    idle_windows: float = 0.0
    """Share of the samples in whose window the GPU did nothing at all."""
    gil_elsewhere: float = 0.0
    """Share of the samples in which another Python thread of the process held the interpreter lock."""
    recompiles: bool = False
    """The compiler worked again after the GPU had."""
    source_known: float = 1.0
    """Share of the user-line samples whose text was readable."""
    forward_only: bool = False
    """A function of the user's runs the network and never trains it, besides one that trains: what is done there may
    be an evaluation or a part of each step."""
    fetching: float = 0.0
    """Share of the samples within the wait for the next batch, as sampled."""
    measured: bool = False
    """The samples are weighted so that those that fetch data have the share that the job itself has measured."""

    def lost_in(self, *activities: Activity) -> float:
        """GPU time lost because of any of these.

        Where launching alone would keep the GPU busy, what was lost while launching is the aftermath of the stalls:
        the queue has run dry and fills again. It is shared out among them.
        """
        return sum(self.lost.get(a, 0.0) + self._aftermath(a) for a in activities)

    def _aftermath(self, activity: Activity) -> float:
        launching = self.lost.get(Activity.LAUNCHING, 0.0)
        stalls = {a: lost for a, lost in self.lost.items() if a is not Activity.LAUNCHING and self._is_seen(a)}
        total = sum(stalls.values())
        limits = self.held.get(Activity.LAUNCHING, 0.0) >= t.LAUNCH_LIMITS * self.computing
        if launching and not limits and total >= t.NAMED_FROM / 2:
            return -launching if activity is Activity.LAUNCHING else launching * stalls.get(activity, 0.0) / total
        exposed = self._exposed()
        if activity is Activity.LAUNCHING:
            return -exposed
        return exposed * self.held.get(activity, 0.0) / self.held_in(*DRAINS) if exposed and activity in DRAINS else 0.0

    def _is_seen(self, activity: Activity) -> bool:
        """Whether a stall was met often enough to be charged with what follows it: two samples are an accident."""
        return self.lost.get(activity, 0.0) >= t.NAMED_FROM or self.lines.get(activity, 0.0) >= t.EXPOSED_SAMPLES

    def _exposed(self) -> float:
        """Of what is lost while launching, the part that waits for the GPU expose: a thread that stops until the queue
        is empty cannot run ahead. Without the waits a step takes the longer of the GPU's work and the rest of the
        thread's. (H200: copies of a pageable batch each step, held 15 %, bound 1.18x by this; pinned 1.17x. A cache
        emptied each step, held 30 %: bound 1.4x, and 1.96x without the allocations that follow.)"""
        held, direct = self.held_in(*DRAINS), sum(self.lost.get(a, 0.0) for a in DRAINS)
        removable = 1.0 - max(self.computing, 1.0 - held)
        return max(0.0, min(removable - direct, self.lost.get(Activity.LAUNCHING, 0.0)))

    def held_in(self, *activities: Activity) -> float:
        """Share of the samples in any of these, whether the GPU was busy or not."""
        return sum(self.held.get(a, 0.0) for a in activities)

    def guessed(self, *activities: Activity) -> bool:
        """Whether most samples of these activities are a guess."""
        guesses = sum(self.unsure.get(a, 0.0) for a in activities)
        return guesses > 0.5 * sum(self.lines.get(a, 0.0) for a in activities)

    def location(self, *activities: Activity) -> CodeLocation | None:
        """The line of the user's code that most samples of these activities stand on."""
        lines: dict[Frame, float] = defaultdict(float)
        for activity in activities:
            for frame, count in self.where.get(activity, {}).items():
                lines[frame] += count
        total = sum(self.lines.get(a, 0.0) for a in activities)
        if not lines or not total:
            return None
        frame, count = max(lines.items(), key=lambda item: item[1])
        return CodeLocation(frame.file, frame.line, frame.function, count / total)

    def shares(self) -> tuple[AccountShare, ...]:
        """For people: sums to 1; computing first, then what was lost, largest first."""
        parts: dict[str, float] = defaultdict(float)
        for activity, share in self.lost.items():
            parts[ACCOUNT_NAME[activity]] += share
        rest = 1.0 - self.computing - sum(parts.values())
        if rest > 1e-9:
            parts[UNATTRIBUTED] += rest
        ranked = sorted(((n, s) for n, s in parts.items() if s > 1e-9), key=lambda item: (-item[1], item[0]))
        return (AccountShare(COMPUTING, self.computing), *(AccountShare(n, s) for n, s in ranked))


def balance(evidence: Evidence, found: Sequence[Moment]) -> Account | None:
    """The account of the window by its ``moments``, or None when there are too few of them to split it.

    The split comes from the sampled instants and is scaled to the loss of the whole window: stacks are taken for a
    part of it only, GPM for all of it.
    """
    busy = evidence.mean("busy")
    if busy is None or len(found) < t.MIN_STACKS:
        return None
    lost: dict[Activity, float] = defaultdict(float)
    where: dict[Activity, dict[Frame, float]] = defaultdict(lambda: defaultdict(float))
    lines: dict[Activity, float] = defaultdict(float)
    unsure: dict[Activity, float] = defaultdict(float)
    native = _native_split(evidence)
    measured = weights([moment.fetching for moment in found], evidence.steps)
    for moment, weight in zip(found, measured or [1.0] * len(found), strict=True):
        divided = _divided(moment, native)
        for activity, share in (divided or {moment.doing.activity: 1.0}).items():
            part = weight * share
            lines[activity] += part
            lost[activity] += part * (1.0 - moment.busy)
            if not moment.doing.sure and divided is None:
                unsure[activity] += part
            if moment.doing.where is not None:
                where[activity][moment.doing.where] += part
    _cap_copies(evidence, found, native, lost, lines, where)
    sampled_loss = sum(lost.values())
    scale = (1.0 - busy) / sampled_loss if sampled_loss else 0.0
    return Account(
        computing=busy,
        lost={a: share * scale for a, share in lost.items()},
        held={a: n / len(found) for a, n in lines.items()},
        where={a: dict(c) for a, c in where.items()},
        samples=len(found),
        lines=dict(lines),
        unsure=dict(unsure),
        natively=frozenset(a for parts in native.values() for a, share in parts.items() if share >= t.NAMED_FROM),
        copy_rx_bytes_per_s=_copy_rate(found, "rx_bytes_per_s"),
        copy_tx_bytes_per_s=_copy_rate(found, "tx_bytes_per_s"),
        idle_windows=sum(m.busy < t.IDLE_WINDOW_BUSY for m in found) / len(found),
        gil_elsewhere=sum(m.gil_elsewhere for m in found) / len(found),
        recompiles=_recompiles(found),
        source_known=_source_known(evidence, found, native),
        forward_only=runs_forward_only([m.functions for m in found], [m.phase for m in found]),
        fetching=sum(m.fetching for m in found) / len(found),
        measured=measured is not None,
    )


def _recompiles(found: Sequence[Moment]) -> bool:
    """Whether compilation and steps take turns: while a job warms up the GPU has nothing to do in between."""
    compiled, ran = False, 0
    for moment in found:
        if moment.doing.activity is Activity.COMPILING:
            if compiled and ran >= t.STEPS_BETWEEN:
                return True
            compiled, ran = True, 0
        elif moment.busy >= t.BUSY_BETWEEN:
            ran += 1
    return False


def _cap_copies(
    evidence: Evidence,
    found: Sequence[Moment],
    native: _Split,
    lost: dict[Activity, float],
    lines: dict[Activity, float],
    where: dict[Activity, dict[Frame, float]],
) -> None:
    """A line that copies may do more than copy (``torch.from_numpy(f(x)).to(device)``): the bytes that went over the
    link bound the time that copying them can have taken. The rest was work on the CPU on the same line; on a line that
    does nothing but copy, it was the wait for the GPU: a pageable copy waits for all that was launched before. Where
    hardly a byte went over the link, that wait is all there is."""
    rates = [max(m.rx_bytes_per_s or 0.0, m.tx_bytes_per_s or 0.0) for m in found if m.rx_bytes_per_s is not None]
    samples = lines.get(Activity.COPYING, 0.0)
    if not rates or not samples:
        return
    most = sum(rates) / len(rates) / (t.SLOW_COPY_LINK_SHARE * pinned_ceiling(evidence)) * len(found)
    if most >= samples:
        return
    rest = 1.0 - most / samples
    loss_per_sample = lost[Activity.COPYING] / samples
    for frame, count in list(where[Activity.COPYING].items()):
        text = evidence.source.get((frame.file, frame.line), "")
        waits = Activity.COPY_WAIT if rest < 1.0 - t.COPY_OF_WAIT else Activity.SYNCHRONISING
        other = waits if only_copies(text) or _natively_copies(frame, native) else Activity.USER_LINE
        where[other][frame] += count * rest
        where[Activity.COPYING][frame] = count * (1.0 - rest)
        for amounts, each in ((lines, 1.0), (lost, loss_per_sample)):
            amounts[other] += count * rest * each
            amounts[Activity.COPYING] -= count * rest * each


def _native_split(evidence: Evidence) -> _Split:
    """(file name, line) of the innermost Python frame to what the C code below it was doing, as shares.

    Only stacks with native frames know that; they are taken rarely, so they say how a line's time divides and the
    many plain stacks say how often the line runs.
    """
    counts: dict[tuple[str, int], Counter[Activity]] = defaultdict(Counter)
    for thread, leaf in driving_leaves(evidence.native_stacks):
        counts[line_of(leaf)][native_activity(thread.frames)] += 1
    return {key: {a: n / c.total() for a, n in c.items()} for key, c in counts.items()}


def _natively_copies(frame: Frame, native: _Split) -> bool:
    """Whether native frames saw only copies and waits on this line, such as ``x.cpu()`` whose text nobody read."""
    parts = native.get(line_of(frame), {})
    return parts.get(Activity.COPYING, 0.0) + parts.get(Activity.SYNCHRONISING, 0.0) >= t.NOTHING_BUT


def _divided(moment: Moment, native: _Split) -> dict[Activity, float] | None:
    """What native frames have told apart on a sample's line; None where its own frames are sure, or nothing was seen.
    Operators that ran during a whole window in which the GPU did nothing computed on the CPU."""
    doing = moment.doing
    if doing.sure or doing.activity not in DIVISIBLE or doing.leaf is None:
        return None
    parts = native.get(line_of(doing.leaf))
    if parts is not None and moment.gpu_slept and Activity.LAUNCHING in parts:
        awake = dict(parts)
        awake[Activity.HOST_WORK] = awake.get(Activity.HOST_WORK, 0.0) + awake.pop(Activity.LAUNCHING)
        return awake
    return parts


def _copy_rate(found: Sequence[Moment], field: str) -> float | None:
    rates = [r for m in found if m.doing.activity is Activity.COPYING and (r := getattr(m, field)) is not None]
    return sum(rates) / len(rates) if rates else None


def _source_known(evidence: Evidence, found: Sequence[Moment], native: _Split) -> float:
    places = [m.doing.leaf for m in found if m.doing.activity is Activity.USER_LINE and m.doing.leaf is not None]
    return (
        sum((p.file, p.line) in evidence.source or line_of(p) in native for p in places) / len(places)
        if places
        else 1.0
    )
