"""What the slow readings of a GPU say that a person must know: in words, for the text and for the screens.

Owns: which of them are worth a word, and the words. Refuses: where they go, colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuwatch import units
from gpuwatch.export.cells import clean
from gpuwatch.model import CounterGrowth, DeviceHealth, Num, value_or

DUTY_FROM: Final = 0.005
"""Of the time: GPU Boost touches its limits for moments all the time."""
NEAR_LIMIT_C: Final = 5
ERRORS_NAMED: Final = 4

_HELD_BACK: Final = (
    ("throttle_power_cap_share", "power cap"),
    ("throttle_sw_thermal_share", "temperature (software)"),
    ("throttle_hw_thermal_share", "temperature (hardware)"),
    ("throttle_power_brake_share", "external power brake"),
    ("throttle_board_limit_share", "the board's limit"),
    ("throttle_reliability_share", "the reliable voltage"),
    ("throttle_sync_boost_share", "sync boost"),
)
_ERRORS: Final = {
    "ecc_volatile_corrected": "corrected memory errors",
    "ecc_volatile_uncorrected": "memory errors not corrected",
    "retired_pages_corrected": "pages retired",
    "retired_pages_uncorrected": "pages retired (not corrected)",
    "remapped_correctable": "rows remapped",
    "remapped_uncorrectable": "rows remapped (not corrected)",
    "pcie_replays": "PCIe replays",
    "pcie_replay_rollovers": "PCIe replay rollovers",
    "pcie_correctable_errors": "PCIe correctable errors",
    "pcie_naks_received": "PCIe NAKs received",
    "pcie_receiver_errors": "PCIe receiver errors",
    "pcie_bad_tlps": "bad PCIe packets",
    "pcie_naks_sent": "PCIe NAKs sent",
    "pcie_bad_dllps": "bad PCIe link packets",
    "pcie_nonfatal_errors": "PCIe non-fatal errors",
    "pcie_fatal_errors": "PCIe fatal errors",
    "pcie_unsupported_requests": "unsupported PCIe requests",
    "pcie_lcrc_errors": "PCIe checksum errors",
    "pcie_lane_errors": "PCIe lane errors",
    "nvlink_crc_flit_errors": "NVLink checksum errors (flits)",
    "nvlink_crc_data_errors": "NVLink checksum errors (data)",
    "nvlink_replays": "NVLink replays",
    "nvlink_recoveries": "NVLink recoveries",
    "nvlink_ecc_errors": "NVLink ECC errors",
    "nvlink_link_replays": "NVLink replays",
    "nvlink_link_recoveries": "NVLink recoveries",
    "nvlink_link_crc_errors": "NVLink checksum errors",
    "nvlink_link_failed_recoveries": "failed NVLink recoveries",
    "nvlink_link_receive_errors": "NVLink packets with errors",
    "nvlink_link_integrity_errors": "NVLink integrity errors",
    "nvlink_link_discards": "NVLink packets discarded",
}
_COMPUTE_MODES: Final = {
    1: "compute mode exclusive thread",
    2: "compute mode prohibited: no CUDA program can start here",
    3: "compute mode exclusive: one process at a time",
}
_VIRTUALIZATION: Final = {
    1: "passed through to this virtual machine",
    2: "a vGPU of this virtual machine",
    3: "host of vGPUs",
    4: "host of vGPUs",
}
_RECOVERY: Final = {1: "a reset", 2: "a reboot", 3: "that its peers are drained", 4: "to be drained and reset",
                    5: "a restart of its IMEX domain", 6: "a bus reset", 7: "a reboot of the system"}  # fmt: skip


_FABRIC_HEALTH: Final = (
    (0, "reduced bandwidth"),
    (2, "its routes are being recovered"),
    (4, "its routes are unhealthy"),
    (6, "recovering from a timeout"),
)
"""Two bits each: 0 not told, 1 so, 2 not so (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*)."""


def duty(health: DeviceHealth) -> list[tuple[str, float]]:
    """What held the clocks down since the previous reading, and for what share of the time; the most first."""
    found = [(name, share) for field, name in _HELD_BACK if (share := _number(getattr(health, field))) >= DUTY_FROM]
    thermal = _number(health.throttle_thermal_share)
    if thermal >= DUTY_FROM and not any(name.startswith("temperature") for name, _ in found):
        # Older drivers count both kinds together.
        found.append(("temperature", thermal))
    return sorted(found, key=lambda item: -item[1])


def duty_text(health: DeviceHealth) -> str:
    """ "power cap 62 %, temperature (hardware) 3 %", or ""."""
    return ", ".join(f"{name} {units.pct_text(100 * share)}" for name, share in duty(health))


def error_text(growth: CounterGrowth) -> str:
    """ "+12 PCIe replays"."""
    return f"+{growth.count} {_ERRORS.get(growth.counter, clean(growth.counter).replace('_', ' '))}"


def errors_text(health: DeviceHealth) -> str:
    """ "+12 PCIe replays in 10 min", or ""."""
    if not health.grown:
        return ""
    told = ", ".join(map(error_text, health.grown[:ERRORS_NAMED]))
    more = f" and {len(health.grown) - ERRORS_NAMED} more counters" if len(health.grown) > ERRORS_NAMED else ""
    return f"{told}{more} in {units.seconds_text(health.grown_window_ns / 1e9)}"


def warnings(health: DeviceHealth) -> Iterator[str]:
    """What somebody should do something about."""
    if errors := errors_text(health):
        yield errors
    if _number(health.remap_failed) or _number(health.remap_pending) or _number(health.retired_pages_pending):
        failed = _number(health.remap_failed)
        yield "faulty memory could not be replaced" if failed else "faulty memory is replaced at the next reset"
    yield from _fabric(health)
    action = int(_number(health.recovery_action))
    if action:
        yield f"the driver asks for {_RECOVERY.get(action, f'recovery action {action}')}"


def _fabric(health: DeviceHealth) -> Iterator[str]:
    """Why CUDA does not start on a machine with NVSwitches."""
    state = int(_number(health.fabric_state))
    if state in (1, 2):
        how = "not started" if state == 1 else "being set up"
        yield f"the NVLink fabric is {how}: CUDA fails with error 802 until it is ready (nvidia-fabricmanager)"
    elif state == 3 and _number(health.fabric_status):
        yield f"the NVLink fabric could not be set up (NVML error {health.fabric_status})"
    bits = int(_number(health.fabric_health))
    ill = [text for shift, text in _FABRIC_HEALTH if bits >> shift & 3 == 1]
    if ill:
        yield f"the NVLink fabric: {', '.join(ill)}"


def modes(health: DeviceHealth) -> Iterator[str]:
    """Settings that are not the usual ones, and what they mean."""
    if health.persistence_mode == 0:
        yield "persistence mode off: each first start of CUDA takes seconds"
    if text := _COMPUTE_MODES.get(int(_number(health.compute_mode))):
        yield text
    down, links = _number(health.nvlink_links_down), _number(health.nvlink_links)
    if 0 < down < links:
        # All of them: a card without a bridge, which is no news.
        yield f"{down:.0f} of {links:.0f} NVLinks do not run"
    if health.confidential_compute == 1:
        yield "confidential computing: performance counters are off"
    if text := _VIRTUALIZATION.get(int(_number(health.virtualization))):
        yield text


def margin_text(margin: int) -> str:
    """The distance to the nearest slowdown (T.Limit)."""
    if margin < 0:
        return f"{units.celsius_text(-margin)} beyond the slowdown temperature"
    return f"{units.celsius_text(margin)} left to the slowdown temperature"


def _number(reading: Num) -> float:
    return value_or(reading, 0.0)
