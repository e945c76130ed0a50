"""The conditions that gpuwatch must survive, and where each was reported.

Owns: the table. Each row is one GPU of a real daemon's node (``CASES``). The tool that compares gpuwatch with other
monitors reads it too. Refuses: running anything.

``source`` is a thread of a public issue tracker, as owner-less ``repository#number``. "nvml.h" is NVIDIA's header,
which allows the answer; "own" is a condition that we made up from a reported one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwatch.model import NOT_SUPPORTED, Absent, DeviceProcess, Reason

PID = "PID"
"""Stands in a scenario for the pid of a process that exists."""
GIB = 1 << 30
LOST = Absent(Reason.LOST, "the GPU fell off the bus")
TIMEOUT = Absent(Reason.TIMEOUT, "the driver does not answer for this GPU")
DENIED = Absent(Reason.NO_PERMISSION)
NO_MEMORY = "rc.nvmlDeviceGetMemoryInfo=3 rc.nvmlDeviceGetMemoryInfo_v2=3"


@dataclass(frozen=True)
class Case:
    """One GPU in trouble beside healthy ones."""

    name: str
    source: str
    statements: str
    """Of the fake library, for this GPU."""
    sample: Mapping[str, object] = field(default_factory=dict)
    """Field of DeviceSample to what is published in the end. ``PID`` stands for the pid."""
    device: Mapping[str, object] = field(default_factory=dict)
    """Field of Device to what the inventory says."""
    generation: str = ""
    """Of the driver: symbols that it does not have are not in the library."""
    group: str = "readings"
    """GPUs of one group and generation are in one node."""


def out_of_range(text: str) -> Absent:
    """The driver answered garbage."""
    return Absent(Reason.OUT_OF_RANGE, text)


def error(code: int) -> Absent:
    """A return code that says nothing by itself."""
    return Absent(Reason.ERROR, f"NVML error {code}")


READINGS = (
    Case(
        "a utilization of 4294967295 % is not shown",
        "DCGM#199",
        "util=4294967295 memutil=8",
        {"gpu_util_pct": out_of_range("4294967295"), "mem_util_pct": 8},
    ),
    Case(
        "a memory utilization of 200000 % is not shown",
        "DCGM#199",
        "util=97 memutil=200000",
        {"gpu_util_pct": 97, "mem_util_pct": out_of_range("200000")},
    ),
    Case(
        "a temperature of 511 °C is not shown",
        "own: the garbage of DCGM#199 elsewhere",
        "temp=511",
        {"temp_c": out_of_range("511")},
    ),
    Case(
        "a power of 4294967 W is not shown",
        "own: the garbage of DCGM#199 in another field",
        "power=4294967295",
        {"power_w": Absent(Reason.OUT_OF_RANGE, "4294967295"), "temp_c": 28},
    ),
    Case(
        "memory of 0 of 0 bytes is unknown, not empty",
        "all-smi#146",
        "total=0 reserved=0 used=0",
        {"mem_used_bytes": NOT_SUPPORTED},
        {"mem_total_bytes": NOT_SUPPORTED, "mem_shared_with_host": False},
    ),
    Case(
        "a virtual GPU shows its memory though it hides everything else",
        "HAMi#1089",
        'name="NVIDIA A40-8Q" used=4096 rc.nvmlDeviceGetUtilizationRates=3 rc.nvmlDeviceGetTemperatureV=3 '
        "rc.nvmlDeviceGetTemperature=3 rc.nvmlDeviceGetPowerUsage=3 rc.nvmlDeviceGetEnforcedPowerLimit=3 gpm=0",
        {
            "mem_used_bytes": 4096,
            "gpu_util_pct": NOT_SUPPORTED,
            "power_w": NOT_SUPPORTED,
            "temp_c": NOT_SUPPORTED,
            "sm_active_pct": NOT_SUPPORTED,
        },
        {"power_limit_w": NOT_SUPPORTED},
    ),
    Case(
        "an idle GPU whose process list is empty has no processes, which is not an error",
        "nvml.h: an empty list is an answer",
        "procs=none",
        {"processes": (), "processes_absent": None},
    ),
    Case(
        "a card of 1200 W keeps its limit",
        "nvitop 1.6.2, release notes",
        "limit=1200000",
        {"power_w": 76.0},
        {"power_limit_w": 1200.0},
    ),
    Case(
        "a name that is not UTF-8 is shown with replacement characters",
        "own: gpustat 1.1.1 ends on it",
        r'name="NVIDIA \xff\xfe Bad"',
        {"power_w": 76.0},
        {"name": "NVIDIA �� Bad"},
    ),
    Case(
        "a GPU that hides its UUID keeps a name of its own",
        "own: the code of nvitop#145 for one call",
        "rc.nvmlDeviceGetUUID=999 pci=00000000:A1:00.0",
        {"power_w": 76.0},
        {"uuid": "no-uuid-00000000:A1:00.0"},
    ),
    Case(
        "a slow driver is waited for",
        "MangoHud#2104",
        "latency.nvmlDeviceGetTemperatureV=150000 temp=44",
        {"temp_c": 44},
    ),
    Case(
        "memory that only root may see is not zero",
        "nvidia-container-toolkit#842",
        "rc.nvmlDeviceGetMemoryInfo_v2=4",
        {"mem_used_bytes": DENIED, "power_w": 76.0},
    ),
    Case(
        "a call that the driver lost is replaced by the older one",
        "nvidia_gpu_exporter#476",
        f"rc.nvmlDeviceGetComputeRunningProcesses_v3=13 procs={PID}:7:C",
        {"processes": (DeviceProcess(0, 7, "C"),), "processes_absent": None},
    ),
    Case(
        "memory calls of a newer layout fall back to the older one",
        "nvitop#13",
        "rc.nvmlDeviceGetMemoryInfo_v2=25 used=1000 reserved=24",
        {"mem_used_bytes": 1024},
    ),
    Case(
        "a call that was removed is not supported, not an error",
        "nvml.h: code 26 of calls that CUDA 14 removes",
        "rc.nvmlDeviceGetCurrentClocksEventReasons=26",
        {"clocks_event_reasons": NOT_SUPPORTED, "sm_clock_mhz": 345},
    ),
)

PROCESSES = (
    Case(
        "pids 0 and 4294967295 are not processes",
        "nvitop#75",
        f"procs=0:5:C,4294967295:5:C,{PID}:100:C,4294967295:9:G",
        {"processes": (DeviceProcess(0, 100, "C"),), "processes_absent": None},
    ),
    Case(
        "a pid that is listed three times is one process",
        "nvitop#181",
        f"procs={PID}:100:C,{PID}:100:C,{PID}:100:C",
        {"processes": (DeviceProcess(0, 100, "C"),)},
    ),
    Case(
        "a process that computes and draws is one process",
        "nvml.h: a process may be in both lists",
        f"procs={PID}:100:CG",
        {"processes": (DeviceProcess(0, 100, "CG"),)},
    ),
    Case(
        "a process whose memory is unknown does not hold 17 EB",
        "nvtop#432",
        f"procs={PID}:na:C",
        {"processes": (DeviceProcess(0, NOT_SUPPORTED, "C"),), "mem_used_bytes": 0},
    ),
    Case(
        "a process list that grows while it is read is read again",
        "gpustat#161",
        f"procs={PID}:1:C rc.nvmlDeviceGetComputeRunningProcesses_v3=0,7,0",
        {"processes": (DeviceProcess(0, 1, "C"),), "processes_absent": None},
    ),
    Case(
        "a process list that is refused is not an empty one",
        "nvml.h: NO_PERMISSION",
        "rc.nvmlDeviceGetComputeRunningProcesses_v3=4",
        {"processes": (), "processes_absent": DENIED, "power_w": 76.0},
    ),
    Case(
        "a card without a display has a complete list",
        "nvml.h: NOT_SUPPORTED",
        f"procs={PID}:3:C rc.nvmlDeviceGetGraphicsRunningProcesses_v3=3",
        {"processes": (DeviceProcess(0, 3, "C"),), "processes_absent": None},
    ),
    Case(
        "a process that ended is no reason to fail",
        "gpustat#95",
        "procs=4194303:100:C",
        {"processes": (DeviceProcess(4194303, 100, "C"),), "processes_absent": None},
    ),
)

COUNTERS = (
    Case(
        "counters that the driver refuses by version are an error that names the code",
        "gpud#450",
        "rc.nvmlGpmMetricsGet=25",
        {"sm_active_pct": error(25), "power_w": 76.0},
    ),
    Case(
        "counters that the card has not are not supported",
        "nvidia_gpu_exporter#466",
        "rc.nvmlGpmSampleGet=3",
        {"sm_active_pct": NOT_SUPPORTED, "gpu_util_pct": 0},
    ),
    Case(
        "SM activity of 129 % is not shown",
        "DCGM#152",
        "gpm.2=129 gpm.10=17",
        {"sm_active_pct": out_of_range("129 %"), "dram_active_pct": 17.0},
    ),
    Case(
        "a counter that is not a number is blank beside the others",
        "slurm-job-exporter#30",
        "gpm.2=12.5 gpm.10=nan gpm.5=140737488355328",
        {
            "sm_active_pct": 12.5,
            "dram_active_pct": out_of_range("nan"),
            "tensor_active_pct": out_of_range("1.40737e+14 %"),
        },
    ),
    Case(
        "Ampere has utilization and says that it has no counters",
        "DCGM#106",
        "gpm=0 arch=7 cc=8.0 util=50",
        {"sm_active_pct": NOT_SUPPORTED, "gpu_util_pct": 50},
        {"gpm": False, "architecture": "Ampere"},
    ),
    Case(
        "one failed counter reading does not end the counters",
        "wandb: one failure ends GPM for good there",
        "gpm.2=95 rc.nvmlGpmSampleGet=0,999,0",
        {"sm_active_pct": 95.0},
    ),
)

LOSSES = (
    Case(
        "a GPU that fell off the bus stays in the list and says so",
        "nvitop#139",
        "rc.*=15",
        {"power_w": LOST, "gpu_util_pct": LOST, "processes_absent": LOST},
        {"uuid": "unreadable-INDEX"},
    ),
    Case(
        "a GPU that needs a reset says so",
        "gpud#604",
        "rc.*=16",
        {"power_w": Absent(Reason.LOST, "the GPU needs a reset")},
    ),
    Case(
        "a GPU that is not found any more says so",
        "nvidia_gpu_exporter: one of its codes for a reset",
        "rc.*=28",
        {"power_w": Absent(Reason.LOST, "the GPU is not there any more")},
    ),
    Case(
        "a GPU that may not be opened says so, and the others are shown",
        "gpustat#102",
        "rc.nvmlDeviceGetHandleByIndex_v2=4",
        {"power_w": DENIED, "mem_used_bytes": DENIED},
        {"name": "GPU that cannot be opened (no permission)"},
    ),
    Case(
        "a GPU whose handle is an unknown error does not shift the numbers of the others",
        "koordinator#2706",
        "rc.nvmlDeviceGetHandleByIndex_v2=999",
        {"power_w": error(999)},
        {"uuid": "unreadable-INDEX"},
    ),
    Case(
        "a GPU that answers every question with an unknown error says so",
        "nvidia-container-toolkit#1227",
        "rc.*=999 rc.nvmlDeviceGetHandleByIndex_v2=0",
        {"power_w": error(999), "mem_used_bytes": error(999)},
    ),
    Case(
        "a GPU that hangs in its first reading is listed as not answering",
        "gpud#500",
        "hang.nvmlDeviceGetUtilizationRates=1",
        {"power_w": TIMEOUT, "mem_used_bytes": TIMEOUT, "processes_absent": TIMEOUT},
        {"name": "NVIDIA H200"},
    ),
    Case(
        "a GPU that cannot even be opened is listed as not answering",
        "NVSentinel#1576",
        "hang.nvmlDeviceGetHandleByIndex_v2=1",
        {"power_w": TIMEOUT},
        {"name": "GPU that does not answer"},
    ),
)

UNIFIED = (
    Case(
        "a GB10 shows what its processes hold of the machine's memory",
        "nvitop#208",
        f'name="NVIDIA GB10" arch=10 procs={PID}:{8 * GIB}:C {NO_MEMORY} rc.nvmlDeviceGetEnforcedPowerLimit=3',
        {"mem_used_bytes": 8 * GIB},
        {"mem_shared_with_host": True, "power_limit_w": NOT_SUPPORTED, "mem_reserved_bytes": NOT_SUPPORTED},
    ),
    Case(
        "a GB10 that answers 0 of 0 bytes is treated alike",
        "all-smi#146",
        f'name="NVIDIA GB10" total=0 reserved=0 procs={PID}:5:C',
        {"mem_used_bytes": 5},
        {"mem_shared_with_host": True},
    ),
    Case(
        "a GB10 whose processes hide their memory does not claim 0 bytes",
        "nvtop#426",
        f'name="NVIDIA GB10" procs={PID}:na:C {NO_MEMORY}',
        {"mem_used_bytes": NOT_SUPPORTED},
        {"mem_shared_with_host": True},
    ),
    Case(
        "an Orin that supports next to nothing is still listed",
        "nvtop#511",
        'name="Orin (nvgpu)" rc.*=3 rc.nvmlDeviceGetName=0 rc.nvmlDeviceGetUUID=0 rc.nvmlDeviceGetHandleByIndex_v2=0',
        {"mem_used_bytes": NOT_SUPPORTED, "power_w": NOT_SUPPORTED, "gpu_util_pct": NOT_SUPPORTED},
        {"name": "Orin (nvgpu)", "mem_shared_with_host": True},
    ),
    Case(
        "a GH200 without memory figures is known by its page tables",
        "nvtop#466",
        f'name="NVIDIA Superchip" addressing=2 procs={PID}:6:C {NO_MEMORY}',
        {"mem_used_bytes": 6},
        {"mem_shared_with_host": True},
    ),
    Case(
        "a discrete GPU without memory figures is not given the host's memory",
        "nvtop#424",
        f'name="NVIDIA A10" addressing=1 procs={PID}:6:C {NO_MEMORY}',
        {"mem_used_bytes": NOT_SUPPORTED},
        {"mem_shared_with_host": False, "mem_total_bytes": NOT_SUPPORTED},
    ),
)


def of_generation(generation: str, source: str, name: str, sample: Mapping[str, object], **device: object) -> Case:
    """A healthy card under an old driver."""
    statements = f"util=50 used=1000 reserved=24 temp=44 reasons=8 gpm.2=95 procs={PID}:7:C,{PID}:7:G"
    return Case(f"{name} ({generation})", source, statements, sample, device, generation, "generation")


OLD_DRIVERS = (
    of_generation("470", "gpustat#141", "memory without version 2 counts the driver's share", {"mem_used_bytes": 1024}),
    of_generation(
        "470",
        "nvidia_gpu_exporter#476",
        "processes come by the older call",
        {"processes": (DeviceProcess(0, 7, "CG"),)},
    ),
    of_generation(
        "470", "k8s-device-plugin#331", "throttle reasons go by their older name", {"clocks_event_reasons": 8}
    ),
    of_generation("470", "nvtop#483", "there are no counters", {"sm_active_pct": NOT_SUPPORTED}, gpm=False),
    of_generation("525", "nvitop#13", "memory has version 2", {"mem_used_bytes": 1000}),
    of_generation(
        "525", "k8s-device-plugin#331", "throttle reasons go by their older name", {"clocks_event_reasons": 8}
    ),
    of_generation("525", "nvtop#483", "there are counters", {"sm_active_pct": 95.0}, gpm=True),
    of_generation(
        "535", "nvidia_gpu_exporter#476", "temperature comes by the older call", {"temp_c": 44, "gpu_util_pct": 50}
    ),
    Case(
        "a driver that writes longer entries neither loses processes nor mixes their memory (535.43)",
        "nvitop#88",
        f"procs={PID}:5368709120:C,4194301:6368709120:C,4194302:na:CG,4194303:4297064448:C",
        {
            "processes": (
                DeviceProcess(0, 5368709120, "C"),
                DeviceProcess(4194301, 6368709120, "C"),
                DeviceProcess(4194302, NOT_SUPPORTED, "CG"),
                DeviceProcess(4194303, 4297064448, "C"),
            ),
            "processes_absent": None,
        },
        generation="535.43",
        group="generation",
    ),
    of_generation("535", "nvtop#483", "there are counters and processes", {"sm_active_pct": 95.0}),
)

CASES: tuple[Case, ...] = (
    *READINGS,
    *(Case(**{**vars(case), "group": "processes"}) for case in (*PROCESSES, *COUNTERS)),
    *(Case(**{**vars(case), "group": "losses"}) for case in LOSSES),
    *(Case(**{**vars(case), "group": "unified"}) for case in UNIFIED),
    *OLD_DRIVERS,
)


def nodes() -> dict[tuple[str, str], tuple[Case, ...]]:
    """(group, generation) to its cases: GPU 0 of such a node is healthy, the cases follow from GPU 1 on."""
    found: dict[tuple[str, str], tuple[Case, ...]] = {}
    for case in CASES:
        key = (case.group, case.generation)
        found[key] = (*found.get(key, ()), case)
    return found


def scenario_of(cases: tuple[Case, ...], pid: int) -> str:
    """The scenario text of a node."""
    lines = [f"gpus={len(cases) + 1}"]
    lines += [f"gpu {n} {case.statements.replace(PID, str(pid))}" for n, case in enumerate(cases, 1)]
    return "\n".join(lines) + "\n"
