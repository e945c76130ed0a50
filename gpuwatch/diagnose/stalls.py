"""Causes on the host that stop the training now and then: saving, compiling, logging, evaluating, freeing memory.

Owns: these findings. Refuses: what the training thread does in every step (host.py).
"""

from __future__ import annotations

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.account import Account
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import finding, pct, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case, line_row, text_at
from gpuwatch.model import Confidence, Finding, Severity


def find(case: Case, account: Account) -> list[Finding]:
    """Findings of this family that cost at least a tenth of the wall time."""
    rules = (_checkpoint, _compiling, _logging, _allocating, _collecting)
    return [f for rule in rules if (f := rule(case, account)) is not None]


def _allocating(case: Case, account: Account) -> Finding | None:
    lost = max(
        account.lost_in(Activity.ALLOCATING),
        min(t.ASKED_AGAIN * account.held_in(Activity.ALLOCATING),
            account.lost_in(Activity.ALLOCATING, Activity.LAUNCHING)),
    )  # fmt: skip
    if lost < t.NAMED_FROM:
        return None
    e = case.evidence
    place = account.location(Activity.ALLOCATING)
    return finding(
        "allocator_thrash",
        f"GPU memory is given back to the driver and asked for again{place_text(place)}{text_at(case, place)}; each "
        f"time the GPU stops: {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.ALLOCATING, Activity.LAUNCHING),
        remedy="Take torch.cuda.empty_cache() out of the loop. If memory is short: a smaller batch, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
        location=place,
        evidence=rows(
            case.stack_row("training thread allocates or frees GPU memory", Activity.ALLOCATING),
            row("GPU memory used", pct(e.mem_used_share), "%", "NVML", e.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


def _collecting(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.COLLECTING)
    if lost < t.NAMED_FROM:
        return None
    place = account.location(Activity.COLLECTING)
    return finding(
        "gc_pauses",
        f"Python's garbage collector runs{place_text(place)} while the GPU waits: {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.COLLECTING),
        remedy="gc.freeze() after set-up and gc.disable() in the loop, with a gc.collect() every few hundred steps; "
        "hold fewer Python objects (arrays instead of lists of objects).",
        location=place,
        evidence=rows(
            case.stack_row("training thread collects garbage", Activity.COLLECTING), line_row(case, place),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _checkpoint(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.CHECKPOINTING)
    if lost < t.NAMED_FROM:
        return None
    e = case.evidence
    place = account.location(Activity.CHECKPOINTING)
    written = e.main.write_bytes_per_s if e.main else None
    return finding(
        "checkpoint_stall",
        f"The job saves checkpoints{place_text(place)} while the GPU waits: {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.CHECKPOINTING),
        remedy="Save less often, or asynchronously: copy the state to host memory and write it in a thread "
        "(torch.distributed.checkpoint.async_save); write to a local disk first.",
        location=place,
        confidence=Confidence.MEDIUM if account.guessed(Activity.CHECKPOINTING) else Confidence.HIGH,
        evidence=rows(
            case.stack_row("training thread saves", Activity.CHECKPOINTING),
            row("written to storage", written / 2**20 if written is not None else None, "MiB/s", "/proc/PID/io",
                e.window_s),
            row("I/O pressure (some)", e.host.psi_io_pct, "%", "PSI", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _compiling(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.COMPILING)
    starting = account.lost_in(Activity.STARTING)
    if lost + starting < t.NAMED_FROM:
        return None
    place = account.location(Activity.COMPILING, Activity.STARTING)
    evidence = rows(
        case.stack_row("training thread compiles", Activity.COMPILING),
        case.stack_row("training thread imports modules or loads", Activity.STARTING),
        *case.gpu_rows(),
    )
    if starting > lost or (account.held_in(Activity.COMPILING) >= t.STARTUP_SHARE and not account.recompiles):
        return finding(
            "warming_up",
            "The job is starting or compiling: the GPU has not much to do yet.",
            lost + starting,
            case.bound(Activity.COMPILING, Activity.STARTING),
            remedy="Wait until steps are regular, then diagnose again. A compile cache (TORCHINDUCTOR_CACHE_DIR on a "
            "disk that stays) shortens the next start.",
            location=place,
            severity=Severity.INFO,
            evidence=evidence,
            confidence=Confidence.MEDIUM,
            alternatives=("recompilation",),
            experiment="If this is still so after some minutes, shapes change and the model is compiled again.",
        )
    return finding(
        "recompilation",
        f"The model is compiled again and again{place_text(place)}: the GPU waits {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.COMPILING, Activity.STARTING),
        remedy="Give torch.compile the same shapes: pad or bucket the inputs, or dynamic=True. "
        "TORCH_LOGS=recompiles says which guard failed.",
        location=place,
        evidence=evidence,
        confidence=Confidence.MEDIUM,
        alternatives=("warming_up",),
        experiment="Diagnose again in two minutes: warming up ends, recompilation does not.",
    )


def _logging(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.LOGGING, Activity.EVALUATING)
    if lost < t.NAMED_FROM:
        return None
    place = account.location(Activity.LOGGING, Activity.EVALUATING)
    evaluates = account.lost_in(Activity.EVALUATING) > lost / 2
    guessed = account.guessed(Activity.LOGGING, Activity.EVALUATING)
    what = "evaluates, or works between its training steps," if evaluates else "logs or writes"
    return finding(
        "logging_or_eval_stall",
        f"The training thread {what}{place_text(place)} while the GPU waits: {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.LOGGING, Activity.EVALUATING),
        remedy="Evaluate less often, with larger batches, and compute the metrics on the GPU or in another process."
        if evaluates
        else "Log every N steps, and images, histograms and plots rarely or from another process.",
        location=place,
        # A function's name alone says that it evaluates.
        confidence=Confidence.MEDIUM if guessed else Confidence.HIGH,
        alternatives=("launch_bound", "host_preprocessing") if guessed else (),
        evidence=rows(
            case.stack_row("training thread logs or writes", Activity.LOGGING),
            case.stack_row("training thread evaluates", Activity.EVALUATING),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )
