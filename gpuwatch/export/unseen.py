"""Why a process that NVML lists has no name here, and what makes it visible.

Owns: the words, for the text and the screens. Refuses: finding out; the inventory says how /proc is mounted.
"""

from __future__ import annotations

from gpuwatch.model import NodeInfo

_EVEN_FROM_THE_GROUP = frozenset({"hidepid=4", "hidepid=ptraceable"})
"""Only what one may trace is shown (proc(5)); gid= opens nothing."""


def in_short(node: NodeInfo) -> str:
    """In the place of its command."""
    if node.proc_hides:
        return "hidden by /proc (hidepid), or ended"
    return "other PID namespace, or ended"


def in_full(node: NodeInfo, pid: int) -> str:
    """Of one process: what it can be and what to do."""
    if node.proc_hides:
        return f"NVML lists pid {pid}; /proc is mounted with {options(node)} and hides it: {remedy(node)}"
    if node.containerised:
        return f"NVML lists pid {pid}, which is not in this container: {remedy(node)}"
    return f"NVML lists pid {pid}; /proc here has no such process: it has ended, or is of another PID namespace"


def options(node: NodeInfo) -> str:
    """Of the mount that hides."""
    return ",".join(node.proc_hides or ())


def remedy(node: NodeInfo) -> str:
    """What makes such processes visible; "" where nothing does."""
    if node.proc_hides:
        if not _EVEN_FROM_THE_GROUP.isdisjoint(node.proc_hides):
            return "run gpuwatch as root"
        gid = next((option[4:] for option in node.proc_hides if option.startswith("gid=")), "")
        return "run gpuwatch as root, or " + (
            f"with the group {gid}" if gid else "remount /proc with gid= of a group that its user is in"
        )
    return "run gpuwatch on the host, or the container with --pid=host" if node.containerised else ""
