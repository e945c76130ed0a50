"""Causes behind the loader: storage, network, memory, a stuck worker.

Owns: why workers that do not compute deliver no batch. Refuses: workers short of CPU (input.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import advise_workers, finding, pct, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case, text_at
from gpuwatch.diagnose.loader import WAITS, hot_row, of_them_text, or_slow_sample, queue_row, told_apart, workers_row
from gpuwatch.diagnose.mounts import data_mounts, remote
from gpuwatch.diagnose.mounts import text as mounts_text
from gpuwatch.diagnose.waiting import LOCAL_WCHAN, REMOTE_WCHAN, Wait
from gpuwatch.model import CodeLocation, Confidence, EvidenceRow, FileSystem, Finding


def state_share(case: Case, state: str) -> float:
    """Mean share of the readings in a scheduler state, of the workers that had work."""
    return fmean(w.states.get(state, 0.0) for w in case.crew.counted)


def waits_for_storage(case: Case, lost: float) -> Finding:
    """Workers that neither compute nor have spare batches wait for storage, local or remote, or for a lock."""
    e, view, crew = case.evidence, case.workers, case.crew.counted
    disk_state = state_share(case, "D")
    local = disk_state >= t.DISK_WAIT_STATE or (e.host.psi_io_pct or 0.0) >= t.PSI_IO_PCT
    wchan = next((name for w in crew for name, _ in w.wchans if name != "0"), "")
    mounts = data_mounts(e.main, crew)
    read = sum(w.read_bytes_per_s or 0.0 for w in crew)
    evidence = rows(
        case.stack_row("training thread waits for a batch", *WAITS),
        workers_row(case),
        row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
        row("workers off the CPU inside a fetch", 100 * view.waiting if view else None, "% of samples",
            f"stack samples (n={view.samples if view else 0})", e.window_s),
        row("workers sleep in", wchan or None, "", "/proc/PID/wchan", e.window_s),
        row("workers in state D", 100 * disk_state, "%", "/proc", e.window_s),
        row("they read from", mounts_text(mounts) or None, "", "/proc/PID/fd, mountinfo", e.window_s),
        row("read from local disks", read / 2**20, "MiB/s", "/proc/PID/io", e.window_s),
        row("I/O pressure (some)", e.host.psi_io_pct, "%", "PSI", e.window_s),
        hot_row(case, view.where if view else None, view),
        *case.gpu_rows(),
    )  # fmt: skip
    if thrashes(case):
        return _swaps(case, lost, evidence)
    if disk_state < t.DISK_WAIT_STATE and _slept(case, Wait.LOCK) >= t.MOSTLY:
        return _lock(case, lost, evidence)
    if local and not is_remote(case):
        return _local(case, lost, evidence, mounts, read)
    return _remote(case, lost, evidence, mounts)


def _slept(case: Case, *kinds: Wait) -> float:
    """Share of the workers' waits that were for these."""
    return sum(case.workers.sleeps.get(kind, 0.0) for kind in kinds) if case.workers is not None else 0.0


def is_remote(case: Case) -> bool:
    """The kernel waits for a server, or the files lie on one and it does not wait for a disk."""
    crew = case.crew.counted
    if any(REMOTE_WCHAN.search(name) for w in crew for name, _ in w.wchans):
        return True
    return remote(data_mounts(case.evidence.main, crew)) is True and not _waits_for_a_disk(case)


def _waits_for_a_disk(case: Case) -> bool:
    return any(LOCAL_WCHAN.search(name) for w in case.crew.counted for name, _ in w.wchans)


def _place(case: Case) -> CodeLocation | None:
    assert case.account is not None
    return (case.workers.where if case.workers else None) or case.account.location(*WAITS)


def _reads_text(mounts: Sequence[FileSystem], read: float) -> str:
    where = f" from {mounts_text(mounts)}" if mounts else ""
    rate = f" at {units.rate_text(read)}" if read else ""
    return f" (they read{where}{rate})" if where or rate else ""


def _swaps(case: Case, lost: float, evidence: tuple[EvidenceRow, ...]) -> Finding:
    e, place = case.evidence, _place(case)
    return finding(
        "memory_thrash",
        f"The host is short of memory and swaps: the loader workers wait for pages{place_text(place)}. The GPU is "
        f"idle {share_text(lost)} of the time.",
        lost, case.bound(*WAITS), location=place, confidence=Confidence.MEDIUM,
        remedy="Fewer workers or a smaller prefetch_factor; do not copy the data set into each worker (use arrays "
        "or memory maps instead of lists of objects); cache less.",
        alternatives=("loader_storage_bandwidth",),
        experiment="Halve num_workers: if the job gets faster, memory is the limit.",
        evidence=rows(
            *evidence, row("memory pressure (some)", e.host.psi_memory_pct, "%", "PSI", e.window_s),
            row("swap grew by", (e.host.swap_grew_bytes or 0.0) / 2**20, "MiB", "/proc/meminfo", e.window_s),
        ),
    )  # fmt: skip


def _lock(case: Case, lost: float, evidence: tuple[EvidenceRow, ...]) -> Finding:
    """Workers that queue for a lock: who holds it, and what for, is not told by those that wait."""
    place = (case.workers.lock if case.workers else None) or _place(case)
    return finding(
        "unattributed",
        f"The loader workers wait for a lock{place_text(place)}{text_at(case, place)}: one at a time gets through. The "
        f"GPU is idle {share_text(lost)} of the time.",
        lost, case.bound(*WAITS), location=place, evidence=evidence, confidence=Confidence.LOW,
        remedy="Hold that lock for as little as possible, or give each worker a handle of its own (files, HDF5 and "
        "database connections opened after the workers have started). More workers would queue as well.",
        alternatives=("loader_storage_latency", "loader_hung"),
        experiment="Set num_workers=1: if the job is as fast as now, the lock is the limit.",
    )  # fmt: skip


def _local(
    case: Case, lost: float, evidence: tuple[EvidenceRow, ...], mounts: Sequence[FileSystem], read: float
) -> Finding:
    place, small = _place(case), reads_small_files(case)
    cause = "loader_small_files" if small else "loader_storage_bandwidth"
    remedy = (
        "Pack the samples into shards (tar/WebDataset, LMDB, Arrow), so that one read brings many."
        if small
        else "Stage the data set on a faster local disk (NVMe) or in memory; read ahead with larger requests."
    )
    # Where the mount is not known, or of unknown kind, the files may as well come from a server.
    open_question = ("loader_storage_latency",) if remote(mounts) is None and not _waits_for_a_disk(case) else ()
    return finding(
        cause,
        f"The loader workers wait for the disk{place_text(place)}{_reads_text(mounts, read)}: the GPU is idle "
        f"{share_text(lost)} of the time.",
        lost, case.bound(*WAITS), remedy=remedy, location=place, evidence=evidence, confidence=Confidence.MEDIUM,
        alternatives=(
            "loader_small_files" if not small else "loader_storage_bandwidth", *open_question, *or_slow_sample(case),
        ),
        experiment="Read the same files twice: if the second pass is fast, the disk is the limit.",
    )  # fmt: skip


def _remote(case: Case, lost: float, evidence: tuple[EvidenceRow, ...], mounts: Sequence[FileSystem]) -> Finding:
    account, place, count = case.account, _place(case), len(case.crew.counted)
    assert account is not None
    advice = advise_workers(count, account.held_in(*WAITS), account.computing, case.cpus, cpu_bound=False)
    served = remote(mounts) is True
    whom = f"the server of {mounts_text(mounts)}" if served else "storage or network"
    small = served and reads_small_files(case)
    hide = (
        ""
        if case.throttled
        else f" Waiting costs no CPU, so more workers hide some of it: {advice.needed} would hide all (now {count})."
    )
    return finding(
        "loader_storage_latency",
        f"The {count} loader worker{'s' if count != 1 else ''} sleep{'' if count != 1 else 's'} inside the fetch"
        f"{place_text(place)}{of_them_text(case)}, waiting for an answer from {whom}: the GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Copy the data next to the GPU before training, or fetch many samples per request (shards, "
        f"batched or asynchronous reads).{hide}",
        location=place,
        evidence=evidence,
        confidence=told_apart(case, _how_sure(case)),
        alternatives=(
            "loader_hung" if nothing_moves(case) else "lock or sleep in the dataset's own code",
            *(("loader_small_files",) if small else ()),
            *or_slow_sample(case),
        ),
        experiment=f"Look at the line{place_text(place)}: does it talk to a network or a lock?",
    )


def reads_small_files(case: Case) -> bool:
    """The workers read often and little at a time."""
    calls, through = _reads(case)
    return calls >= t.SMALL_READS_PER_S and through <= calls * t.SMALL_READ_BYTES


def small_reads(case: Case) -> tuple[EvidenceRow | None, ...]:
    """How often the workers read and how little at a time; nothing where they do not read small files."""
    if not reads_small_files(case):
        return ()
    (calls, through), window_s = _reads(case), case.evidence.window_s
    return (
        row("reads by the workers", calls, "/s", "/proc/PID/io", window_s),
        row("bytes a read", through / calls / 1024, "KiB", "/proc/PID/io", window_s),
    )


def _reads(case: Case) -> tuple[float, float]:
    """Reads, and bytes read, per second by all workers; from the page cache too."""
    workers = case.evidence.workers
    return sum(w.reads_per_s or 0.0 for w in workers), sum(w.rchar_bytes_per_s or 0.0 for w in workers)


def thrashes(case: Case) -> bool:
    """The host is short of memory: pressure or growing swap."""
    host = case.evidence.host
    return (host.psi_memory_pct or 0.0) >= t.SWAP_PSI_MEMORY_PCT or (host.swap_grew_bytes or 0.0) >= 64 * 2**20


def _how_sure(case: Case) -> Confidence:
    """High only where what is waited for was seen: a socket, or a file on a server. Off the CPU inside a fetch may as
    well be a lock in C code, a pipe or a pause."""
    if nothing_moves(case):
        return Confidence.LOW
    if case.workers is None or case.workers.waiting < 0.5:
        return Confidence.MEDIUM
    if _slept(case, Wait.PAUSE, Wait.LOCK) >= t.MOSTLY:
        return Confidence.LOW
    remote_file = is_remote(case) and (
        _slept(case, Wait.FILE) >= t.MOSTLY or state_share(case, "D") >= t.DISK_WAIT_STATE
    )
    return Confidence.HIGH if remote_file or _slept(case, Wait.SOCKET) >= t.MOSTLY else Confidence.MEDIUM


def nothing_moves(case: Case) -> bool:
    """No GPU activity, no CPU, not one byte read by any worker."""
    e = case.evidence
    return (
        bool(e.workers)
        and e.busiest() < t.NO_ACTIVITY_BUSY
        and all((w.cpu_cores or 0.0) < 0.005 and not w.rchar_bytes_per_s for w in e.workers)
    )


def is_hung(case: Case) -> bool:
    """Nothing moves for longer than a slow store takes to answer."""
    return case.evidence.window_s >= t.HUNG_FROM_S and nothing_moves(case)


def loader_hung(case: Case, lost: float) -> Finding:
    """The finding for a loader in which nothing moves."""
    e, view = case.evidence, case.workers
    return finding(
        "loader_hung",
        f"Nothing moves: the training loop waits for a batch, its {len(e.workers)} workers neither compute nor read.",
        lost,
        case.bound(*WAITS),
        remedy="A worker is stuck (lock taken before fork, dead store, full queue). Look at its line; set "
        "DataLoader(timeout=60) so that it fails instead, or use the spawn start method.",
        location=view.where if view else None,
        confidence=Confidence.MEDIUM,
        alternatives=("loader_storage_latency",),
        experiment="Wait a minute: a slow store moves on, a hung loader does not.",
        evidence=rows(
            case.stack_row("training thread waits for a batch", *WAITS),
            row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
            hot_row(case, view.where if view else None, view),
            *case.gpu_rows(),
        ),
    )


def shm_short(case: Case) -> bool:
    """Batches travel from the workers through /dev/shm."""
    host = case.evidence.host
    full = host.shm_used_share is not None and host.shm_used_share >= t.SHM_FULL
    view = case.workers
    idle = view is None or view.preparing < 0.5
    return full and idle


def shm_too_small(case: Case, lost: float) -> Finding:
    """The finding for a full /dev/shm."""
    account, e = case.account, case.evidence
    assert account is not None
    total = e.host.shm_total_bytes
    return finding(
        "shm_too_small",
        f"/dev/shm is full ({units.bytes_text(total)}): the workers cannot hand over their batches. The GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Give the container more shared memory (docker run --shm-size=8g; in Kubernetes an emptyDir with medium "
        'Memory on /dev/shm), or torch.multiprocessing.set_sharing_strategy("file_system").',
        location=account.location(*WAITS),
        confidence=Confidence.MEDIUM,
        alternatives=("loader_collate_or_ipc",),
        experiment="Halve prefetch_factor: if the wait shrinks, shared memory is the limit.",
        evidence=rows(
            row("/dev/shm used", pct(e.host.shm_used_share), "%",
                "statvfs", e.window_s),
            row("/dev/shm size", total / 2**20 if total is not None else None, "MiB", "statvfs", e.window_s),
            case.stack_row("training thread waits for a batch", *WAITS),
            queue_row(case, case.workers),
            *case.gpu_rows(),
        ),
    )  # fmt: skip
