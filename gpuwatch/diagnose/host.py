"""Causes on the host: the training thread itself keeps the GPU waiting.

Owns: preprocessing, launching, synchronising, the interpreter lock, a missing core. Refuses: the loader (input.py), and
what stops the training only now and then (stalls.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuwatch.diagnose import cores, stalls
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.account import Account
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.advice import finding, pct, place_text, row, rows, share_text
from gpuwatch.diagnose.case import Case, line_row, text_at
from gpuwatch.diagnose.driver import competes, driven
from gpuwatch.diagnose.origin import user_frame
from gpuwatch.model import CodeLocation, Confidence, Finding, Frame, Severity


def find(case: Case) -> list[Finding]:
    """Findings of this family that cost at least a tenth of the wall time."""
    account = case.account
    if account is None:
        return []
    if _starved(case, account):
        return [_no_core(case, account), *stalls.find(case, account)]
    rules = (_preprocessing, _launching, _synchronising, _gil, _waiting)
    found = [f for rule in rules if (f := rule(case, account)) is not None]
    return found + stalls.find(case, account)


def _preprocessing(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.HOST_WORK, Activity.USER_LINE)
    if lost < t.NAMED_FROM:
        return None
    e = case.evidence
    place = account.location(Activity.HOST_WORK, Activity.USER_LINE)
    # Frames that may stand for something else: only a GPU that rests for whole windows says that it is not waited for,
    # and that nothing is launched.
    guessed = account.guessed(Activity.HOST_WORK, Activity.USER_LINE)
    vague = guessed and account.idle_windows < 0.3
    nothing = case.busy < t.NO_ACTIVITY_BUSY
    if _is_python(case, account):
        return _python(case, account, lost, place)
    return finding(
        "host_preprocessing",
        f"The training thread is kept by C code{place_text(place)}, and nothing told whether it computes, waits for "
        f"the GPU or hands out work: the GPU is idle {share_text(lost)} of the time."
        if vague
        else f"The training thread computes on the CPU{place_text(place)} while the GPU has nothing to do: "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(Activity.HOST_WORK, Activity.USER_LINE),
        remedy=_elsewhere(case),
        location=place,
        confidence=Confidence.LOW
        if vague or (nothing and guessed)
        else Confidence.MEDIUM
        if guessed or nothing or account.forward_only
        else Confidence.HIGH,
        alternatives=(
            *(("model_on_cpu", "warming_up") if nothing else ()),
            *(("logging_or_eval_stall",) if account.forward_only else ()),
            *(("host_sync", "launch_bound") if vague else ("python_bound",)),
            *(("gc_pauses",) if guessed and not vague else ()),
        ),
        experiment="Print next(model.parameters()).device and a batch's: a GPU that does nothing may have got nothing."
        if nothing
        else f"Take the line{place_text(place)} out for a hundred steps and compare the step time.",
        evidence=rows(
            case.stack_row("training thread computes on the CPU", Activity.HOST_WORK, Activity.USER_LINE),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            row("GPM windows with an idle GPU", 100 * account.idle_windows, "% of samples", "GPM", e.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


def _elsewhere(case: Case) -> str:
    """Where work of the training thread can go. A server or a simulator has no dataset to move it into."""
    if case.evidence.workers:
        return (
            "Move this work into the dataset, where DataLoader workers do it in parallel and ahead of time, or do it "
            "on the GPU with torch operations after the copy."
        )
    return (
        "Let other processes do this work ahead of time (for samples: a dataset with DataLoader workers; for "
        "simulators and tokenizers: workers of their own), or do it on the GPU with torch operations after the copy."
    )


def _is_python(case: Case, account: Account) -> bool:
    """The interpreter itself is the work: many lines, none of them most of it, and the thread holds the lock on most of
    them. C libraries let go of it for anything large, and one line that calls a library is that library's time."""
    samples: defaultdict[Frame, float] = defaultdict(float)
    for activity in (Activity.HOST_WORK, Activity.USER_LINE):
        for frame, count in account.where.get(activity, {}).items():
            samples[frame] += count
    spread = len(samples) >= t.PYTHON_LINES and max(samples.values()) < t.PYTHON_ONE_LINE * sum(samples.values())
    stacks = case.evidence.main_stacks
    holding = sum(any(th.owns_gil and th.os_tid == s.pid for th in s.threads) for s in stacks)
    return spread and holding >= t.PYTHON_GIL * len(stacks)


def _python(case: Case, account: Account, lost: float, place: CodeLocation | None) -> Finding:
    e = case.evidence
    return finding(
        "python_bound",
        f"The training thread runs Python code{place_text(place)}, line by line, while the GPU waits: "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(Activity.HOST_WORK, Activity.USER_LINE),
        remedy="Replace loops over samples or elements by tensor or numpy operations on whole batches, or move them "
        "into DataLoader workers.",
        location=place,
        confidence=Confidence.MEDIUM,
        alternatives=("host_preprocessing",),
        experiment=f"Profile the function{place_text(place)} alone: py-spy record shows its lines.",
        evidence=rows(
            case.stack_row("training thread in the user's code", Activity.HOST_WORK, Activity.USER_LINE),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


def _gil(case: Case, account: Account) -> Finding | None:
    """Another thread holds the interpreter lock while the training thread wants to run."""
    if account.gil_elsewhere < t.GIL_ELSEWHERE:
        return None
    hosts = (Activity.LAUNCHING, Activity.HOST_WORK, Activity.USER_LINE, Activity.WAITING, Activity.SYNCHRONISING)
    lost = account.lost_in(*hosts) * account.gil_elsewhere
    if lost < t.NAMED_FROM:
        return None
    e = case.evidence
    name, where = _holder(case)
    return finding(
        "gil_contention",
        f"Thread {name} holds Python's interpreter lock{place_text(where)} while the training thread waits for it: "
        f"about {share_text(lost)} of the time.",
        lost,
        case.bound(*hosts),
        remedy="Move that thread's work into a process of its own, or into library calls that let go of the lock.",
        location=where,
        confidence=Confidence.MEDIUM,
        alternatives=("launch_bound", "python_bound"),
        experiment=f"Stop thread {name} for a hundred steps and compare the step time.",
        evidence=rows(
            row("another thread holds the interpreter lock", 100 * account.gil_elsewhere, "% of samples",
                f"stack samples (n={account.samples})", e.window_s),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _holder(case: Case) -> tuple[str, CodeLocation | None]:
    """Name and commonest line of the thread that most often holds the lock."""
    names: Counter[str] = Counter()
    lines: dict[str, Counter[Frame]] = {}
    for stack, driver in driven(case.evidence.main_stacks):
        for thread in stack.threads:
            if thread.owns_gil and thread is not driver and competes(thread):
                name = thread.name or str(thread.os_tid)
                names[name] += 1
                place = user_frame(thread.frames)
                if place is not None:
                    lines.setdefault(name, Counter())[place] += 1
    name, count = names.most_common(1)[0]
    if name not in lines:
        return name, None
    frame, n = lines[name].most_common(1)[0]
    return name, CodeLocation(frame.file, frame.line, frame.function, n / count)


def _launching(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.LAUNCHING)
    # Who launches something, however slowly, has a GPU that does something: this one computes elsewhere, or sleeps.
    if lost < t.NAMED_FROM or case.busy < t.NO_ACTIVITY_BUSY:
        return None
    e = case.evidence
    place = account.location(Activity.LAUNCHING)
    roomy = e.mem_used_share is not None and e.mem_used_share <= t.MEMORY_HEADROOM
    driven = t.MAIN_BUSY_CORES <= case.main_cores < t.CPU_OPERATORS_CORES
    sure = driven and account.idle_windows < 0.3 and e.steady()
    # Lines that may wait for the GPU expose the launches after them.
    waits = account.guessed(Activity.USER_LINE) and account.lost_in(Activity.USER_LINE) >= t.NAMED_FROM
    waits |= (
        account.lost_in(Activity.SYNCHRONISING) >= t.EXPOSED_FROM
        and account.lines.get(Activity.SYNCHRONISING, 0.0) < t.EXPOSED_SAMPLES
    )
    guessed = waits or account.guessed(Activity.LAUNCHING)
    told = Activity.LAUNCHING in account.natively and Activity.SYNCHRONISING not in account.natively
    batch = " Or use a larger batch: most of the GPU's memory is free." if roomy else " A larger batch helps too."
    return finding(
        "launch_bound",
        f"The CPU cannot hand out the work fast enough: small kernels, the GPU idles between them {share_text(lost)} "
        "of the time.",
        lost,
        case.bound(Activity.LAUNCHING),
        remedy='torch.compile(model, mode="reduce-overhead") or CUDA graphs to launch many kernels at once; fused '
        "optimizers (fused=True)." + batch,
        location=place,
        severity=None if lost >= t.LAUNCH_NAMED_FROM else Severity.INFO,
        confidence=Confidence.LOW if guessed else Confidence.HIGH if sure else Confidence.MEDIUM,
        alternatives=(
            *(("host_preprocessing",) if guessed or case.main_cores >= t.CPU_OPERATORS_CORES else ()),
            *("batch_too_small", "python_bound"),
            *(() if told else ("host_sync",)),
        ),
        experiment="Double the batch: if the step takes as long as before, launching is the limit.",
        evidence=rows(
            case.stack_row("training thread in the framework's code", Activity.LAUNCHING),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            row("GPM windows with an idle GPU", 100 * account.idle_windows, "% of samples", "GPM", e.window_s),
            row("SM occupancy", pct(e.mean("occupancy")), "%", "GPM", e.window_s),
            row("GPU memory used", pct(e.mem_used_share), "%", "NVML", e.window_s),
            *case.gpu_rows(),
        ),
    )


def _synchronising(case: Case, account: Account) -> Finding | None:
    lost = account.lost_in(Activity.SYNCHRONISING)
    exposes = account.lost_in(Activity.LAUNCHING) >= t.LAUNCH_NAMED_FROM
    often = account.lines.get(Activity.SYNCHRONISING, 0.0) >= t.EXPOSED_SAMPLES
    # A GPU that is never long idle is what is waited for: the thread has nothing else to do.
    if lost < (t.EXPOSED_FROM if exposes and often else t.NAMED_FROM) or case.busy > 1.0 - t.HEALTHY_LOST_BELOW:
        return None
    e = case.evidence
    place, guessed = account.location(Activity.SYNCHRONISING), account.guessed(Activity.SYNCHRONISING)
    return finding(
        "host_sync",
        f"The training thread stops to wait for the GPU{place_text(place)}{text_at(case, place)}, and afterwards the "
        f"GPU waits for it: {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.SYNCHRONISING),
        remedy="Keep such values on the GPU and read them every N steps (.item(), .cpu(), print, isnan and if on a "
        "tensor each stop the queue).",
        location=place,
        confidence=Confidence.MEDIUM if guessed else Confidence.HIGH,
        alternatives=("host_preprocessing",) if guessed else (),
        evidence=rows(
            case.stack_row("training thread waits for the GPU", Activity.SYNCHRONISING),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


def _waiting(case: Case, account: Account) -> Finding | None:
    """The training thread sleeps, and not in the loader: a lock, a socket, a collective, a pause."""
    lost = account.lost_in(Activity.WAITING, Activity.COMMUNICATING)
    if lost < t.NAMED_FROM:
        return None
    e = case.evidence
    if account.lost_in(Activity.COMMUNICATING) >= lost / 2:
        return finding(
            "nvlink_or_collective_wait",
            f"This rank waits for the others in a collective operation: {share_text(lost)} of the time.",
            lost,
            case.bound(Activity.WAITING, Activity.COMMUNICATING),
            remedy="Look at the other ranks of the job: the one that does not wait here is the slow one.",
            confidence=Confidence.MEDIUM,
            location=account.location(Activity.COMMUNICATING),
            evidence=rows(case.stack_row("in a collective", Activity.COMMUNICATING), *case.gpu_rows()),
        )
    place = account.location(Activity.WAITING)
    if case.main_cores >= t.MANY_CORES:
        return _in_threads(case, lost, place)
    sleeping = e.main.wchans[0][0] if e.main and e.main.wchans else None
    return finding(
        "unattributed",
        f"The training thread sleeps{place_text(place)}{text_at(case, place)}, not in a DataLoader: the GPU is idle "
        f"{share_text(lost)} of the time.",
        lost,
        case.bound(Activity.WAITING, Activity.COMMUNICATING),
        remedy="Look at that line: it waits for a lock, a socket, another process or a pause.",
        location=place,
        confidence=Confidence.MEDIUM,
        evidence=rows(
            case.stack_row("training thread sleeps", Activity.WAITING),
            row("it sleeps in", sleeping, "", "/proc/PID/wchan", e.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


def _in_threads(case: Case, lost: float, place: CodeLocation | None) -> Finding:
    """The thread sleeps while others of its process compute: a library with threads of its own."""
    return finding(
        "host_preprocessing",
        f"The training thread waits{place_text(place)} for threads of its own process that compute on the CPU "
        f"({case.main_cores:.1f} cores): the GPU is idle {share_text(lost)} of the time.",
        lost,
        case.bound(Activity.WAITING, Activity.COMMUNICATING),
        remedy=_elsewhere(case),
        location=place,
        confidence=Confidence.LOW,
        alternatives=("loader_in_main_process", "gil_contention"),
        experiment=f"Take the line{place_text(place)} out for a hundred steps and compare the step time.",
        evidence=rows(
            case.stack_row("training thread sleeps", Activity.WAITING),
            row("CPU of the training process", case.main_cores, "cores", "/proc", case.evidence.window_s),
            line_row(case, place),
            *case.gpu_rows(),
        ),
    )


_WANTS_A_CORE = (Activity.LAUNCHING, Activity.HOST_WORK, Activity.USER_LINE)


def _starved(case: Case, account: Account) -> bool:
    """The thread that drives the GPU gets a small part of the core that it would use: none is free, or it may use
    fewer than the machine has. Under a quota that is seen to throttle, that is the cause and this its symptom."""
    main = case.evidence.main
    if main is None or account.lost_in(*_WANTS_A_CORE) < t.NAMED_FROM:
        return False
    crowded_out = cores.full(case.evidence) and case.main_cores < account.held_in(*_WANTS_A_CORE) / 2
    return crowded_out or (cores.short(case.evidence, (main,)) and not case.throttled)


def _no_core(case: Case, account: Account) -> Finding:
    e, lost, place = case.evidence, account.lost_in(*_WANTS_A_CORE), account.location(*_WANTS_A_CORE)
    main = (e.main,) if e.main is not None else ()
    bound = cores.bound_to(e, main)
    return finding(
        "cpu_oversubscribed",
        f"The training thread{place_text(place)} waits for a CPU, and the GPU for it, {share_text(lost)} of the time: "
        f"{cores.limit_text(e, main)}.",
        lost,
        case.bound(*_WANTS_A_CORE),
        remedy=cores.remedy(e, main),
        location=place,
        confidence=Confidence.HIGH if bound and cores.fills(e, bound) else Confidence.MEDIUM,
        alternatives=("launch_bound",) if bound or cores.full(e) else ("cpu_quota_throttled", "launch_bound"),
        experiment="Halve num_workers: if the steps get shorter, the cores were the limit.",
        evidence=rows(
            case.stack_row("training thread would compute", *_WANTS_A_CORE),
            row("CPU of the training process", case.main_cores, "cores", "/proc", e.window_s),
            row("it is ready to run, without a CPU", pct(cores.waits(e.main)) if e.main else None, "% of the time",
                "/proc/PID/schedstat and state", e.window_s),
            row("CPUs that it may run on", cores.list_text(cores.allowed(main)) or None, f"of {e.host.online}",
                "/proc/PID/status", e.window_s),
            row("host CPU", e.host.cpu_busy_pct, f"% of {e.host.online} CPUs", "/proc/stat", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip
