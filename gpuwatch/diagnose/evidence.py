"""What was seen of one job in one window: the value that every rule reads.

Owns: Evidence and its parts. Refuses: how it is gathered (assemble.py), judging.
"""

from __future__ import annotations

from statistics import pstdev

from msgspec import Struct

from gpuwatch.diagnose.gpu_windows import GpuWindow, link_share
from gpuwatch.diagnose.thresholds import STEADY_BUSY
from gpuwatch.model import Device, DeviceHealth, EventRecord, FileSystem, StackSample, StepTimes


class ProcessUse(Struct, frozen=True):
    """What a process did over the window. Cores: 1.0 is one CPU."""

    pid: int
    cpu_cores: float | None
    states: dict[str, float]
    """Share of readings per state of the main thread; ``t`` (our own stack sampler) is left out."""
    read_bytes_per_s: float | None
    """From storage."""
    rchar_bytes_per_s: float | None
    """Through read calls: cache, pipes and network file systems included."""
    reads_per_s: float | None
    write_bytes_per_s: float | None
    threads: int
    wchans: tuple[tuple[str, float], ...] = ()
    """Kernel functions it slept in, commonest first, as shares."""
    run_wait: float | None = None
    """Share of the time in which its main thread was ready to run and had no CPU."""
    cpus_allowed: str = ""
    """Such as "0-3,8"; "" when not read."""
    storage: tuple[FileSystem, ...] = ()
    """Where files lie that it had open, of the main process and the workers; empty when none was seen."""


class QuotaUse(Struct, frozen=True):
    """CPU quota of the job's cgroup over the window."""

    quota_cores: float
    throttled_periods: float
    """Share of scheduler periods with throttling, 0..1."""


class HostUse(Struct, frozen=True):
    """The host over the window; None where it was not readable."""

    cpu_busy_pct: float | None
    psi_io_pct: float | None
    psi_memory_pct: float | None
    cpus: int
    shm_used_share: float | None = None
    shm_total_bytes: float | None = None
    swap_grew_bytes: float | None = None
    online: int = 0
    """CPUs that the machine has, whether or not gpuwatch may run on them."""


class Tenant(Struct, frozen=True):
    """Another process on the job's GPU."""

    pid: int
    cpu_cores: float | None
    sm_share: float | None = None
    """Of the window, in which its kernels ran, by the driver; None where that is not read."""


class Rank(Struct, frozen=True):
    """Another process of the same distributed job, on GPUs of its own. Shares 0..1."""

    pid: int
    device_indices: tuple[int, ...]
    busy: float
    sm: float | None
    number: int | None = None
    """Its rank, where the environment says it."""
    cpu_cores: float | None = None
    """Of the process itself, without its children."""


class Evidence(Struct, frozen=True):
    """Everything that was seen of one job in one window."""

    pid: int
    device_indices: tuple[int, ...]
    start_ns: int
    end_ns: int
    devices: tuple[Device, ...]
    windows: tuple[GpuWindow, ...]
    main: ProcessUse | None
    workers: tuple[ProcessUse, ...]
    children: tuple[ProcessUse, ...]
    host: HostUse
    quota: QuotaUse | None
    main_stacks: tuple[StackSample, ...]
    worker_stacks: tuple[StackSample, ...]
    stack_errors: tuple[str, ...]
    source: dict[tuple[str, int], str]
    tenants: tuple[Tenant, ...]
    command: str
    mem_used_share: float | None
    """Of the fullest of the job's devices, by all processes."""
    job_mem_bytes: float | None
    throttle: dict[str, float]
    """Share of readings with a clocks event reason, by its name in lower case; idle readings left out."""
    clock_share: float | None
    """Mean SM clock over its maximum while busy."""
    native_stacks: tuple[StackSample, ...] = ()
    """Stacks of the GPU process with native frames; rare, since they stop it."""
    native_errors: tuple[str, ...] = ()
    """Why there are none where they were asked for."""
    worker_generations: float = 0.0
    """Distinct loader workers over the most that were there at once: 1 when they persist, more when they are started
    anew. 0 without any."""
    ranks: tuple[Rank, ...] = ()
    """The other ranks of a distributed job on this node, by pid."""
    ceilings: dict[str, float] = {}
    """What this machine's own probes have reached; empty when none has run."""
    lost_devices: tuple[int, ...] = ()
    """Devices whose newest reading says that they are lost."""
    health: tuple[DeviceHealth, ...] = ()
    """Slow readings of the job's devices, in the order of time."""
    events: tuple[EventRecord, ...] = ()
    """What the driver told of the job's devices in the window."""
    job_mem_series: tuple[tuple[int, float], ...] = ()
    """(instant in ns, bytes) of the job's GPU memory; empty for a job on several devices."""
    gone: bool = False
    """The process ended during the window."""
    steps: StepTimes | None = None
    """What the job says of its own loop."""

    @property
    def window_s(self) -> float:
        """Length of the window in seconds."""
        return max(0.0, (self.end_ns - self.start_ns) / 1e9)

    @property
    def gpm(self) -> bool:
        """SM-level counters are there."""
        return any(not w.proxy for w in self.windows)

    @property
    def link_share(self) -> float:
        """Speed of the PCIe link over what card and slot can do, 0..1."""
        return link_share(self.health)

    def mean(self, field: str) -> float | None:
        """Time-weighted mean of a field of the windows, None when it was never read."""
        pairs = [(v, w.end_ns - w.start_ns) for w in self.windows if (v := getattr(w, field)) is not None]
        total = sum(weight for _, weight in pairs)
        return sum(v * weight for v, weight in pairs) / total if total else None

    def steady(self) -> bool:
        """Whether the GPU is about as busy in every window: launching that limits does so in each step, while a job
        that alternates between work and something else is busy now and idle then."""
        return bool(self.windows) and pstdev(w.busy for w in self.windows) <= STEADY_BUSY

    def busiest(self) -> float:
        """The largest busy share of any window."""
        return max((w.busy for w in self.windows), default=0.0)
