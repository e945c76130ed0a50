"""The machine and its GPUs: what stays the same from tick to tick.

Owns: Inventory and its parts. Refuses: readings.
"""

from __future__ import annotations

import enum

from msgspec import UNSET, Struct, UnsetType

from gpuwatch.model.reading import NOT_READ, Absent, Int, Num, Text


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
    proc_hides: tuple[str, ...] | UnsetType = UNSET
    """The mount options by which /proc hides other users' processes from us, such as "hidepid=2" and "gid=20". Unset,
    and then not sent, where it hides none."""


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
