"""The frozen types that everything else speaks.

Owns: what a device, a sample, a process, a stack and a finding are, with units in the field names.
Refuses: I/O, formatting, opinions.

Conventions
-----------
* A reading is a value or ``Absent(reason)``. Zero is a measurement; absence is not.
* ``mono_ns`` is CLOCK_MONOTONIC of the machine that read the value: differences only. ``wall_ns`` is for people.
* Devices are keyed by UUID and referred to by index inside one inventory.
* ``*_pct`` is 0..100, ``*_share`` is 0..1, ``*_bytes_per_s`` is bytes (not MiB).
* Samples travel every tick, so they are positional (``array_like``): new fields are appended with a default,
  nothing is ever reordered or retyped (msgspec's schema evolution rules).
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Reason(enum.IntEnum):
    """Why a reading has no value. Numbers travel on the wire and never change meaning."""

    NOT_READ = 0
    """Nobody has asked yet: first tick, or a slower tier's turn has not come."""
    NOT_SUPPORTED = 1
    """This card, driver or kernel does not have it."""
    NO_PERMISSION = 2
    NOT_FOUND = 3
    """The thing itself is not there: process gone, file missing, buffer empty."""
    LOST = 4
    """The GPU fell off the bus or needs a reset."""
    TIMEOUT = 5
    """The driver call has not returned."""
    OUT_OF_RANGE = 6
    """The driver answered with garbage, such as 4294967295 %."""
    DRIVER = 7
    """The driver is missing, not loaded or does not match its library."""
    ERROR = 8
    """Anything else; ``detail`` has the code."""


class Absent(Struct, frozen=True, array_like=True):
    """A reading without a value, with its reason and, where it helps a person, a detail."""

    reason: Reason
    detail: str = ""


NOT_READ = Absent(Reason.NOT_READ)
NOT_SUPPORTED = Absent(Reason.NOT_SUPPORTED)

Num = float | Absent
Int = int | Absent
Text = str | Absent


def value_or(reading: float | str | Absent, default: float) -> float:
    """The number in ``reading``, or ``default``. For arithmetic that has a documented fallback only."""
    return default if isinstance(reading, (Absent, str)) else float(reading)


# --------------------------------------------------------------------------- the node and its devices


class DriverState(enum.StrEnum):
    """What stands between us and the GPUs."""

    OK = "ok"
    NO_LIBRARY = "no_library"
    """libnvidia-ml.so.1 is not installed."""
    NO_DRIVER = "no_driver"
    """The library is there, the kernel module is not loaded."""
    MISMATCH = "mismatch"
    """Library and kernel module are of different versions: reboot or reload the module."""
    NO_DEVICES = "no_devices"
    """NVML works and shows no GPU: a container without one, or MIG without instances."""
    NO_PERMISSION = "no_permission"
    UNKNOWN = "unknown"
    """NVML error 999: typically a container that lost its device cgroup after a daemon-reload."""


class SourceKind(enum.StrEnum):
    """Where the readings come from. A screen of recorded data must say so."""

    LIVE = "live"
    RECORDED = "recorded"


class Source(Struct, frozen=True):
    """Provenance of the readings."""

    kind: SourceKind
    name: str = ""
    """For a recording: its file name."""
    recorded_wall_ns: int = 0
    speed: float = 1.0
    """Replay speed; 0 means as fast as possible."""
    ended: bool = False
    """The recording has been played to its end; the last values stand."""


class NodeInfo(Struct, frozen=True):
    """Static facts about the machine."""

    hostname: str
    kernel: str
    boot_id: str
    cpu_count: int
    """Logical CPUs this process may use (affinity), not the number in the box."""
    mem_total_bytes: Int
    driver_version: Text = NOT_READ
    cuda_driver_version: Text = NOT_READ
    """Highest CUDA version that the driver supports, such as "13.0"."""
    nvml_version: Text = NOT_READ
    gpuwatch_version: str = ""
    containerised: bool = False
    """We ourselves run in a PID namespace: NVML may hand out PIDs of the host."""


class Device(Struct, frozen=True):
    """Static identity of one GPU. Source: NVML, read once per (re)initialisation."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    architecture: Text = NOT_READ
    compute_capability: Text = NOT_READ
    mem_total_bytes: Int = NOT_READ
    mem_reserved_bytes: Int = NOT_READ
    """Held by driver and firmware; not part of ``mem_used_bytes`` (memory v2)."""
    power_limit_w: Num = NOT_READ
    sm_clock_max_mhz: Int = NOT_READ
    gpm: bool = False
    """GPM counters (Hopper and newer): without them SM activity is not known, only a proxy."""
    numa_node: Int = NOT_READ


class Inventory(Struct, frozen=True):
    """What there is to watch. Published at the start and whenever it changes."""

    node: NodeInfo
    devices: tuple[Device, ...]
    driver: DriverState = DriverState.OK
    driver_hint: str = ""
    """One sentence for a person when ``driver`` is not OK: what is wrong and what to do."""
    source: Source = Source(SourceKind.LIVE)


# --------------------------------------------------------------------------- samples


class ClocksEvent(enum.IntFlag):
    """Bits of NVML's clocks event reasons (formerly throttle reasons). Test with ``&``."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


class DeviceProcess(Struct, frozen=True, array_like=True):
    """A process that NVML lists on a GPU."""

    pid: int
    mem_used_bytes: Int
    kind: str
    """"C" compute, "G" graphics, "CG" both."""


class DeviceSample(Struct, frozen=True, array_like=True):
    """One reading of one GPU.

    ``gpu_util_pct`` is NVML's "a kernel or copy was resident" and is kept for comparison only. The fields from
    ``busy_pct`` on are GPM averages over ``gpm_window_ns`` ending at ``mono_ns``.
    """

    device_index: int
    mono_ns: int
    gpu_util_pct: Int = NOT_READ
    mem_util_pct: Int = NOT_READ
    """Share of time in which memory was read or written; not bandwidth."""
    mem_used_bytes: Int = NOT_READ
    power_w: Num = NOT_READ
    temp_c: Int = NOT_READ
    sm_clock_mhz: Int = NOT_READ
    mem_clock_mhz: Int = NOT_READ
    clocks_event_reasons: Int = NOT_READ
    gpm_window_ns: int = 0
    busy_pct: Num = NOT_READ
    sm_active_pct: Num = NOT_READ
    sm_occupancy_pct: Num = NOT_READ
    tensor_active_pct: Num = NOT_READ
    fp64_active_pct: Num = NOT_READ
    fp32_active_pct: Num = NOT_READ
    fp16_active_pct: Num = NOT_READ
    dram_active_pct: Num = NOT_READ
    pcie_rx_bytes_per_s: Num = NOT_READ
    """Towards the GPU (host to device)."""
    pcie_tx_bytes_per_s: Num = NOT_READ
    nvlink_rx_bytes_per_s: Num = NOT_READ
    nvlink_tx_bytes_per_s: Num = NOT_READ
    processes: tuple[DeviceProcess, ...] = ()
    processes_absent: Absent | None = NOT_READ
    """Why ``processes`` cannot be trusted to be complete; None when it was read. (A positional struct and a tuple
    cannot share a union in msgspec.)"""
    nvml_ns: int = 0
    """Time spent inside NVML for this reading."""


class CoreGroup(Struct, frozen=True, array_like=True):
    """CPU use of the cores of one NUMA node since the previous reading."""

    name: str
    cpus: int
    busy_pct: Num
    iowait_pct: Num


class Pressure(Struct, frozen=True, array_like=True):
    """PSI of one resource. Totals are cumulative microseconds; ``some_pct`` is our own delta over the tick."""

    some_pct: Num = NOT_READ
    full_pct: Num = NOT_READ
    some_total_us: Int = NOT_READ
    full_total_us: Int = NOT_READ


class HostSample(Struct, frozen=True, array_like=True):
    """One reading of the host."""

    mono_ns: int
    cpu_busy_pct: Num = NOT_READ
    """Of all logical CPUs, 0..100."""
    core_groups: tuple[CoreGroup, ...] = ()
    psi_cpu: Pressure = Pressure()
    psi_io: Pressure = Pressure()
    psi_memory: Pressure = Pressure()
    mem_total_bytes: Int = NOT_READ
    mem_available_bytes: Int = NOT_READ
    swap_used_bytes: Int = NOT_READ
    load_1m: Num = NOT_READ
    shm_total_bytes: Int = NOT_READ
    shm_used_bytes: Int = NOT_READ
    cpus_online: int = 0


class Role(enum.StrEnum):
    """What a process is to its GPU job."""

    MAIN = "main"
    """Holds the GPU."""
    LOADER_WORKER = "loader_worker"
    """A torch DataLoader worker, by thread name ``pt_data_worker`` or by its stack."""
    CHILD = "child"
    PARENT = "parent"
    """Launcher such as torchrun."""


class ProcessInfo(Struct, frozen=True):
    """Static facts about a process of a GPU job; sent once and when they change."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat. (pid, start_ticks) names a process for ever; a pid alone does not."""
    ppid: int
    root_pid: int
    """The GPU process that this one belongs to (itself for ``MAIN``)."""
    role: Role
    comm: str
    command: str
    """Arguments joined by spaces, control characters replaced."""
    user: str
    uid: int
    cgroup: Text = NOT_READ
    container: Text = NOT_READ
    """Such as "docker 3f2a…", "k8s pod …", "slurm job 42"."""
    device_indices: tuple[int, ...] = ()
    python: bool = False
    """The executable is a CPython: its stack can be sampled."""


class ProcessSample(Struct, frozen=True, array_like=True):
    """One reading of one process. Counters are cumulative since the process started, unless named ``*_pct``."""

    pid: int
    start_ticks: int
    mono_ns: int
    state: str = "?"
    """R, S, D, Z, T, t, I as in /proc/PID/stat. ``t`` is most often our own stack sampler."""
    cpu_pct: Num = NOT_READ
    """User + system since the previous reading; 100 is one core."""
    utime_ns: Int = NOT_READ
    stime_ns: Int = NOT_READ
    main_thread_cpu_ns: Int = NOT_READ
    """CPU time of the thread whose tid is the pid."""
    main_thread_state: str = "?"
    num_threads: int = 0
    running_threads: int = 0
    rss_bytes: Int = NOT_READ
    run_wait_ns: Int = NOT_READ
    """Runnable but waiting for a CPU (main thread's schedstat)."""
    read_bytes: Int = NOT_READ
    """From storage (/proc/PID/io)."""
    write_bytes: Int = NOT_READ
    rchar: Int = NOT_READ
    """Through read calls, cache and sockets included."""
    syscr: Int = NOT_READ
    majflt: Int = NOT_READ
    wchan: Text = NOT_READ
    """Kernel function the main thread sleeps in."""


class CgroupSample(Struct, frozen=True, array_like=True):
    """CPU quota of the cgroup that a GPU job runs in. Counters are cumulative."""

    root_pid: int
    mono_ns: int
    quota_cores: Num = NOT_READ
    """Absent(NOT_FOUND) when no quota is set."""
    nr_periods: Int = NOT_READ
    nr_throttled: Int = NOT_READ
    throttled_us: Int = NOT_READ


class ProcessTick(Struct, frozen=True):
    """All processes of all GPU jobs, read together. ``infos`` holds only those that are new or changed."""

    mono_ns: int
    samples: tuple[ProcessSample, ...] = ()
    cgroups: tuple[CgroupSample, ...] = ()
    infos: tuple[ProcessInfo, ...] = ()
    gone: tuple[int, ...] = ()
    """Pids that were there in the previous tick and are not any more."""


class Frame(Struct, frozen=True, array_like=True):
    """One stack frame. ``line`` 0 when unknown; native frames have ``file`` such as "libcuda.so.1"."""

    function: str
    file: str
    line: int = 0


class ThreadStack(Struct, frozen=True, array_like=True):
    """One thread's stack, innermost frame first."""

    os_tid: int
    name: str
    active: bool
    """On a CPU or runnable, by the sampler's judgement."""
    owns_gil: bool
    frames: tuple[Frame, ...]


class StackSample(Struct, frozen=True):
    """The stacks of one process at one instant."""

    pid: int
    root_pid: int
    mono_ns: int
    threads: tuple[ThreadStack, ...] = ()
    error: str = ""
    """Why there is no stack: one line, such as "permission denied (ptrace_scope=1)"."""
    native: bool = False


class SourceLine(Struct, frozen=True):
    """The text of one line of the job's own code that a stack sample stood on.

    A C call (``.item()``, ``.to(device)``) leaves no Python frame of its own: only the line tells what it is.
    """

    root_pid: int
    mono_ns: int
    file: str
    line: int
    text: str


Observation = Inventory | DeviceSample | HostSample | ProcessTick | StackSample | SourceLine
"""What collectors emit and recordings hold: everything above them is a function of these."""


# --------------------------------------------------------------------------- findings


class Severity(enum.StrEnum):
    """Exit codes of ``gpuwatch diagnose`` follow from the worst finding: info 0, warning 1, critical 2."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Standing(enum.StrEnum):
    """How a finding relates to the others of the same diagnosis."""

    ROOT = "root"
    CONTRIBUTING = "contributing"
    SYMPTOM = "symptom"


class Confidence(enum.StrEnum):
    """How sure: high = direct measurement of the wait and of its reason; low = by exclusion."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class EvidenceRow(Struct, frozen=True):
    """One number that supports a finding, with where and when it was read."""

    name: str
    value: float | str
    unit: str = ""
    source: str = ""
    """Such as "GPM", "/proc", "stack samples (n=48)"."""
    window_s: float = 0.0
    note: str = ""


class CodeLocation(Struct, frozen=True):
    """Where in the user's own code."""

    file: str
    line: int
    function: str
    share: float = 0.0
    """Share of the relevant stack samples that pass through here, 0..1."""


class Finding(Struct, frozen=True):
    """One cause, what it costs, how we know, and what to do."""

    cause: str
    """Stable snake_case id, see docs/causes.md."""
    summary: str
    severity: Severity
    lost_share: float
    """Share of the wall time in the window that this cause costs the GPU, 0..1."""
    gain_max: float
    """Upper bound on the speed-up that fixing only this can give, as a factor ≥ 1."""
    gain_basis: str
    """How the bound was computed, one sentence."""
    confidence: Confidence
    evidence: tuple[EvidenceRow, ...] = ()
    remedy: str = ""
    location: CodeLocation | None = None
    alternatives: tuple[str, ...] = ()
    """Cause ids that look the same from outside."""
    experiment: str = ""
    """The one experiment that would tell the alternatives apart."""
    standing: Standing = Standing.ROOT


class AccountShare(Struct, frozen=True):
    """A part of the wall time of the window."""

    activity: str
    """computing, launching, waiting_for_data, preparing_data, copying, synchronising, checkpointing, compiling,
    other_host_work, idle, unattributed."""
    share: float


class Diagnosis(Struct, frozen=True):
    """The answer for one GPU job (or one GPU without a job)."""

    pid: int
    """0 when the GPU has no process."""
    device_indices: tuple[int, ...]
    window_s: float
    findings: tuple[Finding, ...]
    """Ranked, never empty: the first is the verdict."""
    account: tuple[AccountShare, ...] = ()
    """Sums to 1 when there was anything to account for."""
    command: str = ""
    end_mono_ns: int = 0
    end_wall_ns: int = 0
    missing: tuple[str, ...] = ()
    """What would have made this surer, such as "stacks of pid 42: permission denied; …"."""

    @property
    def verdict(self) -> Finding:
        """The first finding."""
        return self.findings[0]


# --------------------------------------------------------------------------- probes


class ProbeStatus(enum.StrEnum):
    """Outcome of one probe run."""

    OK = "ok"
    BUSY = "busy"
    """Refused: somebody else's process is on the GPU."""
    INVALID = "invalid"
    """Ran, and the figure cannot be true (above the physical peak, wrong result)."""
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    """Cannot run here: no torch, no such device."""


class ProbeValue(Struct, frozen=True):
    """One measured quantity: the median over samples and its spread."""

    name: str
    unit: str
    median: float
    p20: float
    p80: float
    n: int
    higher_is_better: bool = True


class ProbeResult(Struct, frozen=True):
    """What a probe said. The JSON on a probe's stdout has these fields."""

    probe: str
    status: ProbeStatus
    device: str
    """"cuda:0" or "cpu"."""
    values: tuple[ProbeValue, ...] = ()
    device_uuid: str = ""
    device_name: str = ""
    started_wall_ns: int = 0
    duration_s: float = 0.0
    message: str = ""
    """For anything but OK: what happened and what to do. One line."""
    contaminated: bool = False
    """Another process appeared on the GPU during the run, or it was forced."""
    settings: dict[str, str] = {}
    """Versions and switches that were pinned and read back."""
    notes: tuple[str, ...] = ()
