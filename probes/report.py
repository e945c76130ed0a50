"""What one run has to say, and how it is printed.

Owns: the JSON object (fields of gpuwatch's ProbeResult), the table for people, exit codes. Refuses: measuring.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from . import stats

EXIT_CODES = {"ok": 0, "invalid": 1, "failed": 3, "unavailable": 3, "busy": 75}
EXIT_USAGE = 64
QUIET_S = 2.0
"""Runs shorter than this say nothing but their result."""


class ProbeError(Exception):
    """The run ends here with ``status``; the message is one line with the remedy."""

    status = "failed"


class UnavailableError(ProbeError):
    """It cannot run on this machine: no torch, no such device."""

    status = "unavailable"


class BusyError(ProbeError):
    """Somebody else holds what it needs; later it may run."""

    status = "busy"


def first_line(exc: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]


class Progress:
    """One line on stderr now and then, once the run takes longer than ``QUIET_S``."""

    def __init__(self, probe: str, stream: TextIO = sys.stderr) -> None:
        self._probe = probe
        self._stream = stream
        self._started = time.monotonic()
        self._said = ""
        self._said_at = 0.0

    def say(self, text: str) -> None:
        """Report what is going on: nothing in the first seconds, then at most one line a second."""
        now = time.monotonic()
        if text == self._said or now - self._started < QUIET_S or now - self._said_at < 1.0:
            return
        self._said, self._said_at = text, now
        # A reader that has gone, or a full disk, takes away the progress and must not take the result.
        with contextlib.suppress(OSError, ValueError):
            print(f"{self._probe}: {text}", file=self._stream, flush=True)


class Report:
    """Collects values, settings and doubts while a probe runs."""

    def __init__(self, probe: str, device: str) -> None:
        self.probe = probe
        self.device = device
        self.device_uuid = ""
        self.device_name = ""
        self.settings: dict[str, str] = {}
        self.notes: list[str] = []
        self.values: list[dict[str, object]] = []
        self.problems: list[str] = []
        """Why the figures cannot be true. Any makes the result invalid."""
        self._started_wall_ns = time.time_ns()
        self._started_ns = time.perf_counter_ns()

    def add(self, name: str, unit: str, samples: Sequence[float], higher_is_better: bool = True) -> None:
        """One quantity from its samples. A zero, negative or not finite sample is a broken measurement."""
        if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
            self.problems.append(f"{name}: a sample is missing, zero or not finite")
            return
        self.values.append(
            {
                "name": name,
                "unit": unit,
                "median": stats.median(samples),
                "p20": stats.quantile(samples, 0.2),
                "p80": stats.quantile(samples, 0.8),
                "n": len(samples),
                "higher_is_better": higher_is_better,
            }
        )

    def add_count(self, name: str, unit: str, count: int, tried: int) -> None:
        """A count that was chosen among ``tried`` ones; zero is a count."""
        self.values.append(
            {
                "name": name,
                "unit": unit,
                "median": float(count),
                "p20": float(count),
                "p80": float(count),
                "n": tried,
                "higher_is_better": False,
            }
        )

    def finish(self, error: ProbeError | None = None) -> dict[str, object]:
        """The result object."""
        status = "ok"
        message = ""
        if error is not None:
            status, message = error.status, str(error)
        elif self.problems:
            status, message = "invalid", "; ".join(self.problems)
        elif not self.values:
            status, message = "failed", "nothing was measured"
        return {
            "probe": self.probe,
            "status": status,
            "device": self.device,
            "values": self.values,
            "device_uuid": self.device_uuid,
            "device_name": self.device_name,
            "started_wall_ns": self._started_wall_ns,
            "duration_s": (time.perf_counter_ns() - self._started_ns) / 1e9,
            "message": " ".join(message.split()),
            "contaminated": False,
            "settings": self.settings,
            "notes": self.notes,
        }


def table(result: dict[str, object]) -> str:
    """The result for people: a head line, one aligned row per value, notes."""
    lines = [f"{result['probe']} on {result['device_name'] or result['device']}: {result['status']}"]
    if result["message"]:
        lines.append(f"  {result['message']}")
    values = result["values"]
    assert isinstance(values, list)
    if values:
        rows = [("", "median", "p20", "p80", "n", "")]
        for value in values:
            cells = [number(value[key]) for key in ("median", "p20", "p80")]
            rows.append((value["name"], *cells, str(value["n"]), value["unit"]))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        for row in rows:
            middle = "  ".join(row[column].rjust(widths[column]) for column in range(1, 5))
            lines.append((f"  {row[0].ljust(widths[0])}  {middle}  {row[5]}").rstrip())
    notes = result["notes"]
    assert isinstance(notes, list)
    lines.extend(f"  note: {note}" for note in notes)
    return "\n".join(lines)


def number(value: float) -> str:
    """Four significant digits, never in exponent form for everyday sizes."""
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def as_json(result: dict[str, object]) -> str:
    """The result as one line of JSON."""
    return json.dumps(result, allow_nan=False)
