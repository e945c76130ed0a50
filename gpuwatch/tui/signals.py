"""Ending a process from the screen: only one's own, only on this machine, only after a yes.

Owns: who may be signalled, and that it is still the same process. Refuses: asking the person (the screen does).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gpuwatch.client.state import Link, NodeState

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def obstacle(state: NodeState, pid: int, *, readonly: bool, boot_id: str | None = None, uid: int | None = None) -> str:
    """Why this process cannot be signalled from here, one line; empty when it can."""
    if readonly:
        return "read only: started with --readonly"
    if state.recorded:
        return "this is a recording: its processes are not here"
    if state.link is not Link.LIVE or state.inventory is None:
        return "no fresh readings: not known whether the process is still there"
    here = boot_id if boot_id is not None else _BOOT_ID.read_text(encoding="ascii").strip()
    if not state.endpoint.startswith("ipc://") or state.inventory.node.boot_id != here:
        return f"process {pid} is on another machine"
    info = state.infos.get(pid)
    if info is None:
        return f"process {pid} is not visible in /proc from here"
    if info.uid != (os.getuid() if uid is None else uid):
        return f"process {pid} belongs to {info.user}"
    return ""


def send(pid: int, start_ticks: int, number: signal.Signals) -> str:
    """Signal exactly that process, never another one that got its pid since; one line with what happened."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"process {pid} has ended already"
    except OSError as exc:
        return f"process {pid}: {exc.strerror}"
    try:
        # The descriptor is open: whoever has this pid now keeps it until we are done.
        if _start_ticks(pid) != start_ticks:
            return f"process {pid} has ended already; its pid is another process now"
        signal.pidfd_send_signal(fd, number)
    except OSError as exc:
        return f"process {pid}: {exc.strerror}"
    finally:
        os.close(fd)
    return f"sent {number.name} to {pid}"


def _start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; the name before it may hold spaces and parentheses. -1 when it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[19])
