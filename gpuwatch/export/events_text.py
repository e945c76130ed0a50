"""Findings in time and driver events as lines of text.

Owns: the layout. Refuses: where they come from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpuwatch import units
from gpuwatch.export.cells import clean
from gpuwatch.model import EventRecord, FindingSpan


def event_lines(spans: Sequence[FindingSpan], events: Sequence[EventRecord], now_ns: int) -> list[str]:
    """One line each, oldest first. ``now_ns`` is wall time: how long an open finding has lasted."""
    dated = [(span.since_wall_ns, _span(span, now_ns)) for span in spans]
    dated += [(event.wall_ns, _event(event)) for event in events]
    return [line for _, line in sorted(dated)] or ["nothing has been found and nothing has happened yet"]


def _span(span: FindingSpan, now_ns: int) -> str:
    until = span.resolved_wall_ns or now_ns
    lasted = units.seconds_text((until - span.since_wall_ns) / 1e9)
    end = f"over after {lasted} ({clean(span.resolution)})" if span.resolved_wall_ns else f"lasts since {lasted}"
    who = f"pid {span.pid}" if span.pid else "no process"
    gpus = ",".join(map(str, span.device_indices))
    worst = units.pct_text(100 * span.worst_lost_share)
    return f"{_at(span.since_wall_ns)}  GPU {gpus}  {span.severity} {span.cause} of {who}, at worst {worst} lost; {end}"


def _event(event: EventRecord) -> str:
    gpu = str(event.device_index) if event.device_index >= 0 else "?"
    again = f" (and {event.repeats} more)" if event.repeats else ""
    return f"{_at(event.wall_ns)}  GPU {gpu}  {clean(event.text) or event.kind.name.lower()}{again}"


def _at(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))
