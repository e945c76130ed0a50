"""What NVML's numbers mean: return codes, GPM metric ids, architectures.

Owns: our own numeric tables. Refuses: pynvml, calls. Ids are decided by the driver, names by the binding, and the
binding has renamed and mistyped ids between releases, so no id is ever taken from a name there.
"""

from __future__ import annotations

from typing import Final

from gpuwatch.model import Absent, DeviceSample, DriverState, Reason

# Return codes that we act on (nvml.h, nvmlReturn_t).
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
OPERATING_SYSTEM: Final = 17
LIB_RM_VERSION_MISMATCH: Final = 18
VERSION_MISMATCH: Final = 25
GPU_NOT_FOUND: Final = 28
UNKNOWN: Final = 999

LOST_CODES: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
"""This GPU is gone; the others are not."""
DRIVER_CODES: Final = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
"""The driver went away under us (reload, upgrade): handles are stale, NVML must be opened again."""
PERMANENT_CODES: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})
"""Answers that hold for a mode: asked again after ten minutes, in another mode or after a loss. All others at once."""
FALLBACK_CODES: Final = frozenset({FUNCTION_NOT_FOUND, VERSION_MISMATCH})
"""An older driver without this call, or with an older struct: the older call is tried."""

VALUE_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t to the member of nvmlValue_t that holds the number."""

_REASONS: Final = {
    NOT_SUPPORTED: Reason.NOT_SUPPORTED,
    FUNCTION_NOT_FOUND: Reason.NOT_SUPPORTED,
    26: Reason.NOT_SUPPORTED,  # deprecated and removed
    NO_PERMISSION: Reason.NO_PERMISSION,
    NOT_FOUND: Reason.NOT_FOUND,
    21: Reason.NOT_FOUND,  # no data
    TIMEOUT: Reason.TIMEOUT,
    GPU_IS_LOST: Reason.LOST,
    RESET_REQUIRED: Reason.LOST,
    GPU_NOT_FOUND: Reason.LOST,
    UNINITIALIZED: Reason.DRIVER,
    DRIVER_NOT_LOADED: Reason.DRIVER,
    LIBRARY_NOT_FOUND: Reason.DRIVER,
    LIB_RM_VERSION_MISMATCH: Reason.DRIVER,
}

_DETAILS: Final = {
    GPU_IS_LOST: "the GPU fell off the bus",
    RESET_REQUIRED: "the GPU needs a reset",
    GPU_NOT_FOUND: "the GPU is not there any more",
    UNINITIALIZED: "the driver was reloaded",
    DRIVER_NOT_LOADED: "the driver was unloaded",
    LIB_RM_VERSION_MISMATCH: "the driver was upgraded under a running gpuwatch",
}


def absent_for(code: int) -> Absent:
    """The reading that an NVML return code stands for. Only codes that say nothing by themselves have a detail."""
    reason = _REASONS.get(code, Reason.ERROR)
    return Absent(reason, _DETAILS.get(code, f"NVML error {code}" if reason is Reason.ERROR else ""))


_HINTS: Final = {
    LIBRARY_NOT_FOUND: (
        DriverState.NO_LIBRARY,
        "libnvidia-ml.so.1 is not on this machine: install the NVIDIA driver, "
        "or start the container with GPU access (--gpus all)",
    ),
    DRIVER_NOT_LOADED: (
        DriverState.NO_DRIVER,
        "the NVIDIA kernel module is not loaded: try 'modprobe nvidia' as root; 'dmesg | grep NVRM' says why it fails",
    ),
    LIB_RM_VERSION_MISMATCH: (
        DriverState.MISMATCH,
        "the NVIDIA library and the loaded kernel module are of different versions (upgraded without a reboot): "
        "reboot, or reload the nvidia modules, then restart gpuwatch",
    ),
    NO_PERMISSION: (
        DriverState.NO_PERMISSION,
        "no permission to open /dev/nvidia*: check their mode and group ('ls -l /dev/nvidia*'), "
        "or the container's device rules",
    ),
    UNKNOWN: (
        DriverState.UNKNOWN,
        "NVML answers 'unknown error' (999): a container loses its GPUs this way after 'systemctl daemon-reload' on "
        "the host, recreate it (CDI or native.cgroupdriver=cgroupfs avoids it); on a host see 'dmesg | grep NVRM'",
    ),
}


def driver_state_for(code: int) -> tuple[DriverState, str]:
    """What a failed ``nvmlInit`` means, and one sentence for a person with the remedy."""
    if code == OPERATING_SYSTEM:
        # The same loss of device rights shows as 17 on some driver versions.
        return _HINTS[UNKNOWN]
    return _HINTS.get(code) or (
        DriverState.UNKNOWN,
        f"NVML does not start (error {code}): 'nvidia-smi' and 'dmesg | grep NVRM' say more",
    )


NO_DEVICES_HINT: Final = (
    "NVML works and shows no GPU: give the container a GPU (--gpus all), or check 'nvidia-smi -L' on the host"
)
WRONG_BINDING_HINT: Final = (
    "another package provides the module 'pynvml' here: 'pip uninstall pynvml nvidia-ml-py3 py3nvml', "
    "then 'pip install --force-reinstall nvidia-ml-py'"
)
NO_BINDING_HINT: Final = "the Python package nvidia-ml-py is not installed: 'pip install nvidia-ml-py'"


def broken_binding_hint(error: Exception) -> str:
    """The module 'pynvml' is there and cannot be imported: another package's, half installed, or of another Python."""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return (
        f"the module 'pynvml' is installed and cannot be imported ({why}): "
        "'pip uninstall pynvml nvidia-ml-py3 py3nvml', then 'pip install --force-reinstall nvidia-ml-py'"
    )


ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

MIB: Final = 1024 * 1024

GPM_METRICS: Final = {
    "busy_pct": (1, 1),
    "sm_active_pct": (2, 1),
    "sm_occupancy_pct": (3, 1),
    "tensor_active_pct": (5, 1),
    "fp64_active_pct": (11, 1),
    "fp32_active_pct": (12, 1),
    "fp16_active_pct": (13, 1),
    "dram_active_pct": (10, 1),
    "pcie_rx_bytes_per_s": (21, MIB),
    "pcie_tx_bytes_per_s": (20, MIB),
    "nvlink_rx_bytes_per_s": (60, MIB),
    "nvlink_tx_bytes_per_s": (61, MIB),
}
"""Field of DeviceSample: (GPM metric id, factor). PCIe has tx first, NVLink rx first; rates come in MiB/s."""

GPM_ENGINES: Final = {
    "encoder_util_pct": (166, 167, 168, 169),
    "decoder_util_pct": tuple(range(30, 38)),
    "jpeg_util_pct": tuple(range(40, 48)),
    "ofa_util_pct": (50, 51),
}
"""Field of DeviceHealth: GPM metric ids of the units of one kind."""

READING_FIELDS: Final = (
    "gpu_util_pct",
    "mem_util_pct",
    "mem_used_bytes",
    "power_w",
    "temp_c",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "clocks_event_reasons",
)
"""Fields of DeviceSample that come from calls other than GPM."""


def blank_sample(index: int, mono_ns: int, absent: Absent, nvml_ns: int = 0) -> DeviceSample:
    """A sample in which every reading is absent for one reason: a lost GPU still reports."""
    fields: dict[str, Absent] = dict.fromkeys((*READING_FIELDS, *GPM_METRICS), absent)
    return DeviceSample(index, mono_ns, **fields, processes_absent=absent, nvml_ns=nvml_ns)  # type: ignore[arg-type]
