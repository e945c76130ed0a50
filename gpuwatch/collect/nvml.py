"""NVML to model: the only file that imports pynvml.

Owns: opening NVML, what a failure to do so means, the identity of the GPUs. Refuses: schedules, threads, opinions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gpuwatch.collect.gpm import GpmGate
from gpuwatch.collect.nvml_calls import (
    CLOCK_SM,
    MAX_MHZ,
    MAX_MILLIWATT,
    Calls,
    Clock,
    GoneError,
    Query,
    memory_ways,
    scaled,
    text,
    total_of,
    within,
)
from gpuwatch.collect.nvml_fields import (
    ARCHITECTURES,
    NO_BINDING_HINT,
    NO_DEVICES_HINT,
    WRONG_BINDING_HINT,
    driver_state_for,
)
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.model import NOT_SUPPORTED, Absent, Device, DriverState, Int, Reason, Text

T = TypeVar("T")

UNREADABLE: Final = "unreadable-"
"""Start of the stand-in for the UUID of a GPU that could not be opened; its index follows."""
_SYSFS_PCI: Final = Path("/sys/bus/pci/devices")


class DriverFacts(NamedTuple):
    """Versions, for NodeInfo."""

    driver_version: Text
    cuda_driver_version: Text
    nvml_version: Text


class Nvml:
    """The driver's library, opened once for the life of the process."""

    def __init__(self, clock: Clock = time.monotonic_ns, sysfs_pci: Path = _SYSFS_PCI) -> None:
        self._clock = clock
        self._sysfs_pci = sysfs_pci
        self._n: Any = None
        self._initialised = False
        self._count = 0
        self._gate = GpmGate(clock)
        self._readers: list[DeviceReader] = []

    def open(self) -> tuple[DriverState, str]:
        """Initialise (again) and count the GPUs: the state, and for a person what to do when it is not OK.

        Blocks as long as the driver does: 10 ms as a rule, seconds per GPU without persistence mode.
        """
        self._n, hint = _binding()
        if self._n is None:
            return DriverState.NO_LIBRARY, hint
        calls = Calls(self._n, self._clock)
        try:
            if self._initialised:
                self.close()
            self._n.nvmlInit()
            self._initialised = True
            self._count = int(self._n.nvmlDeviceGetCount())
        except Exception as exc:
            code = calls.code_of(exc)
            return driver_state_for(code) if code else (DriverState.UNKNOWN, f"NVML does not start: {exc}")
        if self._count == 0:
            return DriverState.NO_DEVICES, NO_DEVICES_HINT
        return DriverState.OK, ""

    def driver_facts(self) -> DriverFacts:
        """Versions of the driver, of the newest CUDA that it supports and of the library."""
        if not self._initialised:
            absent = Absent(Reason.DRIVER)
            return DriverFacts(absent, absent, absent)
        cuda = self._once(lambda: int(self._n.nvmlSystemGetCudaDriverVersion()))
        return DriverFacts(
            self._once(lambda: text(self._n, "nvmlSystemGetDriverVersion")),
            cuda if isinstance(cuda, Absent) else f"{cuda // 1000}.{cuda % 1000 // 10}",
            self._once(lambda: text(self._n, "nvmlSystemGetNVMLVersion")),
        )

    def devices(self) -> tuple[Device, ...]:
        """Identity of every GPU, also of one that cannot be opened: it must be seen to be missing."""
        return tuple(self._device(index) for index in range(self._count)) if self._initialised else ()

    def reader(self, index: int) -> DeviceReader:
        """What reads the GPU with this index. One thread at a time may use it."""
        reader = DeviceReader(self._n, index, self._gate, self._clock)
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        """Give everything back; while a reading hangs in the driver nothing is, because it may still use it."""
        if not self._initialised:
            return
        self._initialised = False
        readers, self._readers = self._readers, []
        if any(reader.busy for reader in readers):
            return
        for reader in readers:
            self._once(reader.close)
        self._once(self._n.nvmlShutdown)

    def _once(self, *ways: Callable[[], T]) -> T | Absent:
        try:
            return Query(Calls(self._n, self._clock), *ways).read()
        except GoneError as gone:
            return gone.absent

    def _device(self, index: int) -> Device:
        n = self._n
        handle = self._once(lambda: n.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Absent):
            what = f"GPU that cannot be opened ({handle.detail or handle.reason.name.lower().replace('_', ' ')})"
            return Device(index, uuid=f"{UNREADABLE}{index}", name=what, pci_bus_id="")
        name = self._once(lambda: text(n, "nvmlDeviceGetName", handle))
        uuid = self._once(lambda: text(n, "nvmlDeviceGetUUID", handle))
        bus = self._once(lambda: str(n.nvmlDeviceGetPciInfo(handle).busId))
        memory = self._once(*memory_ways(n, handle))
        limit = self._once(lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle))
        clock_max = self._once(lambda: n.nvmlDeviceGetMaxClockInfo(handle, CLOCK_SM))
        capability = self._once(lambda: n.nvmlDeviceGetCudaComputeCapability(handle))
        gpm = self._once(lambda: n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        known = not isinstance(memory, Absent)
        return Device(
            index,
            uuid=uuid if isinstance(uuid, str) else f"no-uuid-{bus if isinstance(bus, str) else index}",
            name=name if isinstance(name, str) else "GPU",
            pci_bus_id=bus if isinstance(bus, str) else "",
            architecture=self._architecture(handle),
            compute_capability=capability if isinstance(capability, Absent) else f"{capability[0]}.{capability[1]}",
            mem_total_bytes=total_of(memory),
            mem_reserved_bytes=getattr(memory, "reserved", NOT_SUPPORTED) if known else memory,
            power_limit_w=scaled(within(limit, MAX_MILLIWATT), 1000),
            sm_clock_max_mhz=within(clock_max, MAX_MHZ),
            gpm=gpm == 1,
            numa_node=_numa_node(self._sysfs_pci, bus),
        )

    def _architecture(self, handle: Any) -> Text:
        number = self._once(lambda: int(self._n.nvmlDeviceGetArchitecture(handle)))
        return number if isinstance(number, Absent) else ARCHITECTURES.get(number, Absent(Reason.NOT_FOUND))


def _binding() -> tuple[Any, str]:
    """The pynvml module of nvidia-ml-py, or None and what to install."""
    try:
        import pynvml
    except Exception:
        return None, NO_BINDING_HINT
    # Several distributions install a pynvml.py; those of others lack GPM and the versioned process lists.
    if not all(hasattr(pynvml, name) for name in ("_nvmlGetFunctionPointer", "nvmlGpmMetricsGet")):
        return None, WRONG_BINDING_HINT
    return pynvml, ""


def _numa_node(sysfs_pci: Path, bus_id: Text) -> Int:
    """The NUMA node that the GPU hangs on. NVML writes "00000000:61:00.0" where sysfs has "0000:61:00.0"."""
    if isinstance(bus_id, Absent):
        return bus_id
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((sysfs_pci / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return Absent(Reason.NOT_FOUND)
    return node if node >= 0 else Absent(Reason.NOT_FOUND)
