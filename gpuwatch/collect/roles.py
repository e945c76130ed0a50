"""What a process is to a GPU job, judged from its names.

Owns: the marks of DataLoader workers, multiprocessing servers, launchers and of CPython itself. Refuses: reading.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuwatch.model import Role

WORKER_COMM = "pt_data_worker"
"""Recent torch names a DataLoader worker's main thread so."""

_MULTIPROCESSING = re.compile(r"from multiprocess(?:ing)?\.(\w+) import")
"""The -c argument of its helpers; "multiprocess" is the fork of it that pickles with dill."""
_PYTHON_NAME = re.compile(r"python(\d(\.\d+)*t?)?$")
_LAUNCHER_NAMES = frozenset({"torchrun", "accelerate", "deepspeed", "srun", "slurmstepd", "mpirun", "raylet"})
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


class Names(NamedTuple):
    """The names of one process."""

    comm: str
    exe: str
    """Target of /proc/PID/exe; "" when we may not read it."""
    argv: tuple[str, ...]


def _base(path: str) -> str:
    return path.removesuffix(" (deleted)").rsplit("/", 1)[-1]


def looks_python(names: Names) -> bool:
    """The executable is a CPython. Where exe may not be read, the first argument and the comm must do."""
    if names.exe:
        return _PYTHON_NAME.match(_base(names.exe)) is not None
    if names.comm == WORKER_COMM:
        return True
    return any(_PYTHON_NAME.match(_base(name)) for name in (*names.argv[:1], names.comm))


def child_role(names: Names, parent: Names, named_workers: bool) -> Role:
    """LOADER_WORKER or CHILD for a descendant of a GPU process.

    ``named_workers``: some process of the job carries torch's own name for a worker. Then only those are workers;
    an unnamed fork is a Manager or the like.
    """
    if names.comm == WORKER_COMM:
        return Role.LOADER_WORKER
    # Interpreter options such as -W may stand before -c, so its argument has no fixed place.
    helper = next((found[1] for word in names.argv[1:] if (found := _MULTIPROCESSING.match(word))), "")
    if named_workers or not looks_python(names) or helper == "resource_tracker":
        return Role.CHILD
    if helper == "spawn":
        return Role.LOADER_WORKER
    forked = bool(names.argv) and names.argv == parent.argv and names.exe == parent.exe
    # The fork server runs the same command as the workers it forks, but its own parent runs another.
    return Role.LOADER_WORKER if forked else Role.CHILD


def is_launcher(names: Names) -> bool:
    """torchrun, accelerate, deepspeed, Slurm, MPI or Ray: it starts ranks and needs no GPU itself."""
    words = {_base(word) for word in (*names.argv[:2], names.comm)}
    return bool(words & _LAUNCHER_NAMES) or not _LAUNCHER_MODULES.isdisjoint(names.argv[1:4])
