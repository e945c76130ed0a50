"""Gates: what must be known before the loop itself is judged.

Owns: no job, idle job, other tenants, CPU quota. Refuses: steady-state causes.
A gate that fires does not hide the others; it stands first when it explains them.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import GAIN_CAP, NO_GAIN, Bound, finding, gain_bound, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.evidence import Tenant
from gpuwatch.diagnose.frames import Phase, phase_of
from gpuwatch.model import Confidence, Finding, Severity

_LOADER = (Activity.WAITING_FOR_DATA, Activity.PREPARING_DATA, Activity.RECEIVING_DATA, Activity.RESTARTING_WORKERS)

_BEFORE_WORK = (*_LOADER, Activity.CHECKPOINTING, Activity.STARTING, Activity.COMPILING)
"""A GPU that does nothing meanwhile may well have work to come."""


def not_a_job(case: Case) -> Finding | None:
    """Nothing to speed up: no process, or one that only holds memory, or one whose model is on the CPU."""
    e = case.evidence
    if not e.pid:
        return finding(
            "idle", "Nothing runs on this GPU.", 0.0, NO_GAIN, severity=Severity.INFO,
            remedy="None needed.", evidence=rows(*case.gpu_rows()),
        )  # fmt: skip
    if case.busy >= t.NO_ACTIVITY_BUSY or e.window_s < t.MIN_WINDOW_S or not e.windows:
        return None
    if case.account is not None and case.account.lost_in(*_BEFORE_WORK) > 0.5:
        return None
    all_cores = case.main_cores + sum(p.cpu_cores or 0.0 for p in (*e.workers, *e.children))
    if all_cores < t.IDLE_CPU_CORES and e.busiest() < t.NO_ACTIVITY_BUSY and not e.workers:
        return _holds_memory(case, all_cores)
    if case.main_cores >= t.MAIN_BUSY_CORES and _trains(case):
        return _model_on_cpu(case)
    return None


def _holds_memory(case: Case, cores: float) -> Finding:
    e = case.evidence
    held = units.bytes_text(e.job_mem_bytes) if e.job_mem_bytes is not None else "memory"
    place = case.account.location(Activity.WAITING) if case.account else None
    return finding(
        "idle_process_holds_memory",
        f"Process {e.pid} holds {held} of the GPU and does nothing{place_text(place)}: no kernel, no CPU.",
        1.0,
        Bound(1.0, "there is nothing to speed up; the GPU would be free for others"),
        severity=Severity.WARNING,
        remedy="If nobody needs it any more, end it (a notebook: shut the kernel down); else free the memory while it "
        "waits (del, gc.collect(), torch.cuda.empty_cache()), so that others can use the GPU.",
        location=place,
        evidence=rows(
            row("GPU memory held", e.job_mem_bytes / 2**30 if e.job_mem_bytes is not None else None, "GiB", "NVML",
                e.window_s),
            row("CPU of the process and its children", cores, "cores", "/proc", e.window_s),
            row("it sleeps in", e.main.wchans[0][0] if e.main and e.main.wchans else None, "", "/proc/PID/wchan",
                e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


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
    """Another process computes on the same GPU."""
    e = case.evidence
    working = [tenant for tenant in e.tenants if _works(tenant)]
    if not working or case.busy < 0.5:
        return None
    share = 1.0 - 1.0 / (len(working) + 1)
    who = ", ".join(str(tenant.pid) for tenant in working[:4])
    lost = share * case.busy
    return finding(
        "gpu_shared",
        f"{_others(len(working))} (pid {who}) {'computes' if len(working) == 1 else 'compute'} on the same GPU: "
        "kernels take turns, so this job runs slower although every GPU metric looks fine.",
        lost,
        Bound(gain_bound(lost), "if the jobs take equal turns; time-slicing does not say who gets how much"),
        severity=Severity.WARNING,
        remedy="Give each job a GPU of its own, or a slice (MIG); MPS if they must share.",
        confidence=Confidence.MEDIUM,
        alternatives=("healthy",),
        experiment="Stop the other job for ten seconds: the step time tells.",
        evidence=rows(
            row("other compute processes", float(len(working)), f"pid {who}", "NVML", e.window_s),
            row("their CPU", sum(tenant.cpu_cores or 0.0 for tenant in working), "cores", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _works(tenant: Tenant) -> bool:
    return tenant.cpu_cores is None or tenant.cpu_cores >= t.TENANT_CPU_CORES


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
