"""Our own table of NVML field ids, gated by the driver's version.

Owns: which id means what on which driver, how its union is to be read, units. Refuses: calls, pynvml.

The binding's names are no help: releases 12.575 to 13.580.65 call 251 to 253 what later ones call 269 to 271, and a
driver of the other generation answers those ids with something else (power smoothing), without an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpuwatch.collect.nvml_calls import MAX_MILLIWATT
from gpuwatch.model import Absent, Text

ALL_LINKS: Final = 0xFFFFFFFF
MEMORY_SCOPE: Final = 2

Version = tuple[int, ...]

AUTO: Final = -1
U32: Final = 1
I32: Final = 5


class Field(NamedTuple):
    """One value that ``nvmlDeviceGetFieldValues`` can give."""

    name: str
    id: int
    scope: int = 0
    kind: int = AUTO
    """How to read the union; AUTO takes the driver's own ``valueType``."""
    since: Version = ()
    """First driver version on which the id means this."""
    until: Version = ()
    """First driver version on which it no longer does."""
    limit: int = 0
    """Above this the driver has answered garbage; 0: any value can be true."""


_RENUMBERED: Final = (580, 82)
_FIRST: Final = (575, 51)

MOVING: Final = (
    Field("power_avg_mw", 185, limit=MAX_MILLIWATT),
    Field("power_instant_mw", 186, limit=MAX_MILLIWATT),
    Field("power_memory_mw", 186, MEMORY_SCOPE, limit=MAX_MILLIWATT),
    # Driver 545 says "double" and fills the integer.
    Field("mem_temp_c", 82, kind=U32, limit=200),
    Field("throttle_power_cap", 74),
    Field("throttle_thermal", 75),
    Field("throttle_sync_boost", 76),
    Field("throttle_board_limit", 77),
    Field("throttle_reliability", 79),
    Field("throttle_sw_thermal", 251, since=_FIRST, until=_RENUMBERED),
    Field("throttle_hw_thermal", 252, since=_FIRST, until=_RENUMBERED),
    Field("throttle_power_brake", 253, since=_FIRST, until=_RENUMBERED),
    Field("throttle_sw_thermal", 269, since=_RENUMBERED),
    Field("throttle_hw_thermal", 270, since=_RENUMBERED),
    Field("throttle_power_brake", 271, since=_RENUMBERED),
    Field("pcie_tx_bytes", 197),
    Field("pcie_rx_bytes", 198),
    Field("nvlink_tx_kib", 138, ALL_LINKS),
    Field("nvlink_rx_kib", 139, ALL_LINKS),
)
"""Levels and counters whose growth is a rate: throttling in nanoseconds, NVLink in KiB."""

THROTTLES: Final = (
    "power_cap",
    "thermal",
    "sync_boost",
    "board_limit",
    "reliability",
    "sw_thermal",
    "hw_thermal",
    "power_brake",
)

COUNTERS: Final = (
    Field("ecc_volatile_corrected", 3),
    Field("ecc_volatile_uncorrected", 4),
    Field("ecc_aggregate_corrected", 5),
    Field("ecc_aggregate_uncorrected", 6),
    Field("retired_pages_corrected", 29),
    Field("retired_pages_uncorrected", 30),
    Field("retired_pages_pending", 31),
    Field("recovery_action", 230),
    Field("pcie_replays", 94),
    Field("pcie_replay_rollovers", 95),
    Field("pcie_to_recovery", 169),
    Field("pcie_correctable_errors", 173),
    Field("pcie_naks_received", 174),
    Field("pcie_receiver_errors", 175),
    Field("pcie_bad_tlps", 176),
    Field("pcie_naks_sent", 177),
    Field("pcie_bad_dllps", 178),
    Field("pcie_nonfatal_errors", 179),
    Field("pcie_fatal_errors", 180),
    Field("pcie_unsupported_requests", 181),
    Field("pcie_lcrc_errors", 182),
    Field("pcie_lane_errors", 183),
    Field("nvlink_links", 91),
    Field("nvlink_link_mbytes_per_s", 90),
    Field("nvlink_crc_flit_errors", 38),
    Field("nvlink_crc_data_errors", 45),
    Field("nvlink_replays", 52),
    Field("nvlink_recoveries", 59),
    Field("nvlink_ecc_errors", 160),
)
"""What changes once in a long while. Names are those of DeviceHealth."""

LINK_STATE: Final = 165
LINK_ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "nvlink_link_replays": (161,),
    "nvlink_link_recoveries": (162, 215),
    "nvlink_link_crc_errors": (163,),
    "nvlink_link_failed_recoveries": (214,),
    "nvlink_link_receive_errors": (208,),
    "nvlink_link_integrity_errors": (211,),
    "nvlink_link_discards": (212,),
}
"""Asked for each link; the first id that the card has. Hopper has 161 to 163 in place of the totals 38, 45, 52 and 59
(nvml.h, changes between 520 and 525). Blackwell has none of them but the counters of NVLink 5, from 201 on."""
_NVLINK5: Final = 201


def link_field(link: int, field: int) -> Field:
    """A field of one link, named by its number."""
    return Field(str(link), field, link, since=(570,) if field >= _NVLINK5 else (525,))


LIMITS: Final = (
    Field("power_limit_min_mw", 187, limit=MAX_MILLIWATT),
    Field("power_limit_max_mw", 188, limit=MAX_MILLIWATT),
    Field("power_limit_default_mw", 189, limit=MAX_MILLIWATT),
    # Offsets, not temperatures: read as unsigned, −8 would be 4294967288.
    Field("tlimit_shutdown_c", 193, kind=I32, limit=200),
    Field("tlimit_slowdown_c", 194, kind=I32, limit=200),
    Field("tlimit_mem_max_c", 195, kind=I32, limit=200),
    Field("tlimit_gpu_max_c", 196, kind=I32, limit=200),
    Field("c2c_links", 170, since=(525,), limit=64),
    Field("c2c_link_mbytes_per_s", 172, since=(525,)),
)
"""What does not change while the driver is loaded."""


def version_of(driver: Text) -> Version:
    """ "580.159.04" as (580, 159, 4); empty when it is not known, which admits only what every driver has."""
    return () if isinstance(driver, Absent) else tuple(int(part) for part in re.findall(r"\d+", driver))


def known_to(driver: Version, fields: Sequence[Field]) -> tuple[Field, ...]:
    """Those of ``fields`` whose id has this meaning on this driver."""
    return tuple(f for f in fields if f.since <= driver and (not f.until or driver < f.until))
