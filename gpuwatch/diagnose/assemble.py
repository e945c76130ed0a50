"""From observations of a machine to the Evidence of one job.

Owns: which process, which windows, which rates. Refuses: judging.
All rates are differences of cumulative counters over the window, so a missed reading costs resolution, not truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from gpuwatch.diagnose.evidence import Evidence, HostUse, ProcessUse, QuotaUse, Rank, Tenant
from gpuwatch.diagnose.frames import in_worker_loop
from gpuwatch.diagnose.gpu_windows import (
    clock_share,
    held_by_us,
    job_memory,
    job_memory_series,
    lost_devices,
    mem_used_share,
    throttle_shares,
    value_of,
    windows_of,
    without,
)
from gpuwatch.diagnose.process_use import sm_shares
from gpuwatch.diagnose.steps import step_times
from gpuwatch.diagnose.thresholds import GPM_LAG_NS
from gpuwatch.model import (
    Absent,
    Burst,
    CgroupSample,
    DeviceHealth,
    DeviceSample,
    EventRecord,
    HostSample,
    Int,
    Inventory,
    Num,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Role,
    SourceLine,
    StackSample,
    StepReport,
)


def assemble(
    observations: Sequence[Observation],
    pid: int,
    device_indices: tuple[int, ...] = (),
    *,
    since_ns: int = 0,
    ceilings: Mapping[str, float] | None = None,
) -> Evidence:
    """Gather what concerns the job whose GPU process is ``pid`` (0: no process, only ``device_indices``).

    ``since_ns`` leaves earlier readings out, but not what was learnt once: inventory, process facts, source lines.
    """
    if since_ns:
        observations = [kept for o in observations if (kept := _since(o, since_ns)) is not None]
    ended_ns = next((o.mono_ns for o in observations if isinstance(o, ProcessTick) and pid in o.gone), None)
    if ended_ns is not None:
        # What the GPU did after its job had ended is not the job's.
        last_ns = _last_seen_ns(observations, pid)
        observations = [o for o in observations if isinstance(o, (Inventory, SourceLine)) or o.mono_ns <= last_ns]
    inventory = next((o for o in reversed(observations) if isinstance(o, Inventory)), None)
    device_samples = [o for o in observations if isinstance(o, DeviceSample)]
    devices_of_pid = {s.device_index for s in device_samples if any(p.pid == pid for p in s.processes)}
    indices = device_indices or tuple(sorted(devices_of_pid)) or (0,)
    own = [s for s in device_samples if s.device_index in indices]
    job = _Job(observations, pid)
    times = [s.mono_ns for s in own] + [s.mono_ns for s in job.ticks if s.samples]
    start, end = (min(times), max(times)) if times else (0, 0)
    all_devices = inventory.devices if inventory else ()
    devices = tuple(d for d in all_devices if d.index in indices)
    bursts = [o for o in observations if isinstance(o, Burst) and o.device_index in indices]
    held = held_by_us([s for s in job.stacks if s.pid == pid])
    windows = tuple(without(windows_of(own, bursts), held, GPM_LAG_NS))
    return Evidence(
        pid=pid,
        device_indices=indices,
        start_ns=start,
        end_ns=end,
        devices=devices,
        windows=windows,
        main=job.use(pid),
        workers=job.uses(Role.LOADER_WORKER),
        children=job.uses(Role.CHILD),
        host=_host([o for o in observations if isinstance(o, HostSample)], inventory),
        quota=_quota([c for t in job.ticks for c in t.cgroups if c.root_pid == pid]),
        main_stacks=tuple(s for s in job.stacks if s.pid == pid and s.threads and not s.native),
        worker_stacks=tuple(s for s in job.stacks if s.pid in job.pids(Role.LOADER_WORKER) and s.threads),
        stack_errors=tuple(dict.fromkeys(s.error for s in job.stacks if s.error and not s.native)),
        source={(o.file, o.line): o.text for o in observations if isinstance(o, SourceLine)},
        tenants=_tenants(own, job, sm_shares(_health(observations, indices), start, end)),
        command=job.infos[pid].command if pid in job.infos else "",
        mem_used_share=mem_used_share(own, devices),
        job_mem_bytes=job_memory(own, pid),
        throttle=throttle_shares(own, windows),
        clock_share=clock_share(own, devices),
        native_stacks=tuple(s for s in job.stacks if s.pid == pid and s.threads and s.native),
        native_errors=tuple(dict.fromkeys(s.error for s in job.stacks if s.error and s.native)),
        worker_generations=_generations(job),
        ranks=_ranks(device_samples, job, indices),
        ceilings=dict(ceilings or {}),
        lost_devices=lost_devices(own),
        health=_health(observations, indices),
        events=tuple(o for o in observations if isinstance(o, EventRecord) and o.device_index in indices),
        job_mem_series=job_memory_series(own, pid),
        gone=ended_ns is not None,
        steps=step_times([o for o in observations if isinstance(o, StepReport) and o.pid == pid], start, end),
    )


def _since(observation: Observation, since_ns: int) -> Observation | None:
    """The observation, or of an earlier one what stays true, or None."""
    if isinstance(observation, (Inventory, SourceLine)) or observation.mono_ns >= since_ns:
        return observation
    if isinstance(observation, ProcessTick) and observation.infos:
        return ProcessTick(observation.mono_ns, infos=observation.infos)
    return None


def _last_seen_ns(observations: Sequence[Observation], pid: int) -> int:
    ticks = (o for o in observations if isinstance(o, ProcessTick))
    return max((t.mono_ns for t in ticks if any(s.pid == pid for s in t.samples)), default=0)


class _Job:
    """The processes of one GPU job, and of the others on the machine."""

    def __init__(self, observations: Iterable[Observation], pid: int) -> None:
        self.pid = pid
        self.ticks: list[ProcessTick] = []
        self.stacks: list[StackSample] = []
        self.infos: dict[int, ProcessInfo] = {}
        self.samples: dict[int, list[ProcessSample]] = {}
        for o in observations:
            if isinstance(o, ProcessTick):
                self.ticks.append(o)
                self.infos.update((i.pid, i) for i in o.infos)
                for sample in o.samples:
                    self._add(sample)
            elif isinstance(o, StackSample) and o.root_pid == pid:
                self.stacks.append(o)
        self._in_worker_loop = {
            s.pid for s in self.stacks if s.pid != pid and any(in_worker_loop(th.frames) for th in s.threads)
        }

    def _add(self, sample: ProcessSample) -> None:
        kept = self.samples.setdefault(sample.pid, [])
        if kept and kept[-1].start_ticks != sample.start_ticks:
            kept.clear()  # the pid was reused
        kept.append(sample)

    def pids(self, role: Role) -> set[int]:
        """Who plays this role in the job. A child whose stack stands in torch's worker loop is a worker, whatever the
        job has renamed it to (setproctitle)."""
        ours = {i.pid: i.role for i in self.infos.values() if i.root_pid == self.pid and i.pid != self.pid}
        if role is Role.LOADER_WORKER:
            return {pid for pid, its in ours.items() if its is role or pid in self._in_worker_loop}
        return {pid for pid, its in ours.items() if its is role and pid not in self._in_worker_loop}

    def uses(self, role: Role) -> tuple[ProcessUse, ...]:
        found = (self.use(pid) for pid in sorted(self.pids(role)))
        return tuple(use for use in found if use is not None)

    def use(self, pid: int) -> ProcessUse | None:
        samples = self.samples.get(pid)
        if not samples:
            return None
        first, last, info = samples[0], samples[-1], self.infos.get(pid)
        seconds = (last.mono_ns - first.mono_ns) / 1e9
        user, system = _delta(first.utime_ns, last.utime_ns), _delta(first.stime_ns, last.stime_ns)
        cpu_ns = None if user is None or system is None else user + system
        states = Counter(s.main_thread_state for s in samples if s.main_thread_state not in "t?")
        wchans = Counter(s.wchan for s in samples if isinstance(s.wchan, str))
        return ProcessUse(
            pid=pid,
            cpu_cores=_per(cpu_ns, seconds * 1e9),
            states={state: n / states.total() for state, n in states.items()},
            read_bytes_per_s=_per(_delta(first.read_bytes, last.read_bytes), seconds),
            rchar_bytes_per_s=_per(_delta(first.rchar, last.rchar), seconds),
            reads_per_s=_per(_delta(first.syscr, last.syscr), seconds),
            write_bytes_per_s=_per(_delta(first.write_bytes, last.write_bytes), seconds),
            threads=last.num_threads,
            wchans=tuple((str(name), n / len(samples)) for name, n in wchans.most_common(3)),
            run_wait=_per(_delta(first.run_wait_ns, last.run_wait_ns), seconds * 1e9),
            cpus_allowed=info.cpus_allowed if info is not None else "",
            storage=info.storage.systems if info is not None and info.storage is not None else (),
        )


def _delta(first: Int, last: Int) -> float | None:
    if isinstance(first, Absent) or isinstance(last, Absent) or last < first:
        return None
    return float(last - first)


def _per(amount: float | None, over: float) -> float | None:
    return amount / over if amount is not None and over > 0 else None


def _host(samples: Sequence[HostSample], inventory: Inventory | None) -> HostUse:
    def mean(readings: Iterable[Num]) -> float | None:
        values = [v for v in (value_of(r) for r in readings) if v is not None]
        return fmean(values) if values else None

    cpus = inventory.node.cpu_count if inventory else max((s.cpus_online for s in samples), default=0)
    return HostUse(
        cpu_busy_pct=mean(s.cpu_busy_pct for s in samples),
        psi_io_pct=mean(s.psi_io.some_pct for s in samples),
        psi_memory_pct=mean(s.psi_memory.some_pct for s in samples),
        cpus=cpus,
        shm_used_share=max(
            (
                used / total
                for s in samples
                if (used := value_of(s.shm_used_bytes)) is not None and (total := value_of(s.shm_total_bytes))
            ),
            default=None,
        ),
        shm_total_bytes=max((v for s in samples if (v := value_of(s.shm_total_bytes)) is not None), default=None),
        swap_grew_bytes=_delta(samples[0].swap_used_bytes, samples[-1].swap_used_bytes) if samples else None,
        online=max((s.cpus_online for s in samples), default=0) or cpus,
    )


def _quota(samples: Sequence[CgroupSample]) -> QuotaUse | None:
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    quota = value_of(last.quota_cores)
    periods = _delta(first.nr_periods, last.nr_periods)
    throttled = _delta(first.nr_throttled, last.nr_throttled)
    if quota is None or not periods or throttled is None:
        return None
    return QuotaUse(quota, throttled / periods)


def _generations(job: _Job) -> float:
    known = job.pids(Role.LOADER_WORKER)
    at_once = [len({s.pid for s in t.samples if s.pid in known}) for t in job.ticks]
    seen = {(s.pid, s.start_ticks) for t in job.ticks for s in t.samples if s.pid in known}
    return len(seen) / max(at_once) if seen else 0.0


def _ranks(samples: Sequence[DeviceSample], job: _Job, own: tuple[int, ...]) -> tuple[Rank, ...]:
    """The other ranks of this job here that compute on other devices. Where one device has no GPM, ``busy`` is NVML's
    proxy and ``sm`` is not known."""
    us = job.infos.get(job.pid)
    if us is None:
        return ()
    found = []
    for info in sorted(job.infos.values(), key=lambda i: i.pid):
        others = tuple(i for i in info.device_indices if i not in own)
        if info.role is not Role.MAIN or not others or not us.same_job(info):
            continue
        windows = list(windows_of([s for s in samples if s.device_index in others]))
        total = sum(w.end_ns - w.start_ns for w in windows)
        if total:
            busy = sum(w.busy * (w.end_ns - w.start_ns) for w in windows) / total
            seen = [(w.sm, w.end_ns - w.start_ns) for w in windows if w.sm is not None]
            sm = sum(value * ns for value, ns in seen) / total if len(seen) == len(windows) else None
            number, use = info.place.rank if info.place is not None else None, job.use(info.pid)
            found.append(Rank(info.pid, others, busy, sm, number, use.cpu_cores if use is not None else None))
    return tuple(found)


def _tenants(samples: Sequence[DeviceSample], job: _Job, shares: Mapping[int, float]) -> tuple[Tenant, ...]:
    """Other compute processes on the same devices that are not part of this job."""
    ours = {i.pid for i in job.infos.values() if i.root_pid == job.pid} | {job.pid}
    pids = {p.pid for s in samples for p in s.processes if p.pid not in ours and "C" in p.kind}
    uses = ((pid, job.use(pid)) for pid in sorted(pids))
    return tuple(Tenant(pid, use.cpu_cores if use else None, shares.get(pid)) for pid, use in uses)


def _health(observations: Iterable[Observation], indices: tuple[int, ...]) -> tuple[DeviceHealth, ...]:
    return tuple(o for o in observations if isinstance(o, DeviceHealth) and o.device_index in indices)
