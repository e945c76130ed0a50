"""The processes of GPU jobs, read from /proc.

Owns: which processes belong to a job, their counters, what is new and what is gone. Refuses: judging.

A process is (pid, start time): a reused pid is another process. Reading goes through kept descriptors, so that it
cannot slip to another process between two files either.

Cost is bounded: the tree is looked up at most once a second or when it visibly changed, by the children files or by
one pass over /proc, whichever is fewer reads; thread states are read for at most ``TASKS_PER_TICK`` threads a tick,
``TASKS_PER_PROCESS`` of one process, GPU processes first. Beyond that ``running_threads`` counts the main thread
only, or is a lower bound.

What may block (``own_memory``, user names) is read on other threads. Until it has been answered, the command is the
name that the kernel has, the user a number, and the place in a distributed job not known.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from gpuwatch.collect import distributed, roles
from gpuwatch.collect.cgroup import CgroupReader, container_label, main_path
from gpuwatch.collect.host import in_pid_namespace
from gpuwatch.collect.open_files import OpenFiles
from gpuwatch.collect.own_memory import NOTHING, OwnMemory, executable, read_memory
from gpuwatch.collect.proc_files import KeptFiles, absent, read_small, reading
from gpuwatch.collect.proc_parse import (
    PidIo,
    PidStat,
    PidStatus,
    parse_io,
    parse_schedstat,
    parse_stat,
    parse_state,
    parse_status,
    printable,
)
from gpuwatch.collect.process_tree import ProcessTree
from gpuwatch.collect.slow_calls import Asked, SlowCalls
from gpuwatch.collect.strangers import Strangers
from gpuwatch.collect.user_names import UserNames
from gpuwatch.model import (
    Absent,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    RankPlace,
    Reason,
    Role,
    Storage,
    Text,
)

TASKS_PER_TICK = 256
"""At 7 µs a thread: under 2 ms a tick, however many threads the jobs have."""
TASKS_PER_PROCESS = 64
MANY = 64
"""With more processes than these, those that sleep are not looked at closely in each tick."""
SLEEPS_KEPT = 3
"""For so many ticks the I/O, scheduler and wait figures of one that sleeps stand: 256 take 5.5 ms a tick, not 8.5."""
COMMAND_CHARS = 4096
"""A command line may hold 2 MB; a fork server's holds its whole sys.path."""
LOOKS_PER_TICK = 2
LOOK_EVERY_NS = 10_000_000_000
"""At the open files of a process. A look took 0.12 ms with 7 files open, 0.34 ms with 63: below 0.1 % of a core."""
STORAGE_KEPT = 8
"""File systems of one process: more would be a list of mounts."""
_KEPT = ("stat", "schedstat", "io", "wchan")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Process:
    """What is remembered of a process between ticks."""

    __slots__ = (
        *("asked", "cpu_ns", "cpus_allowed", "info", "kept", "last", "late", "looked_ns", "main", "mono_ns", "names"),
        *("own", "reads", "start_ticks", "storage"),
    )

    def __init__(self, start_ticks: int) -> None:
        self.start_ticks = start_ticks
        self.names = roles.Names("", "", ())
        self.own = NOTHING
        self.asked: Asked[OwnMemory] | None = None
        """The question for ``own`` that is not answered."""
        self.late = False
        """Something is not answered: the facts will change."""
        self.main = False
        self.info: ProcessInfo | None = None
        self.reads = 0
        self.cpu_ns = 0
        self.mono_ns = 0
        self.last: ProcessSample | None = None
        self.kept = 0
        """Ticks for which ``last`` has stood."""
        self.looked_ns = 0
        self.storage: Storage | None = None
        self.cpus_allowed = ""


class ProcessReader:
    """Reads all processes of all GPU jobs, once per tick. Not thread-safe: one thread owns it."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._prefix = str(root)
        self._files = KeptFiles()
        self._tree = ProcessTree(root)
        self._cgroups = CgroupReader(root)
        self._slow = SlowCalls("names")
        self._users = UserNames()
        self._open_files = OpenFiles(root)
        self._strangers = Strangers(root, in_pid_namespace(root))
        self._known: dict[int, _Process] = {}

    def close(self) -> None:
        """Give back the kept descriptors and the threads."""
        self._files.close()
        self._slow.close()
        self._users.close()

    def read(self, roots: dict[int, tuple[int, ...]], mono_ns: int) -> ProcessTick:
        """One reading of the jobs of ``roots`` (GPU process → device indices) at ``mono_ns``.

        Pids that /proc does not know are skipped: NVML may name processes of another PID namespace, or zero.
        Raises nothing for what a process does; a file that cannot be read is an ``Absent`` in its field.
        """
        self._slow.tick()
        self._users.tick()
        stats: dict[int, PidStat] = {}
        for pid in roots:
            self._stat(pid, stats)
        present = {pid: roots[pid] for pid in self._strangers.without(stats, mono_ns)}
        jobs = self._tree.members(tuple(present), mono_ns)
        for pid in jobs:
            if pid not in stats:
                self._stat(pid, stats)
        jobs = {pid: root for pid, root in jobs.items() if pid in stats}
        previous = set(self._known)
        self._admit(jobs, stats)
        self._look_at_files(mono_ns)
        infos = self._infos(jobs, stats, present)
        samples = self._samples(jobs, stats, mono_ns)
        gone = tuple(sorted(previous - set(self._known)))
        if gone:
            self._tree.changed()
        self._cgroups.keep(frozenset(present))
        cgroups = tuple(self._cgroups.read(pid, mono_ns) for pid in present)
        return ProcessTick(mono_ns, samples, cgroups, infos, gone)

    def _stat(self, pid: int, into: dict[int, PidStat]) -> None:
        """The stat of one process, if it is there. A kept descriptor of a dead one is exchanged once."""
        for _ in range(2):
            try:
                stat = parse_stat(self._files.read(pid, "stat", f"{self._prefix}/{pid}/stat"))
            except ProcessLookupError:
                self._files.drop(pid, _KEPT)
                continue
            except (OSError, ValueError):
                self._files.drop(pid, _KEPT)
                return
            if stat.pid == pid:
                into[pid] = stat
            return

    def _admit(self, jobs: dict[int, int], stats: dict[int, PidStat]) -> None:
        """Keep ``_known`` to the members of the jobs; a changed start time is a new process."""
        for pid in tuple(jobs):
            process, stat = self._known.get(pid), stats[pid]
            if process is None:
                self._known[pid] = _Process(stat.start_ticks)
            elif process.start_ticks != stat.start_ticks:
                self._files.drop(pid, _KEPT[1:])
                self._known[pid] = _Process(stat.start_ticks)
                if pid != jobs[pid] and stat.ppid not in jobs:
                    # The remembered tree knew another process by this pid; this one is nobody's child.
                    del jobs[pid]
        for pid in self._known.keys() - jobs.keys():
            del self._known[pid]
            self._files.drop(pid, _KEPT)

    def _look_at_files(self, mono_ns: int) -> None:
        """Of those that move data, the ones that have waited longest. What is found is added to what was."""
        due = [
            (process.looked_ns, pid)
            for pid, process in self._known.items()
            if process.info is not None
            and process.info.role in (Role.MAIN, Role.LOADER_WORKER)
            and (not process.looked_ns or mono_ns - process.looked_ns >= LOOK_EVERY_NS)
        ]
        for _, pid in sorted(due)[:LOOKS_PER_TICK]:
            process, look = self._known[pid], self._open_files.look(pid)
            process.looked_ns = mono_ns
            # A worker may set its CPUs after it has started, and a cpuset may change.
            self._status(pid)
            if look.absent is not None and look.absent.reason is Reason.NOT_FOUND:
                continue  # It has ended.
            known = () if process.storage is None else process.storage.systems
            new = sorted(look.found.difference(known))
            process.storage = Storage((*known, *new)[:STORAGE_KEPT], look.absent)

    def _infos(
        self, jobs: dict[int, int], stats: dict[int, PidStat], devices: dict[int, tuple[int, ...]]
    ) -> tuple[ProcessInfo, ...]:
        """Facts that are new or changed. A role can change when a sibling takes torch's name for a worker."""
        named = {root for pid, root in jobs.items() if stats[pid].comm == roles.WORKER_COMM}
        for pid, root in jobs.items():
            self._refresh_names(pid, stats[pid], main=pid == root)
        changed: list[ProcessInfo] = []
        for pid, root in jobs.items():
            process, stat = self._known[pid], stats[pid]
            role = self._role(pid, root, stat, root in named)
            old = process.info
            if (
                old is not None
                and process.reads > 2
                and not process.late
                and (
                    (old.comm, old.ppid, old.root_pid, old.role, old.device_indices)
                    == (stat.comm, stat.ppid, root, role, devices.get(pid, ()))
                )
                and (old.storage, old.cpus_allowed) == (process.storage, process.cpus_allowed)
            ):
                continue
            info = self._info(pid, root, stat, role, devices.get(pid, ()))
            if info != old:
                process.info = info
                changed.append(info)
        return tuple(changed)

    def _refresh_names(self, pid: int, stat: PidStat, *, main: bool) -> None:
        """Read exe and command line at the first two sights and when the comm changes.

        Between fork and exec a child still bears its parent's names, hence the second look.
        """
        process = self._known[pid]
        process.reads += 1
        asked = process.asked
        if asked is None:
            if process.reads > 2 and process.names.comm == stat.comm and process.main == main:
                return
            exe = executable(self._prefix, pid)
            asked = self._slow.ask(
                lambda: read_memory(self._prefix, pid, stat.comm, exe, main=main), process.own._replace(argv=())
            )
            process.names, process.main = roles.Names(stat.comm, exe, process.names.argv), main
        process.asked = None if asked.done.is_set() else asked
        process.late |= process.asked is not None
        if stat.state != "Z" or not process.names.argv:
            process.names, process.own = process.names._replace(argv=asked.value.argv), asked.value

    def _role(self, pid: int, root: int, stat: PidStat, named_workers: bool) -> Role:
        if pid == root:
            return Role.MAIN
        if self._tree.is_launcher_of(pid, root):
            return Role.PARENT
        process = self._known[pid]
        parent = self._known.get(stat.ppid)
        return roles.child_role(process.names, parent.names if parent else roles.Names("", "", ()), named_workers)

    def _info(self, pid: int, root: int, stat: PidStat, role: Role, devices: tuple[int, ...]) -> ProcessInfo:
        process = self._known[pid]
        status = self._status(pid)
        uid = -1 if isinstance(status, Absent) else status.uid
        nspid = () if isinstance(status, Absent) else status.nspid
        user = self._users.name(uid) if uid >= 0 else "?"
        process.late = process.asked is not None or user is None
        paths = self._cgroups.paths(pid)
        command = " ".join(process.names.argv)[:COMMAND_CHARS] or f"[{stat.comm}]"
        container = paths if isinstance(paths, Absent) else container_label(paths, process.own.environ)
        return ProcessInfo(
            pid=pid,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            root_pid=root,
            role=role,
            comm=stat.comm,
            command=command,
            user=str(uid) if user is None else user,
            uid=uid,
            cgroup=paths if isinstance(paths, Absent) else main_path(paths),
            container=container,
            device_indices=devices,
            python=process.own.python,
            place=self._place(pid, stat, container) if role is Role.MAIN else None,
            storage=process.storage,
            cpus_allowed=process.cpus_allowed,
            container_pid=nspid[-1] if len(nspid) > 1 else 0,
        )

    def _status(self, pid: int) -> PidStatus | Absent:
        """Read once for a process and again with its open files: 50 µs. What it says of the CPUs is kept."""
        status = reading(f"{self._prefix}/{pid}/status", parse_status)
        if not isinstance(status, Absent):
            self._known[pid].cpus_allowed = status.cpus_allowed
        return status

    def _place(self, pid: int, stat: PidStat, container: Text) -> RankPlace | None:
        environ = self._known[pid].own.environ
        if environ is None:
            return None
        return distributed.place(environ, stat.ppid, container if isinstance(container, str) else "")

    def _samples(self, jobs: dict[int, int], stats: dict[int, PidStat], mono_ns: int) -> tuple[ProcessSample, ...]:
        budget = TASKS_PER_TICK
        running: dict[int, int] = {}
        for pid in sorted(jobs, key=lambda pid: pid != jobs[pid]):
            running[pid], used = self._running_threads(pid, stats[pid], budget)
            budget -= used
        many = len(jobs) > MANY
        return tuple(
            (self._asleep(pid, stats[pid], mono_ns) if many else None)
            or self._sample(pid, stats[pid], running[pid], mono_ns)
            for pid in jobs
        )

    def _asleep(self, pid: int, stat: PidStat, mono_ns: int) -> ProcessSample | None:
        """The last sample once more, of a process that slept then and now and used no CPU in between."""
        process = self._known[pid]
        last = process.last
        if last is None or process.kept >= SLEEPS_KEPT or stat.state != "S" or last.state != "S":
            return None
        cpu_ns = (stat.utime_ticks + stat.stime_ticks) * _TICK_NS
        if (cpu_ns, stat.num_threads, stat.majflt) != (process.cpu_ns, last.num_threads, last.majflt):
            return None
        process.kept += 1
        process.mono_ns = mono_ns
        rss_bytes = stat.rss_pages * _PAGE_BYTES
        process.last = msgspec.structs.replace(last, mono_ns=mono_ns, cpu_pct=0.0, rss_bytes=rss_bytes)
        return process.last

    def _running_threads(self, pid: int, stat: PidStat, budget: int) -> tuple[int, int]:
        """(threads in state R, threads read)."""
        alone = int(stat.state == "R")
        if stat.num_threads < 2 or (budget < stat.num_threads and budget < TASKS_PER_PROCESS):
            return alone, 0
        folder = f"{self._prefix}/{pid}/task"
        try:
            tids = os.listdir(folder)[:TASKS_PER_PROCESS]  # noqa: PTH208 - hot path
        except OSError:
            return alone, 0
        count = 0
        for tid in tids:
            with contextlib.suppress(OSError, ValueError):
                count += parse_state(read_small(f"{folder}/{tid}/stat")) == "R"
        return count, len(tids)

    def _sample(self, pid: int, stat: PidStat, running_threads: int, mono_ns: int) -> ProcessSample:
        process = self._known[pid]
        utime_ns, stime_ns = stat.utime_ticks * _TICK_NS, stat.stime_ticks * _TICK_NS
        cpu_ns = utime_ns + stime_ns
        elapsed_ns = mono_ns - process.mono_ns
        cpu_pct: float | Absent = Absent(Reason.NOT_READ)
        if process.mono_ns and elapsed_ns > 0:
            cpu_pct = max(0.0, 100.0 * (cpu_ns - process.cpu_ns) / elapsed_ns)
        process.cpu_ns, process.mono_ns = cpu_ns, mono_ns
        on_cpu_ns, run_wait_ns = self._sched(pid, stat)
        io = self._io(pid)
        # Spread over the ticks by pid, so that not all are due in the same one.
        process.kept = 0 if process.last is not None else pid % SLEEPS_KEPT
        process.last = ProcessSample(
            pid=pid,
            start_ticks=stat.start_ticks,
            mono_ns=mono_ns,
            # The kernel reports the main thread's state for the whole process.
            state=stat.state,
            main_thread_state=stat.state,
            cpu_pct=cpu_pct,
            utime_ns=utime_ns,
            stime_ns=stime_ns,
            main_thread_cpu_ns=on_cpu_ns,
            num_threads=stat.num_threads,
            running_threads=running_threads,
            rss_bytes=stat.rss_pages * _PAGE_BYTES,
            run_wait_ns=run_wait_ns,
            read_bytes=io if isinstance(io, Absent) else io.read_bytes,
            write_bytes=io if isinstance(io, Absent) else io.write_bytes,
            rchar=io if isinstance(io, Absent) else io.rchar,
            syscr=io if isinstance(io, Absent) else io.syscr,
            majflt=stat.majflt,
            wchan=self._wchan(pid),
        )
        return process.last

    def _sched(self, pid: int, stat: PidStat) -> tuple[int | Absent, int | Absent]:
        """(CPU time, run-queue wait) of the main thread in ns.

        schedstat is exact; without it the thread's own stat has 10 ms ticks and no wait. A kernel without scheduler
        information writes zeros, which is told by ticks that were counted elsewhere.
        """
        try:
            on_cpu_ns, wait_ns = parse_schedstat(self._files.read(pid, "schedstat", f"{self._prefix}/{pid}/schedstat"))
            if on_cpu_ns or stat.num_threads > 1 or not stat.utime_ticks:
                return on_cpu_ns, wait_ns
            error = Absent(Reason.NOT_SUPPORTED)
        except (OSError, ValueError) as exc:
            error = absent(exc, Reason.NOT_SUPPORTED)
        thread = reading(f"{self._prefix}/{pid}/task/{pid}/stat", parse_stat)
        if isinstance(thread, Absent):
            return thread, error
        return (thread.utime_ticks + thread.stime_ticks) * _TICK_NS, error

    def _io(self, pid: int) -> PidIo | Absent:
        """Absent(NO_PERMISSION) for other users' processes."""
        try:
            return parse_io(self._files.read(pid, "io", f"{self._prefix}/{pid}/io"))
        except (OSError, ValueError) as error:
            return absent(error, Reason.NOT_SUPPORTED)

    def _wchan(self, pid: int) -> Text:
        """The kernel writes "0" for a running thread and also when we may not know: neither is a function."""
        try:
            name = printable(self._files.read(pid, "wchan", f"{self._prefix}/{pid}/wchan").strip())
        except OSError as error:
            return absent(error, Reason.NOT_SUPPORTED)
        return name if name not in ("", "0") else Absent(Reason.NOT_FOUND)
