"""What an XID means: whose doing it is, and one line for a person.

Owns: our own table of the XIDs that people meet. Refuses: judging a GPU. The numbers are those of NVIDIA's catalogue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuwatch.model import EventOrigin

_APP: Final = EventOrigin.APPLICATION
_HW: Final = EventOrigin.HARDWARE
_DRIVER: Final = EventOrigin.DRIVER


class Xid(NamedTuple):
    """One entry."""

    origin: EventOrigin
    text: str


XIDS: Final = {
    8: Xid(_APP, "a kernel ran longer than the driver waits, its process was stopped"),
    13: Xid(_APP, "a kernel raised an exception, most often an index out of bounds; compute-sanitizer shows where"),
    31: Xid(_APP, "a kernel used an address that is not mapped; compute-sanitizer shows where"),
    32: Xid(_DRIVER, "the commands sent to the GPU were damaged on their way: driver, PCIe or memory"),
    38: Xid(_DRIVER, "the GPU's firmware stopped answering the driver"),
    43: Xid(_APP, "the process's channel was reset after a fault of its own; the GPU is fine"),
    45: Xid(_APP, "the process's work was taken off the GPU: it was killed, or failed just before"),
    48: Xid(_HW, "an ECC error that could not be corrected; the pages or rows are taken out at the next reset"),
    54: Xid(_HW, "the auxiliary power of the board is missing"),
    56: Xid(_HW, "the display engine failed"),
    57: Xid(_HW, "programming the memory failed"),
    58: Xid(_HW, "the memory's contents changed unexpectedly"),
    61: Xid(_DRIVER, "a controller inside the GPU stopped at a breakpoint; reset the GPU"),
    62: Xid(_HW, "a controller inside the GPU halted; reset the GPU"),
    63: Xid(_HW, "faulty memory was noted for replacement by spare rows or pages; takes effect at the next reset"),
    64: Xid(_HW, "faulty memory could not be noted for replacement; the GPU should be exchanged"),
    68: Xid(_APP, "the video decoder raised an exception"),
    69: Xid(_APP, "the graphics engine raised an exception"),
    74: Xid(_HW, "an NVLink failed: check the link's error counters, the bridge and the other GPU"),
    79: Xid(_HW, "the GPU fell off the PCIe bus: power, heat, slot or card; needs a restart of the machine"),
    92: Xid(_HW, "corrected ECC errors come at a high rate"),
    94: Xid(_HW, "an ECC error that could not be corrected hit one process only; restart that process"),
    95: Xid(_HW, "an ECC error that could not be corrected may have hit all processes; reset the GPU"),
    109: Xid(_APP, "a process's context did not switch in time and was ended"),
    110: Xid(_HW, "the GPU refused an operation for its own safety"),
    119: Xid(_HW, "the GPU's system processor (GSP) did not answer; calls hang meanwhile, a reset is needed"),
    120: Xid(_HW, "the GPU's system processor (GSP) raised an error; reset the GPU"),
    121: Xid(_HW, "the link between CPU and GPU had an error that was corrected"),
    137: Xid(_APP, "a peer's access over NVLink used an address that is not mapped"),
    140: Xid(_HW, "an ECC error that could not be corrected; see the remapped rows"),
    143: Xid(_HW, "the GPU could not be initialised"),
    154: Xid(_DRIVER, "the driver asks for a recovery action; see recovery_action of this GPU"),
}


def xid(number: int) -> Xid:
    """What is known about an XID; one that is not in the table says so."""
    return XIDS.get(number) or Xid(EventOrigin.UNKNOWN, f"XID {number}: see NVIDIA's XID catalogue and dmesg")
