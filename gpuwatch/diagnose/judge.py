"""From observations to a Diagnosis: the order of the decision.

Owns: gates first, then who waits for whom, then why; ranking; what was missing. Refuses: any rule's own content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuwatch.diagnose import blind, condition, device, gates, host, input, ranks, steps, transfer
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.account import balance
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import Bound, finding, gain_bound, pct, row, rows, share_text
from gpuwatch.diagnose.assemble import assemble
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.moments import Moment, moments
from gpuwatch.diagnose.worker_view import workers
from gpuwatch.model import Confidence, Diagnosis, Finding, Observation, Severity, Standing

_SEVERITY_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def diagnose(
    observations: Sequence[Observation],
    pid: int,
    device_indices: tuple[int, ...] = (),
    *,
    ceilings: Mapping[str, float] | None = None,
) -> Diagnosis:
    """The diagnosis of the job whose GPU process is ``pid`` (0: of a GPU without one). Same input, same output.

    ``ceilings``: what this machine's own probes have reached, by the names of ``gpuwatch.verdict.ceilings``.
    """
    evidence = assemble(observations, pid, device_indices, ceilings=ceilings)
    found = moments(evidence)
    steady_ns = steady_from(found)
    if steady_ns is None:
        return judge(evidence, found)
    left_out = (steady_ns - evidence.start_ns) / 1e9
    steady = assemble(observations, pid, device_indices, since_ns=steady_ns, ceilings=ceilings)
    diagnosis = judge(steady, moments(steady))
    note = f"the first {left_out:.0f} s were start-up or compilation and are left out"
    return msgspec.structs.replace(diagnosis, missing=(*diagnosis.missing, note))


def steady_from(found: Sequence[Moment]) -> int | None:
    """Where the steady state begins, on the clock of the evidence; None when the window is of one kind.

    Averages over phases name the wrong cause. A window that begins with imports or compilation and goes on for long
    enough without is judged from there; one that has them scattered all over has them as its cause.
    """
    warm = [m for m in found if m.doing.activity in (Activity.STARTING, Activity.COMPILING)]
    if not warm:
        return None
    last = warm[-1].mono_ns
    after = [m for m in found if m.mono_ns > last]
    before = [m for m in found if m.mono_ns <= last]
    if len(after) < 2 * t.MIN_STACKS or len(warm) < t.STARTUP_SHARE * len(before):
        return None
    return last


def judge(evidence: Evidence, found: Sequence[Moment]) -> Diagnosis:
    """The diagnosis that this evidence, with its ``moments``, supports."""
    case = Case(evidence, balance(evidence, found), workers(evidence))
    verdict, *others = _as_sure_as_seen(case, _findings(case))
    own = steps.rows(evidence.steps, evidence.window_s)
    return Diagnosis(
        pid=evidence.pid,
        device_indices=evidence.device_indices,
        window_s=evidence.window_s,
        findings=(msgspec.structs.replace(verdict, evidence=(*verdict.evidence, *own)), *others),
        account=case.account.shares() if case.account else (),
        command=evidence.command,
        end_mono_ns=evidence.end_ns,
        missing=_missing(case),
        steps=case.steps,
    )


_BY_COUNTERS = frozenset(
    {"gpu_lost", "idle", "idle_process_holds_memory", "cpu_quota_throttled", "memory_bandwidth_bound", "hw_slowdown",
     "thermal_throttle", "power_capped", "gpu_shared", "gpu_memory_nearly_full", "ecc_or_xid", "pcie_link_degraded",
     "healthy"}
)  # fmt: skip
"""Causes that rest on counters alone."""


def _as_sure_as_seen(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Few stacks, or lines whose text nobody could read, make no verdict that rests on them sure."""
    account = case.account
    if account is None:
        return list(findings)
    unread = account.source_known < 0.5 and account.held_in(Activity.USER_LINE) >= t.NAMED_FROM
    if account.samples >= t.SURE_STACKS and not unread:
        return list(findings)
    return [
        msgspec.structs.replace(f, confidence=Confidence.MEDIUM)
        if f.confidence is Confidence.HIGH and f.cause not in _BY_COUNTERS
        else f
        for f in findings
    ]


def _findings(case: Case) -> list[Finding]:
    alone = gates.lost(case) or gates.not_a_job(case)
    if alone is not None:
        return [alone]
    if not case.evidence.windows:
        return [_no_gpu_readings(case)]
    loop = [*input.find(case), *host.find(case), *transfer.find(case)]
    if case.account is None:
        loop = blind.find(case)
    if any(f.cause == "pcie_bound" for f in loop):
        # Behind a full link the thread waits for the GPU or launches into a queue that the copies hold up.
        loop = [f for f in loop if f.cause not in ("host_sync", "launch_bound")]
    of_card = condition.find(case)
    loop += [f for f in of_card if f.lost_share >= t.NAMED_FROM]
    loop.sort(key=lambda f: -f.lost_share)
    loop = _causes_first(loop)
    waits = ranks.find(case)
    on_device = [f for f in device.find(case) if waits is None or f.cause != "batch_too_small"]
    on_device += [f for f in of_card if f.lost_share < t.NAMED_FROM]
    quota, tenancy = gates.quota(case), gates.tenancy(case)
    # Under a quota every host activity is slow; what the stacks show is where, not why.
    found = [quota, *(_standing(f, Standing.SYMPTOM) for f in loop)] if quota is not None else _ranked(loop, waits)
    if waits is not None and quota is not None:
        on_device.insert(0, waits)
    found.extend(_standing(f, Standing.CONTRIBUTING if found else Standing.ROOT) for f in on_device)
    if tenancy is not None:
        found.append(_standing(tenancy, Standing.CONTRIBUTING if found else Standing.ROOT))
    costly = [f for f in found if f.severity is not Severity.INFO or f.cause == "warming_up"]
    return _with_verdict(case, found, costly)


_OF_THE_THREAD = frozenset({"launch_bound", "python_bound", "host_preprocessing", "host_sync"})
_SLOWED_BY: tuple[tuple[str, frozenset[str]], ...] = (
    # Between waits for the GPU the thread cannot run ahead: they expose its launches. An emptied cache is filled again
    # by allocations within the launches.
    ("pageable_copies", frozenset({"launch_bound"})),
    ("host_sync", frozenset({"launch_bound"})),
    ("allocator_thrash", frozenset({"launch_bound", "host_sync"})),
    # A slow link is why copies are what the job waits for.
    ("pcie_link_degraded", frozenset({"pcie_bound", "pageable_copies", "launch_bound"})),
    # Every line that a thread runs takes longer when it waits for the interpreter, or for a core.
    ("gil_contention", _OF_THE_THREAD),
    ("cpu_oversubscribed", _OF_THE_THREAD),
)
"""(cause, what it makes look like the larger loss): later lines win."""


def _causes_first(loop: list[Finding]) -> list[Finding]:
    """By loss, except that what merely looks large because of another finding comes after it. Each cause once."""
    ranked = list({f.cause: f for f in reversed(loop)}.values())[::-1]
    for cause, slowed in _SLOWED_BY:
        place = next((i for i, f in enumerate(ranked) if f.cause == cause), 0)
        if place and ranked[0].cause in slowed:
            ranked.insert(0, ranked.pop(place))
    return ranked


def _with_verdict(case: Case, found: list[Finding], costly: list[Finding]) -> list[Finding]:
    """Worst first, and a verdict also where nothing is wrong or nothing could be told."""
    lost = 1.0 - case.busy
    roots = [f for f in found if f.standing is Standing.ROOT]
    rest = [f for f in found if f.standing is not Standing.ROOT]
    rest.sort(key=lambda f: (f.standing is Standing.SYMPTOM, _SEVERITY_RANK[f.severity], -f.lost_share))
    found = [*roots, *rest]
    if costly:
        return found
    gaps = sum(f.lost_share for f in found if f.cause == "launch_bound")
    if lost - gaps < t.HEALTHY_LOST_BELOW:
        return [_healthy(case, lost, gaps), *found] if gaps else found or [_healthy(case, lost)]
    return [_unattributed(case, lost), *found]


def _ranked(loop: list[Finding], waits: Finding | None) -> list[Finding]:
    """Worst first. A rank that waits stands at its next call that waits for the GPU: what its own loop costs is the
    cause only when it costs more than the waiting."""
    first = waits is not None and (not loop or waits.lost_share >= loop[0].lost_share)
    between = [waits] if waits is not None else []
    findings = [*between, *loop] if first else [*loop[:1], *between, *loop[1:]]
    return [_standing(f, Standing.ROOT if i == 0 else Standing.CONTRIBUTING) for i, f in enumerate(findings)]


def _standing(finding_: Finding, standing: Standing) -> Finding:
    return msgspec.structs.replace(finding_, standing=standing)


def _healthy(case: Case, lost: float, gaps: float = 0.0) -> Finding:
    e = case.evidence
    rest = f"the gaps between its kernels are {share_text(gaps)}" if gaps else "nothing on the host holds it up"
    return finding(
        "healthy",
        f"The GPU is busy {share_text(case.busy)} of the time; {rest}.",
        lost,
        Bound(gain_bound(lost), "the GPU never idles"),
        severity=Severity.INFO,
        remedy="None needed."
        if e.gpm
        else "None that NVML utilization can show; this card has no GPM counters to tell how well it is used.",
        confidence=Confidence.HIGH if e.gpm and case.account else Confidence.MEDIUM,
        evidence=rows(
            *case.gpu_rows(),
            row("tensor active", pct(e.mean("tensor")), "%", "GPM", e.window_s),
            row("DRAM", pct(e.mean("dram")), "%", "GPM", e.window_s),
        ),
    )


def _unattributed(case: Case, lost: float) -> Finding:
    e = case.evidence
    spread = ""
    if case.account is not None:
        parts = [f"{s.activity} {share_text(s.share)}" for s in case.account.shares()[1:4]]
        spread = " No single cause explains a tenth of it: " + ", ".join(parts) + "." if parts else ""
    return finding(
        "unattributed",
        f"The GPU is idle {share_text(lost)} of the time and what was seen does not say why.{spread}",
        lost,
        Bound(gain_bound(lost), "the GPU never idles"),
        remedy="Watch longer (gpuwatch diagnose --for 60s), as the job's user or root, so that its stacks can be read.",
        confidence=Confidence.LOW,
        evidence=rows(
            *case.gpu_rows(),
            row("CPU of the GPU process", case.main_cores if e.main else None, "cores", "/proc", e.window_s),
            row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.cpus} CPUs", "/proc/stat", e.window_s),
        ),
    )


def _no_gpu_readings(case: Case) -> Finding:
    return finding(
        "unattributed",
        "The GPU gave no activity readings in this window.",
        0.0,
        Bound(1.0, "nothing was measured"),
        severity=Severity.INFO,
        remedy="Watch again; if it stays so, `gpuwatch status` says why the readings are absent.",
        confidence=Confidence.LOW,
        evidence=rows(row("window", case.evidence.window_s, "s", "gpuwatch", case.evidence.window_s)),
    )


def _missing(case: Case) -> tuple[str, ...]:
    """What would have made this surer, each with its remedy."""
    e = case.evidence
    # A few torn reads in a burst that gave enough samples are how sampling without stopping the job works.
    told = case.account is None or (bool(e.workers) and case.workers is None)
    notes = [f"stacks: {error}" for error in e.stack_errors] if told else []
    if e.pid and case.account is None and not notes and e.windows:
        notes.append(f"stacks: only {len(e.main_stacks)} samples of the GPU process; watch longer")
    if e.windows and not e.gpm:
        notes.append("GPM: this card or driver has none; SM activity is unknown and busy is NVML's proxy")
    if e.pid and e.main is None:
        notes.append(f"/proc: process {e.pid} is not visible from here (another PID namespace?); run on the host")
    if e.gone:
        notes.append(f"process {e.pid} ended during the window")
    account = case.account
    divisible = account is not None and account.lost_in(Activity.USER_LINE) >= t.NAMED_FROM
    notes.extend(e.native_errors if divisible else ())
    if account is not None and account.source_known < 0.5 and divisible:
        notes.append("source lines could not be read: C calls on a line (.item(), numpy) cannot be told apart")
    return (*notes, *(steps.left_out(e.steps, account.fetching) if account is not None else ()))
