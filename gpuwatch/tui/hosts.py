"""All hosts, one line each, worst first.

Owns: the order, the columns. Refuses: connecting (client/), judging.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch import units
from gpuwatch.client.state import Link, NodeState
from gpuwatch.model import Absent, Device, DriverState, Severity
from gpuwatch.tui import diagnosis, facts
from gpuwatch.tui.columns import proxy
from gpuwatch.tui.selection import ViewOptions, first_shown, wholes
from gpuwatch.tui.text import Glyphs, Row, Span, clean, fit, pad, rule, selected

_WIDE, _NARROW = 110, 80
_LINK_RANK = {Link.LOST: 5, Link.INCOMPATIBLE: 5, Link.STALE: 4, Link.CONNECTING: 3, Link.LIVE: 0}
_SEVERITY_RANK = {Severity.CRITICAL: 2, Severity.WARNING: 1, Severity.INFO: 0}


def name_of(state: NodeState) -> str:
    """The host's own name once it is known, else where we look for it."""
    return clean(state.inventory.node.hostname if state.inventory is not None else state.endpoint)


def order(hosts: Sequence[NodeState], options: ViewOptions) -> list[int]:
    """Places in ``hosts``, worst first: no contact, then findings, then by what is lost, then by name."""
    words = options.find.lower()
    places = [place for place, state in enumerate(hosts) if words in name_of(state).lower()]
    return sorted(places, key=lambda place: _badness(hosts[place]))


def rows(hosts: Sequence[NodeState], options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines."""
    glyphs = options.glyphs
    places = order(hosts, options)
    troubled = sum(state.link is not Link.LIVE for state in hosts)
    title = f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}"
    title += f", {troubled} without fresh readings" if troubled else ""
    keys: list[Span] = [("enter", "key"), (" open  ", "dim"), ("/", "key"), (" find", "dim")]
    out: list[Row] = [rule(title, keys, width, glyphs), _titles(width)]
    if not places:
        return [*out, ((f"  no host with {clean(options.find)!r} in its name", "dim"),)]
    at = places.index(options.host) if options.host in places else 0
    visible = max(1, room - len(out))
    first = first_shown(at, len(places), visible)
    names = [name_of(state) for state in hosts]
    for place in places[first : first + visible]:
        # Machines of one image may all have one name: then where we look for them tells them apart.
        twin = names.count(names[place]) > 1
        line = _line(hosts[place], clean(hosts[place].endpoint) if twin else names[place], width, glyphs)
        chosen = place == places[at]
        row = fit(((glyphs.cursor if chosen else " ", "accent"), *line), width, glyphs)
        out.append(selected(row) if chosen else row)
    return out


def _badness(state: NodeState) -> tuple[int, int, int, float, str]:
    inventory = state.inventory
    driver = int(inventory is not None and inventory.driver is not DriverState.OK)
    worst = max((_SEVERITY_RANK[d.verdict.severity] for d in state.diagnoses), default=-1)
    lost = max((d.verdict.lost_share for d in state.diagnoses), default=0.0)
    return -_LINK_RANK[state.link], -driver, -worst, -lost, name_of(state)


def _titles(width: int) -> Row:
    wide = f" {'MEM GiB':>11} {'POWER':>8}" if width >= _WIDE else ""
    name = "HOST".ljust(_name_cells(width))
    text = f"  {name} {'STATE':<14} {'GPUs':>4} {'BUSY':>5} {'SM':>4}{wide}  WORST: TIME LOST, CAUSE"
    return fit(((text, "head"),), width, fill_role="head")


def _name_cells(width: int) -> int:
    return 20 if width >= _NARROW else 10


def _line(state: NodeState, name: str, width: int, glyphs: Glyphs) -> list[Span]:
    sign, role = {
        Link.LIVE: (glyphs.live, "ok"), Link.STALE: (glyphs.warning, "warn"), Link.LOST: (glyphs.critical, "crit"),
        Link.INCOMPATIBLE: (glyphs.critical, "crit"), Link.CONNECTING: (glyphs.waiting, "accent"),
    }[state.link]  # fmt: skip
    word = "recorded" if state.recorded and state.link is Link.LIVE else state.link.value
    out: list[Span] = [
        (" " + pad(name, _name_cells(width), ellipsis=glyphs.ellipsis), "title"),
        (" " + pad(f"{sign} {word}", 14, ellipsis=glyphs.ellipsis), role),
    ]
    inventory = state.inventory
    if inventory is None or state.link is Link.INCOMPATIBLE:
        return [*out, (f"  {clean(state.detail)}", "dim")]
    gpus = wholes(inventory.devices)
    out.append((f" {len(gpus):>4}", "text"))
    if state.devices:
        means = _means(state, gpus, wide=width >= _WIDE)
        out += means if state.link is not Link.LOST else [(text, "dim") for text, _ in means]
    else:
        out.append((" " * (32 if width >= _WIDE else 11), "text"))
    if state.link is not Link.LIVE:
        out.append((f"  {clean(state.detail)}", role))
    elif inventory.driver is not DriverState.OK:
        hint = f": {clean(inventory.driver_hint)}" if inventory.driver_hint else ""
        out.append((f"  {glyphs.warning} {facts.DRIVER_WORDS[inventory.driver]}{hint}", "warn"))
    elif not gpus:
        out.append(("  no GPU", "dim"))
    else:
        out.append(_worst(state, glyphs))
    return out


def _means(state: NodeState, gpus: Sequence[Device], *, wide: bool) -> list[Span]:
    """Means over the GPUs that tell; a sum of memory that is not complete is marked."""
    samples = [state.devices[gpu.index] for gpu in gpus if gpu.index in state.devices]
    busy = [s.gpu_util_pct if proxy(s) else s.busy_pct for s in samples]
    sm = [s.sm_active_pct for s in samples]
    star = "*" if any(proxy(s) for s in samples) else " "
    memory = [s.mem_used_bytes for s in samples]
    used = _sum(memory)
    size = _sum([gpu.mem_total_bytes for gpu in gpus])
    mem = units.NA if used is None else f"{used / (1 << 30):.0f}" + ("" if size is None else f"/{size / (1 << 30):.0f}")
    power = _sum([s.power_w for s in samples])
    watts = units.NA if power is None else units.watts_text(power)
    return [
        (f" {_mean(busy):>4}{star}", "busy"),
        (f" {_mean(sm):>4}", "sm"),
        *([(f" {mem:>11} {watts:>8}", "text")] if wide else []),
    ]


def _mean(readings: Sequence[object]) -> str:
    known = [float(r) for r in readings if isinstance(r, (int, float))]
    return units.pct_text(sum(known) / len(known)).removesuffix(" %") if known else units.NA


def _sum(readings: Sequence[object]) -> float | None:
    if any(isinstance(r, Absent) for r in readings):
        return None
    return sum(float(r) for r in readings if isinstance(r, (int, float)))


def _worst(state: NodeState, glyphs: Glyphs) -> Span:
    if not state.diagnoses:
        return "  not diagnosed", "dim"
    found = max(state.diagnoses, key=lambda d: (_SEVERITY_RANK[d.verdict.severity], d.verdict.lost_share))
    verdict = found.verdict
    bad = verdict.severity is not Severity.INFO and verdict.lost_share > 0
    loss = f"{units.pct_text(100 * verdict.lost_share)} " if bad else ""
    gpus = ",".join(map(str, found.device_indices))
    text = f"  {diagnosis.sign(verdict.severity, glyphs)} {loss}{clean(verdict.cause)}, GPU {gpus}"
    return text, diagnosis.severity_role(verdict.severity)
