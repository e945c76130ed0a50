"""What happened, newest first, with a filter by kind and by text.

Owns: the lines, and where in them this screen was opened. Refuses: what is an event (client/events.py).
"""

from __future__ import annotations

from datetime import datetime

from gpuwatch.client.events import Event, EventKind, opened_ns, remembered, timeline
from gpuwatch.client.state import NodeState
from gpuwatch.tui import diagnosis
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Glyphs, Row, Span, clean, fit, rule, wrap

KINDS = ("", *(kind.value for kind in EventKind))
"""What ``o`` goes through; empty is everything."""
_WIDE = 110


def picked(state: NodeState, options: ViewOptions) -> list[Event]:
    """The events that pass both filters."""
    words = options.find.lower()
    return [
        event
        for event in timeline(state)
        if (not options.kind or event.kind.value == options.kind) and words in event.text.lower()
    ]


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines."""
    glyphs = options.glyphs
    events = picked(state, options)
    keys: list[Span] = [(options.kind or "all kinds", "title"), ("  o", "key"), (" kind  ", "dim")]
    keys += [("/", "key"), (" find", "dim")]
    since = "the daemon runs" if remembered(state) else "this screen was opened"
    out: list[Row] = [rule(f"Events since {since}: {len(events)}", keys, width, glyphs)]
    if not events:
        said = "nothing passes the filter" if state.events or remembered(state) else "nothing has happened yet"
        return [*out, (), ((f"  {said}", "dim"),)]
    opened = opened_ns(state)
    today = _day(state.tick_wall_ns, options)
    dated = any(_day(event.wall_ns, options) != today for event in events if event.wall_ns)
    before = next((place for place, event in enumerate(events) if event.wall_ns < opened), 0)
    for place, event in enumerate(events[options.scroll :], options.scroll):
        if place == before and place > 0:
            out.append(_opened(width, glyphs))
        if len(out) >= room:
            break
        out += _lines(event, options, width, dated=dated)
    return out[:room]


def _opened(width: int, glyphs: Glyphs) -> Row:
    return rule("before this screen was opened: findings, driver events, probes", [], width, glyphs)


def length(state: NodeState, options: ViewOptions) -> int:
    """How far one can scroll, in events."""
    return len(picked(state, options))


def _day(wall_ns: int, options: ViewOptions) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, tz=options.zone).strftime("%m-%d ")


def _lines(event: Event, options: ViewOptions, width: int, *, dated: bool) -> list[Row]:
    """``dated``: with the day, in all lines when one needs it."""
    glyphs = options.glyphs
    pattern = "%m-%d %H:%M:%S" if dated else "%H:%M:%S"
    clock = datetime.fromtimestamp(event.wall_ns / 1e9, tz=options.zone).strftime(pattern) if event.wall_ns else ""
    where = f"GPU {event.device_index}" if event.device_index >= 0 else ""
    head: list[Span] = [
        (f" {clock:<{14 if dated else 8}} ", "dim"),
        (
            f"{diagnosis.sign(event.severity, glyphs)} {event.severity.value:<8} ",
            diagnosis.severity_role(event.severity),
        ),
        (f"{event.kind.value:<8} ", "text"),
        (f"{where:<7}", "key"),
    ]
    used = sum(len(text) for text, _ in head)
    # A finding is one sentence of up to 150 letters; the events after it can be scrolled to.
    lines = 2 if width >= _WIDE else 4
    text = wrap(clean(event.text), max(20, width - used - 1), lines, glyphs.ellipsis) or [""]
    rest = [fit(((" " * used, "text"), (line, "text")), width, glyphs) for line in text[1:]]
    return [fit((*head, (text[0], "text")), width, glyphs), *rest]
