"""Processes of ours that only bear the number of a GPU process of somebody else.

Owns: telling them apart. Refuses: whose the GPU process is.

In a container NVML may list pids of the host (drivers up to about 535, and 595 where it cannot translate them). Such
a number can be that of an unrelated process here. A process on a GPU has a device file of the driver open, so one whose
open files can be listed and have none is a stranger. Outside of a PID namespace NVML's pids are ours, and nothing is
looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuwatch.collect.proc_parse import PidStat

AGAIN_NS: Final = 10_000_000_000
"""A stranger is looked at again so often: it may come to the GPU later."""
FILES_MAX: Final = 4096
"""With more open than that, and none of the driver's among them, it is not known."""
_DEVICES: Final = ("/dev/nvidia", "/dev/dxg", "/dev/nvgpu", "/dev/nvhost", "/dev/nvmap")
"""The driver's; those of WSL; those of Tegra."""


class Strangers:
    """Judges each process once, and strangers every ``AGAIN_NS``."""

    def __init__(self, root: Path, possible: bool) -> None:
        self._root = str(root)
        self._possible = possible
        self._judged: dict[tuple[int, int], int | None] = {}
        """Pid and start time to when it is to be looked at again; None for one that is no stranger."""

    def without(self, stats: Mapping[int, PidStat], mono_ns: int) -> list[int]:
        """The pids that are no strangers."""
        if not self._possible:
            return list(stats)
        judged, self._judged = self._judged, {}
        for pid, stat in stats.items():
            key = pid, stat.start_ticks
            again_ns = judged.get(key, 0)
            if again_ns is not None and mono_ns >= again_ns:
                again_ns = mono_ns + AGAIN_NS if self._stranger(pid) else None
            self._judged[key] = again_ns
        return [pid for (pid, _), again_ns in self._judged.items() if again_ns is None]

    def _stranger(self, pid: int) -> bool:
        folder = f"{self._root}/{pid}/fd"
        try:
            numbers = os.listdir(folder)  # noqa: PTH208 - hot path
        except OSError:
            return False
        if len(numbers) > FILES_MAX:
            return False
        return not any(_target(f"{folder}/{number}").startswith(_DEVICES) for number in numbers)


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - hot path
    except OSError:
        return ""
