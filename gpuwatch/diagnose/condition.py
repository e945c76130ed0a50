"""The condition of the card and its slot, as the driver reports it.

Owns: a link below what it could be, memory errors and XIDs, memory that only grows. Refuses: clocks (device.py), and a
card that does not answer at all (gates.py).

These stand beside whatever the loop loses: a job can be slow for a reason of its own on a failing card. Only where
copies are what it waits for is a degraded link the reason for that.
"""

from __future__ import annotations

from itertools import pairwise

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import NO_GAIN, Bound, finding, gain_bound, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.gpu_windows import slowest_link
from gpuwatch.diagnose.moments import pinned_ceiling
from gpuwatch.diagnose.transfer import link_use
from gpuwatch.model import Absent, Confidence, EventKind, EventOrigin, EventRecord, Finding, Severity

_RECOVERY = ("nothing", "a GPU reset", "a reboot", "draining the GPU's peers", "draining and a reset",
             "a restart of its IMEX domain", "a bus reset", "a reboot of the system")  # fmt: skip
_BAD_MEMORY = frozenset(
    {EventKind.ECC_UNCORRECTED, EventKind.ECC_STORM, EventKind.DRAM_RETIREMENT_FAILURE, EventKind.POISON,
     EventKind.FATAL_POISON, EventKind.UNAVAILABLE}
)  # fmt: skip
_XIDS_TO_NAME = 4


def find(case: Case) -> list[Finding]:
    """Findings of this family."""
    return [f for f in (_errors(case), _link(case), _leak(case)) if f is not None]


def _errors(case: Case) -> Finding | None:
    """Errors of the card itself in the window; what a job's own kernels did wrong is no fault of the card."""
    e = case.evidence
    events = [ev for ev in e.events if ev.origin is not EventOrigin.APPLICATION and _is_error(ev)]
    grown = _new_errors(case)
    asked = {h.device_index: h.recovery_action for h in e.health if _set(h.recovery_action)}
    pending = sorted({h.device_index for h in e.health if _set(h.remap_pending) or _set(h.retired_pages_pending)})
    failed = sorted({h.device_index for h in e.health if _set(h.remap_failed)})
    if not (events or grown or asked or pending or failed):
        return None
    said = [f"XID {ev.xid} ({ev.text})" if ev.xid else ev.text for ev in events[-_XIDS_TO_NAME:]]
    said += [f"{grown:.0f} memory errors that could not be corrected"] if grown else []
    said += [f"the driver asks for {_action(action)}" for action in asked.values()]
    said += [f"GPU {_list(pending)}: faulty memory is replaced at the next reset"] if pending else []
    said += [f"GPU {_list(failed)}: faulty memory could not be replaced"] if failed else []
    grave = bool(events or grown or asked or failed)
    return finding(
        "ecc_or_xid",
        f"The card reports errors: {'; '.join(dict.fromkeys(said))}.",
        0.0,
        Bound(1.0, "what an error costs is a job that ends or results that are wrong, not speed"),
        severity=Severity.CRITICAL if grave else Severity.WARNING,
        remedy="Save the job's state, let nothing new start on this GPU, reset it (nvidia-smi --gpu-reset) when it is "
        "free, and have it exchanged if errors come again. `gpuwatch events` lists them.",
        evidence=rows(
            row("events of the card", float(len(events)), "in the window", "NVML events", e.window_s),
            row("errors not corrected, new", grown, "", "NVML", e.window_s),
            row("XIDs", ", ".join(str(ev.xid) for ev in events if ev.xid) or None, "", "NVML events", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _is_error(event: EventRecord) -> bool:
    return event.kind in _BAD_MEMORY or (event.kind is EventKind.XID and event.origin is not EventOrigin.UNKNOWN)


def _set(reading: int | Absent) -> bool:
    return not isinstance(reading, Absent) and reading > 0


def _action(action: int | Absent) -> str:
    return _RECOVERY[action] if isinstance(action, int) and action < len(_RECOVERY) else f"recovery action {action}"


def _list(indices: list[int]) -> str:
    return ", ".join(map(str, indices))


def _new_errors(case: Case) -> float:
    """Errors not corrected that the job's devices have counted within the window; a counter that fell was reset."""
    first: dict[int, float] = {}
    grown: dict[int, float] = {}
    for health in case.evidence.health:
        value = health.ecc_volatile_uncorrected
        if isinstance(value, Absent):
            continue
        before = first.setdefault(health.device_index, value)
        grown[health.device_index] = max(0.0, value - before)
    return sum(grown.values())


def _link(case: Case) -> Finding | None:
    """The link trained lower than card and slot can, read while the GPU was busy: an idle link rests."""
    e = case.evidence
    share, worst = e.link_share, slowest_link(e.health)
    if worst is None or share > t.LINK_DEGRADED:
        return None
    used = link_use(case)
    lost = min(1.0 - case.busy, used * (1.0 - share)) if used >= t.LINK_SHARE_NAMED else 0.0
    return finding(
        "pcie_link_degraded",
        f"GPU {worst.device_index}'s PCIe link runs at generation {worst.pcie_gen} x{worst.pcie_width}, although card "
        f"and slot can do generation {worst.pcie_gen_max} x{worst.pcie_width_max}: copies get {share_text(share)} of "
        "the speed.",
        lost,
        Bound(gain_bound(lost), f"copies take {share_text(used)} of the time now and would take {share_text(share)} "
              "of that"),
        severity=None if lost >= t.NAMED_FROM else Severity.WARNING if used >= t.LINK_SHARE_NAMED else Severity.INFO,
        remedy="Have the card reseated and riser, slot and BIOS settings checked (a fixed link speed, bifurcation); "
        "link errors are in `gpuwatch status --json`.",
        evidence=rows(
            row("link", f"gen {worst.pcie_gen} x{worst.pcie_width}", "", "NVML, under load", e.window_s),
            row("card and slot can", f"gen {worst.pcie_gen_max} x{worst.pcie_width_max}", "", "NVML", e.window_s),
            row("over the link", used * pinned_ceiling(e) / 2**30, "GiB/s", "GPM", e.window_s),
            *case.gpu_rows(),
        ),
    )  # fmt: skip


def _leak(case: Case) -> Finding | None:
    """Memory of the job that grows from one end of the window to the other and never falls.

    A caching allocator grows in steps while a job warms up and then stays; so growth must go on in each third.
    """
    e = case.evidence
    series = e.job_mem_series
    total = next((d.mem_total_bytes for d in e.devices if isinstance(d.mem_total_bytes, int)), 0)
    if e.window_s < t.LEAK_WINDOW_S or len(series) < t.LEAK_READINGS or not total:
        return None
    if any(later < earlier for (_, earlier), (_, later) in pairwise(series)):
        return None
    begin, end = series[0][0], series[-1][0]
    marks = [_at(series, begin + (end - begin) * part // 3) for part in range(4)]
    steps = [later - earlier for earlier, later in pairwise(marks)]
    if min(steps) < t.LEAK_STEP_BYTES or e.mem_used_share is None:
        return None
    per_s = (marks[-1] - marks[0]) / ((end - begin) / 1e9)
    left_s = max(0.0, 1.0 - e.mem_used_share) * total / per_s
    return finding(
        "gpu_memory_leak",
        f"The job's GPU memory grows by {units.bytes_text(per_s * 60)} a minute and never falls; at this pace the card "
        f"is full in {units.seconds_text(left_s)}.",
        0.0,
        NO_GAIN,
        severity=Severity.WARNING,
        remedy="Look for tensors that are kept from step to step with their graph: losses summed without .item() or "
        ".detach(), outputs appended to a list, hooks. torch.cuda.memory._snapshot() shows who allocated them.",
        confidence=Confidence.LOW,
        alternatives=("warming_up",),
        experiment="Look again in some minutes: an allocator that warms up has stopped growing by then.",
        evidence=rows(
            row("GPU memory of the job", marks[-1] / 2**30, "GiB", "NVML", e.window_s),
            row("growth", per_s * 60 / 2**20, "MiB a minute", "NVML", e.window_s),
        ),
    )


def _at(series: tuple[tuple[int, float], ...], instant_ns: int) -> float:
    return next(value for when, value in reversed(series) if when <= instant_ns)
