"""Which rank of which distributed job a process is, by the environment that it was started with.

Owns: the variables of torchrun and of whoever sets the same ones by hand, Open MPI and PMIx, Slurm, PMI. Refuses:
reading, and every other variable: an environment holds secrets, and only what is named here is looked at.

A process that sets these variables itself (Lightning's rank 0, ``torch.multiprocessing.spawn``, Ray) changes its own
memory and not what the kernel shows; ``ProcessInfo.same_job`` finds those by their parents.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.model import RankPlace

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

NAMES = frozenset({
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE",
})  # fmt: skip


def place(environ: Mapping[str, str], ppid: int, container: str) -> RankPlace | None:
    """The place that ``environ`` tells, None for a process that is no rank of several.

    ``container`` keeps apart the rendezvous at localhost of two containers.
    """
    value = environ.get
    address, port = value("MASTER_ADDR", ""), value("MASTER_PORT", "")
    # Lightning sets NODE_RANK and LOCAL_RANK for the ranks that it starts, and the same on every node.
    rank = value("RANK") or (value("LOCAL_RANK") if value("NODE_RANK", "") == "0" else None)
    where = container if address in _LOOPBACK else ""
    of_step = f"slurm {value('SLURM_JOB_ID', '')}.{value('SLURM_STEP_ID', '')}"
    tasks = value("SLURM_STEP_NUM_TASKS") or value("SLURM_NTASKS")
    told = (
        (rank if address and port else None, value("WORLD_SIZE"),
         " ".join(filter(None, (f"tcp {address}:{port}", value("TORCHELASTIC_RUN_ID", ""), where)))),
        (value("OMPI_COMM_WORLD_RANK"), value("OMPI_COMM_WORLD_SIZE"),
         f"mpi {value('PMIX_NAMESPACE') or f'below {ppid}'}"),
        (value("SLURM_PROCID") if value("SLURM_STEP_ID") else None, tasks, of_step),
        (value("PMI_RANK"), value("PMI_SIZE"), f"mpi below {ppid}"),
    )  # fmt: skip
    for number, count, job in told:
        if number is not None and count is not None and number.isdigit() and count.isdigit() and int(count) > 1:
            return RankPlace(int(number), int(count), job)
    return None
