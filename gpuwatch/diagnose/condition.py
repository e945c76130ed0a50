"""The condition of the card and its slot, as the driver reports it.

Owns: a link below what it could be, errors and XIDs, memory that only grows, clocks held down between two readings.
Refuses: clocks as read (device.py), and a card that does not answer at all (gates.py).

These stand beside whatever the loop loses: a job can be slow for a reason of its own on a failing card. Only where
copies are what it waits for is a degraded link the reason for that.
"""

from __future__ import annotations

from itertools import pairwise

from gpuwatch import units
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.advice import NO_GAIN, Bound, finding, gain_bound, pct, row, rows, share_text
from gpuwatch.diagnose.case import Case
from gpuwatch.diagnose.gpu_windows import duty_shares, slowest_link
from gpuwatch.diagnose.moments import pinned_ceiling
from gpuwatch.diagnose.transfer import link_use
from gpuwatch.model import (
    Absent,
    Confidence,
    EventKind,
    EventOrigin,
    EventRecord,
    EvidenceRow,
    Finding,
    Severity,
)

_RECOVERY = ("nothing", "a GPU reset", "a reboot", "draining the GPU's peers", "draining and a reset",
             "a restart of its IMEX domain", "a bus reset", "a reboot of the system")  # fmt: skip
_BAD_MEMORY = frozenset(
    {EventKind.ECC_UNCORRECTED, EventKind.ECC_STORM, EventKind.DRAM_RETIREMENT_FAILURE, EventKind.POISON,
     EventKind.FATAL_POISON, EventKind.UNAVAILABLE}
)  # fmt: skip
_XIDS_TO_NAME = 4
_REPLAYS_PER_MINUTE = 8.0
"""The most that NVIDIA's resource manager recommends (DCGM, dcgm_gpu_hardware_limits.h)."""
_NVLINK_CRC_PER_S = 100.0
"""Below that, checksum errors of NVLink do not matter (ibid.)."""
_RATE_FROM_S = 60.0
"""Of counters that are read every 30 s no rate is told of a shorter time."""
_DUTY_NAMED = 0.05
"""Of the time: GPU Boost touches limits for moments, and alarms on any growth are false ones (DCGM issue 242)."""
_NVLINK_CRC = ("nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_link_crc_errors")
_COUNTED = {
    "PCIe replays": ("pcie_replays",),
    "PCIe checksum and lane errors": ("pcie_lcrc_errors", "pcie_lane_errors", "pcie_bad_tlps", "pcie_bad_dllps"),
    "PCIe correctable errors": ("pcie_correctable_errors",),
    "NVLink replays and recoveries": (
        *("nvlink_replays", "nvlink_recoveries", "nvlink_link_replays", "nvlink_link_recoveries"),
    ),
    # A recovery that failed is a recovery, and counted above.
    "NVLink packets damaged or discarded": (
        *("nvlink_link_receive_errors", "nvlink_link_integrity_errors", "nvlink_link_discards"),
    ),
    "NVLink checksum errors": _NVLINK_CRC,
    "NVLink ECC errors": ("nvlink_ecc_errors",),
    "memory errors corrected": ("ecc_volatile_corrected",),
}
_HELD_DOWN = {
    "hw_power_brake": ("hw_slowdown", "An external power brake holds the clocks down"),
    "hw_thermal": ("thermal_throttle", "The GPU is too hot: the hardware cuts its clocks"),
    "sw_thermal": ("thermal_throttle", "The GPU is too hot: the driver lowers its clocks"),
}


def find(case: Case) -> list[Finding]:
    """Findings of this family."""
    return [f for f in (_errors(case), _held_down(case), _link(case), _leak(case)) if f is not None]


def _errors(case: Case) -> Finding | None:
    """Errors of the card itself in the window; what a job's own kernels did wrong is no fault of the card."""
    e = case.evidence
    events = [ev for ev in e.events if ev.origin is not EventOrigin.APPLICATION and _is_error(ev)]
    grown = _new_errors(case)
    asked = {h.device_index: h.recovery_action for h in e.health if _set(h.recovery_action)}
    pending = sorted({h.device_index for h in e.health if _set(h.remap_pending) or _set(h.retired_pages_pending)})
    failed = sorted({h.device_index for h in e.health if _set(h.remap_failed)})
    storms = _storms(case)
    if not (events or grown or asked or pending or failed or storms):
        return None
    said = [f"XID {ev.xid} ({ev.text})" if ev.xid else ev.text for ev in events[-_XIDS_TO_NAME:]]
    said += [f"{grown:.0f} memory errors that could not be corrected"] if grown else []
    said += [f"the driver asks for {_action(action)}" for action in asked.values()]
    said += [f"GPU {_list(pending)}: faulty memory is replaced at the next reset"] if pending else []
    said += [f"GPU {_list(failed)}: faulty memory could not be replaced"] if failed else []
    said += storms
    grave = bool(events or grown or asked or failed)
    return finding(
        "ecc_or_xid",
        f"The card reports errors: {'; '.join(dict.fromkeys(said))}.",
        0.0,
        Bound(1.0, "what an error costs is a job that ends or results that are wrong, not speed"),
        severity=Severity.CRITICAL if grave else Severity.WARNING,
        remedy="Save the job's state, let nothing new start on this GPU, reset it (nvidia-smi --gpu-reset) when it is "
        "free, and have it exchanged if errors come again. `gpuwatch events` lists them."
        if grave or pending
        else "Have the card reseated, and riser, slot, cables and bridges checked; `gpuwatch status` shows whether the "
        "errors go on.",
        evidence=rows(
            row("events of the card", float(len(events)), "in the window", "NVML events", e.window_s),
            row("errors not corrected, new", grown, "", "NVML", e.window_s),
            row("XIDs", ", ".join(str(ev.xid) for ev in events if ev.xid) or None, "", "NVML events", e.window_s),
            *_counted_rows(case),
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
    """Errors not corrected that the job's devices have counted within the window."""
    return sum(_in_window(case, "ecc_volatile_uncorrected").values())


def _in_window(case: Case, counter: str) -> dict[int, float]:
    """Growth of a counter within the window, by device; one that fell was reset."""
    first: dict[int, float] = {}
    grown: dict[int, float] = {}
    for health in case.evidence.health:
        value = getattr(health, counter)
        if isinstance(value, Absent):
            continue
        before = first.setdefault(health.device_index, value)
        grown[health.device_index] = max(0.0, value - before)
    return grown


def _counted(case: Case, counters: tuple[str, ...]) -> tuple[float, float]:
    """(growth on the job's devices, seconds over which it was counted): by what the daemon has followed, which is up to
    an hour, else within the window."""
    newest = {h.device_index: h for h in case.evidence.health}
    over_ns = max((h.grown_window_ns for h in newest.values()), default=0)
    if over_ns:
        return float(sum(g.count for h in newest.values() for g in h.grown if g.counter in counters)), over_ns / 1e9
    return sum(sum(_in_window(case, counter).values()) for counter in counters), case.evidence.window_s


def _counted_rows(case: Case) -> tuple[EvidenceRow | None, ...]:
    """Error counters that have grown; none for those that have not."""
    found = []
    for name, counters in _COUNTED.items():
        count, over_s = _counted(case, counters)
        found.append(row(f"{name}, new", count, "", "NVML", over_s) if count else None)
    return tuple(found)


def _storms(case: Case) -> list[str]:
    """Links that repeat so much that somebody should look at them."""
    said = []
    replays, over_s = _counted(case, ("pcie_replays",))
    if over_s >= _RATE_FROM_S and replays * 60 / over_s > _REPLAYS_PER_MINUTE:
        said.append(f"the PCIe link repeats {replays * 60 / over_s:.0f} packets a minute")
    errors, over_s = _counted(case, _NVLINK_CRC)
    if over_s >= _RATE_FROM_S and errors / over_s > _NVLINK_CRC_PER_S:
        said.append(f"NVLink counts {errors / over_s:.0f} checksum errors a second")
    return said


def _held_down(case: Case) -> Finding | None:
    """Heat or a power brake by the driver's own counters, where the readings of single moments have missed it."""
    e = case.evidence
    duty = duty_shares(e.health)
    share, name = max((duty.get(name, 0.0), name) for name in _HELD_DOWN)
    seen = max(e.throttle.get(event, 0.0) for event in ("hw_slowdown", *_HELD_DOWN))
    if share < _DUTY_NAMED or seen >= t.THROTTLED_WINDOWS:
        return None  # What the readings have seen is told by device.py.
    cause, sentence = _HELD_DOWN[name]
    lost = min(share, case.busy * max(0.0, 1.0 - e.clock_share)) if e.clock_share is not None else 0.0
    return finding(
        cause,
        f"{sentence} {share_text(share)} of the time, in spells shorter than a reading.",
        lost,
        Bound(gain_bound(lost), "busy time × (1 - SM clock / maximum), no more than the time held down"),
        severity=Severity.WARNING,
        remedy="Tell whoever runs the machine: check air flow, fans, inlet temperature and power supply of this GPU. "
        "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE` shows the sensors.",
        evidence=rows(
            *(row(f"held down by {n}", 100 * s, "% of the time", "NVML", e.window_s) for n, s in duty.items() if s),
            row("SM clock while busy", pct(e.clock_share), "% of maximum", "NVML", e.window_s),
            *case.gpu_rows(),
        ),
    )


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
            *_counted_rows(case),
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
