"""Causes behind the loader: storage, network, memory, a stuck worker.

Owns: why workers that do not compute deliver no batch. Refuses: workers short of CPU (input.py).
"""

from __future__ import annotations

from statistics import fmean

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import advise_workers, finding, pct, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.loader import WAITS, hot_row, of_them_text, or_slow_sample, queue_row, told_apart, workers_row
from gpuwatch.model import Confidence, EvidenceRow, Finding


def state_share(case: Case, state: str) -> float:
    """Mean share of the readings in a scheduler state, of the workers that had work."""
    return fmean(w.states.get(state, 0.0) for w in case.crew.counted)


def waits_for_storage(case: Case, lost: float) -> Finding:
    """Workers that neither compute nor have spare batches wait for storage, local or remote."""
    account, e, view = case.account, case.evidence, case.workers
    assert account is not None
    disk_state = state_share(case, "D")
    local = disk_state >= t.DISK_WAIT_STATE or (e.host.psi_io_pct or 0.0) >= t.PSI_IO_PCT
    crew = case.crew.counted
    wchan = next((name for w in crew for name, _ in w.wchans if name != "0"), "")
    remote_fs = any(mark in name for w in crew for name, _ in w.wchans for mark in ("nfs", "rpc_", "fuse", "ceph"))
    place = (view.where if view else None) or account.location(*WAITS)
    read = sum(w.read_bytes_per_s or 0.0 for w in crew)
    evidence = rows(
        case.stack_row("training thread waits for a batch", *WAITS),
        workers_row(case),
        row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
        row("workers off the CPU inside a fetch", 100 * view.waiting if view else None, "% of samples",
            f"stack samples (n={view.samples if view else 0})", e.window_s),
        row("workers sleep in", wchan or None, "", "/proc/PID/wchan", e.window_s),
        row("workers in state D", 100 * disk_state, "%", "/proc", e.window_s),
        row("read from local disks", read / 2**20, "MiB/s", "/proc/PID/io", e.window_s),
        row("I/O pressure (some)", e.host.psi_io_pct, "%", "PSI", e.window_s),
        hot_row(case, view.where if view else None, view),
        *case.gpu_rows(),
    )  # fmt: skip
    if thrashes(case):
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
    if local and not remote_fs:
        small = reads_small_files(case)
        cause = "loader_small_files" if small else "loader_storage_bandwidth"
        remedy = (
            "Pack the samples into shards (tar/WebDataset, LMDB, Arrow), so that one read brings many."
            if small
            else "Stage the data set on a faster local disk (NVMe) or in memory; read ahead with larger requests."
        )
        return finding(
            cause,
            f"The loader workers wait for the disk{place_text(place)} ({units.rate_text(read)}): the GPU is idle "
            f"{share_text(lost)} of the time.",
            lost, case.bound(*WAITS), remedy=remedy, location=place, evidence=evidence, confidence=Confidence.MEDIUM,
            alternatives=(
                "loader_small_files" if not small else "loader_storage_bandwidth", *or_slow_sample(case),
            ),
            experiment="Read the same files twice: if the second pass is fast, the disk is the limit.",
        )  # fmt: skip
    count = len(crew)
    held = account.held_in(*WAITS)
    advice = advise_workers(count, held, account.computing, case.cpus, cpu_bound=False)
    return finding(
        "loader_storage_latency",
        f"The {count} loader worker{'s' if count != 1 else ''} sleep{'' if count != 1 else 's'} inside the fetch"
        f"{place_text(place)}{of_them_text(case)}, waiting for an answer from storage or network: the GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(*WAITS),
        remedy="Copy the data next to the GPU before training, or fetch many samples per request (shards, "
        f"batched or asynchronous reads). Waiting costs no CPU, so more workers hide some of it: {advice.needed} "
        f"would hide all (now {count}).",
        location=place,
        evidence=evidence,
        confidence=told_apart(case, _how_sure(case)),
        alternatives=(
            "loader_hung" if nothing_moves(case) else "lock or sleep in the dataset's own code",
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
    if nothing_moves(case):
        return Confidence.LOW
    return Confidence.HIGH if case.workers is not None and case.workers.waiting >= 0.5 else Confidence.MEDIUM


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
