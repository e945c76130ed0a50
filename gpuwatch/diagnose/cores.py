"""How many CPUs the job may use, and whether it gets the CPU that it asks for.

Owns: the real limit (allowed CPUs, quota, machine) in numbers and in words. Refuses: naming causes.

A quota that is visible throttles and says so. A cpuset, a binding by Slurm or taskset, a quota whose files cannot be
read and a machine that is full do not: what they have in common is that processes are ready to run and wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.evidence import Evidence, ProcessUse


def allowed(uses: Iterable[ProcessUse]) -> frozenset[int]:
    """CPUs that these processes may run on, together; empty when not known."""
    return frozenset[int]().union(*(_numbers(use.cpus_allowed) for use in uses))


def _numbers(text: str) -> frozenset[int]:
    """ "0-3,8" in numbers."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def list_text(cpus: Iterable[int]) -> str:
    """As the kernel writes it: "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def usable(evidence: Evidence, uses: Sequence[ProcessUse]) -> float:
    """Cores that these processes may use: of the machine, of what they are bound to, of their quota. What they are
    bound to counts, not what gpuwatch itself may use; where it is not known, the two are taken to be the same."""
    bound = len(allowed(uses))
    cores = float(min(bound, evidence.host.online or bound) if bound else evidence.host.cpus)
    return min(cores or inf, evidence.quota.quota_cores) if evidence.quota is not None else cores


def bound_to(evidence: Evidence, uses: Sequence[ProcessUse]) -> frozenset[int]:
    """The CPUs that these processes are bound to; empty where they may use the whole machine or it is not known."""
    cpus = allowed(uses)
    return cpus if cpus and len(cpus) < evidence.host.online else frozenset()


def job(evidence: Evidence) -> tuple[ProcessUse, ...]:
    """All processes of the job."""
    main = (evidence.main,) if evidence.main is not None else ()
    return (*main, *evidence.workers, *evidence.children)


def waits(use: ProcessUse) -> float:
    """Share of the time in which the main thread was ready to run and had no CPU. By the kernel's count of it; the
    states that were seen say the same where that is missing."""
    seen = use.states.get("R", 0.0) - (use.cpu_cores or 0.0)
    return max(use.run_wait or 0.0, seen if use.cpu_cores is not None and seen >= t.READY_UNSERVED else 0.0)


def short(evidence: Evidence, uses: Sequence[ProcessUse]) -> bool:
    """On average they wait for a CPU, and not for much less time than they have one. On a full machine everybody
    waits: there it takes more to call it the cause."""
    if not uses:
        return False
    waiting = fmean(waits(use) for use in uses)
    crowd = full(evidence) and not bound_to(evidence, uses)
    times = t.WAITS_OVER_RUNS_FULL if crowd else t.WAITS_OVER_RUNS
    return waiting >= t.RUN_WAIT_SHORT and waiting >= times * fmean(use.cpu_cores or 0.0 for use in uses)


def fills(evidence: Evidence, cpus: frozenset[int]) -> bool:
    """Whether the job itself uses up the CPUs that it is bound to."""
    return sum(use.cpu_cores or 0.0 for use in job(evidence)) >= t.FILLED * len(cpus)


def full(evidence: Evidence) -> bool:
    """No core of the machine is free."""
    return (evidence.host.cpu_busy_pct or 0.0) >= t.HOST_CPU_FULL_PCT


def limit_text(evidence: Evidence, uses: Sequence[ProcessUse]) -> str:
    """What keeps these processes from a CPU, as the end of a sentence."""
    cpus = bound_to(evidence, uses)
    if cpus:
        crowd = "" if fills(evidence, cpus) else ", which it does not have for itself"
        return f"the job may run on {_cpus(len(cpus))} (Cpus_allowed_list {list_text(cpus)}){crowd}"
    if full(evidence):
        return "no CPU core of the machine is free"
    if evidence.quota is not None and evidence.quota.throttled_periods > 0.0:
        return f"its cgroup may use {evidence.quota.quota_cores:g} CPUs"
    return "the machine has idle ones, so a limit that is not visible from here holds it back"


def remedy(evidence: Evidence, uses: Sequence[ProcessUse]) -> str:
    """What gives them more of it."""
    cpus = bound_to(evidence, uses)
    if cpus:
        return (
            f"The job may run on {_cpus(len(cpus))} (Cpus_allowed_list {list_text(cpus)}): ask for more (Slurm "
            "--cpus-per-task, docker --cpuset-cpus, a Kubernetes CPU request, taskset, numactl), or take the binding "
            "away (OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY bind the workers as well). Until then "
            f"num_workers={max(1, len(cpus) - 1)} at most, with one thread each."
        )
    if full(evidence):
        return (
            "Fewer threads: one per DataLoader worker (torch.set_num_threads(1), cv2.setNumThreads(0), "
            "OMP_NUM_THREADS=1), fewer workers, or fewer other programs on this machine."
        )
    if evidence.quota is not None and evidence.quota.throttled_periods > 0.0:
        return f"Raise the CPU limit of the cgroup ({evidence.quota.quota_cores:g} CPUs) or start fewer workers."
    return (
        "Look for the limit: a CPU quota of the container (cat /sys/fs/cgroup/cpu.max inside it; docker --cpus, "
        "Kubernetes limits.cpu), a cpuset (grep Cpus_allowed_list /proc/PID/status), a low priority (nice, "
        "cpu.weight) or a hypervisor with too few cores. More workers would share the same CPU."
    )


def _cpus(count: int) -> str:
    return f"{count} CPU" + ("" if count == 1 else "s")
