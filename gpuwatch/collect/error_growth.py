"""Which error counters of a GPU have grown of late.

Owns: the counters that count errors, the window. Refuses: reading them, judging. A healthy card has errors (an idle
H200 had 655 recoveries of its PCIe link): only growth is news, and nobody looks at just the right two moments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from gpuwatch.model import Absent, CounterGrowth

WINDOW_NS: Final = 3_600_000_000_000
ERRORS: Final = frozenset({
    "ecc_volatile_corrected", "ecc_volatile_uncorrected", "retired_pages_corrected", "retired_pages_uncorrected",
    "remapped_correctable", "remapped_uncorrectable",
    "pcie_replays", "pcie_replay_rollovers", "pcie_correctable_errors", "pcie_naks_received", "pcie_receiver_errors",
    "pcie_bad_tlps", "pcie_naks_sent", "pcie_bad_dllps", "pcie_nonfatal_errors", "pcie_fatal_errors",
    "pcie_unsupported_requests", "pcie_lcrc_errors", "pcie_lane_errors",
    "nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replays", "nvlink_recoveries",
    "nvlink_ecc_errors", "nvlink_link_replays", "nvlink_link_recoveries", "nvlink_link_crc_errors",
    "nvlink_link_failed_recoveries", "nvlink_link_receive_errors", "nvlink_link_integrity_errors",
    "nvlink_link_discards",
})  # fmt: skip
"""Not ``pcie_to_recovery``: a link goes there whenever it changes its speed, which an idle one does."""


class ErrorGrowth:
    """The growth within the last hour. What a counter has when it is first read is old news."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._grew: deque[tuple[int, str, int]] = deque()
        """When which counter was found to have grown by how much."""
        self._first_ns: int | None = None

    def take(self, values: Mapping[str, object], now_ns: int) -> None:
        """A reading of some counters; of names that count no errors nothing is kept."""
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        for name in ERRORS & values.keys():
            value = values[name]
            if isinstance(value, Absent) or not isinstance(value, int):
                continue
            before = self._last.get(name, value)
            self._last[name] = value
            # One that fell was reset by the driver: its count begins anew.
            if value > before:
                self._grew.append((now_ns, name, value - before))

    def grown(self, now_ns: int) -> tuple[CounterGrowth, ...]:
        """Largest first."""
        while self._grew and now_ns - self._grew[0][0] > WINDOW_NS:
            self._grew.popleft()
        total: dict[str, int] = {}
        for _, name, count in self._grew:
            total[name] = total.get(name, 0) + count
        return tuple(
            CounterGrowth(n, count) for n, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        )

    def window_ns(self, now_ns: int) -> int:
        """What ``grown`` covers."""
        return 0 if self._first_ns is None else min(WINDOW_NS, now_ns - self._first_ns)
