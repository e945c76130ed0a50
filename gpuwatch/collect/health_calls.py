"""The single calls behind the slow readings of one GPU.

Owns: which call gives what, and which part of its answer. Refuses: importing pynvml, deciding when to call.
PcieThroughput (20 ms a direction) and the InfoROM checksum (70 ms) are never made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from gpuwatch.collect.nvml_calls import CLOCK_MEM, CLOCK_SM, Calls, Query, within
from gpuwatch.collect.topology import cpu_affinity
from gpuwatch.model import NOT_SUPPORTED, Absent, Int

CLOCK_GRAPHICS: Final = 0
CLOCK_VIDEO: Final = 3
THRESHOLDS: Final = {"temp_shutdown_c": 0, "temp_slowdown_c": 1, "temp_mem_max_c": 2, "temp_gpu_max_c": 3}
_FABRIC_V2: Final = 0x02000024


class Fabric(NamedTuple):
    """Of a GPU behind NVSwitches."""

    state: int
    status: int
    health: int


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t. Ours: bindings have had other names for it, and a wrong width of its mask."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("health", ctypes.c_uint32),
    )


def fabric_info(n: Any, handle: Any) -> Fabric:
    """Raises what the binding raises."""
    info = _FabricInfo(version=_FABRIC_V2)
    code = n._nvmlGetFunctionPointer("nvmlDeviceGetGpuFabricInfoV")(handle, ctypes.byref(info))
    if code != 0:
        raise n.NVMLError(code)
    return Fabric(info.state, info.status, info.health)


class HealthCalls:
    """One query for each reading."""

    def __init__(self, calls: Calls, handle: Any) -> None:
        n, h = calls.n, handle
        self._calls, self._handle = calls, handle

        def query(call: Callable[[], int]) -> Query[int]:
            return Query(calls, lambda: int(call()))

        self.encoder = query(lambda: n.nvmlDeviceGetEncoderUtilization(h)[0])
        self.decoder = query(lambda: n.nvmlDeviceGetDecoderUtilization(h)[0])
        self.jpeg = query(lambda: n.nvmlDeviceGetJpgUtilization(h)[0])
        self.ofa = query(lambda: n.nvmlDeviceGetOfaUtilization(h)[0])
        self.pstate = query(lambda: n.nvmlDeviceGetPerformanceState(h))
        self.pcie_gen = query(lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(h))
        self.pcie_width = query(lambda: n.nvmlDeviceGetCurrPcieLinkWidth(h))
        self.pcie_gen_max = query(lambda: n.nvmlDeviceGetMaxPcieLinkGeneration(h))
        self.pcie_width_max = query(lambda: n.nvmlDeviceGetMaxPcieLinkWidth(h))
        self.energy = query(lambda: n.nvmlDeviceGetTotalEnergyConsumption(h))
        self.margin = query(lambda: n.nvmlDeviceGetMarginTemperature(h))
        self.bar1 = Query(calls, lambda: n.nvmlDeviceGetBAR1MemoryInfo(h))
        self.remapped = Query(calls, lambda: tuple(int(v) for v in n.nvmlDeviceGetRemappedRows(h)))
        self.ecc = query(lambda: n.nvmlDeviceGetEccMode(h)[0])
        self.persistence = query(lambda: n.nvmlDeviceGetPersistenceMode(h))
        self.compute_mode = query(lambda: n.nvmlDeviceGetComputeMode(h))
        self.mig = query(lambda: n.nvmlDeviceGetMigMode(h)[0])
        self.power_limit = query(lambda: n.nvmlDeviceGetEnforcedPowerLimit(h))
        self.sm_max = query(lambda: n.nvmlDeviceGetMaxClockInfo(h, CLOCK_SM))
        self.mem_max = query(lambda: n.nvmlDeviceGetMaxClockInfo(h, CLOCK_MEM))
        self.reasons_supported = Query(
            calls,
            lambda: int(n.nvmlDeviceGetSupportedClocksEventReasons(h)),
            lambda: int(n.nvmlDeviceGetSupportedClocksThrottleReasons(h)),
        )
        self.virtualization = query(lambda: n.nvmlDeviceGetVirtualizationMode(h))
        self.confidential = query(lambda: n.nvmlSystemGetConfComputeState().ccFeature)
        self.graphics_clock = query(lambda: n.nvmlDeviceGetClockInfo(h, CLOCK_GRAPHICS))
        self.video_clock = query(lambda: n.nvmlDeviceGetClockInfo(h, CLOCK_VIDEO))
        self.thresholds = {
            name: query(partial(n.nvmlDeviceGetTemperatureThreshold, h, number)) for name, number in THRESHOLDS.items()
        }
        self.fabric = Query(calls, lambda: fabric_info(n, h))
        self.affinity = Query(calls, lambda: cpu_affinity(n, h))
        self._fan_count = query(lambda: n.nvmlDeviceGetNumFans(h))
        self._fans: Sequence[Query[int]] | None = None

    def fastest_fan(self) -> Int:
        """Percent. A card that is cooled by its case has no fan: NOT_SUPPORTED."""
        if self._fans is None:
            count = self._fan_count.read()
            if isinstance(count, Absent):
                return count
            call, handle = self._calls.n.nvmlDeviceGetFanSpeed_v2, self._handle
            self._fans = [Query(self._calls, _fan(call, handle, fan)) for fan in range(min(count, 16))]
        speeds = [within(fan.read(), 200) for fan in self._fans]
        known = [speed for speed in speeds if not isinstance(speed, Absent)]
        return max(known) if known else next(iter(speeds), NOT_SUPPORTED)


def _fan(call: Callable[[Any, int], int], handle: Any, fan: int) -> Callable[[], int]:
    return lambda: int(call(handle, fan))
