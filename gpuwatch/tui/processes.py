"""The process list: each GPU job as a tree with its workers, and the host above it.

Owns: columns and tree of processes. Refuses: signals, textual, reading /proc.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuwatch import units
from gpuwatch.client.rates import IoRate
from gpuwatch.client.state import NodeState
from gpuwatch.export import unseen
from gpuwatch.model import Absent, Num, ProcessInfo, Role
from gpuwatch.tui import facts
from gpuwatch.tui.selection import (
    SORTS,
    Job,
    ViewOptions,
    first_shown,
    jobs,
    process_order,
    selected_device,
    selected_job,
)
from gpuwatch.tui.text import Glyphs, Row, Span, between, clean, fit, flow, pad, selected, wrap


class _Entry(Struct, frozen=True):
    """One line of the tree."""

    job: Job
    info: ProcessInfo | None
    pid: int
    branch: str = ""


_ROLES = {Role.MAIN: "main", Role.LOADER_WORKER: "worker", Role.CHILD: "child", Role.PARENT: "parent"}
_STATE_ROLES = {"D": "warn", "Z": "crit", "T": "warn", "R": "ok"}
_COLUMNS = (
    ("PID", 8, 0),
    ("USER", 9, 0),
    ("GPU", 4, 0),
    ("ROLE", 7, 0),
    ("S", 2, 0),
    ("CPU%", 5, 0),
    ("SM%", 5, 0),
    ("THR", 5, 100),
    ("GPU MEM", 9, 0),
    ("RSS", 9, 100),
    ("READ/s", 11, 100),
    ("WRITE/s", 11, 112),
    ("CONTAINER", 20, 140),
)
"""Name, cells, and the width of the screen from which on it is there; the command has the rest. So they go, as it gets
narrower: container, writes, then reads, RSS and threads."""
_RIGHT = frozenset({"PID", "CPU%", "SM%", "THR", "GPU MEM", "RSS", "READ/s", "WRITE/s"})


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines: host, titles, the part of the tree around the selection, the selection in full."""
    glyphs = options.glyphs
    head = [*facts.host_rows(state, options, width), fit(_titles(width), width, fill_role="head")]
    everyone = jobs(state)
    if not everyone and not (options.follow and options.pid):
        text = _no_jobs(state)
        return [*head, (), ((f"  {text}", "dim"),)]
    chosen = _chosen_pid(state, options)
    if chosen:
        tail = _chosen_rows(state, chosen, width, min(4, max(1, room // 6)), glyphs)
    else:
        index = selected_device(state, options) or 0
        tail = [fit(((f" GPU {index}: {facts.no_process_text(state, index)}", "dim"),), width, glyphs)]
    entries = _entries(everyone, process_order(state, options), options)
    if not entries:
        return [*head, (), ((f"  no process with {clean(options.find)!r} in it", "dim"),)]
    at = next((i for i, entry in enumerate(entries) if entry.pid == chosen), 0)
    visible = max(1, room - len(head) - len(tail))
    first = first_shown(at, len(entries), visible)
    if len(entries) > visible or options.sort != "gpu" or options.find or options.follow:
        place = f"{first + 1}-{min(first + visible, len(entries))} of {len(entries)}"
        place += f" by {SORTS[options.sort]}" if options.sort != "gpu" else ""
        place += f", {clean(options.find)!r}" if options.find else ""
        place += ", following " if options.follow else " "
        head[-1] = between(_titles(width), ((place, "head"),), width, (" ", "head"))
    shown = [_line(state, entry, options, width) for entry in entries[first : first + visible]]
    if at - first < len(shown) and entries[at].pid == chosen:
        shown[at - first] = selected(((glyphs.cursor, "accent"), *_without_first_cell(shown[at - first])))
    return [*head, *shown, *[()] * (visible - len(shown)), *tail]


def _no_jobs(state: NodeState) -> str:
    devices = state.inventory.devices if state.inventory is not None else ()
    reasons = [facts.no_process_text(state, device.index) for device in devices]
    unknown = [
        f"GPU {device.index}: {why}" for device, why in zip(devices, reasons, strict=True) if why != "no process"
    ]
    if not devices:
        return "no GPU, so no GPU process"
    return "; ".join(unknown) if unknown else "no process holds a GPU"


def _without_first_cell(row: Row) -> Row:
    (text, role), *rest = row
    return ((text[1:], role), *rest)


def _chosen_pid(state: NodeState, options: ViewOptions) -> int:
    job = selected_job(state, options)
    if options.follow and options.pid:
        return options.pid
    if job is None:
        return 0
    return options.pid if any(m.pid == options.pid for m in job.members) else job.pid


def _entries(everyone: Sequence[Job], order: Sequence[int], options: ViewOptions) -> list[_Entry]:
    """Trees in the order of the GPUs, or single lines in another order; without those that a filter hides."""
    entries = {entry.pid: entry for job in everyone for entry in _tree(job, options.glyphs)}
    flat = options.sort != "gpu"
    return [replace(entries[pid], branch="") if flat else entries[pid] for pid in order if pid in entries]


def _tree(job: Job, glyphs: Glyphs) -> list[_Entry]:
    out = [_Entry(job, job.main, job.pid)]
    for number, member in enumerate(job.members):
        last = number == len(job.members) - 1
        out.append(_Entry(job, member, member.pid, glyphs.last_branch if last else glyphs.branch))
    return out


def _columns(width: int) -> list[tuple[str, int]]:
    return [(name, cells) for name, cells, least in _COLUMNS if width >= least]


def _titles(width: int) -> Row:
    spans = [(" " + pad(name, cells - 1, right=name in _RIGHT), "head") for name, cells in _columns(width)]
    return ((" ", "head"), *spans, (" COMMAND", "head"))


def _line(state: NodeState, entry: _Entry, options: ViewOptions, width: int) -> Row:
    glyphs = options.glyphs
    cells = _cells(state, entry)
    spans: list[Span] = [(" ", "text")]
    for name, room in _columns(width):
        text, role = cells[name]
        spans.append((" " + pad(text, room - 1, right=name in _RIGHT, ellipsis=glyphs.ellipsis), role))
    command = _command(entry)
    spans += [(f" {entry.branch}", "dim"), (f" {command}", "dim")] if entry.branch else [(f" {command}", "text")]
    return fit(spans, width, glyphs)


def _command(entry: _Entry) -> str:
    """The command; a forked worker, whose command line is its parent's, by the name of its thread."""
    info, main = entry.info, entry.job.main
    if info is None:
        return "(not visible in /proc from here)"
    forked = main is not None and info.pid != main.pid and info.command == main.command
    return clean(info.comm if forked or not info.command else info.command)


def _cells(state: NodeState, entry: _Entry) -> dict[str, Span]:
    job, info, pid = entry.job, entry.info, entry.pid
    sample = state.processes.get(pid)
    is_main = pid == job.pid
    rate = state.io_rates.get(pid, IoRate())
    run = sample.state if sample is not None else "?"
    container = info.container if info is not None else ""
    return {
        "PID": (str(pid), "key"),
        "USER": (clean(info.user) if info is not None else "?", "text"),
        "GPU": (",".join(map(str, job.device_indices)) if is_main else "", "key"),
        "ROLE": (_role(info), "text" if is_main else "dim"),
        "S": (run, _STATE_ROLES.get(run, "text")),
        "CPU%": (units.pct_text(sample.cpu_pct).removesuffix(" %") if sample is not None else units.NA, "text"),
        "SM%": (_sm_share(state, pid) if is_main else "", "text"),
        "THR": (str(sample.num_threads) if sample is not None else units.NA, "text"),
        "GPU MEM": (_gpu_memory(state, pid) if is_main else "", "text"),
        "RSS": (units.bytes_text(sample.rss_bytes) if sample is not None else units.NA, "text"),
        "READ/s": _rate(rate.read_bytes_per_s),
        "WRITE/s": _rate(rate.write_bytes_per_s),
        "CONTAINER": (clean(container) if isinstance(container, str) else "", "dim"),
    }


def _role(info: ProcessInfo | None) -> str:
    """In six cells: "rank 7" for a rank of a distributed job, "rank12" where there is no room for the space."""
    if info is None:
        return "main"
    if info.place is None:
        return _ROLES[info.role]
    return f"rank {info.place.rank}" if info.place.rank < 10 else f"rank{info.place.rank}"


def _rate(reading: Num) -> Span:
    return units.rate_text(reading), "dim" if isinstance(reading, Absent) else "text"


def _sm_share(state: NodeState, pid: int) -> str:
    """Share of the SMs' time by the driver's count, the largest of its GPUs."""
    shares = [use.sm_pct for health in state.health.values() for use in health.process_utils if use.pid == pid]
    known = [share for share in shares if not isinstance(share, Absent)]
    return units.pct_text(max(known)).removesuffix(" %") if known else units.NA


def _gpu_memory(state: NodeState, pid: int) -> str:
    """Over all its GPUs; one that NVML does not tell makes the sum unknown."""
    readings = [p.mem_used_bytes for s in state.devices.values() for p in s.processes if p.pid == pid]
    known = [r for r in readings if not isinstance(r, Absent)]
    return units.bytes_text(sum(known)) if known and len(known) == len(readings) else units.NA


def _chosen_rows(state: NodeState, pid: int, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """Where the selected process runs and waits, then its whole command."""
    info, sample = state.infos.get(pid), state.processes.get(pid)
    if info is None and not any(p.pid == pid for s in state.devices.values() for p in s.processes):
        return [fit(((f" process {pid} has ended", "warn"),), width, glyphs)]
    if info is None:
        text = unseen.in_full(state.inventory.node, pid) if state.inventory is not None else ""
        return [((f" {line}", "warn"),) for line in wrap(text, width - 2, room, glyphs.ellipsis)]
    said = _moved(state, pid, width)
    if isinstance(info.container, str) and info.container:
        said.append((clean(info.container), "text"))
    if info.container_pid:
        said.append((f"PID {info.container_pid} in there", "text"))
    said.extend(_quota(state, info))
    if sample is not None:
        said.append((f"{sample.running_threads} of {sample.num_threads} threads running", "text"))
        if isinstance(sample.wchan, str) and sample.wchan not in ("", "0"):
            said.append((f"main thread sleeps in {clean(sample.wchan)}", "text"))
    if isinstance(info.cgroup, str) and info.cgroup:
        said.append((f"cgroup {clean(info.cgroup)}", "dim"))
    out = flow(f" {pid} ", said, width, 1, glyphs)
    lines = wrap(clean(info.command), width - 8, room, glyphs.ellipsis)
    return [*out, *[((f"    {line}", "dim"),) for line in lines]]


def _moved(state: NodeState, pid: int, width: int) -> list[Span]:
    """Reads and writes, where there is no column for them."""
    rate, names = state.io_rates.get(pid, IoRate()), [name for name, _ in _columns(width)]
    moved = (("reads", "READ/s", rate.read_bytes_per_s), ("writes", "WRITE/s", rate.write_bytes_per_s))
    return [
        (f"{verb} {units.rate_text(value)}", "text")
        for verb, column, value in moved
        if column not in names and not isinstance(value, Absent)
    ]


def _quota(state: NodeState, info: ProcessInfo) -> list[Span]:
    group = state.cgroups.get(info.root_pid)
    if group is None or isinstance(group.quota_cores, Absent):
        return []
    out: list[Span] = [(f"quota {group.quota_cores:g} cores", "text")]
    if not isinstance(group.nr_periods, Absent) and not isinstance(group.nr_throttled, Absent) and group.nr_throttled:
        share = 100 * group.nr_throttled / max(1, group.nr_periods)
        out.append((f"throttled in {units.pct_text(share)} of its periods", "warn"))
    return out
