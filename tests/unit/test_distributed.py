"""Which processes are ranks of one job: without it a waiting rank is judged alone, and judged wrongly."""

from __future__ import annotations

import pytest

from gpuwatch.collect.distributed import NAMES, place
from gpuwatch.collect.proc_parse import parse_environ
from gpuwatch.model import ProcessInfo, RankPlace, Role

TCP = {"MASTER_ADDR": "node3", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({**TCP, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, RankPlace(5, 8, "tcp node3:29500"),
                     id="two shells, or a script of one's own"),
        pytest.param({**TCP, "RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "f00d"},
                     RankPlace(1, 2, "tcp node3:29500 f00d"), id="torchrun and accelerate"),
        pytest.param({**TCP, "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
                     RankPlace(1, 2, "tcp node3:29500"), id="what Lightning starts"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n-7@1"},
                     RankPlace(1, 2, "mpi prterun-n-7@1"), id="mpirun of Open MPI"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, RankPlace(1, 2, "mpi below 40"),
                     id="mpirun of an old Open MPI"),
        pytest.param({"PMI_RANK": "3", "PMI_SIZE": "4"}, RankPlace(3, 4, "mpi below 40"), id="mpiexec of MPICH"),
        pytest.param({"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
                      "SLURM_NTASKS": "9", "PMI_RANK": "1", "PMI_SIZE": "2"}, RankPlace(1, 2, "slurm 42.0"), id="srun"),
        pytest.param({**TCP, "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2",
                      "RANK": "3", "WORLD_SIZE": "16"}, RankPlace(3, 16, "tcp node3:29500"), id="torchrun below srun"),
        pytest.param({**TCP, "RANK": "0", "WORLD_SIZE": "1"}, None, id="a job of one rank"),
        pytest.param(TCP, None, id="a rendezvous in somebody's profile"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2"}, None, id="a rank of an unknown job"),
        pytest.param({**TCP, "RANK": "first", "WORLD_SIZE": "2"}, None, id="not a number"),
        pytest.param({"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None, id="a batch script"),
        pytest.param({}, None, id="nothing"),
    ],
)  # fmt: skip
def test_the_environment_says_the_rank(environ: dict[str, str], expected: RankPlace | None) -> None:
    assert set(environ) <= NAMES
    assert place(environ, 40, "") == expected


def test_the_same_port_at_localhost_of_two_containers_is_two_jobs() -> None:
    environ = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "2"}
    one, two = place(environ, 1, "docker 1f"), place(environ, 1, "docker 2e")
    assert one is not None
    assert two is not None
    assert one.job != two.job


def test_no_variable_but_the_named_is_looked_at() -> None:
    assert parse_environ(b"RANK=1\0TOKEN=hf_x\0RANKED=2\0\0broken\0MASTER_ADDR=a=b", NAMES) == {
        "RANK": "1", "MASTER_ADDR": "a=b",
    }  # fmt: skip


def info(pid: int, ppid: int, command: str = "python fit.py", rank: int | None = None, uid: int = 1000) -> ProcessInfo:
    where = None if rank is None else RankPlace(rank, 2, "tcp a:1")
    return ProcessInfo(pid, 1, ppid, pid, Role.MAIN, "python", command, "ann", uid, place=where)


SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=%d)"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(info(10, 5, rank=0), info(20, 6, rank=1), True, id="by environment, whatever the parents"),
        pytest.param(info(10, 5, rank=0), info(20, 5, rank=0), False, id="a helper that inherited the rank"),
        pytest.param(info(10, 5), info(20, 10, rank=1), True, id="Lightning: rank 0 starts the others"),
        pytest.param(info(10, 5), info(20, 9, rank=1), False, id="another job beside a rank"),
        pytest.param(info(10, 5), info(20, 5), True, id="one launcher, one command"),
        pytest.param(info(10, 5), info(20, 5, uid=7), False, id="two users"),
        pytest.param(info(10, 5), info(20, 5, "python fit.py --lr 2"), False, id="two jobs of one shell script"),
        pytest.param(info(10, 5, SPAWN % 7), info(20, 5, SPAWN % 9), True, id="torch.multiprocessing.spawn"),
        pytest.param(info(10, 5, "python fit.py --local-rank=0"), info(20, 5, "python fit.py --local-rank=1"), True,
                     id="torch.distributed.launch"),
        pytest.param(info(10, 5, "python fit.py --local_rank 0 x"), info(20, 5, "python fit.py --local_rank 1 x"),
                     True, id="deepspeed"),
        pytest.param(info(10, 5, "ray::RayTrainWorker._execute"), info(20, 5, "ray::RayTrainWorker._execute"), True,
                     id="Ray Train"),
        pytest.param(info(10, 5, "ray::train_one"), info(20, 5, "ray::train_one"), False, id="two tasks of Ray"),
    ],
)  # fmt: skip
def test_ranks_are_told_from_neighbours(one: ProcessInfo, other: ProcessInfo, same: bool) -> None:
    assert one.same_job(other) is same
    assert other.same_job(one) is same
    assert not one.same_job(one)
