"""Processes of GPU jobs: which belong to a job, what they cost, what is new and what is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.collect.host import INIT_PID_NAMESPACE
from gpuwatch.collect.proc_files import KeptFiles
from gpuwatch.collect.procfs import LOOK_EVERY_NS, TASKS_PER_PROCESS, ProcessReader
from gpuwatch.collect.strangers import AGAIN_NS
from gpuwatch.model import NOT_READ, Absent, ProcessInfo, ProcessSample, ProcessTick, RankPlace, Reason, Role

RECORDED_IO = (Path(__file__).parent / "procfixtures/main_io.txt").read_bytes()
RECORDED_STATUS = (Path(__file__).parent / "procfixtures/main_status.txt").read_bytes()
S = 1_000_000_000
TICK_NS = S // os.sysconf("SC_CLK_TCK")
GPU = (0,)


class FakeProc:
    """A /proc tree of regular files, without ``children`` files: the reader has to scan."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").mkdir()
        (root / "self/mountinfo").write_text("")

    def add(
        self,
        pid: int,
        ppid: int = 1,
        comm: str = "python",
        argv: str = "python train.py",
        start: int = 100,
        ticks: int = 0,
        state: str = "S",
        threads: str = "S",
        wchan: str = "futex_do_wait",
        environ: str = "",
    ) -> None:
        """``threads``: one state letter per thread. ``environ``: NAME=value, with spaces between."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_bytes(self.stat(pid, ppid, comm, start, ticks, state, len(threads)))
        (folder / "schedstat").write_text(f"{ticks * TICK_NS + 1} 777 3\n")
        (folder / "io").write_bytes(RECORDED_IO)
        (folder / "wchan").write_text(wchan)
        (folder / "status").write_bytes(RECORDED_STATUS)
        (folder / "cmdline").write_bytes(argv.replace(" ", "\0").encode() + b"\0")
        (folder / "cgroup").write_text("0::/user.slice\n")
        (folder / "environ").write_bytes(environ.replace(" ", "\0").encode())
        for offset, thread in enumerate(threads):
            task = folder / "task" / str(pid + offset)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_bytes(self.stat(pid + offset, ppid, comm, start, ticks, thread, len(threads)))

    def stat(self, pid: int, ppid: int, comm: str, start: int, ticks: int, state: str, threads: int) -> bytes:
        fields = [state, ppid, 1, 1, 0, -1, 0, 5, 0, 2, 0, ticks, 0, 0, 0, 20, 0, threads, 0, start, 4096, 25]
        return f"{pid} ({comm}) {' '.join(map(str, fields))} 0 0\n".encode()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.fixture
def reader(proc: FakeProc) -> Iterator[ProcessReader]:
    reader = ProcessReader(proc.root)
    yield reader
    reader.close()


def by_pid(tick: ProcessTick) -> dict[int, ProcessSample]:
    return {sample.pid: sample for sample in tick.samples}


def roles_of(tick: ProcessTick) -> dict[int, Role]:
    return {info.pid: info.role for info in tick.infos}


def test_a_job_is_its_process_and_all_descendants_and_nobody_else(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10)
    proc.add(20, 10, "pt_data_worker")
    proc.add(30, 20, "ffmpeg", "ffmpeg -i x")
    proc.add(40, 1, "bash", "bash")
    tick = reader.read({10: GPU}, S)
    assert roles_of(tick) == {10: Role.MAIN, 20: Role.LOADER_WORKER, 30: Role.CHILD}
    info = {info.pid: info for info in tick.infos}
    assert {info.root_pid for info in tick.infos} == {10}
    assert info[10].device_indices == GPU
    assert info[20].device_indices == ()
    assert (info[10].command, info[10].python, info[30].python) == ("python train.py", True, False)
    assert (info[10].uid, info[10].user) == (0, "root")
    assert (info[10].cgroup, info[10].container) == ("/user.slice", Absent(Reason.NOT_FOUND))


def test_the_cpus_that_a_process_may_run_on_are_read_and_what_it_changes_later_is_seen(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(10)
    for tick in range(3):
        last = reader.read({10: GPU}, S + tick)
        assert not tick or not last.infos, "sent once"
        if not tick:
            assert last.infos[0].cpus_allowed == "0-15"
    status = RECORDED_STATUS.replace(b"Cpus_allowed_list:\t0-15", b"Cpus_allowed_list:\t3,7-8")
    (proc.root / "10/status").write_bytes(status)
    later = reader.read({10: GPU}, S + 2 * LOOK_EVERY_NS).infos
    assert [info.cpus_allowed for info in later] == ["3,7-8"]
    (proc.root / "10/status").write_bytes(RECORDED_STATUS.replace(b"Cpus_allowed_list", b"Cpus_of_another_kernel"))
    assert [i.cpus_allowed for i in reader.read({10: GPU}, S + 4 * LOOK_EVERY_NS).infos] == [""]


def test_ranks_of_one_machine_are_jobs_of_their_own_below_their_launcher(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(5, 1, "torchrun", "python torchrun train.py")
    proc.add(10, 5)
    proc.add(11, 10)
    proc.add(20, 5)
    proc.add(21, 20)
    # A rank that another rank forked is still a job of its own.
    proc.add(30, 10)
    tick = reader.read({10: (0,), 20: (1,), 30: (2,)}, S)
    assert {info.pid: info.root_pid for info in tick.infos} == {5: 10, 10: 10, 11: 10, 20: 20, 21: 20, 30: 30}
    assert roles_of(tick)[5] is Role.PARENT
    assert [roles_of(tick)[pid] for pid in (10, 20, 30)] == [Role.MAIN] * 3
    assert {cgroup.root_pid for cgroup in tick.cgroups} == {10, 20, 30}


def test_ranks_that_two_shells_started_are_one_job(proc: FakeProc, reader: ProcessReader) -> None:
    env = "HOME=/root MASTER_ADDR=node3 MASTER_PORT=29500 WORLD_SIZE=2 TOKEN=secret RANK="
    proc.add(5, 1, "bash", "bash")
    proc.add(6, 1, "bash", "bash")
    proc.add(10, 5, environ=env + "0")
    proc.add(20, 6, argv="python -u train.py", environ=env + "1")
    proc.add(11, 10, environ=env + "0")
    info = {i.pid: i for i in reader.read({10: (0,), 20: (1,)}, S).infos}
    assert info[10].place == RankPlace(0, 2, "tcp node3:29500")
    assert info[20].place == RankPlace(1, 2, "tcp node3:29500")
    assert info[10].same_job(info[20])
    assert info[11].place is None, "a rank's helper inherits its variables and is no rank"
    assert "secret" not in str(info)


def test_a_process_whose_environment_may_not_be_read_is_told_by_its_launcher(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(5, 1, "torchrun", "python torchrun train.py")
    for pid in (10, 20):
        proc.add(pid, 5)
        (proc.root / f"{pid}/environ").unlink()
    info = {i.pid: i for i in reader.read({10: (0,), 20: (1,)}, S).infos}
    assert (info[10].place, info[10].same_job(info[20])) == (None, True)


def test_cpu_share_is_between_two_readings_of_the_same_process(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10, ticks=100)
    first = by_pid(reader.read({10: GPU}, 10 * S))[10]
    assert first.cpu_pct == NOT_READ
    proc.add(10, ticks=100 + S // TICK_NS // 2)
    second = by_pid(reader.read({10: GPU}, 11 * S))[10]
    assert second.cpu_pct == 50.0
    assert second.utime_ns == 100 * TICK_NS + S // 2
    assert second.main_thread_cpu_ns == second.utime_ns + 1
    assert (second.run_wait_ns, second.majflt, second.rss_bytes) == (777, 2, 25 * os.sysconf("SC_PAGE_SIZE"))
    assert (second.read_bytes, second.write_bytes, second.rchar, second.syscr) == (8798208, 57344, 44898925, 5117)
    assert second.wchan == "futex_do_wait"


def test_a_reused_pid_is_another_process_and_has_no_cpu_share_yet(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10, ticks=500)
    reader.read({10: GPU}, 1 * S)
    proc.add(10, ticks=1, start=999, argv="python other.py")
    tick = reader.read({10: GPU}, 2 * S)
    assert by_pid(tick)[10].cpu_pct == NOT_READ
    assert [(info.start_ticks, info.command) for info in tick.infos] == [(999, "python other.py")]


def test_a_workers_pid_taken_over_by_a_stranger_leaves_the_job_at_once(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10)
    proc.add(20, 10, "pt_data_worker")
    reader.read({10: GPU}, 1 * S)
    proc.add(20, 1, "bash", "bash", start=999)
    tick = reader.read({10: GPU}, 1 * S + 1)
    assert by_pid(tick).keys() == {10}
    assert tick.gone == (20,)


def test_pids_that_are_not_in_our_namespace_are_skipped_and_never_reported_gone(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(10)
    roots: dict[int, tuple[int, ...]] = {10: GPU, 0: GPU, 4294967295: GPU, 77: GPU}
    for second in (1, 2):
        tick = reader.read(roots, second * S)
        assert by_pid(tick).keys() == {10}
        assert tick.gone == ()
        assert [cgroup.root_pid for cgroup in tick.cgroups] == [10]


def test_a_local_process_that_only_bears_the_number_of_a_gpu_process_is_not_taken_for_it(
    proc: FakeProc, tmp_path: Path
) -> None:
    (proc.root / "self/ns").mkdir()
    (proc.root / "self/ns/pid").symlink_to("pid:[4026532841]")
    for pid, target in ((10, "/dev/nvidiactl"), (20, "/dev/null"), (30, "/dev/dxg")):
        proc.add(pid)
        (proc.root / f"{pid}/fd").mkdir()
        (proc.root / f"{pid}/fd/0").symlink_to("/dev/pts/0")
        (proc.root / f"{pid}/fd/1").symlink_to(target)
    proc.add(40)  # Its files may not be listed: nothing speaks against it.
    roots: dict[int, tuple[int, ...]] = dict.fromkeys((10, 20, 30, 40), GPU)
    reader = ProcessReader(proc.root)
    assert by_pid(reader.read(roots, S)).keys() == {10, 30, 40}
    (proc.root / "20/fd/2").symlink_to("/dev/nvidia-uvm")
    assert by_pid(reader.read(roots, 2 * S)).keys() == {10, 30, 40}
    assert by_pid(reader.read(roots, S + AGAIN_NS)).keys() == {10, 20, 30, 40}
    reader.close()
    (proc.root / "self/ns/pid").unlink()
    (proc.root / "self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    (proc.root / "20/fd/2").unlink()
    reader = ProcessReader(proc.root)
    assert by_pid(reader.read(roots, S)).keys() == {10, 20, 30, 40}, "on the host NVML's pids are ours"
    reader.close()


def test_a_process_in_a_container_is_told_with_the_pid_that_it_has_there(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10)
    proc.add(20)
    (proc.root / "20/status").write_text("Uid:\t0\t0\t0\t0\nNSpid:\t20\t9\t7\n")
    infos = {info.pid: info for info in reader.read({10: GPU, 20: GPU}, S).infos}
    assert (infos[10].container_pid, infos[20].container_pid, infos[20].uid) == (0, 7, 0)


def test_facts_are_sent_once_and_again_only_when_they_change(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10)
    proc.add(20, 10)
    assert len(reader.read({10: GPU}, 1 * S).infos) == 2
    assert reader.read({10: GPU}, 2 * S).infos == ()
    assert reader.read({10: GPU}, 3 * S).infos == ()
    assert [info.device_indices for info in reader.read({10: (0, 1)}, 4 * S).infos] == [(0, 1)]


def test_a_fork_that_becomes_another_program_loses_the_worker_role(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10)
    proc.add(20, 10)
    assert roles_of(reader.read({10: GPU}, 1 * S))[20] is Role.LOADER_WORKER
    proc.add(20, 10, argv="python -m http.server")
    assert roles_of(reader.read({10: GPU}, 2 * S)) == {20: Role.CHILD}
    proc.add(20, 10, "nvcc", "nvcc x.cu")
    assert [(info.comm, info.command) for info in reader.read({10: GPU}, 3 * S).infos] == [("nvcc", "nvcc x.cu")]


def test_an_unnamed_fork_stops_counting_as_worker_when_torch_names_its_own(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(10)
    proc.add(20, 10)
    assert roles_of(reader.read({10: GPU}, 1 * S))[20] is Role.LOADER_WORKER
    proc.add(30, 10, "pt_data_worker")
    assert roles_of(reader.read({10: GPU}, 2 * S)) == {20: Role.CHILD, 30: Role.LOADER_WORKER}


def test_running_threads_are_counted_up_to_the_cap(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10, threads="SRRS")
    assert by_pid(reader.read({10: GPU}, 1 * S))[10].running_threads == 2
    proc.add(2000, threads="R" * (TASKS_PER_PROCESS + 9))
    sample = by_pid(reader.read({2000: GPU}, 2 * S))[2000]
    assert (sample.num_threads, sample.running_threads) == (TASKS_PER_PROCESS + 9, TASKS_PER_PROCESS)


def test_no_name_for_the_kernel_function_is_absent(proc: FakeProc, reader: ProcessReader) -> None:
    proc.add(10, state="R", wchan="0")
    sample = by_pid(reader.read({10: GPU}, S))[10]
    assert sample.wchan == Absent(Reason.NOT_FOUND)
    assert (sample.state, sample.main_thread_state, sample.running_threads) == ("R", "R", 1)


def test_counters_that_a_kernel_lacks_or_garbles_are_absent_and_the_rest_stays(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(10, ticks=7)
    (proc.root / "10/io").unlink()
    (proc.root / "10/schedstat").write_text("\n")
    sample = by_pid(reader.read({10: GPU}, S))[10]
    assert sample.read_bytes == Absent(Reason.NOT_SUPPORTED)
    assert sample.main_thread_cpu_ns == 7 * TICK_NS
    assert isinstance(sample.run_wait_ns, Absent)
    assert sample.run_wait_ns.reason is Reason.ERROR


def test_a_kernel_without_scheduler_statistics_does_not_report_zero_cpu_time(
    proc: FakeProc, reader: ProcessReader
) -> None:
    proc.add(10, ticks=7)
    (proc.root / "10/schedstat").write_text("0 0 0\n")
    sample = by_pid(reader.read({10: GPU}, S))[10]
    assert sample.main_thread_cpu_ns == 7 * TICK_NS
    assert sample.run_wait_ns == Absent(Reason.NOT_SUPPORTED)


def test_descriptors_are_kept_up_to_the_limit_and_given_back(tmp_path: Path) -> None:
    files = KeptFiles(limit=2)
    for pid in range(4):
        (tmp_path / str(pid)).write_text(str(pid))
        assert files.read(pid, "stat", str(tmp_path / str(pid))) == str(pid).encode()
    assert len(files) == 2
    (tmp_path / "0").write_text("new")
    assert files.read(0, "stat", str(tmp_path / "0")) == b"new"
    files.drop(0, ("stat", "io"))
    assert len(files) == 1
    files.close()
    assert len(files) == 0


JOB = """
import os, signal, sys, threading
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    children.append(pid)
print(*children, flush=True)
for line in sys.stdin:
    if line == "reap\\n":
        print(os.wait()[0], flush=True)
    if line == "fork\\n":
        def start():
            if os.fork() == 0:
                signal.pause()
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        print("forked", flush=True)
"""


@pytest.fixture
def job() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A python process with two forked children, in a session of its own that is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        yield process, [int(word) for word in process.stdout.readline().split()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def ask(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_real_job_is_followed_until_its_worker_dies(job: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, children = job
    reader = ProcessReader()
    tick = reader.read({process.pid: GPU}, 1 * S)
    assert by_pid(tick).keys() == {process.pid, *children}
    assert [roles_of(tick)[pid] for pid in children] == [Role.LOADER_WORKER] * 2
    info: ProcessInfo = next(info for info in tick.infos if info.pid == process.pid)
    assert info.python
    assert info.uid == os.getuid()
    sample = by_pid(tick)[process.pid]
    assert isinstance(sample.rss_bytes, int)
    assert sample.rss_bytes > 1_000_000
    assert isinstance(sample.rchar, int)
    assert (sample.num_threads, sample.state in "RS") == (1, True)
    os.kill(children[0], signal.SIGKILL)
    assert ask(process, "reap") == str(children[0])
    after = reader.read({process.pid: GPU}, 1 * S + 1)
    assert after.gone == (children[0],)
    assert by_pid(after).keys() == {process.pid, children[1]}
    assert reader.read({process.pid: GPU}, 1 * S + 2).gone == ()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    last = reader.read({process.pid: GPU}, 2 * S)
    assert process.pid in last.gone
    assert (last.samples, last.cgroups) == ((), ())
    reader.close()


def test_a_child_forked_by_any_thread_is_found_within_a_second(job: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, children = job
    reader = ProcessReader()
    reader.read({process.pid: GPU}, 1 * S)
    assert ask(process, "fork") == "forked"
    tick = reader.read({process.pid: GPU}, 2 * S)
    assert len(tick.samples) == len(children) + 2
    reader.close()


def test_the_reader_gives_back_every_descriptor_of_dead_processes(
    job: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, _ = job
    reader = ProcessReader()
    before = open_files()
    reader.read({process.pid: GPU}, 1 * S)
    assert open_files() > before
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while reader.read({process.pid: GPU}, 2 * S).samples and time.monotonic() < deadline:
        pass
    assert open_files() == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_another_users_io_counters_are_refused_with_the_reason() -> None:
    code = (
        "import os, sys\n"
        "from gpuwatch.collect.procfs import ProcessReader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "tick = ProcessReader().read({int(sys.argv[1]): (0,)}, 1)\n"
        "print(tick.samples[0].read_bytes, tick.samples[0].num_threads > 0, tick.infos[0].python)\n"
    )
    command = [sys.executable, "-c", code, str(os.getpid())]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert found.stderr == ""
    assert found.stdout.strip() == f"{Absent(Reason.NO_PERMISSION)} True True"
