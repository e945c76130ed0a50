"""What the journal is told about the driver and the GPUs: once per change.

Owns: the words, and what counts as a change. Refuses: the format of a line (journal.py).
"""

from __future__ import annotations

import logging
from collections.abc import Set

from gpuwatch.daemon.journal import OnChange
from gpuwatch.model import Absent, DeviceSample, DriverState, Inventory, Reason

_NEWS = frozenset({Reason.LOST, Reason.DRIVER, Reason.NO_PERMISSION, Reason.TIMEOUT, Reason.ERROR})
"""Reasons that are about the GPU as a whole when every reading has them. NOT_SUPPORTED is not: some cards have none."""


def trouble(sample: DeviceSample) -> Absent | None:
    """Why a GPU gives no reading at all; None when it gives one, or has none to give."""
    readings = (sample.power_w, sample.sm_clock_mhz, sample.mem_clock_mhz, sample.clocks_event_reasons)
    first = readings[0]
    if isinstance(first, Absent) and first.reason in _NEWS and all(reading == first for reading in readings):
        return first
    return None


class Saying:
    """Logs what has changed since the last tick or inventory."""

    def __init__(self, said: OnChange) -> None:
        self._said = said
        self._unwatched: Set[str] = frozenset()

    def inventory(self, inventory: Inventory) -> None:
        """The driver's state, and which GPUs there are."""
        if inventory.driver is DriverState.OK:
            names = ", ".join(f"{device.index} {device.name}" for device in inventory.devices)
            self._said.log(logging.INFO, "driver", f"driver ok, GPUs: {names}")
        else:
            level = logging.INFO if inventory.driver is DriverState.ASLEEP else logging.WARNING
            self._said.log(level, "driver", f"driver {inventory.driver.value}: {inventory.driver_hint}")
        missing = {part.part: part.absent for part in inventory.unwatched or ()}
        for part in self._unwatched - missing.keys():
            self._said.log(logging.INFO, f"part {part}", f"{part}: watched again")
        for part, absent in missing.items():
            why = absent.detail or absent.reason.name.lower().replace("_", " ")
            # A card that has no events never had them: worth a line, not a warning.
            level = logging.INFO if absent.reason is Reason.NOT_SUPPORTED else logging.WARNING
            self._said.log(level, f"part {part}", f"{part}: not watched: {why}")
        self._unwatched = missing.keys()

    def device(self, sample: DeviceSample, *, hung: bool) -> None:
        """``hung``: its reading has been under way for too long."""
        subject = f"GPU {sample.device_index}"
        absent = trouble(sample)
        if absent is not None:
            why = absent.detail or absent.reason.name.lower().replace("_", " ")
            self._said.log(logging.WARNING, subject, f"{subject}: no readings: {why}")
        elif hung:
            self._said.log(logging.WARNING, subject, f"{subject} does not answer; its last reading stands")
        elif self._said.knows(subject):
            self._said.log(logging.INFO, subject, f"{subject} answers again")
