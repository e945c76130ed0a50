"""The ways between do_bench's and the probe's: what is queued must be queued, and what is single waited for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import launch_methods
from bench.launch_methods import Way, samples


class Torch:
    """A stream that writes down what is put into it; each event is 2 µs after the one before."""

    def __init__(self) -> None:
        self.log: list[str] = []
        stream = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = 0.0

            def record(self) -> None:
                stream.log.append("event")
                self.at_ms = 0.002 * len(stream.log)

            def synchronize(self) -> None:
                stream.log.append("wait")

            def elapsed_time(self, other: Any) -> float:
                return float(other.at_ms - self.at_ms)

        self.cuda = SimpleNamespace(
            Event=Event,
            _sleep=lambda cycles: self.log.append(f"hold {cycles}"),
            synchronize=lambda: self.log.append("drain"),
            is_available=lambda: False,
        )


SAMPLE = ["hold 9", "event", "work", "event"]


@pytest.mark.parametrize(
    ("way", "log"),
    [
        (Way(queued=True, events_made=False, hold_cycles=9), [*SAMPLE, *SAMPLE, "drain"]),
        (Way(queued=False, events_made=False, hold_cycles=9), [*SAMPLE, "wait", *SAMPLE, "wait", "drain"]),
        (Way(queued=True, events_made=True, hold_cycles=9), [*["event"] * 4, "drain", *SAMPLE, *SAMPLE, "drain"]),
    ],
)
def test_a_way_is_what_its_row_says(way: Way, log: list[str]) -> None:
    torch = Torch()
    found = samples(torch, lambda: torch.log.append("work"), way, 2)
    assert torch.log == log
    assert found == pytest.approx([4.0, 4.0]), "from event to event, the work between them"


def test_without_a_gpu_it_is_one_line_and_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch_methods"])
    monkeypatch.setitem(sys.modules, "torch", cast("Any", Torch()))
    assert launch_methods.main() == 69
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
