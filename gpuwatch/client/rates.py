"""Bytes per second of each process, from the cumulative counters of two ticks.

Owns: the differences. Refuses: reading /proc, drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuwatch.model import NOT_READ, Absent, Int, Num, ProcessSample


class IoRate(Struct, frozen=True):
    """What one process moves from and to storage."""

    read_bytes_per_s: Num = NOT_READ
    write_bytes_per_s: Num = NOT_READ


def io_rates(
    before: Mapping[int, ProcessSample], rates: Mapping[int, IoRate], after: Iterable[ProcessSample]
) -> dict[int, IoRate]:
    """The rates of the processes of a tick; a reading that is told again keeps its rate of ``rates``.

    Absent for a process that was not there before, that is another with the same pid, or whose counters are absent."""
    out = {}
    for new in after:
        old = before.get(new.pid)
        if old is None or old.start_ticks != new.start_ticks:
            continue
        if new.mono_ns == old.mono_ns:
            if new.pid in rates:
                out[new.pid] = rates[new.pid]
            continue
        step_ns = new.mono_ns - old.mono_ns
        if step_ns > 0:
            out[new.pid] = IoRate(
                _rate(old.read_bytes, new.read_bytes, step_ns), _rate(old.write_bytes, new.write_bytes, step_ns)
            )
    return out


def _rate(old: Int, new: Int, step_ns: int) -> Num:
    if isinstance(new, Absent):
        return new
    return old if isinstance(old, Absent) else max(0, new - old) * 1e9 / step_ns
