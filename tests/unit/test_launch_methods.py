"""A figure by the length of the queue: there must be as many pairs in it as the row says."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakegpu.logged import event_class

from bench import launch_methods
from bench.launch_methods import samples


class Torch:
    """A stream that writes down what is put into it; each event is 2 µs after the one before."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.cuda = SimpleNamespace(
            Event=event_class(self.log, lambda: 0.002 * len(self.log)),
            _sleep=lambda cycles: self.log.append(f"hold {cycles}"),
            synchronize=lambda: self.log.append("drain"),
            is_available=lambda: False,
        )


SAMPLE = [f"hold {launch_methods.HOLD_CYCLES}", "event", "work", "event"]


@pytest.mark.parametrize(
    ("depth", "log"),
    [
        (1, [*SAMPLE, "wait", *SAMPLE, "wait", *SAMPLE, "wait", "drain"]),
        (2, [*SAMPLE, *SAMPLE, "wait", *SAMPLE, "wait", "drain"]),
        (100, [*SAMPLE, *SAMPLE, *SAMPLE, "drain"]),
    ],
)
def test_there_are_as_many_pairs_in_the_queue_as_the_row_says(depth: int, log: list[str]) -> None:
    torch = Torch()
    found = samples(torch, lambda: torch.log.append("work"), depth, 3)
    assert torch.log == log
    assert found == pytest.approx([4.0] * 3), "from event to event, the work between them"


def test_without_a_gpu_it_is_one_line_and_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch_methods"])
    monkeypatch.setitem(sys.modules, "torch", cast("Any", Torch()))
    assert launch_methods.main() == 69
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
