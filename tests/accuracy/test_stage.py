"""Speeds from a job's own step log: long enough, over whole bursts, and not waiting for ever. Time is the script's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.faults import stage
from probes.faults.host import NotHereError
from probes.faults.plan import plan_of
from probes.faults.stage import BATCH_S, LONGEST, Stage


class Peer:
    """A job that says at each step what it has done, as the script has it; waiting for it is what passes the time."""

    def __init__(self, steps_at: list[float], answers: dict[float, dict[str, Any]] | None = None) -> None:
        said = [(at, {"t": at, "samples": 10 * n, "steps": n}) for n, at in enumerate(steps_at, 1)]
        self.script = sorted([*said, *(answers or {}).items()], key=lambda pair: pair[0])
        self.now, self.pid, self.ended = 0.0, 1, False
        self.asked: list[dict[str, Any]] = []

    def say(self, **message: Any) -> None:
        self.asked.append(message)

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        if self.script and self.script[0][0] <= self.now + timeout_s:
            at, message = self.script.pop(0)
            self.now = max(self.now, at)
            return message
        self.now += timeout_s
        return None


def staged(monkeypatch: pytest.MonkeyPatch, peer: Peer) -> Stage:
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: peer.now))
    return Stage(cast("Any", SimpleNamespace(job=lambda: peer)), {}, plan_of({"source": "loader"}))


def each(step_s: float, seconds: float = 60.0) -> list[float]:
    return [step_s * n for n in range(1, int(seconds / step_s))]


@pytest.mark.parametrize(
    ("step_s", "period", "lasts_s"),
    [
        (0.05, 0, 2.0),  # as long as asked for
        (0.5, 0, 5.5),  # until there are ten steps
        (0.05, 20, 4.1),  # four periods, of which three are whole wherever it began
        (0.05, 800, LONGEST * 2.0),  # so rare that it is not waited for
        (9.0, 0, LONGEST * 2.0),
    ],
)
def test_a_speed_is_measured_for_as_long_as_it_needs(
    monkeypatch: pytest.MonkeyPatch, step_s: float, period: int, lasts_s: float
) -> None:
    peer = Peer(each(step_s))
    found = staged(monkeypatch, peer).rate(2.0, period)
    assert peer.now == pytest.approx(lasts_s, abs=0.6)
    assert found == pytest.approx(10 / step_s if lasts_s > 2 * step_s else 0.0, rel=0.01)


def test_workers_that_deliver_all_at_once_are_measured_from_burst_to_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight batches in 0.3 s, then nothing for three: by the first ten steps alone it would be thrice as fast."""
    peer = Peer([3.4 * burst + 0.04 * n for burst in range(20) for n in range(1, 9)])
    found = staged(monkeypatch, peer).rate(2.5, period=8)
    assert found == pytest.approx(8 * 10 / 3.4, rel=0.02)


def test_batches_are_thrown_away_until_the_job_says_so_and_its_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer([0.1, 0.2, 1.2, 1.3], {1.0: {"discarded": 26}})
    found = staged(monkeypatch, peer)
    found.discard(26, 5.0)
    assert peer.asked == [{"discard": 26, "for_s": 5.0}]
    assert peer.now == 1.0
    found.pause(0.5)
    assert found.rate_between(0.0, 1.3) == pytest.approx(30 / 1.2, rel=0.01)


def test_a_loader_that_hangs_meanwhile_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer([])
    staged(monkeypatch, peer).discard(26, 5.0)
    assert peer.now == pytest.approx(5.0 + BATCH_S, abs=0.5)


def test_no_speed_is_taken_before_the_other_tenant_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair measured while the new tenant still starts seems to help as much as having none."""
    own, other = Peer([], {0.1: {"ready": True}}), Peer([7.0])
    given = iter((own, other))
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: own.now + other.now))
    shared = Stage(cast("Any", SimpleNamespace(job=lambda: next(given))), {"conv": 4}, plan_of({"neighbour": 1}))
    shared.begin()
    assert other.now >= 7.0
    other.script, other.ended = [], True
    with pytest.raises(NotHereError, match="the other tenant"):
        shared._await_neighbours()
