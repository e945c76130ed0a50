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
import re

from msgspec import UNSET, Struct, UnsetType


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
    ASLEEP = "asleep"
    """The GPUs are suspended and left alone: no trouble (``let_gpus_sleep``)."""


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


class Device(Struct, frozen=True, omit_defaults=True):
    """Static identity of one GPU, or of one MIG instance. Source: NVML, read once per (re)initialisation.

    Fields at their default are not sent: what is appended here leaves the bytes of other cards as they were.
    """

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
    parent_uuid: str = ""
    """UUID of the GPU that this MIG instance is a part of; "" for a whole GPU."""
    mig_profile: str = ""
    """Such as "1g.18gb"."""
    mem_shared_with_host: bool = False
    """The GPU has no memory of its own that NVML can count (GB10, Orin): total is the machine's memory and used is
    what the GPU's processes hold."""


class Unwatched(Struct, frozen=True):
    """A part of the watching that is not there, while the rest goes on."""

    part: str
    """What is not seen, such as "XIDs and other events"."""
    absent: Absent
    """Why. NOT_SUPPORTED is no trouble: this driver or card never had it."""


class Inventory(Struct, frozen=True):
    """What there is to watch. Published at the start and whenever it changes."""

    node: NodeInfo
    devices: tuple[Device, ...]
    driver: DriverState = DriverState.OK
    driver_hint: str = ""
    """One sentence for a person when ``driver`` is not OK: what is wrong and what to do."""
    source: Source = Source(SourceKind.LIVE)
    unwatched: tuple[Unwatched, ...] | UnsetType = UNSET
    """What is not watched and why. Unset, and then not sent, as long as everything is."""


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
    BOARD_LIMIT = 0x200
    """Told by drivers from 615 on, as is the next."""
    RELIABILITY = 0x400


class DeviceProcess(Struct, frozen=True, array_like=True):
    """A process that NVML lists on a GPU."""

    pid: int
    mem_used_bytes: Int
    kind: str
    """"C" compute, "G" graphics, "CG" both; with "M" it computes through MPS, together with others."""


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


class RankPlace(Struct, frozen=True):
    """Where a process stands in a distributed job, by the environment that it was started with."""

    rank: int
    world_size: int
    """On all nodes."""
    job: str
    """The same for all ranks of the job and for no other job on this machine, such as "tcp node3:29500"."""


class FileSystem(Struct, frozen=True, order=True):
    """Where files of a process lie."""

    mount: str
    """Mount point, as the process sees it."""
    kind: str
    """Such as "ext4", "nfs4" or "fuse.s3fs"."""
    source: str
    """Such as "/dev/nvme0n1p2" or "server:/export"."""
    remote: bool
    """Served over a network."""
    disk: str = ""
    """The whole disk, such as "nvme0n1"; "" for what has none: network, memory, layers of a container."""
    rotational: bool = False
    """The disk turns."""


class Storage(Struct, frozen=True):
    """Where the files lie that a process has been seen to have open. A look every ten seconds sees what is open at that
    moment, and what was seen once stays."""

    systems: tuple[FileSystem, ...] = ()
    """At most eight, in the order in which they were seen."""
    absent: Absent | None = None
    """Why there may be more: its open files cannot be listed."""


class ProcessInfo(Struct, frozen=True, omit_defaults=True):
    """Static facts about a process of a GPU job; sent once and when they change.

    Fields at their default are not sent: what is appended here leaves the bytes of other processes as they were.
    """

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
    place: RankPlace | None = None
    """None when the environment says nothing of it, or is another user's."""
    storage: Storage | None = None
    """Where its files lie, of main processes and loader workers. None until it has been looked at."""

    def same_job(self, other: ProcessInfo) -> bool:
        """Whether the two GPU processes are ranks of one distributed job.

        By what their environment says; else by their parents: ranks have one launcher and one command line (but for
        what the launcher itself puts there), and Lightning's rank 0 is the parent of the others.
        """
        if self.uid != other.uid or self.pid == other.pid:
            return False
        ours, theirs = self.place, other.place
        if ours is not None and theirs is not None:
            return (ours.job, ours.world_size) == (theirs.job, theirs.world_size) and ours.rank != theirs.rank
        if ours is not None:
            return self.ppid == other.pid and ours.rank != 0
        if theirs is not None:
            return other.ppid == self.pid and theirs.rank != 0
        our_line, their_line = (_OWN_ARGUMENTS.sub("", info.command) for info in (self, other))
        # All workers of a Ray node have one parent; only those of its Train library are ranks of something.
        ray = our_line.startswith("ray::") and "TrainWorker" not in our_line
        return self.ppid == other.ppid and our_line == their_line and not ray


_OWN_ARGUMENTS = re.compile(r"\bpipe_handle=\d+|\s--local[-_]rank[= ]\d+")
"""What differs between the command lines of ranks: of torch.multiprocessing.spawn, torch.distributed.launch."""


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


class ProcessUtil(Struct, frozen=True, array_like=True):
    """What one process on a GPU used since the previous reading, in percent of the engine's time."""

    pid: int
    sm_pct: Int = NOT_READ
    mem_pct: Int = NOT_READ
    encoder_pct: Int = NOT_READ
    decoder_pct: Int = NOT_READ


class PeerLink(Struct, frozen=True, array_like=True):
    """The nearest point at which two GPUs meet."""

    device_index: int
    """The other GPU."""
    path: Text
    """"same board", "one PCIe switch", "several PCIe switches", "host bridge", "same NUMA node", "across sockets"."""
    nvlink: Int = NOT_READ
    """1: the driver can copy between the two over NVLink."""


class DeviceHealth(Struct, frozen=True, array_like=True):
    """What is read of a GPU less often than every tick: docs/telemetry.md has source, tier and unit of each.

    A value stands until its own tier's next turn; ``mono_ns`` is that of the newest part. Counters count since the
    driver was loaded unless said otherwise: alarm on growth, never on a value (a healthy card has PCIe errors).
    ``*_share`` of throttling is the part of the time since the previous reading.
    """

    device_index: int
    mono_ns: int
    bar1_total_bytes: Int = NOT_READ
    bar1_used_bytes: Int = NOT_READ
    power_avg_w: Num = NOT_READ
    """Over one second, by the driver."""
    power_instant_w: Num = NOT_READ
    power_memory_w: Num = NOT_READ
    """The memory's part of it."""
    energy_mj: Int = NOT_READ
    """Millijoules since the driver was loaded."""
    energy_power_w: Num = NOT_READ
    """Mean power over ``energy_window_ns``, from the energy counter: bursts between samples are in it."""
    energy_window_ns: int = 0
    power_limit_w: Num = NOT_READ
    """Enforced: the least of all limiters."""
    power_limit_default_w: Num = NOT_READ
    power_limit_min_w: Num = NOT_READ
    power_limit_max_w: Num = NOT_READ
    mem_temp_c: Int = NOT_READ
    temp_margin_c: Int = NOT_READ
    """Degrees left until the nearest slowdown; negative beyond it."""
    tlimit_shutdown_c: Int = NOT_READ
    """Signed offset on the margin's scale, as the next three: −8 is eight degrees beyond the limit."""
    tlimit_slowdown_c: Int = NOT_READ
    tlimit_mem_max_c: Int = NOT_READ
    tlimit_gpu_max_c: Int = NOT_READ
    sm_clock_max_mhz: Int = NOT_READ
    mem_clock_max_mhz: Int = NOT_READ
    performance_state: Int = NOT_READ
    """0 is the fastest; some data-centre cards stay in 0 when idle."""
    reasons_supported: Int = NOT_READ
    """Bits of ``ClocksEvent`` that this card can report: an unset bit is unknown, not fine."""
    throttle_window_ns: int = 0
    throttle_power_cap_share: Num = NOT_READ
    throttle_thermal_share: Num = NOT_READ
    """Any thermal reason."""
    throttle_sync_boost_share: Num = NOT_READ
    throttle_board_limit_share: Num = NOT_READ
    throttle_reliability_share: Num = NOT_READ
    throttle_sw_thermal_share: Num = NOT_READ
    throttle_hw_thermal_share: Num = NOT_READ
    throttle_power_brake_share: Num = NOT_READ
    ecc_enabled: Int = NOT_READ
    ecc_volatile_corrected: Int = NOT_READ
    ecc_volatile_uncorrected: Int = NOT_READ
    ecc_aggregate_corrected: Int = NOT_READ
    """Over the card's life, as the next."""
    ecc_aggregate_uncorrected: Int = NOT_READ
    remapped_correctable: Int = NOT_READ
    remapped_uncorrectable: Int = NOT_READ
    remap_pending: Int = NOT_READ
    """1: rows will be remapped at the next reset."""
    remap_failed: Int = NOT_READ
    retired_pages_corrected: Int = NOT_READ
    """Pages taken out of use, before Ampere; as the next two."""
    retired_pages_uncorrected: Int = NOT_READ
    retired_pages_pending: Int = NOT_READ
    recovery_action: Int = NOT_READ
    """What the driver asks for: 0 nothing, 1 GPU reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX domain,
    6 bus reset, 7 system reboot."""
    pcie_gen: Int = NOT_READ
    pcie_width: Int = NOT_READ
    pcie_under_load: bool = False
    """The link was read while the GPU was busy: an idle link trains down, which is no fault."""
    pcie_gen_max: Int = NOT_READ
    """Of card and slot together."""
    pcie_width_max: Int = NOT_READ
    pcie_rx_bytes_per_s: Num = NOT_READ
    """Towards the GPU, from byte counters, over ``throttle_window_ns``; for cards without GPM. As the next three."""
    pcie_tx_bytes_per_s: Num = NOT_READ
    nvlink_rx_bytes_per_s: Num = NOT_READ
    nvlink_tx_bytes_per_s: Num = NOT_READ
    pcie_replays: Int = NOT_READ
    pcie_replay_rollovers: Int = NOT_READ
    pcie_to_recovery: Int = NOT_READ
    """Times that the link went to recovery."""
    pcie_correctable_errors: Int = NOT_READ
    pcie_naks_received: Int = NOT_READ
    pcie_receiver_errors: Int = NOT_READ
    pcie_bad_tlps: Int = NOT_READ
    pcie_naks_sent: Int = NOT_READ
    pcie_bad_dllps: Int = NOT_READ
    pcie_nonfatal_errors: Int = NOT_READ
    pcie_fatal_errors: Int = NOT_READ
    pcie_unsupported_requests: Int = NOT_READ
    pcie_lcrc_errors: Int = NOT_READ
    pcie_lane_errors: Int = NOT_READ
    nvlink_links: Int = NOT_READ
    nvlink_link_mbytes_per_s: Int = NOT_READ
    """Of one link and direction."""
    nvlink_crc_flit_errors: Int = NOT_READ
    nvlink_crc_data_errors: Int = NOT_READ
    nvlink_replays: Int = NOT_READ
    nvlink_recoveries: Int = NOT_READ
    encoder_util_pct: Int = NOT_READ
    decoder_util_pct: Int = NOT_READ
    jpeg_util_pct: Int = NOT_READ
    ofa_util_pct: Int = NOT_READ
    """Optical flow accelerator."""
    fan_pct: Int = NOT_READ
    """Of the intended maximum, the fastest fan; a blocked fan still reads so."""
    persistence_mode: Int = NOT_READ
    """0 with no client: every start of CUDA pays seconds per GPU."""
    compute_mode: Int = NOT_READ
    """0 shared, 2 prohibited, 3 exclusive process."""
    mig_enabled: Int = NOT_READ
    virtualization: Int = NOT_READ
    """0 none, 1 passed through, 2 vGPU, 3 and 4 host of vGPUs."""
    confidential_compute: Int = NOT_READ
    """1: performance counters are off unless the developer tools mode is on."""
    cpu_affinity: Text = NOT_READ
    """CPUs near this GPU, such as "0-31,64-95"."""
    peers: tuple[PeerLink, ...] = ()
    process_utils: tuple[ProcessUtil, ...] = ()
    """One for each process that NVML lists on this GPU."""
    process_utils_absent: Absent | None = NOT_READ
    slowed_calls: tuple[str, ...] = ()
    """Groups of calls that took too long here and are made less often for it."""


class SampleSeries(Struct, frozen=True, array_like=True):
    """What the driver sampled by itself of one quantity since the previous series, oldest first."""

    end_mono_ns: int = 0
    """When the newest was taken, on CLOCK_MONOTONIC, to within one sampling interval."""
    steps_us: tuple[int, ...] = ()
    """From the sample before to each; of the first, from the last one of the previous series, or 0 when ``broken``."""
    values: tuple[int, ...] = ()
    broken: bool = False
    """Does not follow on the previous series: it is the first, samples were lost, or the driver's clock was set."""
    absent: Absent | None = NOT_READ
    """Why there are no values. NOT_FOUND: nothing new, as on an idle GPU whose buffer goes dark."""


class Burst(Struct, frozen=True, array_like=True):
    """The sub-second samples of one GPU between two readings: none is twice in the stream, none is left out."""

    device_index: int
    mono_ns: int
    util_pct: SampleSeries = SampleSeries()
    """NVML's "something was resident", as ``DeviceSample.gpu_util_pct``."""
    power_mw: SampleSeries = SampleSeries()

    def busy_windows(self) -> tuple[tuple[int, int, float], ...]:
        """The utilization samples as (start, end, busy share) on CLOCK_MONOTONIC in nanoseconds, oldest first: for GPUs
        without GPM. A sample whose predecessor is not known has no width of its own and is left out."""
        found: list[tuple[int, int, float]] = []
        end_ns = self.util_pct.end_mono_ns
        for step_us, value in zip(reversed(self.util_pct.steps_us), reversed(self.util_pct.values), strict=True):
            if step_us <= 0:
                break
            start_ns = end_ns - step_us * 1000
            found.append((start_ns, end_ns, value / 100))
            end_ns = start_ns
        return tuple(reversed(found))


class BurstSummary(Struct, frozen=True, array_like=True):
    """A :class:`Burst` for the stream, in some 20 bytes: utilization as sampled, power by its extremes."""

    device_index: int
    util_pct: tuple[int, ...] = ()
    """At most 16, the newest last."""
    power_min_w: Int = NOT_READ
    power_mean_w: Int = NOT_READ
    power_max_w: Int = NOT_READ


class EventKind(enum.StrEnum):
    """What the driver told without being asked."""

    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    MIG_CONFIG = "mig_config"
    ECC_STORM = "ecc_storm"
    DRAM_RETIREMENT = "dram_retirement"
    DRAM_RETIREMENT_FAILURE = "dram_retirement_failure"
    POISON = "poison"
    """Uncorrectable data was used; contained to the process."""
    FATAL_POISON = "fatal_poison"
    UNAVAILABLE = "unavailable"
    RECOVERY_ACTION = "recovery_action"
    OTHER = "other"


class EventOrigin(enum.StrEnum):
    """Whose fault an event is, by its kind."""

    APPLICATION = "application"
    """The job did it: news for its owner, none for the card's."""
    HARDWARE = "hardware"
    DRIVER = "driver"
    """Driver, firmware or an operator."""
    UNKNOWN = "unknown"


class EventRecord(Struct, frozen=True):
    """One event of one GPU."""

    device_index: int
    """-1: the driver did not say which."""
    mono_ns: int
    wall_ns: int
    kind: EventKind
    origin: EventOrigin
    xid: int = 0
    """For ``EventKind.XID``."""
    data: int = 0
    text: str = ""
    """What it means, one line."""
    gpu_instance: int = -1
    """MIG; -1 is the whole GPU."""
    compute_instance: int = -1
    repeats: int = 0
    """Further ones of the same since the last record of it: what comes within a second is not told one by one."""


class StepReport(Struct, frozen=True, array_like=True):
    """What one loop of a job said of itself (docs/hook.md), over the ``span_ns`` that ended at ``mono_ns``."""

    pid: int
    """By the kernel, never by the job's own word."""
    mono_ns: int
    span_ns: int
    steps: int
    """That ended in the span."""
    step_ns: int
    """Of all of them together."""
    step_max_ns: int
    wait_ns: Int = NOT_READ
    """Time inside ``next()``. Absent where the job only marks its steps."""
    wait_max_ns: Int = NOT_READ
    loop: int = 0
    """Tells the loops of one process apart; 0 for marked steps."""
    thread: int = 0
    """The kernel's id of the thread that runs it, in the job's own PID namespace."""


Observation = (
    Inventory
    | DeviceSample
    | HostSample
    | ProcessTick
    | StackSample
    | SourceLine
    | DeviceHealth
    | Burst
    | EventRecord
    | StepReport
)
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
    """computing, launching, waiting_for_data, preparing_data, copying, synchronising, communicating, checkpointing,
    compiling, allocating, other_host_work, idle, unattributed."""
    share: float


class StepTimes(Struct, frozen=True):
    """What the job said of its own loop in the window (docs/hook.md)."""

    steps: int
    step_s: float
    """Mean."""
    step_max_s: float
    wait_s: Num = NOT_READ
    """Mean data wait per step; absent where the job only marks its steps."""
    wait_max_s: Num = NOT_READ
    """Longest single wait."""
    wait_share: Num = NOT_READ
    """Of the wall time, 0..1."""
    in_account: bool = False
    """The account's waits for data are these, not those of the stack samples."""


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
    steps: StepTimes | None = None
    """None for a job that says nothing of itself, as most."""

    @property
    def verdict(self) -> Finding:
        """The first finding."""
        return self.findings[0]


class FindingSpan(Struct, frozen=True):
    """One cause of one job in time: since when, how bad at worst, when it was over."""

    pid: int
    device_indices: tuple[int, ...]
    cause: str
    severity: Severity
    since_wall_ns: int
    seen_wall_ns: int
    """When it was found last."""
    worst_lost_share: float
    resolved_wall_ns: int = 0
    """0 while it lasts."""
    command: str = ""
    resolution: str = ""
    """Such as "not found any more" or "the job ended"."""


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
    observed: dict[str, float] = {}
    """What the GPU did meanwhile: power, clocks, activity; names and units in verdict/observe.py. Empty: not seen."""
