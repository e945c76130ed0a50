"""What the rest of the program sees of a collector, live or replayed.

Owns: the ObservationSource protocol and Focus. Refuses: knowing which hardware is behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from gpuwatch.model import Observation, StackSample

Emit = Callable[[Observation], None]
"""Called from collector threads: must be quick and thread-safe (``queue.SimpleQueue.put``)."""

Undecided = Callable[[Sequence[StackSample], Mapping[tuple[str, int], str]], bool]
"""(stacks of the main process, text of the user's lines by file and line) to whether only native frames can tell what
the job does. Pure and quick: the collector asks, the diagnosis knows (``diagnose.undecided``)."""


class Focus(Struct, frozen=True):
    """Look closely for a while: 10 Hz GPM windows on the devices, 4 Hz ``/proc`` and stacks of one job.

    Rates are those that told the known-cause recordings apart; more stacks slow the watched job down.
    """

    root_pid: int
    """0: a GPU without a process; no stacks then."""
    device_indices: tuple[int, ...]
    seconds: float
    stacks: bool = True
    stack_hz: float = 10.0
    """Of the main process, for at most ``stack_seconds`` of the focus; workers get about one a second each."""
    stack_seconds: float = 5.0
    undecided: Undecided | None = None
    """Asked once, at the end of the burst, whether to add a look at native frames, which holds the job for a moment.
    None: never."""


class ObservationSource(Protocol):
    """A stream of observations: the machine, or a recording of one."""

    def start(self, emit: Emit) -> None:
        """Begin. The first observation is an Inventory. Returns at once; emits from its own threads."""

    def stop(self) -> None:
        """End all threads within a second or two, also when a driver call hangs (it is abandoned)."""

    def focus(self, focus: Focus | None) -> None:
        """Look closely at a job until its seconds are over, or stop doing so."""

    def now_ns(self) -> int:
        """The clock that ``mono_ns`` of the observations belongs to: CLOCK_MONOTONIC when live, the position in the
        recording when replayed. Ages are differences to this."""

    def progress_ns(self) -> int:
        """CLOCK_MONOTONIC of the last completed reading of any device or of the host: feeds the watchdog."""
