"""What this machine can reach: each probe on the selected GPU with its newest result, and starting one.

Owns: the lines, which probe is selected. Refuses: judging a result (verdict/), running it (the daemon's).
"""

from __future__ import annotations

from gpuwatch import units
from gpuwatch.client.state import NodeState
from gpuwatch.model import Device, ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.tui.selection import ViewOptions, selected_device
from gpuwatch.tui.text import Glyphs, Row, Span, between, clean, fit, pad, rule, selected, wrap
from gpuwatch.verdict.probe_run import PROBES
from gpuwatch.wire import StartProbe

_ROLES = {
    ProbeStatus.OK: "ok", ProbeStatus.BUSY: "warn", ProbeStatus.INVALID: "crit",
    ProbeStatus.FAILED: "crit", ProbeStatus.UNAVAILABLE: "warn",
}  # fmt: skip


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


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines: every probe with its headline, then all values of the selected one."""
    glyphs = options.glyphs
    index = selected_device(state, options)
    device = state.device(index) if index is not None else None
    if device is None:
        return [(), (("  no GPU to measure", "dim"),)]
    keys: list[Span] = [
        ("r", "key"),
        (" run it now, if the GPU is idle  ", "dim"),
        ("right", "key"),
        (" next GPU", "dim"),
    ]
    out: list[Row] = [rule(f"Probes on GPU {device.index}", keys, width, glyphs)]
    listed = min(len(PROBES), max(3, (room - 2) // 2))
    at = min(max(options.row, 0), len(PROBES) - 1)
    first = min(max(0, at - listed // 2), len(PROBES) - listed)
    for spec in PROBES[first : first + listed]:
        line = _line(state, spec.name, newest(state, spec.name, device), width, glyphs)
        here = spec.name == chosen(options)
        row = fit(((glyphs.cursor if here else " ", "accent"), *line), width, glyphs)
        out.append(selected(row) if here else row)
    spec = PROBES[at]
    out.append(rule(spec.name, [], width, glyphs))
    out += [((f" {line}", "title"),) for line in wrap(spec.question, width - 2, 2)]
    result = newest(state, spec.name, device)
    if result is None:
        out.append(((" not run here yet", "dim"),))
    else:
        out += _values(state, result, width, room - len(out), glyphs)
    return out[:room]


def _line(state: NodeState, name: str, result: ProbeResult | None, width: int, glyphs: Glyphs) -> list[Span]:
    if result is None:
        return [(pad(name, 13, ellipsis=glyphs.ellipsis), "text"), ("not run", "dim")]
    said = ", ".join(f"{v.name} {number(v)}" for v in result.values[:4]) or clean(result.message)
    return [
        (pad(name, 13, ellipsis=glyphs.ellipsis), "text"),
        (pad(result.status.value, 12), _ROLES[result.status]),
        (f"{_ago(state, result)}  ", "dim"),
        (clean(said), "text"),
    ]


def number(value: ProbeValue) -> str:
    """Three digits and the unit."""
    digits = f"{value.median:.0f}" if abs(value.median) >= 100 else f"{value.median:.3g}"
    return f"{digits} {value.unit}".strip()


def _values(state: NodeState, result: ProbeResult, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    head: list[Span] = [(f" {result.status.value}", _ROLES[result.status])]
    head.append((f"  {_ago(state, result)}, took {units.seconds_text(result.duration_s)}", "dim"))
    if result.contaminated:
        head.append(("  contaminated: another process was on the GPU", "warn"))
    out: list[Row] = [fit(head, width, glyphs)]
    if result.message:
        out += [((f" {line}", "warn"),) for line in wrap(clean(result.message), width - 2, 3, glyphs.ellipsis)]
    names = min(max((len(v.name) for v in result.values), default=0), width // 2)
    for value in result.values:
        spread = f"{value.p20:.3g}..{value.p80:.3g}  n={value.n}"
        left: list[Span] = [
            (f"   {pad(clean(value.name), names, ellipsis=glyphs.ellipsis)}  ", "text"),
            (f"{number(value):>16}", "title"),
        ]
        out.append(between(left, ((f"{spread} ", "dim"),), width))
    for note in result.notes:
        out += [((f" {line}", "dim"),) for line in wrap(clean(note), width - 2, 2, glyphs.ellipsis)]
    if len(out) > room > 1:
        out = [*out[: room - 1], ((f" {len(out) - room + 1} more lines: gpuwatch probe run {result.probe}", "dim"),)]
    return out[: max(0, room)]


def _ago(state: NodeState, result: ProbeResult) -> str:
    if not result.started_wall_ns or not state.tick_wall_ns:
        return ""
    return f"{units.seconds_text(max(0, round((state.tick_wall_ns - result.started_wall_ns) / 1e9)))} ago"
