"""What each GPU and each MIG instance is: the identity part of the inventory.

Owns: which calls make a ``Device``, the numbers of MIG instances, which parts share the host's memory. Refuses:
importing pynvml (the binding is passed in), threads, readings.

NVML numbers GPUs and not MIG instances. Here slot ``s`` of GPU ``g`` is device ``100 * (g + 1) + s``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

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
from gpuwatch.collect.nvml_fields import ARCHITECTURES
from gpuwatch.model import NOT_SUPPORTED, Absent, Device, Int, Reason, Text

T = TypeVar("T")

UNREADABLE: Final = "unreadable-"
"""Start of the stand-in for the UUID of a GPU that could not be opened; its index follows."""
_MIG_STRIDE: Final = 100
_ATS: Final = 2
"""Addressing mode of parts whose GPU uses the CPU's page tables."""
_SHARED_NAMES: Final = re.compile(r"\b(GB10|GH200|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)


class Mig(NamedTuple):
    """What a GPU that can have MIG instances has of them."""

    mode: int
    """1 when MIG is on. Without an instance that is another state than off: a GPU has no utilization then."""
    instances: dict[int, str]
    """Device index to UUID."""


def mig_index(gpu: int, slot: int) -> int:
    """The device index of a MIG instance."""
    return _MIG_STRIDE * (gpu + 1) + slot


def gpu_of(index: int) -> int:
    """The index of the GPU that a device is or is a part of."""
    return index if index < _MIG_STRIDE else index // _MIG_STRIDE - 1


def open_handle(binding: Any, index: int) -> Any:
    """NVML's handle of a GPU or MIG instance. Raises what the binding raises."""
    gpu = binding.nvmlDeviceGetHandleByIndex(gpu_of(index))
    return gpu if index < _MIG_STRIDE else binding.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index % _MIG_STRIDE)


def unreadable(index: int, why: str) -> Device:
    """What stands for a GPU that cannot be opened: it must be seen to be missing."""
    return Device(index, uuid=f"{UNREADABLE}{index}", name=f"GPU that {why}", pci_bus_id="")


class Identity:
    """Asks the driver what a device is; each call may block as long as the driver does."""

    def __init__(self, binding: Any, clock: Clock, sysfs_pci: Path) -> None:
        self._n = binding
        self._clock = clock
        self._sysfs_pci = sysfs_pci

    def once(self, *ways: Callable[[], T]) -> T | Absent:
        """A value that is asked for once, or why there is none."""
        try:
            return Query(Calls(self._n, self._clock), *ways).read()
        except GoneError as gone:
            return gone.absent

    def gpu(self, index: int) -> tuple[Device, ...]:
        """The GPU, then its MIG instances."""
        handle = self.once(lambda: open_handle(self._n, index))
        if isinstance(handle, Absent):
            why = handle.detail or handle.reason.name.lower().replace("_", " ")
            return (unreadable(index, f"cannot be opened ({why})"),)
        gpu = self._device(index, handle, "")
        mig = self.mig(index)
        found = ((i, self.once(partial(open_handle, self._n, i))) for i in (mig.instances if mig else ()))
        return (gpu, *(self._device(i, h, gpu.uuid) for i, h in found if not isinstance(h, Absent)))

    def mig(self, index: int) -> Mig | None:
        """The mode and the instances of a GPU; None when it cannot have any or does not say.

        Slots may be empty between others, so all are asked.
        """
        n = self._n
        handle = self.once(lambda: open_handle(n, index))
        mode = handle if isinstance(handle, Absent) else self.once(lambda: n.nvmlDeviceGetMigMode(handle))
        if isinstance(mode, Absent):
            return None
        slots = self.once(lambda: int(n.nvmlDeviceGetMaxMigDeviceCount(handle))) if mode[0] else 0
        if isinstance(slots, Absent):
            return None
        found: dict[int, str] = {}
        for slot in range(slots):
            instance = self.once(partial(n.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot))
            if not isinstance(instance, Absent):
                uuid = self.once(partial(text, n, "nvmlDeviceGetUUID", instance))
                found[mig_index(index, slot)] = uuid if isinstance(uuid, str) else ""
        return Mig(int(mode[0]), found)

    def _device(self, index: int, handle: Any, parent_uuid: str) -> Device:
        n = self._n
        name = self.once(lambda: text(n, "nvmlDeviceGetName", handle))
        uuid = self.once(lambda: text(n, "nvmlDeviceGetUUID", handle))
        bus = self.once(lambda: str(n.nvmlDeviceGetPciInfo(handle).busId))
        memory = self.once(*memory_ways(n, handle))
        limit = self.once(lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle))
        clock_max = self.once(lambda: n.nvmlDeviceGetMaxClockInfo(handle, CLOCK_SM))
        capability = self.once(lambda: n.nvmlDeviceGetCudaComputeCapability(handle))
        gpm = self.once(lambda: n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        known = not isinstance(memory, Absent)
        shown = name if isinstance(name, str) else "GPU"
        return Device(
            index,
            uuid=uuid if isinstance(uuid, str) else f"no-uuid-{bus if isinstance(bus, str) else index}",
            name=shown,
            pci_bus_id=bus if isinstance(bus, str) else "",
            architecture=self._architecture(handle),
            compute_capability=capability if isinstance(capability, Absent) else f"{capability[0]}.{capability[1]}",
            mem_total_bytes=total_of(memory),
            mem_reserved_bytes=getattr(memory, "reserved", NOT_SUPPORTED) if known else memory,
            power_limit_w=scaled(within(limit, MAX_MILLIWATT), 1000),
            sm_clock_max_mhz=within(clock_max, MAX_MHZ),
            gpm=gpm == 1,
            numa_node=numa_node(self._sysfs_pci, bus),
            parent_uuid=parent_uuid,
            mig_profile=self._profile(handle, shown) if parent_uuid else "",
            mem_shared_with_host=total_of(memory) == NOT_SUPPORTED and self._shares_memory(handle, shown),
        )

    def _architecture(self, handle: Any) -> Text:
        number = self.once(lambda: int(self._n.nvmlDeviceGetArchitecture(handle)))
        return number if isinstance(number, Absent) else ARCHITECTURES.get(number, Absent(Reason.NOT_FOUND))

    def _profile(self, handle: Any, name: str) -> str:
        """The name ends in it ("NVIDIA H200 MIG 1g.18gb"); else it is put together as NVIDIA does."""
        _, found, profile = name.partition(" MIG ")
        if found:
            return profile.strip()
        attributes = self.once(lambda: self._n.nvmlDeviceGetAttributes_v2(handle))
        if isinstance(attributes, Absent):
            return "MIG"
        return f"{attributes.gpuInstanceSliceCount}g.{-(-attributes.memorySizeMB // 1024)}gb"

    def _shares_memory(self, handle: Any, name: str) -> bool:
        """For a GPU without memory figures. A discrete one under vGPU must not be given the host's (nvtop#424)."""
        if _SHARED_NAMES.search(name):
            return True
        return self.once(lambda: self._n.nvmlDeviceGetAddressingMode(handle)) == _ATS


def numa_node(sysfs_pci: Path, bus_id: Text) -> Int:
    """The NUMA node that the GPU hangs on. NVML writes "00000000:61:00.0" where sysfs has "0000:61:00.0"."""
    if isinstance(bus_id, Absent):
        return bus_id
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((sysfs_pci / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return Absent(Reason.NOT_FOUND)
    return node if node >= 0 else Absent(Reason.NOT_FOUND)
