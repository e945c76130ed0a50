"""A node's state to the rows of a screen.

Owns: the frame (header, banners, footer), which view fills it, the states in which there is nothing to list.
Refuses: textual, sockets, clocks (``now_ns`` is passed in), judging.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from msgspec.structs import replace

from gpuwatch import units
from gpuwatch.client.state import Link, NodeState
from gpuwatch.model import Absent, DriverState, Reason
from gpuwatch.tui import diagnosis, events, facts, gpu, overview, probes, processes
from gpuwatch.tui import hosts as host_list
from gpuwatch.tui.help import KEYS, help_rows
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Row, Span, as_ascii, between, clean, dimmed, fit, wrap

MIN_WIDTH, MIN_HEIGHT = 60, 15
VIEWS = {
    "overview": "Overview",
    "gpu": "GPU",
    "processes": "Processes",
    "diagnosis": "Diagnosis",
    "probes": "Probes",
    "events": "Events",
    "hosts": "Hosts",
    "help": "Help",
}
"""Name to title, in the order of their keys; the help's is the question mark."""
_SHORT = {"overview": "Over", "processes": "Procs", "diagnosis": "Diag", "probes": "Probe", "events": "Event"}


def screen(
    state: NodeState,
    options: ViewOptions,
    width: int,
    height: int,
    *,
    now_ns: int,
    hosts: Sequence[NodeState] = (),
) -> list[Row]:
    """The whole screen: exactly ``height`` rows of exactly ``width`` cells. ``now_ns`` is our monotonic clock."""
    glyphs = options.glyphs
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        text = f"gpuwatch needs {MIN_WIDTH}x{MIN_HEIGHT}, this terminal has {width}x{height}"
        rows: list[Row] = [((line, "warn"),) for line in wrap(text, max(1, width), height)]
    else:
        head = [_header(state, options, width), *_banners(state, options, width, now_ns)]
        room = height - len(head) - 1
        if options.view == "hosts":
            body = host_list.rows(hosts or (state,), options, width, room)[:room]
        else:
            body = _body(state, options, width, room)[:room]
        rows = [*head, *body, *[()] * (room - len(body)), _footer(state, options, width)]
    if options.ascii_only:
        rows = [as_ascii(row) for row in rows]
    rows = [fit(row, width, glyphs) for row in rows[:height]]
    return rows + [fit((), width)] * (height - len(rows))


def clamp_scroll(state: NodeState, options: ViewOptions, width: int, height: int, now_ns: int) -> ViewOptions:
    """The options with a scroll offset that leaves the last screenful in sight."""
    if options.scroll <= 0:
        return options
    room = height - 2 - len(_banners(state, options, width, now_ns))
    if options.view == "help":
        length = len(help_rows(width, options.glyphs))
    elif options.view == "diagnosis":
        length = len(diagnosis.rows(state, options, width, room))
    elif options.view == "events":
        length = room + events.length(state, options) - 1
    else:
        length = 0
    return replace(options, scroll=min(options.scroll, max(0, length - room)))


def clock_text(wall_ns: int, zone: tzinfo | None, pattern: str = "%H:%M:%S") -> str:
    """A point in time for a person; empty when it is not known."""
    return datetime.fromtimestamp(wall_ns / 1e9, tz=zone).strftime(pattern) if wall_ns else ""


def _body(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    if options.view == "help":
        return help_rows(width, options.glyphs)[options.scroll :]
    if state.link is Link.INCOMPATIBLE:
        return _message("This daemon speaks another protocol", state.detail, width, room, role="crit")
    if state.inventory is None:
        title = "Lost the daemon" if state.link is Link.LOST else f"Connecting to {state.endpoint or 'gpuwatch'}"
        return _message(title, state.detail or "waiting for its first answer", width, room, role="title")
    match options.view:
        case "processes":
            rows = processes.rows(state, options, width, room)
        case "diagnosis":
            rows = diagnosis.rows(state, options, width, room)[options.scroll :]
        case "events":
            rows = events.rows(state, options, width, room)
        case _ if state.inventory.driver is not DriverState.OK or not state.inventory.devices:
            rows = _no_gpus(state, options, width, room)
        case "gpu":
            rows = gpu.rows(state, options, width, room)
        case "probes":
            rows = probes.rows(state, options, width, room)
        case _:
            rows = overview.rows(state, options, width, room)
    return dimmed(rows) if state.link is Link.LOST else rows


_DRIVER_TITLES = {
    DriverState.OK: "No GPU here",
    DriverState.NO_LIBRARY: "No NVIDIA driver library here",
    DriverState.NO_DRIVER: "The NVIDIA driver is not loaded",
    DriverState.MISMATCH: "The NVIDIA driver and its library do not match",
    DriverState.NO_DEVICES: "The driver works and shows no GPU",
    DriverState.NO_PERMISSION: "Not allowed to open the GPUs",
    DriverState.UNKNOWN: "The NVIDIA driver does not answer",
    DriverState.ASLEEP: "The GPUs are asleep",
}


def _no_gpus(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    assert state.inventory is not None
    inventory = state.inventory
    hint = inventory.driver_hint or "NVML lists no device; in a container, pass the GPUs in (--gpus all)."
    rows = _message(_DRIVER_TITLES[inventory.driver], hint, width, max(1, room - 2), role="warn")
    rows += [()] * (room - 1 - len(rows))
    return [*rows, *facts.host_rows(state, options, width)[:1]]


def _message(title: str, text: str, width: int, room: int, *, role: str) -> list[Row]:
    """A title and a few lines in the middle of an otherwise empty body."""
    inner = min(width - 8, 76)
    lines: list[Row] = [((clean(line), role),) for line in wrap(title, inner, 2)]
    lines += [((clean(line), "text"),) for line in wrap(text, inner, max(1, room - 4))]
    indent = (width - max(sum(len(text) for text, _ in row) for row in lines)) // 2
    above = max(0, (room - len(lines)) // 2 - 1)
    return [*[()] * above, *[((" " * indent, "text"), *row) for row in lines]]


def _header(state: NodeState, options: ViewOptions, width: int) -> Row:
    glyphs = options.glyphs
    left: list[Span] = [(" gpuwatch ", "brand"), (" ", "text")]
    if state.inventory is not None:
        node = state.inventory.node
        left.append((clean(node.hostname), "title"))
        if not isinstance(node.driver_version, Absent):
            left.append((f"  driver {node.driver_version}", "dim"))
        if not isinstance(node.cuda_driver_version, Absent):
            left.append((f" {glyphs.separator} CUDA {node.cuda_driver_version}", "dim"))
    right: list[Span] = []
    if state.dropped:
        right.append((f"{state.dropped} missed  ", "warn"))
    if options.paused:
        right.append(("PAUSED  ", "warn"))
    if options.readonly:
        right.append(("read only  ", "dim"))
    if options.host_count > 1:
        right.append((f"host {options.host + 1} of {options.host_count}  ", "dim"))
    right.extend(_link(state, options))
    return between(left, [*right, (" ", "text")], width)


def _link(state: NodeState, options: ViewOptions) -> list[Span]:
    glyphs = options.glyphs
    clock = clock_text(state.tick_wall_ns, options.zone)
    match state.link:
        case Link.CONNECTING:
            return [(f"{glyphs.waiting} connecting", "accent")]
        case Link.STALE:
            return [(f"{glyphs.warning} stale", "warn"), (f"  {clock}", "dim")]
        case Link.LOST:
            return [(f"{glyphs.critical} lost", "crit"), (f"  {clock}", "dim")]
        case Link.INCOMPATIBLE:
            return [(f"{glyphs.critical} incompatible", "crit")]
    if not state.tick_mono_ns:
        return [(f"{glyphs.waiting} waiting for the first sample", "accent")]
    if state.recorded:
        ended = state.inventory is not None and state.inventory.source.ended
        return [("recording ended" if ended else "replaying", "warn"), (f"  {clock}", "text")]
    return [(f"{glyphs.live} live", "ok"), (f"  {clock}", "text")]


def _banners(state: NodeState, options: ViewOptions, width: int, now_ns: int) -> list[Row]:
    """Lines under the header that must not be missed: recorded, stale, lost, the answer to a request."""
    glyphs = options.glyphs
    rows: list[Row] = []
    if state.inventory is not None and state.recorded:
        rows.append(_recorded(state, options, width))
    elif options.note:
        rows.append(fit(((f" {clean(options.note)}", "warn"),), width, glyphs))
    if state.link in (Link.STALE, Link.LOST) and state.inventory is not None:
        age = units.seconds_text((now_ns - state.ticked_ns) / 1e9)
        if state.link is Link.LOST:
            why = clean(state.detail) or "no sign of the daemon"
            rows.append(((f" {glyphs.critical} {why}, trying again; the values are {age} old", "crit"),))
        else:
            rows.append(((f" {glyphs.warning} no new sample for {age}: the values are old", "warn"),))
    for part in () if state.inventory is None else state.inventory.unwatched or ():
        # A card that never had it is no news: `gpuwatch status` and the log have it.
        if part.absent.reason is not Reason.NOT_SUPPORTED:
            why = clean(part.absent.detail) or facts.reason_text(part.absent)
            rows.append(fit(((f" {glyphs.warning} not watched: {clean(part.part)}: {why}", "warn"),), width, glyphs))
    if options.typing or options.find:
        mark = "_" if options.typing else ""
        hint = "  enter: keep, esc: all again" if options.typing else "  /: change"
        rows.append(fit(((f" find: {clean(options.find)}{mark}", "accent"), (hint, "dim")), width, glyphs))
    if options.question:
        rows.append(fit(((f" {glyphs.warning} {clean(options.question)}  y / n", "warn"),), width, glyphs))
    said = options.said or state.notice
    if said and not options.hide_notice:
        rows.append(fit(((f" {glyphs.arrow} {clean(said)}", "accent"),), width, glyphs))
    return rows


def _recorded(state: NodeState, options: ViewOptions, width: int) -> Row:
    assert state.inventory is not None
    glyphs, source = options.glyphs, state.inventory.source
    parts = [clean(source.name)]
    if source.recorded_wall_ns:
        # At 60 cells the position in the recording is worth more than its hour.
        pattern = "%Y-%m-%d %H:%M" if width >= 80 else "%Y-%m-%d"
        parts.append("of " + clock_text(source.recorded_wall_ns, options.zone, pattern))
    if state.replay is not None and not source.ended:
        at_s = max(0.0, (state.tick_mono_ns - state.replay.start_mono_ns) / 1e9)
        parts.append(f"{_minutes(at_s)}/{_minutes(state.replay.duration_s)}")
    if source.speed != 1.0:
        parts.append(f"at {source.speed:g}{glyphs.times}" if source.speed else "at full speed")
    if state.replay is not None and state.replay.paused and not source.ended:
        parts.append("PAUSED")
    if source.ended:
        parts.append("(ended: the last values stand)")
    spans: list[Span] = [(" RECORDED ", "badge"), (" " + " ".join(parts), "warn")]
    if options.note:
        spans.append((f"  {clean(options.note)}", "dim"))
    return fit(spans, width, glyphs)


def _minutes(seconds: float) -> str:
    """ "3:07"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _footer(state: NodeState, options: ViewOptions, width: int) -> Row:
    """The views and the most used keys: titles as far as they fit, the one that is shown always."""
    for titles in (VIEWS, VIEWS | _SHORT, {}):
        left: list[Span] = [(" ", "foot")]
        for number, (name, title) in enumerate(VIEWS.items(), 1):
            role = "tab" if name == options.view else "foot"
            key = "?" if name == "help" else str(number)
            shown = title if role == "tab" else titles.get(name, "")
            left += [(f" {key} ", "foot-key" if role == "foot" else role), (f"{shown} " if shown else "", role)]
        room = width - sum(len(text) for text, _ in left)
        if room >= 8:  # "q quit"
            break
    right: list[Span] = []
    for key_of in KEYS:
        if not key_of.footer:
            continue
        spans: list[Span] = [(f" {key_of.shown}", "foot-key"), (f" {key_of.footer} ", "foot")]
        cells = sum(len(text) for text, _ in spans)
        if cells <= room:
            right += spans
            room -= cells
    return between([span for span in left if span[0]], right, width, (" ", "foot"))


def view_after(name: str, step: int) -> str:
    """The next view in the order of the keys."""
    names: Sequence[str] = list(VIEWS)
    return names[(names.index(name) + step) % len(names)]
