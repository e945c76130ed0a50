"""Loaders that wait: for which disk or server, or for something that is no storage at all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from diagnose import builders as b
from gpuwatch.diagnose import mounts
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import (
    Confidence,
    Diagnosis,
    FileSystem,
    Frame,
    Observation,
    ProcessInfo,
    ProcessTick,
    Role,
    SourceLine,
    StackSample,
    Storage,
    ThreadStack,
)

PID = b.PID
PY = "/usr/lib/python3.12/"
NFS = FileSystem("/data", "nfs4", "server:/export", remote=True)
NVME = FileSystem("/scratch", "ext4", "/dev/nvme0n1p2", remote=False, disk="nvme0n1")
HDD = FileSystem("/archive", "xfs", "/dev/sda1", remote=False, disk="sda", rotational=True)
SHM = FileSystem("/dev/shm", "tmpfs", "tmpfs", remote=False)
HOME = FileSystem("/home", "nfs4", "server:/home", remote=True)
OF_HOST = FileSystem("/mnt", "virtiofs", "share", remote=False)
ITEM = Frame("Photos.__getitem__", "/home/ann/photos.py", 20)
LOOP = (
    Frame("_MapDatasetFetcher.fetch", b.LIB + "torch/utils/data/_utils/fetch.py", 54),
    Frame("_worker_loop", b.LIB + "torch/utils/data/_utils/worker.py", 358),
)
LOCK = (Frame("SemLock.__enter__", PY + "multiprocessing/synchronize.py", 95), ITEM, *LOOP)
SSL = (
    Frame("SSLSocket.read", PY + "ssl.py", 1166),
    Frame("read", b.LIB + "urllib3/response.py", 900),
    ITEM,
    *LOOP,
)
CONDITION = Frame("Condition.wait", PY + "threading.py", 359)
POOL = (CONDITION, Frame("Future.result", PY + "concurrent/futures/_base.py", 451), ITEM, *LOOP)
PLAIN = (ITEM, *LOOP)
CHILD = (Frame("Popen.communicate", PY + "subprocess.py", 1209), ITEM, *LOOP)


def judged(
    frames: tuple[Frame, ...],
    *,
    state: str = "S",
    cores: float = 0.03,
    reads: float = 50.0,
    storage: Sequence[FileSystem] = (),
    of_main: Sequence[FileSystem] = (),
    wchan: str = "",
    others: tuple[ThreadStack, ...] = (),
    stacks: bool = True,
) -> Diagnosis:
    workers = [b.process(5001 + i, cores, state=state, reads_per_s=reads) for i in range(4)]
    if wchan:
        workers = [[msgspec.structs.replace(s, wchan=wchan) for s in series] for series in workers]
    seen: list[Observation] = [b.inventory(), *b.gpu([0, 0, 60]), *b.host()]
    for o in b.ticks(b.process(PID, 0.1, state="S"), workers):
        assert isinstance(o, ProcessTick)
        seen.append(msgspec.structs.replace(o, infos=tuple(_with(i, storage, of_main) for i in o.infos)))
    if stacks:
        seen += b.stacks([(b.WAITING, False)] * 4 + [(b.LAUNCHING, True)])
    for i in range(4) if stacks else ():
        for s in b.stacks([(frames, False)], pid=5001 + i, every=20):
            assert isinstance(s, StackSample)
            seen.append(StackSample(s.pid, PID, s.mono_ns, (*s.threads, *others)))
    seen.append(SourceLine(5001, b.times()[0], ITEM.file, ITEM.line, "    with self.lock:"))
    return diagnose(seen, PID)


def _with(info: ProcessInfo, storage: Sequence[FileSystem], of_main: Sequence[FileSystem]) -> ProcessInfo:
    systems = tuple(of_main if info.role is Role.MAIN else storage)
    return msgspec.structs.replace(info, storage=Storage(systems)) if systems else info


def test_workers_that_read_from_a_server_are_not_told_to_buy_a_faster_disk() -> None:
    d = judged(PLAIN, state="D", storage=[NFS])
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_storage_latency", Confidence.HIGH)
    assert "/data (nfs4, server:/export)" in d.verdict.summary
    assert any(row.name == "they read from" and "server:/export" in str(row.value) for row in d.verdict.evidence)


def test_the_slow_disk_is_named() -> None:
    d = judged(PLAIN, state="D", storage=[HDD])
    assert d.verdict.cause == "loader_storage_bandwidth"
    assert "/archive (xfs, /dev/sda1 on sda, which turns)" in d.verdict.summary


def test_small_files_on_a_server_are_told_as_such() -> None:
    d = judged(PLAIN, state="D", storage=[NFS], reads=200.0)
    assert d.verdict.cause == "loader_storage_latency"
    assert "loader_small_files" in d.verdict.alternatives
    assert "loader_small_files" not in judged(PLAIN, state="D", storage=[NFS]).verdict.alternatives


def test_a_log_on_a_server_that_the_workers_inherit_is_not_where_the_data_lies() -> None:
    d = judged(PLAIN, state="D", storage=[HOME, NVME], of_main=[HOME])
    assert d.verdict.cause == "loader_storage_bandwidth"
    assert "/scratch (ext4, /dev/nvme0n1p2 on nvme0n1)" in d.verdict.summary
    assert "/home" not in d.verdict.summary


def test_a_worker_that_waits_for_a_block_device_reads_a_disk_whatever_else_it_has_open() -> None:
    assert judged(PLAIN, state="D", storage=[NFS], wchan="blk_io_schedule").verdict.cause == "loader_storage_bandwidth"


def test_what_cannot_be_told_from_the_mount_keeps_both_in_question() -> None:
    for storage in ([OF_HOST], [NVME, NFS]):
        d = judged(PLAIN, state="D", storage=storage)
        assert d.verdict.cause == "loader_storage_bandwidth"
        assert "loader_storage_latency" in d.verdict.alternatives
    assert mounts.remote([OF_HOST]) is None
    assert mounts.data_mounts(None, ()) == ()


def test_files_in_memory_are_no_disk_to_wait_for() -> None:
    d = judged(PLAIN, state="D", storage=[SHM])
    assert "tmpfs" not in d.verdict.summary


def test_a_recording_that_knows_no_mounts_is_judged_as_before() -> None:
    unknown = judged(PLAIN, state="D")
    assert unknown.verdict.cause == "loader_storage_bandwidth"
    assert "loader_storage_latency" in unknown.verdict.alternatives, "no mount was seen: it may be a server's"
    disk = judged(PLAIN, state="D", wchan="blk_io_schedule")
    assert "loader_storage_latency" not in disk.verdict.alternatives
    nfs = judged(PLAIN, state="D", wchan="rpc_wait_bit_killable")
    assert (nfs.verdict.cause, nfs.verdict.confidence) == ("loader_storage_latency", Confidence.HIGH)


def test_without_stacks_the_mount_tells_a_server_from_a_disk() -> None:
    assert judged(PLAIN, state="D", storage=[NFS], stacks=False).verdict.cause == "loader_storage_latency"
    assert judged(PLAIN, state="D", storage=[NVME], stacks=False).verdict.cause == "loader_storage_bandwidth"


def test_a_lock_between_workers_is_not_sold_as_slow_storage() -> None:
    d = judged(LOCK)
    assert (d.verdict.cause, d.verdict.confidence) == ("unattributed", Confidence.LOW)
    assert "wait for a lock at photos.py:20 (__getitem__): `with self.lock:`" in d.verdict.summary
    assert "loader_storage_latency" in d.verdict.alternatives
    assert d.verdict.location is not None
    assert d.verdict.location.line == ITEM.line


def test_a_socket_makes_remote_storage_sure_and_a_thread_that_fetches_counts_as_one() -> None:
    assert judged(SSL).verdict.confidence is Confidence.HIGH
    fetcher = ThreadStack(9, "ThreadPoolExecutor-0_0", False, False, SSL[:2])
    assert judged(POOL, others=(fetcher,)).verdict.confidence is Confidence.HIGH
    assert judged(PLAIN, wchan="wait_woken").verdict.confidence is Confidence.HIGH


@pytest.mark.parametrize(
    ("frames", "wchan"), [(POOL, ""), (PLAIN, "futex_do_wait"), (CHILD, "poll_schedule_timeout"), (PLAIN, "pipe_read")]
)
def test_what_a_worker_waits_for_in_c_code_or_for_a_child_is_not_surely_storage(
    frames: tuple[Frame, ...], wchan: str
) -> None:
    d = judged(frames, wchan=wchan)
    assert d.verdict.cause == "loader_storage_latency"
    assert d.verdict.confidence is not Confidence.HIGH


def test_a_pause_in_the_dataset_is_hardly_storage() -> None:
    assert judged(PLAIN, wchan="hrtimer_nanosleep").verdict.confidence is Confidence.LOW
