"""``gpuwatch events``: what somebody who comes in the morning reads about the night."""

from __future__ import annotations

import pytest

from gpuwatch.cli.events import known
from gpuwatch.cli.main import run
from gpuwatch.client.state import NodeState, fold
from gpuwatch.export.events_text import event_lines
from gpuwatch.model import EventKind, EventOrigin, EventRecord, FindingSpan, Inventory, NodeInfo, Severity
from gpuwatch.wire import FindingsMessage

S = 1_000_000_000
OPEN = FindingSpan(7, (0,), "launch_bound", Severity.CRITICAL, 100 * S, 160 * S, 0.82)
OVER = FindingSpan(8, (1, 2), "host_sync", Severity.WARNING, 50 * S, 70 * S, 0.2, 90 * S, resolution="the job ended")
XID = EventRecord(0, 0, 120 * S, EventKind.XID, EventOrigin.HARDWARE, 79, text="XID 79: the GPU has fallen off the bus")


def test_lines_are_in_the_order_of_time_and_say_how_long_and_how_bad() -> None:
    first, second, third = event_lines([OPEN, OVER], [XID], 220 * S)
    assert "warning host_sync of pid 8, at worst 20 % lost; over after 40 s (the job ended)" in first
    assert "GPU 1,2" in first
    assert "critical launch_bound of pid 7, at worst 82 % lost; lasts since 2 min" in second
    assert "XID 79" in third


def test_nothing_is_said_in_words_and_not_by_an_empty_page() -> None:
    assert event_lines([], [], 0) == ["nothing has been found and nothing has happened yet"]


def test_findings_that_follow_the_snapshot_are_waited_for() -> None:
    state = NodeState("e", inventory=Inventory(NodeInfo("n", "k", "b", 1, 1), ()))
    states = [state, fold(state, FindingsMessage(1, 2, (OPEN,)), 5)]
    now = iter(i * 0.1 for i in range(100))
    assert known(lambda timeout: states.pop(0) if len(states) > 1 else states[0], lambda: next(now)).spans == (OPEN,)


def test_without_a_daemon_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUWATCH_ENDPOINT", f"{tmp_path}/nobody")
    assert run(["events"]) == 69
    assert capsys.readouterr().err.startswith("gpuwatch: ")
