"""What looks at native frames have told of each process, for as long as it can be taken to hold.

Owns: remembering the stacks of past looks. Refuses: taking looks, and what their frames mean.

A look holds the job for half a second and more (docs/cost.md), and what a line's C calls do is the same at the next
diagnosis. So a job is held once for a line, not once for each diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuwatch.model import Observation, ProcessInfo, StackSample

KEEP_NS: Final = 1800 * 1_000_000_000
"""Half an hour: a program may take another way through a line later, such as a layer that is frozen no more."""
MOST: Final = 100
"""Stacks of a process: several looks' worth. The oldest go first."""

Process = tuple[int, int]
"""Pid and start time; a pid alone may be another process by then."""


class Looks:
    """Not thread-safe: of one loop."""

    def __init__(self) -> None:
        self._seen: dict[Process, tuple[StackSample, ...]] = {}

    def learn(self, observed: Iterable[Observation], infos: Mapping[int, ProcessInfo]) -> None:
        """Keep the native stacks of new looks among these; forget those of processes that are not known any more.

        The stacks of one look carry one time, its end, and may be equal: each counts.
        """
        self._seen = {process: kept for process, kept in self._seen.items() if _process(process[0], infos) == process}
        newest = {process: kept[-1].mono_ns for process, kept in self._seen.items()}
        for stack in observed:
            if not isinstance(stack, StackSample) or not stack.native or not stack.threads:
                continue
            process = _process(stack.pid, infos)
            if process is not None and stack.mono_ns > newest.get(process, -1):
                self._seen[process] = (*self._seen.get(process, ()), stack)[-MOST:]

    def of(self, pid: int, infos: Mapping[int, ProcessInfo], mono_ns: int) -> tuple[StackSample, ...]:
        """What looks of the last ``KEEP_NS`` told of this process; empty for one that took its pid over."""
        process = _process(pid, infos)
        kept = self._seen.get(process, ()) if process is not None else ()
        return tuple(stack for stack in kept if mono_ns - stack.mono_ns < KEEP_NS)


def _process(pid: int, infos: Mapping[int, ProcessInfo]) -> Process | None:
    info = infos.get(pid)
    return (pid, info.start_ticks) if info is not None else None
