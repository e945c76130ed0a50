"""A GPU process that does nothing: one that nobody needs any more, or one that waits for something.

Owns: that distinction, and how sure it can be. Refuses: reading stacks (resting.py), processes that compute
(gates.py).

A wait of seconds looks like an end: a rank before a barrier while another builds the data set, a learner that awaits
its actors, a server between two requests. Ending such a process loses work, so only what waits for a person, or for
nothing at all, is called forgotten for sure; or what has not moved for long.
"""

from __future__ import annotations

import re

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import NO_GAIN, Bound, finding, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case, text_at
from gpuwatch.diagnose.evidence import Rank
from gpuwatch.diagnose.resting import Rest, Resting, pauses_for_s
from gpuwatch.model import Confidence, EvidenceRow, Finding, Severity

BUSY_WAITS = frozenset({Rest.SERVES, Rest.COLLECTIVE, Rest.CHILD, Rest.CALL, Rest.LOCK})
"""What a process waits for also while it, or a child of its, uses the CPU."""
_WAITS = BUSY_WAITS | {Rest.POLL, Rest.FUTURE, Rest.QUEUE, Rest.STORAGE, Rest.EVENTS}
_NOBODYS = frozenset({Rest.KERNEL, Rest.PERSON, Rest.PAUSE})
_SERVER_COMMAND = re.compile(
    r"\b(tritonserver|text-generation-(server|launcher|router)|text-embeddings-router|llama-server|ollama|trtllm-serve|"
    r"tensorflow_model_server|vllm serve|sglang\.launch_server|torchserve|mlserver|bentoml serve|lmdeploy serve)\b"
)
"""For servers without Python, whose stacks nobody can read."""

_REMEDIES = {
    Rest.CHILD: "Look at the process that it has started: while that works, this is no fault. A build or a download "
    "that comes at each start is worth caching.",
    Rest.CALL: "Look at who should answer: a service, an actor or another machine. While it works, this is no fault; "
    "ask for the next answer before the last one is used up.",
    Rest.FUTURE: "Look at who does that task; hand out the next one before the last one is used up.",
    Rest.QUEUE: "Look at who should fill it: nothing in this process works for it now.",
    Rest.POLL: "Look at what that loop waits for: another process should bring it about.",
    Rest.LOCK: "Look at who holds that lock (lslocks, fuser): one that a dead process left behind must be removed.",
    Rest.STORAGE: "Look at the storage that it reads or writes: a file system that answers no more holds a process for "
    "good.",
    Rest.EVENTS: "None if it serves requests. If it should work now, look at what its coroutines wait for "
    "(asyncio.all_tasks()).",
}


def at_rest(case: Case, rest: Resting | None, cores: float) -> Finding | None:
    """The finding for a process whose GPU and CPU do nothing; None when it waits for its loader, which others judge.

    ``cores``: CPU of the process and its children.
    """
    kind = rest.kind if rest is not None else Rest.UNKNOWN
    if kind is Rest.LOADER:
        return None
    if kind is Rest.SERVES or (_SERVER_COMMAND.search(case.evidence.command) and kind not in _WAITS | _NOBODYS):
        return _serves(case, rest, cores)
    if kind is Rest.COLLECTIVE:
        return _collective(case, rest, cores)
    works = next((rank for rank in case.evidence.ranks if _works(rank)), None)
    if works is not None and kind not in (Rest.KERNEL, Rest.PERSON):
        return _behind_a_rank(case, rest, works, cores)
    if kind in _WAITS and rest is not None:
        return _waits(case, rest, cores)
    if _memory_moves(case):
        return _loads(case, rest, cores)
    return _forgotten(case, rest, cores)


def _forgotten(case: Case, rest: Resting | None, cores: float) -> Finding:
    e = case.evidence
    kind = rest.kind if rest is not None else Rest.UNKNOWN
    sure = _sure(case, rest)
    what = "" if kind in (Rest.UNKNOWN, Rest.PAUSE) else f", and waits for {kind}"
    either = "If nobody needs it any more, end it (a notebook: shut the kernel down); else free the memory while it "
    either += "waits (del, gc.collect(), torch.cuda.empty_cache()), so that others can use the GPU."
    unsure = "" if sure is Confidence.HIGH else "Ask its owner: a job that waits for something else looks the same. "
    return finding(
        "idle_process_holds_memory",
        f"Process {e.pid} holds {_held(case)} of the GPU and does nothing{_place(rest)}: {_nothing(case)}{what}.",
        1.0,
        Bound(1.0, "there is nothing to speed up; the GPU would be free for others"),
        severity=Severity.WARNING,
        remedy=unsure + either,
        location=rest.where if rest is not None else None,
        confidence=sure,
        alternatives=() if sure is Confidence.HIGH else ("unattributed",),
        experiment=""
        if sure is Confidence.HIGH
        else f"Watch for longer (gpuwatch diagnose --pid {e.pid} --for 120s): a job that waits goes on.",
        evidence=_evidence(case, rest, cores),
    )


def _sure(case: Case, rest: Resting | None) -> Confidence:
    """Only a person's own wait, or a long one, is surely nobody's; a pause of seconds may be that of a loop that looks
    for something."""
    e = case.evidence
    kind = rest.kind if rest is not None else Rest.UNKNOWN
    if kind is Rest.MESSAGE or not _cpu_known(case):
        return Confidence.MEDIUM if e.window_s >= t.FORGOTTEN_FROM_S else Confidence.LOW
    if e.window_s >= t.FORGOTTEN_FROM_S:
        return Confidence.HIGH
    if rest is None or kind not in _NOBODYS or e.ranks:
        return Confidence.MEDIUM
    seen = rest.stacks >= t.MIN_STACKS and rest.share >= t.RESTS_ALL_THE_TIME
    pause = pauses_for_s(rest.text) if kind is Rest.PAUSE else None
    again = pause is not None and pause < e.window_s
    return Confidence.HIGH if seen and not again else Confidence.MEDIUM


def _waits(case: Case, rest: Resting, cores: float) -> Finding:
    e = case.evidence
    return finding(
        "unattributed",
        f"Process {e.pid} holds {_held(case)} of the GPU and waits for {rest.kind}{_place(rest)}"
        f"{text_at(case, rest.where)}: the GPU does nothing meanwhile.",
        1.0 - case.busy,
        Bound(1.0, "what it waits for sets the pace"),
        severity=Severity.WARNING,
        remedy=_REMEDIES[rest.kind],
        location=rest.where,
        confidence=Confidence.MEDIUM if rest.stacks and rest.share >= t.RESTS_ALL_THE_TIME else Confidence.LOW,
        alternatives=("idle_process_holds_memory",),
        experiment="Watch again in some minutes: a wait that has not ended may never end.",
        evidence=_evidence(case, rest, cores),
    )


def _collective(case: Case, rest: Resting | None, cores: float) -> Finding:
    e = case.evidence
    works = next((rank for rank in e.ranks if _works(rank)), None)
    other = f" Pid {works.pid} of the same job works meanwhile." if works is not None else ""
    return finding(
        "nvlink_or_collective_wait",
        f"Process {e.pid} holds {_held(case)} of the GPU and waits for {Rest.COLLECTIVE}{_place(rest)}: its GPU does "
        f"nothing.{other}",
        1.0 - case.busy,
        Bound(1.0, "the slowest rank sets the pace"),
        severity=Severity.WARNING,
        remedy="Look at the other ranks of the job: the one that does not wait here is what the others wait for. Work "
        "that one rank does alone (building a data set, downloading) is best done before the job starts; if no rank "
        "works, they wait for one that has died.",
        location=rest.where if rest is not None else None,
        confidence=Confidence.MEDIUM,
        experiment="Watch again in some minutes: a barrier that has not opened may never open.",
        evidence=_evidence(case, rest, cores, works),
    )


def _behind_a_rank(case: Case, rest: Resting | None, works: Rank, cores: float) -> Finding:
    e = case.evidence
    return finding(
        "unattributed",
        f"Process {e.pid} holds {_held(case)} of the GPU and does nothing{_place(rest)}, while pid {works.pid} of the "
        "same job works: it waits for that one, most likely.",
        1.0 - case.busy,
        Bound(1.0, "the slowest rank sets the pace"),
        severity=Severity.WARNING,
        remedy=f"Diagnose pid {works.pid}: gpuwatch diagnose --pid {works.pid}.",
        location=rest.where if rest is not None else None,
        confidence=Confidence.LOW,
        alternatives=("nvlink_or_collective_wait",),
        experiment="Let the stacks of this process be read: they tell what it waits in.",
        evidence=_evidence(case, rest, cores, works),
    )


def _loads(case: Case, rest: Resting | None, cores: float) -> Finding:
    e = case.evidence
    return finding(
        "unattributed",
        f"Process {e.pid} runs no kernel and hardly uses the CPU{_place(rest)}, but its GPU memory changes: it loads "
        "something, or gives memory back.",
        1.0 - case.busy,
        Bound(1.0, "nothing is known of what comes after"),
        severity=Severity.WARNING,
        remedy="Watch again when it has loaded (gpuwatch diagnose --for 60s).",
        location=rest.where if rest is not None else None,
        confidence=Confidence.LOW,
        alternatives=("warming_up", "idle_process_holds_memory"),
        experiment="Watch again in a minute: what loads comes to an end.",
        evidence=_evidence(case, rest, cores),
    )


def _serves(case: Case, rest: Resting | None, cores: float) -> Finding:
    e = case.evidence
    spins = f" It looks for them all the time, with {cores:.1f} cores." if cores >= t.MAIN_BUSY_CORES else ""
    return finding(
        "unattributed",
        f"Process {e.pid} holds {_held(case)} of the GPU and waits for requests{_place(rest)}: {_came(case)}.{spins}",
        1.0 - case.busy,
        NO_GAIN,
        severity=Severity.INFO,
        remedy="None while it is needed: a server without requests has nothing to do. If requests were sent, look "
        "between the client and this process; if none will come, end it.",
        location=rest.where if rest is not None else None,
        confidence=Confidence.MEDIUM if rest is not None and rest.kind is Rest.SERVES else Confidence.LOW,
        alternatives=("idle_process_holds_memory",),
        experiment="Send it a request: the GPU must work.",
        evidence=_evidence(case, rest, cores),
    )


def _came(case: Case) -> str:
    if case.busy < t.NO_ACTIVITY_BUSY:
        return "none kept the GPU busy in this window"
    return f"those that came kept the GPU busy {share_text(case.busy)} of the time"


def _works(rank: Rank) -> bool:
    return rank.busy >= t.NO_ACTIVITY_BUSY or (rank.cpu_cores or 0.0) >= t.IDLE_CPU_CORES


def _memory_moves(case: Case) -> bool:
    held = [size for _, size in case.evidence.job_mem_series]
    return bool(held) and max(held) - min(held) >= t.MEMORY_MOVES_BYTES


def _cpu_known(case: Case) -> bool:
    """In another PID namespace it is not."""
    return case.evidence.main is not None and case.evidence.main.cpu_cores is not None


def _nothing(case: Case) -> str:
    return "no kernel, no CPU" if _cpu_known(case) else "no kernel; its CPU is not visible from here"


def _held(case: Case) -> str:
    held = case.evidence.job_mem_bytes
    return units.bytes_text(held) if held is not None else "memory"


def _place(rest: Resting | None) -> str:
    return place_text(rest.where if rest is not None else None)


def _evidence(case: Case, rest: Resting | None, cores: float, works: Rank | None = None) -> tuple[EvidenceRow, ...]:
    e = case.evidence
    held = e.job_mem_bytes / 2**30 if e.job_mem_bytes is not None else None
    said = None
    if rest is not None and rest.stacks and rest.kind is not Rest.UNKNOWN:
        said = row("it waits for", f"{rest.kind} ({100 * rest.share:.0f} % of samples)", "",
                   f"stack samples (n={rest.stacks})", e.window_s)  # fmt: skip
    return rows(
        row("GPU memory held", held, "GiB", "NVML", e.window_s),
        row("CPU of the process and its children", cores if _cpu_known(case) else None, "cores", "/proc", e.window_s),
        said,
        row("it sleeps in", e.main.wchans[0][0] if e.main and e.main.wchans else None, "", "/proc/PID/wchan",
            e.window_s),
        row(f"CPU of pid {works.pid}", works.cpu_cores, "cores", "/proc", e.window_s) if works is not None else None,
        row(f"GPU busy of pid {works.pid}", 100 * works.busy, "%", "GPM", e.window_s) if works is not None else None,
        *case.gpu_rows(),
    )  # fmt: skip
