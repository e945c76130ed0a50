"""What this machine can reach: each probe on the selected GPU with its newest result, and starting one.

Owns: the list, which probe is selected, a probe under way. Refuses: judging a result (verdict/), running it (the
daemon's); the selected result's figures are probe_figures'.
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.model import Device, ProbeResult, ProbeStatus
from gpuwatch.tui import probe_figures
from gpuwatch.tui.selection import ViewOptions, first_shown, selected_device
from gpuwatch.tui.text import Glyphs, Row, Span, clean, fit, pad, rule, selected, wrap
from gpuwatch.verdict.probe_run import PROBES
from gpuwatch.wire import ProbeProgress, ProbeVerdict, StartProbe

ROLES = {
    ProbeStatus.OK: "ok", ProbeStatus.BUSY: "warn", ProbeStatus.INVALID: "crit",
    ProbeStatus.FAILED: "crit", ProbeStatus.UNAVAILABLE: "warn",
}  # fmt: skip
_SMALL = 30
"""Rows under which the list gives way to the figures of the selected probe."""
_BAR = 16


def chosen(options: ViewOptions) -> str:
    """Name of the selected probe."""
    return PROBES[min(max(options.row, 0), len(PROBES) - 1)].name


def count() -> int:
    """How many there are."""
    return len(PROBES)


def start_request(state: NodeState, options: ViewOptions) -> StartProbe | None:
    """What ``r`` sends, or None when there is no GPU."""
    index = selected_device(state, options)
    return None if index is None else StartProbe(0, chosen(options), index)


def newest(state: NodeState, probe: str, device: Device) -> ProbeResult | None:
    """The last result of a probe on this GPU."""
    return next((r for r in state.probes if r.probe == probe and r.device_uuid in ("", device.uuid)), None)


def verdict_of(state: NodeState, result: ProbeResult | None) -> ProbeVerdict | None:
    """What the baseline says about this very result."""
    if result is None:
        return None
    about = (result.probe, result.device_uuid, result.started_wall_ns)
    return next((v for v in state.verdicts if (v.probe, v.device_uuid, v.started_wall_ns) == about), None)


def under_way(state: NodeState, probe: str, device: Device) -> ProbeProgress | None:
    """The probe's progress when it is running on this GPU."""
    progress = state.probing.get(device.index)
    return progress if progress is not None and progress.probe == probe else None


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines: every probe with its headline, then all values of the selected one."""
    glyphs = options.glyphs
    index = selected_device(state, options)
    device = state.device(index) if index is not None else None
    if device is None:
        return [(), (("  no GPU to measure", "dim"),)]
    keys: list[Span] = [("r", "key"), (" run it now, if the GPU is idle", "dim")]
    if width >= 80:
        keys += [("  right", "key"), (" next GPU", "dim")]
    out: list[Row] = [rule(f"Probes on GPU {device.index}", keys, width, glyphs)]
    listed = min(len(PROBES), max(3, (room // 3) if room < _SMALL else (room - 2) // 2))
    at = min(max(options.row, 0), len(PROBES) - 1)
    first = first_shown(at, len(PROBES), listed)
    for spec in PROBES[first : first + listed]:
        line = _line(state, spec.name, device, glyphs)
        here = spec.name == chosen(options)
        row = fit(((glyphs.cursor if here else " ", "accent"), *line), width, glyphs)
        out.append(selected(row) if here else row)
    spec = PROBES[at]
    out.append(rule(spec.name, [], width, glyphs))
    out += [((f" {line}", "title"),) for line in wrap(spec.question, width - 2, 2)]
    progress = under_way(state, spec.name, device)
    if progress is not None:
        out.append(_progress(progress, width, glyphs))
    result = newest(state, spec.name, device)
    if result is None:
        out += [((" not run here yet", "dim"),)] if progress is None else []
        out += probe_figures.baseline_rows(state, None, width, glyphs)
    else:
        head: list[Span] = [(f" {result.status.value}", ROLES[result.status])]
        head.append((f"  {_ago(state, result)}, took {units.seconds_text(result.duration_s)}", "dim"))
        if result.contaminated:
            head.append(("  contaminated: another process was on the GPU", "warn"))
        out.append(fit(head, width, glyphs))
        out += probe_figures.rows(state, result, verdict_of(state, result), width, room - len(out), glyphs)
    return out[:room]


def _line(state: NodeState, name: str, device: Device, glyphs: Glyphs) -> list[Span]:
    left: Span = (pad(name, 13, ellipsis=glyphs.ellipsis), "text")
    progress = under_way(state, name, device)
    if progress is not None:
        return [
            left,
            (pad("running", 12), "accent"),
            (f"{_so_far(progress)}  ", "text"),
            (clean(progress.message), "dim"),
        ]
    result = newest(state, name, device)
    if result is None:
        return [left, ("not run", "dim")]
    verdict = verdict_of(state, result)
    said = ", ".join(f"{v.name} {probe_figures.number(v)}" for v in result.values[:4]) or clean(result.message)
    return [
        left,
        (pad(result.status.value, 12), ROLES[result.status]),
        (f"{_ago(state, result)}  ", "dim"),
        *([probe_figures.word(verdict.values[0], glyphs), ("  ", "text")] if verdict and verdict.values else []),
        (clean(said), "text"),
    ]


def _progress(progress: ProbeProgress, width: int, glyphs: Glyphs) -> Row:
    spans: list[Span] = [(" running", "accent"), (f"  {_so_far(progress)}  ", "text")]
    if progress.total_s > 0:
        full = round(_BAR * min(1.0, progress.done_s / progress.total_s))
        spans += [(glyphs.bar[-1] * full, "accent"), (glyphs.rule * (_BAR - full), "dim"), ("  ", "text")]
    return fit([*spans, (clean(progress.message), "dim")], width, glyphs)


def _so_far(progress: ProbeProgress) -> str:
    so_far, usual = _seconds(progress.done_s), _seconds(progress.total_s)
    if progress.total_s < 1:
        return f"{so_far} so far"
    return f"{so_far} of about {usual}" if progress.done_s <= progress.total_s else f"{so_far}, usually about {usual}"


def _seconds(seconds: float) -> str:
    return units.seconds_text(seconds) if seconds >= 10 else f"{seconds:.0f} s"


def _ago(state: NodeState, result: ProbeResult) -> str:
    if not result.started_wall_ns or not state.tick_wall_ns:
        return ""
    return f"{units.seconds_text(max(0, round((state.tick_wall_ns - result.started_wall_ns) / 1e9)))} ago"
