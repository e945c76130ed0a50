"""What happened, newest first, with a filter by kind and by text.

Owns: the lines. Refuses: what is an event (client/events.py).
"""

from __future__ import annotations

from datetime import datetime

from gpuwatch.client.events import Event, EventKind
from gpuwatch.client.state import NodeState
from gpuwatch.tui import diagnosis
from gpuwatch.tui.selection import ViewOptions
from gpuwatch.tui.text import Row, Span, clean, fit, rule, wrap

KINDS = ("", *(kind.value for kind in EventKind))
"""What ``o`` goes through; empty is everything."""


def picked(state: NodeState, options: ViewOptions) -> list[Event]:
    """The events that pass both filters."""
    words = options.find.lower()
    return [
        event
        for event in state.events
        if (not options.kind or event.kind.value == options.kind) and words in event.text.lower()
    ]


def rows(state: NodeState, options: ViewOptions, width: int, room: int) -> list[Row]:
    """At most ``room`` lines."""
    glyphs = options.glyphs
    events = picked(state, options)
    keys: list[Span] = [(options.kind or "all kinds", "title"), ("  o", "key"), (" kind  ", "dim")]
    keys += [("/", "key"), (" find", "dim")]
    out: list[Row] = [rule(f"Events since this screen was opened: {len(events)}", keys, width, glyphs)]
    if not events:
        said = "nothing passes the filter" if state.events else "nothing has happened yet"
        return [*out, (), ((f"  {said}", "dim"),)]
    shown = events[options.scroll :]
    for event in shown:
        if len(out) >= room:
            break
        out += _lines(event, options, width, _day(state.tick_wall_ns, options))[: room - len(out)]
    return out


def length(state: NodeState, options: ViewOptions) -> int:
    """How far one can scroll, in events."""
    return len(picked(state, options))


def _day(wall_ns: int, options: ViewOptions) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, tz=options.zone).strftime("%m-%d ")


def _lines(event: Event, options: ViewOptions, width: int, today: str) -> list[Row]:
    """Events of another day have their date."""
    glyphs = options.glyphs
    clock = datetime.fromtimestamp(event.wall_ns / 1e9, tz=options.zone).strftime("%H:%M:%S")
    day = _day(event.wall_ns, options)
    clock = clock if day == today else day + clock
    where = f"GPU {event.device_index}" if event.device_index >= 0 else ""
    head: list[Span] = [
        (f" {clock if event.wall_ns else '':<8} ", "dim"),
        (
            f"{diagnosis.sign(event.severity, glyphs)} {event.severity.value:<8} ",
            diagnosis.severity_role(event.severity),
        ),
        (f"{event.kind.value:<8} ", "text"),
        (f"{where:<7}", "key"),
    ]
    used = sum(len(text) for text, _ in head)
    text = wrap(clean(event.text), max(20, width - used - 1), 2, glyphs.ellipsis) or [""]
    rest = [fit(((" " * used, "text"), (line, "text")), width, glyphs) for line in text[1:]]
    return [fit((*head, (text[0], "text")), width, glyphs), *rest]
