"""What the live source needs of the driver, and what an attempt to open it gave.

Owns: the ``Driver`` protocol (``nvml.Nvml`` and the tests' stand-ins) and ``Opened``. Refuses: doing anything.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from gpuwatch.collect.events import EmitEvent, EventWatcher
from gpuwatch.collect.nvml import DriverFacts
from gpuwatch.collect.sampler import Reader
from gpuwatch.model import NOT_READ, Device, DriverState


class Driver(Protocol):
    """What opens the driver: ``nvml.Nvml``."""

    def open(self) -> tuple[DriverState, str]:
        """Open (again): the state, and a hint when it is not OK."""

    def driver_facts(self) -> DriverFacts:
        """Versions."""

    def devices(self) -> tuple[Device, ...]:
        """Identity of every GPU and MIG instance."""

    def reader(self, index: int) -> Reader:
        """What reads one of them."""

    def events(self, emit: EmitEvent) -> EventWatcher:
        """The thread that waits for events of all GPUs, not started."""

    def settled(self) -> bool:
        """No GPU is still being asked what it is."""

    def changed(self, skip: frozenset[int]) -> bool:
        """GPUs or MIG instances have come or gone; GPUs in ``skip`` hang and are not asked."""

    def kernel_changed(self) -> bool:
        """Another kernel module, or other GPUs, than at ``open``. Asks no driver."""

    def library_replaced(self) -> bool:
        """Another library lies on disk than the one in this process."""

    def close(self) -> None:
        """Give everything back; only when no call is under way."""


class Opened(NamedTuple):
    """What an attempt to open the driver gave."""

    state: DriverState
    hint: str
    facts: DriverFacts = DriverFacts(NOT_READ, NOT_READ, NOT_READ)
    devices: tuple[Device, ...] = ()


NO_ANSWER: Final = Opened(
    DriverState.UNKNOWN,
    "the NVIDIA driver has not answered for some seconds: it may still be starting (persistence mode makes that "
    "short), or it hangs; 'dmesg | grep NVRM' says more",
)
