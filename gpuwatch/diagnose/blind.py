"""What can be said without stacks: counters of the GPU and of ``/proc`` only.

Owns: the weaker verdicts, each naming what it cannot exclude. Refuses: lines of code, high confidence.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import advise_workers, finding, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.cores import limit_text, remedy, short
from gpuwatch.diagnose.loader import crowded, no_core_left, of_them_text, or_slow_sample, workers_row
from gpuwatch.diagnose.shortage import is_short
from gpuwatch.diagnose.storage import is_hung, is_remote, loader_hung, reads_small_files, state_share
from gpuwatch.diagnose.transfer import copies_between
from gpuwatch.model import Confidence, EvidenceRow, Finding, Severity

_EXPERIMENT = "Let the stacks be read (see what was missing): they tell these apart within seconds."


def find(case: Case) -> list[Finding]:
    """At most one finding, for the loss as a whole."""
    e = case.evidence
    lost = 1.0 - case.busy
    if not e.windows or lost < t.HEALTHY_LOST_BELOW:
        return []
    main = case.main_cores
    if is_hung(case):
        return [loader_hung(case, lost)]
    if copies_between(case):
        return [
            _vague(case, lost, "pcie_bound", ("pageable_copies",),
                   "Copies and kernels take turns, and together fill the GPU's time.",
                   "Send fewer bytes (uint8, normalised on the GPU), or copy the next batch in a stream of its own.")
        ]  # fmt: skip
    if e.worker_generations >= t.WORKER_GENERATIONS:
        return [
            _vague(case, lost, "loader_worker_restart", ("loader_too_few_workers",),
                   f"Loader workers were replaced {e.worker_generations:.0f} times over.",
                   "DataLoader(persistent_workers=True); with short epochs also an endless sampler.")
        ]  # fmt: skip
    if e.main is not None and short(e, (e.main,)) and not case.throttled:
        return [
            _vague(case, lost, "cpu_oversubscribed", ("cpu_quota_throttled", "host_preprocessing", "launch_bound"),
                   f"The training process waits for a CPU: {limit_text(e, (e.main,))}.", remedy(e, (e.main,)))
        ]  # fmt: skip
    if e.workers and main < t.MAIN_BUSY_CORES:
        return [_workers(case, lost)]
    traffic = e.mean("rx_bytes_per_s") or 0.0
    if main >= t.MAIN_BUSY_CORES and traffic >= t.COPY_BYTES_PER_S:
        return [
            _vague(case, lost, "pageable_copies", ("pcie_bound", "host_preprocessing"),
                   "Much is copied to the GPU while one core is busy: copies from pageable memory, most likely.",
                   "DataLoader(pin_memory=True) and .to(device, non_blocking=True).")
        ]  # fmt: skip
    if main >= t.MANY_CORES and case.busy < t.NO_ACTIVITY_BUSY:
        return [
            _vague(case, lost, "model_on_cpu", ("host_preprocessing", "python_bound"),
                   f"The training process computes on {main:.1f} cores and the GPU does nothing at all.",
                   'model.to("cuda") and batch.to("cuda"); check torch.cuda.is_available() in that environment.')
        ]  # fmt: skip
    written = (e.main.write_bytes_per_s or 0.0) if e.main else 0.0
    if written >= t.SAVING_BYTES_PER_S:
        return [
            _vague(case, lost, "checkpoint_stall", ("logging_or_eval_stall",),
                   f"The training process writes {units.rate_text(written)} while the GPU rests.",
                   "Save less often, or asynchronously (torch.distributed.checkpoint.async_save).")
        ]  # fmt: skip
    if main >= t.MAIN_BUSY_CORES and _idle_windows(case) < 0.1 and e.steady():
        return [
            _vague(case, lost, "launch_bound", ("host_sync", "batch_too_small", "python_bound"),
                   "One core is busy and the GPU never rests for long nor works for long: small kernels, or waiting "
                   "for each of them.",
                   'torch.compile(mode="reduce-overhead") or CUDA graphs; a larger batch; fewer .item() calls.',
                   note=lost < t.LAUNCH_NAMED_FROM)
        ]  # fmt: skip
    if main >= t.MAIN_BUSY_CORES and e.workers:
        return [
            _vague(case, lost, "host_preprocessing", ("checkpoint_stall", "logging_or_eval_stall", "python_bound"),
                   f"The training process keeps a core busy while the GPU rests {share_text(lost)} of the time and its "
                   "loader workers are ahead.",
                   "Move the per-batch CPU work of the training loop into the loader's workers or onto the GPU.")
        ]  # fmt: skip
    if main >= t.MAIN_BUSY_CORES:
        return [
            _vague(case, lost, "unattributed",
                   ("loader_in_main_process", "host_preprocessing", "checkpoint_stall", "logging_or_eval_stall"),
                   f"One core is busy while the GPU rests {share_text(lost)} of the time, and there are no loader "
                   "workers.",
                   "Most often DataLoader(num_workers=0) or numpy work in the training loop.")
        ]  # fmt: skip
    return []


def _idle_windows(case: Case) -> float:
    windows = case.evidence.windows
    return sum(w.busy < t.IDLE_WINDOW_BUSY for w in windows) / len(windows)


def _workers(case: Case, lost: float) -> Finding:
    e = case.evidence
    cores, count = case.worker_cores or 0.0, len(case.crew.counted)
    some = f"{count} loader workers{of_them_text(case)}"
    if is_short(case):
        uses = case.crew.counted
        return _vague(
            case, lost, "cpu_oversubscribed", ("cpu_quota_throttled", "loader_slow_transform"),
            f"The {some} wait for a CPU: {limit_text(e, uses)}.", remedy(e, uses),
        )  # fmt: skip
    if cores < t.BUSY_CPU_CORES and state_share(case, "D") >= t.DISK_WAIT_STATE and not is_remote(case):
        small = reads_small_files(case)
        return _vague(
            case, lost, "loader_small_files" if small else "loader_storage_bandwidth",
            ("loader_storage_latency", "loader_storage_bandwidth" if small else "loader_small_files"),
            f"The {some} wait for the disk and the training process for them.",
            "Pack the samples into shards, so that one read brings many." if small
            else "Stage the data set on a faster local disk (NVMe) or in memory.",
        )  # fmt: skip
    if cores >= t.BUSY_CPU_CORES:
        advice = advise_workers(count, lost, case.busy, case.cpus, cores_per_worker=cores)
        if no_core_left(case, advice):
            return _vague(
                case, lost, "cpu_oversubscribed" if crowded(case, cores) else "loader_slow_transform",
                ("loader_too_few_workers",),
                f"The {some} are at full CPU, no core is left for more, and the training "
                "process waits.",
                "One thread per worker (cv2.setNumThreads(0), OMP_NUM_THREADS=1); cheaper work per sample.",
            )  # fmt: skip
        return _vague(
            case, lost, "loader_too_few_workers", ("loader_slow_transform", *or_slow_sample(case)),
            f"The {some} are at full CPU and the training process waits.",
            f"num_workers={advice.advised} (now {count}).",
        )  # fmt: skip
    return _vague(
        case, lost, "loader_storage_latency",
        ("loader_collate_or_ipc", "loader_storage_bandwidth", "loader_small_files"),
        f"The {some} use {cores:.2f} cores each and the training process waits too.",
        "Look at where the data comes from: stage it locally, read larger pieces, or use more workers.",
    )  # fmt: skip


def _vague(
    case: Case, lost: float, cause: str, alternatives: tuple[str, ...], summary: str, remedy: str, *, note: bool = False
) -> Finding:
    e = case.evidence
    read: tuple[EvidenceRow | None, ...] = (
        row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
        workers_row(case) if e.workers else row("DataLoader workers", 0.0, "processes", "/proc", e.window_s),
        row("CPU per worker", case.worker_cores, "cores", "/proc", e.window_s),
        row("GPM windows with an idle GPU", 100 * _idle_windows(case), "%", "GPM" if e.gpm else "NVML", e.window_s),
        *case.gpu_rows(),
    )
    return finding(
        cause, summary, lost, case.bound(), remedy=remedy, confidence=Confidence.LOW, alternatives=alternatives,
        experiment=_EXPERIMENT, evidence=rows(*read), severity=Severity.INFO if note else None,
    )  # fmt: skip
