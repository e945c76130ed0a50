"""What a process's own memory says of it: arguments, environment, whether it has Python in it.

Owns: cmdline, environ and maps of /proc/PID. Refuses: everything that the kernel answers from its own tables.

The kernel reads these three under the process's mmap lock. A process that waits in state D for a dead NFS server, or
for the driver, can hold that lock: then the read blocks as long as the process does (proc_pid_cmdline_read and
access_remote_vm in the kernel). So they are read by ``slow_calls`` and nowhere else.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpuwatch.collect import distributed
from gpuwatch.collect.cgroup import CONTAINER_VARIABLES
from gpuwatch.collect.proc_files import read_all, reading
from gpuwatch.collect.proc_parse import parse_cmdline, parse_environ, printable
from gpuwatch.collect.roles import Names, looks_python
from gpuwatch.model import Absent


class OwnMemory(NamedTuple):
    """What was found, or nothing so far."""

    argv: tuple[str, ...] = ()
    environ: dict[str, str] | None = None
    """The variables of a distributed job and of a container, of the process that holds the GPU. None: may not be read
    (another user's may be by root only), or was not asked for."""
    python: bool = False
    """Python, by its name or by the library that is mapped."""


NOTHING = OwnMemory()
_VARIABLES = frozenset({*distributed.NAMES, *CONTAINER_VARIABLES})


def executable(prefix: str, pid: int) -> str:
    """The target of /proc/PID/exe, which no lock guards; "" when we may not read it."""
    try:
        return printable(os.fsencode(os.readlink(f"{prefix}/{pid}/exe")))  # noqa: PTH115 - hot path
    except OSError:
        return ""


def read_memory(prefix: str, pid: int, comm: str, exe: str, *, main: bool) -> OwnMemory:
    """May block without end. ``main``: it holds the GPU, so that its environment and libraries count as well."""
    argv = reading(f"{prefix}/{pid}/cmdline", parse_cmdline)
    if isinstance(argv, Absent):
        argv = ()
    python = looks_python(Names(comm, exe, argv))
    if not main:
        return OwnMemory(argv, None, python)
    # The maps of a torch process are 300 to 3000 lines: read where it is not called python, and for the main one only.
    return OwnMemory(argv, _environ(f"{prefix}/{pid}/environ"), python or _maps_libpython(f"{prefix}/{pid}/maps"))


def _environ(path: str) -> dict[str, str] | None:
    try:
        return parse_environ(read_all(path), _VARIABLES)
    except OSError:
        return None


def _maps_libpython(path: str) -> bool:
    """A program that embeds Python."""
    try:
        return b"/libpython" in read_all(path)
    except OSError:
        return False
