"""The processes of jobs on GPUs: who they are, what they use, what they say of themselves.

Owns: ProcessInfo, ProcessTick, StepReport. Refuses: stacks (stack.py).
"""

from __future__ import annotations

import enum
import re

from msgspec import Struct

from gpuwatch.model.reading import NOT_READ, Absent, Int, Num, Text


class Role(enum.StrEnum):
    """What a process is to its GPU job."""

    MAIN = "main"
    """Holds the GPU."""
    LOADER_WORKER = "loader_worker"
    """A torch DataLoader worker, by thread name ``pt_data_worker`` or by its stack."""
    CHILD = "child"
    PARENT = "parent"
    """Launcher such as torchrun."""


class RankPlace(Struct, frozen=True):
    """Where a process stands in a distributed job, by the environment that it was started with."""

    rank: int
    world_size: int
    """On all nodes."""
    job: str
    """The same for all ranks of the job and for no other job on this machine, such as "tcp node3:29500"."""


class FileSystem(Struct, frozen=True, order=True):
    """Where files of a process lie."""

    mount: str
    """Mount point, as the process sees it."""
    kind: str
    """Such as "ext4", "nfs4" or "fuse.s3fs"."""
    source: str
    """Such as "/dev/nvme0n1p2" or "server:/export"."""
    remote: bool
    """Served by another machine: over a network, or by this virtual machine's host."""
    disk: str = ""
    """The whole disk, such as "nvme0n1"; "" for what has none: network, memory, layers of a container."""
    rotational: bool = False
    """The disk turns."""


class Storage(Struct, frozen=True):
    """Where the files lie that a process has been seen to have open. A look every ten seconds sees what is open at that
    moment, and what was seen once stays."""

    systems: tuple[FileSystem, ...] = ()
    """At most eight, in the order in which they were seen."""
    absent: Absent | None = None
    """Why there may be more: its open files cannot be listed."""


_OWN_ARGUMENTS = re.compile(r"\bpipe_handle=\d+|\s--local[-_]rank[= ]\d+")
"""What differs between the command lines of ranks: of torch.multiprocessing.spawn, torch.distributed.launch."""


class ProcessInfo(Struct, frozen=True, omit_defaults=True):
    """Static facts about a process of a GPU job; sent once and when they change.

    Fields at their default are not sent: what is appended here leaves the bytes of other processes as they were.
    """

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat. (pid, start_ticks) names a process for ever; a pid alone does not."""
    ppid: int
    root_pid: int
    """The GPU process that this one belongs to (itself for ``MAIN``)."""
    role: Role
    comm: str
    command: str
    """Arguments joined by spaces, control characters replaced."""
    user: str
    uid: int
    cgroup: Text = NOT_READ
    container: Text = NOT_READ
    """Such as "docker 3f2a…", "k8s pod …", "slurm job 42"."""
    device_indices: tuple[int, ...] = ()
    python: bool = False
    """The executable is a CPython: its stack can be sampled."""
    place: RankPlace | None = None
    """None when the environment says nothing of it, or is another user's."""
    storage: Storage | None = None
    """Where its files lie, of main processes and loader workers. None until it has been looked at."""
    cpus_allowed: str = ""
    """The CPUs that its main thread may run on, as the kernel writes them: "0-3,8". Whatever set them: a cpuset, Slurm,
    taskset, the program. A kernel may list CPUs that the machine does not have. "" when not read."""
    container_pid: int = 0
    """Its pid in the innermost PID namespace that it is in; 0 where that is the one in which ``pid`` is told."""

    def same_job(self, other: ProcessInfo) -> bool:
        """Whether the two GPU processes are ranks of one distributed job.

        By what their environment says; else by their parents: ranks have one launcher and one command line (but for
        what the launcher itself puts there), and Lightning's rank 0 is the parent of the others.
        """
        if self.uid != other.uid or self.pid == other.pid:
            return False
        ours, theirs = self.place, other.place
        if ours is not None and theirs is not None:
            return (ours.job, ours.world_size) == (theirs.job, theirs.world_size) and ours.rank != theirs.rank
        if ours is not None:
            return self.ppid == other.pid and ours.rank != 0
        if theirs is not None:
            return other.ppid == self.pid and theirs.rank != 0
        our_line, their_line = (_OWN_ARGUMENTS.sub("", info.command) for info in (self, other))
        # All workers of a Ray node have one parent; only those of its Train library are ranks of something.
        ray = our_line.startswith("ray::") and "TrainWorker" not in our_line
        return self.ppid == other.ppid and our_line == their_line and not ray


class ProcessSample(Struct, frozen=True, array_like=True):
    """One reading of one process. Counters are cumulative since the process started, unless named ``*_pct``."""

    pid: int
    start_ticks: int
    mono_ns: int
    state: str = "?"
    """R, S, D, Z, T, t, I as in /proc/PID/stat. ``t`` is most often our own stack sampler."""
    cpu_pct: Num = NOT_READ
    """User + system since the previous reading; 100 is one core."""
    utime_ns: Int = NOT_READ
    stime_ns: Int = NOT_READ
    main_thread_cpu_ns: Int = NOT_READ
    """CPU time of the thread whose tid is the pid."""
    main_thread_state: str = "?"
    num_threads: int = 0
    running_threads: int = 0
    rss_bytes: Int = NOT_READ
    run_wait_ns: Int = NOT_READ
    """Runnable but waiting for a CPU (main thread's schedstat)."""
    read_bytes: Int = NOT_READ
    """From storage (/proc/PID/io)."""
    write_bytes: Int = NOT_READ
    rchar: Int = NOT_READ
    """Through read calls, cache and sockets included."""
    syscr: Int = NOT_READ
    majflt: Int = NOT_READ
    wchan: Text = NOT_READ
    """Kernel function the main thread sleeps in."""


class CgroupSample(Struct, frozen=True, array_like=True):
    """CPU quota of the cgroup that a GPU job runs in. Counters are cumulative."""

    root_pid: int
    mono_ns: int
    quota_cores: Num = NOT_READ
    """Absent(NOT_FOUND) when no quota is set."""
    nr_periods: Int = NOT_READ
    nr_throttled: Int = NOT_READ
    throttled_us: Int = NOT_READ


class ProcessTick(Struct, frozen=True):
    """All processes of all GPU jobs, read together. ``infos`` holds only those that are new or changed."""

    mono_ns: int
    samples: tuple[ProcessSample, ...] = ()
    cgroups: tuple[CgroupSample, ...] = ()
    infos: tuple[ProcessInfo, ...] = ()
    gone: tuple[int, ...] = ()
    """Pids that were there in the previous tick and are not any more."""


class StepReport(Struct, frozen=True, array_like=True):
    """What one loop of a job said of itself (docs/hook.md), over the ``span_ns`` that ended at ``mono_ns``."""

    pid: int
    """By the kernel, never by the job's own word."""
    mono_ns: int
    span_ns: int
    steps: int
    """That ended in the span."""
    step_ns: int
    """Of all of them together."""
    step_max_ns: int
    wait_ns: Int = NOT_READ
    """Time inside ``next()``. Absent where the job only marks its steps."""
    wait_max_ns: Int = NOT_READ
    loop: int = 0
    """Tells the loops of one process apart; 0 for marked steps."""
    thread: int = 0
    """The kernel's id of the thread that runs it, in the job's own PID namespace."""
