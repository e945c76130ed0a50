"""The overview: one line per GPU, the chart of the selected one, the verdict of each job, the host.

Owns: how the lines of the body are shared out between them. Refuses: the frame around it, textual, judging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpuwatch import units
from gpuwatch.client.state import STALE_AFTER_PERIODS, NodeState
from gpuwatch.model import Device, DeviceSample, Severity
from gpuwatch.tui import chart, columns, diagnosis, facts
from gpuwatch.tui.selection import (
    Job,
    ViewOptions,
    diagnosis_of,
    first_shown,
    in_order,
    jobs,
    rank_text,
    selected_device,
    selected_job,
)
from gpuwatch.tui.series import value_of
from gpuwatch.tui.text import Glyphs, Row, Span, between, clean, fit, flow, pad, rule, selected

_CHART_WINDOWS_S = (60, 120, 300, 600)
_CHART_MIN_ROWS = 3
_TWO_CHARTS_WIDTH = 110
_AXIS = 4


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines. The table comes first, then the verdict; the chart has what is left."""
    assert state.inventory is not None
    count = len(state.inventory.devices)
    table_lines = min(count, max(1, room - 6))
    out = _table(state, options, width, table_lines)
    left = room - len(out)
    host = facts.host_rows(state, options, width)[:1] if left >= 7 else []
    detail = _detail(state, options, width, 2 if left >= 16 else 1)
    left -= len(host) + len(detail)
    chart_min = max(_CHART_MIN_ROWS, left // 3) + 1 if left >= 8 else 0
    verdicts = _verdicts(state, options, width, left - chart_min)
    chart_lines = left - len(verdicts)
    plot = _charts(state, options, width, chart_lines) if chart_lines > _CHART_MIN_ROWS else []
    return [*out, *detail, *plot, *verdicts, *[()] * (chart_lines - len(plot)), *host]


def gpu_row(state: NodeState, device: Device, everyone: Sequence[Job]) -> columns.GpuRow:
    """What the table shows of one GPU; ``everyone`` is ``jobs(state)``. Its age is behind the others': a silent daemon
    is the banner's to tell."""
    sample = state.devices.get(device.index)
    age_s = _age_s(state, sample)
    on_it = [job.main for job in everyone if device.index in job.device_indices and job.main is not None]
    return columns.GpuRow(
        device,
        sample,
        age_s,
        stale=_is_stale(state, age_s),
        users=tuple(dict.fromkeys(clean(main.user) for main in on_it)),
        commands=tuple(clean(main.command) for main in on_it),
    )


def _age_s(state: NodeState, sample: DeviceSample | None) -> float:
    return state.age_ns(sample) / 1e9 if sample is not None else 0.0


def _is_stale(state: NodeState, age_s: float) -> bool:
    return age_s > STALE_AFTER_PERIODS * state.period_s


def troubles(state: NodeState, device: Device) -> list[Span]:
    """What to know before believing a GPU's readings: their age, what stands in for another, is absent, holds back."""
    sample = state.devices.get(device.index)
    if sample is None:
        return [("waiting for the first sample", "accent")]
    about: list[Span] = []
    age_s = _age_s(state, sample)
    if _is_stale(state, age_s):
        about.append((f"no reading for {units.seconds_text(age_s)}: its driver call does not return", "warn"))
    if columns.proxy(sample):
        about.append(("* NVML utilization: a kernel was resident; says little", "warn"))
    about += [(text, "warn") for text in facts.absences(device, sample)]
    about += facts.throttle(sample)
    return about


def _table(state: NodeState, options: ViewOptions, width: int, lines: int) -> list[Row]:
    assert state.inventory is not None
    glyphs, devices = options.glyphs, in_order(state.inventory.devices)
    branches = _branches(devices, glyphs)
    layout = columns.plan(width, _index_cells(devices, branches))
    chosen = selected_device(state, options)
    at = next(i for i, device in enumerate(devices) if device.index == chosen)
    first = first_shown(at, len(devices), lines)
    everyone = jobs(state)
    out = [columns.header(layout, width, glyphs)]
    if lines < len(devices):
        out = [between(out[0][:1], ((f"{first + 1}-{first + lines} of {len(devices)} ", "head"),), width)]
    for device in devices[first : first + lines]:
        gpu = replace(gpu_row(state, device, everyone), branch=branches[device.index])
        line = columns.row(gpu, layout, width, glyphs, is_selected=device.index == chosen)
        if gpu.stale:
            line = tuple((text, role if role == "warn" else "dim") for text, role in line)
        out.append(selected(line) if device.index == chosen else line)
    return out


def _branches(devices: Sequence[Device], glyphs: Glyphs) -> dict[int, str]:
    """What hangs each MIG instance below its GPU; the devices are in the order of the list."""
    uuids = {device.uuid for device in devices} - {""}
    out = {}
    for device, after in zip(devices, (*devices[1:], None), strict=True):
        last = after is None or after.parent_uuid != device.parent_uuid
        branch = glyphs.last_branch if last else glyphs.branch
        out[device.index] = branch if device.parent_uuid in uuids else ""
    return out


def _index_cells(devices: Sequence[Device], branches: Mapping[int, str]) -> int:
    return max(columns.INDEX_CELLS, *(len(f"{branches[device.index]}{device.index}") for device in devices))


def part_of(state: NodeState, device: Device) -> str:
    """ " of GPU 0" for a MIG instance whose GPU is there."""
    assert state.inventory is not None
    gpus = (other.index for other in state.inventory.devices if device.parent_uuid and other.uuid == device.parent_uuid)
    return "".join(f" of GPU {index}" for index in gpus)


def _detail(state: NodeState, options: ViewOptions, width: int, lines: int) -> list[Row]:
    """About the selected GPU: age first, then what is absent and why, what holds it back, then the rest."""
    index = selected_device(state, options)
    device = state.device(index) if index is not None else None
    if device is None:
        return []
    sample = state.devices.get(device.index)
    about = troubles(state, device)
    if sample is not None:
        about += facts.more(sample)
    about.append((f"{clean(device.name)}{part_of(state, device)} {clean(device.pci_bus_id)}", "dim"))
    return flow(f" GPU {device.index} ", about, width, lines, options.glyphs)


def _charts(state: NodeState, options: ViewOptions, width: int, lines: int) -> list[Row]:
    """The last minutes of the selected GPU. Wide screens have tensor and DRAM beside busy and SM."""
    index = selected_device(state, options)
    assert index is not None
    if width < _TWO_CHARTS_WIDTH:
        return _chart(state, index, ("busy", "sm"), options, width=width, lines=lines)
    half = (width - 2) // 2
    left = _chart(state, index, ("busy", "sm"), options, width=half, lines=lines)
    right = _chart(state, index, ("dram", "tensor"), options, width=width - 2 - half, lines=lines)
    return [(*fit(a, half, options.glyphs), ("  ", "text"), *b) for a, b in zip(left, right, strict=True)]


_SERIES = {"busy": "busy", "sm": "SM active", "tensor": "tensor", "dram": "DRAM"}
_READINGS = {"busy": "busy_pct", "sm": "sm_active_pct", "tensor": "tensor_active_pct", "dram": "dram_active_pct"}


def _chart(
    state: NodeState, index: int, series: tuple[str, str], options: ViewOptions, *, width: int, lines: int
) -> list[Row]:
    line, area = series
    glyphs = options.glyphs
    history = state.history.get(index)
    samples = history.samples if history is not None else ()
    end_ns = samples[-1].mono_ns if samples else 0
    span_s = (end_ns - samples[0].mono_ns) / 1e9 if samples else 0.0
    window_s = next((w for w in _CHART_WINDOWS_S if w >= span_s), _CHART_WINDOWS_S[-1])
    dots = (width - _AXIS) * chart.DOTS_PER_COLUMN
    step_ns = chart.bucket_ns(window_s, dots, state.period_s)
    shown_s = step_ns * dots / 1e9
    hold_ns = int(STALE_AFTER_PERIODS * state.period_s * 1e9)
    points = {
        name: [(s.mono_ns, value) for s in samples if (value := value_of(s, _READINGS[name])) is not None]
        for name in series
    }
    # A young history grows from the left: nothing that is drawn has to move until the window is full.
    right_ns = max(end_ns, samples[0].mono_ns + step_ns * (dots - 1)) if samples else 0
    data = {name: chart.resample(points[name], right_ns, step_ns, dots, hold_ns, end_ns) for name in series}
    marks = ("-", "#") if glyphs.ascii_only else ("⠒", "⣿")
    proxied = bool(samples) and columns.proxy(samples[-1]) and line == "busy"
    legend = [(f"{marks[1]} {_SERIES[area]}  ", area)] if points[area] or not samples else []
    legend.append((f"{marks[0]} {'NVML utilization*' if proxied else _SERIES[line]}", line))
    title = f"GPU {index}, {units.seconds_text(round(shown_s))} across" if area == "sm" else f"GPU {index}"
    out = [rule(title, legend, width, glyphs)]
    plot = chart.area_and_line(data[area], data[line], lines - 1, area_role=area, line_role=line, glyphs=glyphs)
    for number, row in enumerate(plot):
        label = {0: "100", len(plot) // 2: " 50" if len(plot) % 2 and len(plot) > 4 else "   "}.get(number, "   ")
        label = "  0" if number == len(plot) - 1 else label
        out.append(((label + " ", "dim"), *row))
    if not any(points.values()) and len(out) > 1:
        why = "no counters to draw: this GPU has no GPM" if samples else "waiting for the first sample"
        out[1 + len(plot) // 2] = ((" " * _AXIS + why, "dim"),)
    return out


def _verdicts(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """The selected job's verdict with its remedy, then one line for each of the others."""
    if room < 1:
        return []
    glyphs = options.glyphs
    chosen = selected_job(state, options)
    others = [job for job in jobs(state) if chosen is None or job.pid != chosen.pid]
    diagnosed = [job for job in others if diagnosis_of(state, job) is not None]
    # One line each for the diagnosed, one for all the rest; the selected job keeps at least six.
    other_lines = min(len(diagnosed) + (len(diagnosed) < len(others)), max(0, room - 7))
    out = diagnosis.summary_rows(state, options, width, room - other_lines - 1 if room > 2 else room)
    if room > 2:
        title = "Verdict: " + diagnosis.subject_text(state, chosen) if chosen is not None else "Verdict"
        out.insert(0, rule(title, [("4", "key"), (" details", "dim")], width, glyphs))
    elsewhere = diagnosis.progress_elsewhere(state, chosen, width, glyphs)
    out = [*out[: max(0, room - len(elsewhere))], *elsewhere]
    alone = other_lines if other_lines == len(others) == len(diagnosed) else max(0, other_lines - 1)
    out += [_other_job(state, job, width, glyphs) for job in diagnosed[:alone]]
    rest = [job for job in others if job not in diagnosed[:alone]]
    if other_lines and rest:
        out.append(_rest(state, rest, width, glyphs))
    return out[:room]


def _other_job(state: NodeState, job: Job, width: int, glyphs: Glyphs) -> Row:
    """The verdict of a job that is not selected, in one line."""
    found = diagnosis_of(state, job)
    place = pad(f"GPU {','.join(map(str, job.device_indices))}: {job.pid}", 15, ellipsis=glyphs.ellipsis) + " "
    assert found is not None
    verdict = found.verdict
    role = diagnosis.severity_role(verdict.severity)
    loss = f" loses {units.pct_text(100 * verdict.lost_share)} " if verdict.lost_share > 0 else " "
    rank = f"{rank_text(job)}: " if rank_text(job) else ""
    left = (
        (f" {diagnosis.sign(verdict.severity, glyphs)} ", role),
        (place, "key"),
        (rank + clean(verdict.summary), "text"),
    )
    return between(left, ((loss, role),), width)


def _rest(state: NodeState, others: Sequence[Job], width: int, glyphs: Glyphs) -> Row:
    """Jobs for which there is no line, counted by how bad they are."""
    verdicts = [found.verdict.severity for job in others if (found := diagnosis_of(state, job)) is not None]
    said: list[Span] = [(f" {len(others)} more job{'s' if len(others) > 1 else ''}:", "dim")]
    for severity in (Severity.CRITICAL, Severity.WARNING, Severity.INFO):
        if count := verdicts.count(severity):
            text = f" {diagnosis.sign(severity, glyphs)} {count} {severity.value}"
            said.append((text, diagnosis.severity_role(severity)))
    if without := len(others) - len(verdicts):
        said.append((f" {glyphs.waiting} {without} not diagnosed", "dim"))
    return between(said, [("right", "key"), (" next job ", "dim")], width)
