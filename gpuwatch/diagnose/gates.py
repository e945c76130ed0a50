"""Gates: what must be known before the loop itself is judged.

Owns: no job, other tenants, CPU quota; which processes are at rest (what that means: idle.py). Refuses: steady-state
causes.
A gate that fires does not hide the others; it stands first when it explains them.
"""

from __future__ import annotations

import msgspec

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import GAIN_CAP, NO_GAIN, Bound, finding, gain_bound, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.evidence import Tenant
from gpuwatch.diagnose.frames import Phase, phase_of
from gpuwatch.diagnose.idle import BUSY_WAITS, at_rest
from gpuwatch.diagnose.process_use import sm_shares
from gpuwatch.diagnose.resting import Rest, Resting, resting
from gpuwatch.model import Confidence, Finding, Severity

_LOADER = (Activity.WAITING_FOR_DATA, Activity.PREPARING_DATA, Activity.RECEIVING_DATA, Activity.RESTARTING_WORKERS)

_BEFORE_WORK = (*_LOADER, Activity.CHECKPOINTING, Activity.STARTING, Activity.COMPILING)

_DECISIVE = frozenset({Rest.KERNEL, Rest.PERSON, Rest.SERVES})
"""What the main thread of a process that rests says, whatever a compiler's or a tool's thread does beside it."""


def not_a_job(case: Case) -> Finding | None:
    """Nothing to speed up: no process, or one that only holds memory, or one whose model is on the CPU."""
    e = case.evidence
    if not e.pid:
        return finding(
            "idle", "Nothing runs on this GPU.", 0.0, NO_GAIN, severity=Severity.INFO,
            remedy="None needed.", evidence=rows(*case.gpu_rows()),
        )  # fmt: skip
    if e.window_s < t.MIN_WINDOW_S or not e.windows:
        return None
    rest = resting(e)
    cores = case.main_cores + sum(p.cpu_cores or 0.0 for p in (*e.workers, *e.children))
    if case.busy >= t.NO_ACTIVITY_BUSY:
        return at_rest(case, rest, cores) if rest is not None and _has_few_requests(case, rest, cores) else None
    still, idle = e.busiest() < t.NO_ACTIVITY_BUSY and not e.workers, cores < t.IDLE_CPU_CORES
    if still and rest is not None and (rest.kind in _DECISIVE if idle else _serves(rest)):
        return at_rest(case, rest, cores)
    if _prepares(case, rest if idle else None):
        return None
    if still and (idle or _waits_for_others(case, rest)):
        return at_rest(case, _in_collective(case, rest), cores)
    if case.main_cores >= t.MAIN_BUSY_CORES and _trains(case):
        return _model_on_cpu(case)
    return None


def _serves(rest: Resting) -> bool:
    """Some servers look for requests without a pause: they are as idle as others."""
    return rest.kind is Rest.SERVES and rest.share >= t.RESTS_ALL_THE_TIME


def _has_few_requests(case: Case, rest: Resting, cores: float) -> bool:
    """A server whose loop and handlers do nothing most of the time, as its CPU says too, lacks requests."""
    few = case.busy < 0.5 and cores < t.WAITING_CPU_CORES and not case.evidence.workers
    return few and rest.kind is Rest.SERVES and rest.share > 0.5 and rest.stacks >= t.MIN_STACKS


def _prepares(case: Case, rest: Resting | None) -> bool:
    """Whether a GPU that does nothing meanwhile may well have work to come. Of a process that rests, its frames tell a
    loader from any other queue."""
    other_queue = rest is not None and rest.kind not in (Rest.LOADER, Rest.UNKNOWN)
    activities = [a for a in _BEFORE_WORK if not (other_queue and a is Activity.WAITING_FOR_DATA)]
    return case.account is not None and case.account.lost_in(*activities) > 0.5


def _waits_for_others(case: Case, rest: Resting | None) -> bool:
    """Whether the process sleeps until somebody else has worked, such as the compiler that it has started."""
    asleep = case.main_cores < t.WAITING_CPU_CORES
    return asleep and rest is not None and rest.kind in BUSY_WAITS and rest.share >= t.RESTS_ALL_THE_TIME


def _in_collective(case: Case, rest: Resting | None) -> Resting | None:
    """A rank that sleeps in backward stands in autograd's frames; that it communicates, the account knows."""
    told = case.account is not None and case.account.lost_in(Activity.COMMUNICATING) > 0.5
    return msgspec.structs.replace(rest, kind=Rest.COLLECTIVE) if told and rest is not None else rest


def _trains(case: Case) -> bool:
    """Most stacks of the driving thread stand in a model or its training step while the GPU does nothing at all."""
    stacks = case.evidence.main_stacks
    inside = sum(phase_of(driver.frames) is not Phase.NONE for _, driver in driven(stacks))
    return len(stacks) >= t.MIN_STACKS and inside / len(stacks) >= 0.5


def _model_on_cpu(case: Case) -> Finding:
    e = case.evidence
    return finding(
        "model_on_cpu",
        f"The job holds a GPU context but computes on the CPU ({case.main_cores:.1f} cores): the model or its input "
        "was not moved.",
        1.0,
        Bound(GAIN_CAP, "the GPU does nothing at all; what it would give depends on the model"),
        remedy='model.to("cuda") and batch.to("cuda"); check torch.cuda.is_available() in that environment.',
        confidence=Confidence.MEDIUM,
        evidence=rows(row("CPU of the process", case.main_cores, "cores", "/proc", e.window_s), *case.gpu_rows()),
    )


def lost(case: Case) -> Finding | None:
    """A GPU of the job has fallen off the bus or waits for a reset."""
    e = case.evidence
    if not e.lost_devices:
        return None
    which = ", ".join(map(str, e.lost_devices))
    return finding(
        "gpu_lost",
        f"GPU {which} does not answer any more: it fell off the bus or needs a reset.",
        1.0,
        Bound(1.0, "nothing runs on a lost GPU"),
        severity=Severity.CRITICAL,
        remedy="Look for Xid messages (`dmesg | grep -i xid`), end the jobs, and reset the GPU or reboot; if it comes "
        "back, have the card and its slot checked.",
        evidence=rows(row("lost GPUs", which, "", "NVML", e.window_s)),
    )


def tenancy(case: Case) -> Finding | None:
    """Another process computes on the same GPU.

    The driver says how much each process uses it. Where it does not, a tenant's CPU must do: one that feeds a GPU uses
    some, but so does one that computes on the CPU alone; one whose CPU is not visible may do nothing at all.
    """
    e = case.evidence
    working = [tenant for tenant in e.tenants if _works(tenant)]
    if not working or case.busy < 0.5:
        return _unseen(case)
    used = [tenant.sm_share for tenant in working if tenant.sm_share is not None]
    measured = len(used) == len(working)
    equal = case.busy * (1.0 - 1.0 / (len(working) + 1))
    lost = case.busy * _turns(case, sum(used)) if measured else equal
    if lost < t.NAMED_FROM:
        return None
    who = ", ".join(str(tenant.pid) for tenant in working[:4])
    said = f", {share_text(sum(used))} of the time by the driver" if measured else ""
    return finding(
        "gpu_shared",
        f"{_others(len(working))} (pid {who}) {'computes' if len(working) == 1 else 'compute'} on the same GPU{said}: "
        "kernels take turns, so this job runs slower although every GPU metric looks fine.",
        lost,
        Bound(
            gain_bound(max(lost, equal)), "if the jobs take equal turns; time-slicing does not say who gets how much"
        ),
        severity=Severity.WARNING,
        remedy="Give each job a GPU of its own, or a slice (MIG); MPS if they must share.",
        confidence=Confidence.HIGH if measured else Confidence.LOW,
        alternatives=() if measured else ("healthy",),
        experiment="Stop the other job for ten seconds: the step time tells.",
        evidence=rows(
            row("other compute processes", float(len(working)), f"pid {who}", "NVML", e.window_s),
            row("their SM use", 100 * sum(used) if measured else None, "%", "NVML process utilization", e.window_s),
            row("their CPU", sum(tenant.cpu_cores or 0.0 for tenant in working), "cores", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _works(tenant: Tenant) -> bool:
    if tenant.sm_share is not None:
        return tenant.sm_share > 0.0
    return tenant.cpu_cores is not None and tenant.cpu_cores >= t.TENANT_CPU_CORES


def _turns(case: Case, others: float) -> float:
    """The others' part of the time in which kernels ran. Their shares and ours are sampled one after the other and do
    not sum to the whole."""
    e = case.evidence
    own = sm_shares(e.health, e.start_ns, e.end_ns).get(e.pid)
    return others / (others + own) if own else min(1.0, others)


def _unseen(case: Case) -> Finding | None:
    """Of processes on the same GPU nothing tells whether they compute: most that only hold memory do not, so this is
    told and costs nothing."""
    e = case.evidence
    unseen = [tenant for tenant in e.tenants if tenant.sm_share is None and tenant.cpu_cores is None]
    if not unseen or case.busy < 0.5:
        return None
    who = ", ".join(str(tenant.pid) for tenant in unseen[:4])
    equal = case.busy * (1.0 - 1.0 / (len(unseen) + 1))
    return finding(
        "gpu_shared",
        f"{_others(len(unseen))} (pid {who}) {'has' if len(unseen) == 1 else 'have'} memory on the same GPU; whether "
        "kernels take turns is not visible from here.",
        0.0,
        Bound(gain_bound(equal), "if they compute all the time, and the jobs take equal turns"),
        severity=Severity.INFO,
        remedy="Watch on the host, outside the container: there the other process can be seen.",
        confidence=Confidence.LOW,
        alternatives=("healthy",),
        experiment="Stop the other process for ten seconds: the step time tells.",
        evidence=rows(row("other processes", float(len(unseen)), f"pid {who}", "NVML", e.window_s), *case.gpu_rows()),
    )


def _others(count: int) -> str:
    return "Another process" if count == 1 else f"{count} other processes"


def quota(case: Case) -> Finding | None:
    """The job's cgroup is throttled: everything the host does for the GPU takes longer, whatever it is."""
    e = case.evidence
    if not case.throttled or e.quota is None:
        return None
    lost = 1.0 - case.busy if e.windows else 0.0
    if lost < t.NAMED_FROM:
        return None
    spare = e.host.cpu_busy_pct is not None and e.host.cpu_busy_pct < t.HOST_CPU_FULL_PCT
    return finding(
        "cpu_quota_throttled",
        f"The job's cgroup may use {e.quota.quota_cores:g} CPUs and is throttled in "
        f"{share_text(e.quota.throttled_periods)} of its periods"
        + (", while the machine has idle cores" if spare else "")
        + f": the GPU waits {share_text(lost)} of the time.",
        lost,
        Bound(gain_bound(lost), "the GPU idles no more"),
        remedy="Raise the CPU limit of the container or cgroup (Docker --cpus, Kubernetes limits.cpu, systemd "
        "CPUQuota, Slurm --cpus-per-task), or start fewer workers and threads.",
        evidence=rows(
            row("CPU quota", e.quota.quota_cores, "cores", "cgroup", e.window_s),
            row("throttled periods", 100 * e.quota.throttled_periods, "%", "cgroup cpu.stat", e.window_s),
            row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.cpus} CPUs", "/proc/stat", e.window_s),
            *case.gpu_rows(),
        ),
    )
