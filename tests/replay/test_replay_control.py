"""A recording can be held, stepped and moved, and what is shown then is what was recorded."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from diagnose import builders as b

from gpuwatch.errors import UsageError
from gpuwatch.model import DeviceSample, Inventory, Observation
from gpuwatch.replay.format import Writer
from gpuwatch.replay.player import ReplaySource, instant_ns

S = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "job.gwrec"
    with Writer(file, 1_700_000_000 * S) as writer:
        writer.write(b.inventory())
        for second in range(60):
            writer.write(DeviceSample(0, 100 * S + second * S, busy_pct=float(second)))
    return file


class Played:
    """A source on a clock that the test moves, and what it has emitted."""

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self.now_ns = 0
        self.source = ReplaySource(path, speed, clock=lambda: self.now_ns)
        self.seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self.source.start(self.seen.put)

    def until(self, second: int) -> list[int]:
        """Seconds that come up to this one, in order; inventories are left out."""
        out: list[int] = []
        while not out or out[-1] != second:
            instant = instant_ns(self.seen.get(timeout=10))
            if instant is not None:
                out.append(instant // S - 100)
        return out

    def wake(self, seconds: float) -> None:
        """Move the clock; the player waits by its own and is told to look."""
        self.now_ns += int(seconds * S)
        with self.source._changed:
            self.source._changed.notify_all()


@pytest.fixture
def played(path: Path) -> Played:
    return Played(path)


def test_forward_is_at_once_and_leaves_nothing_out(played: Played) -> None:
    assert played.until(0) == [0]
    assert played.source.control("seek", 20) == "at 20.0 s"
    assert played.until(20) == list(range(1, 21))
    assert played.source.position_s == 20
    played.source.stop()


def test_back_plays_again_from_the_start_so_that_the_picture_is_whole(played: Played) -> None:
    played.source.control("seek", 30)
    played.until(30)
    played.source.control("seek", 10)
    assert played.until(10) == list(range(11))
    assert played.source.position_s == 10
    played.source.stop()


def test_paused_nothing_comes_however_late_it_gets(played: Played) -> None:
    played.until(0)
    assert played.source.control("pause", 0) == "paused"
    played.wake(40)
    assert played.source.position_s == 0
    assert played.seen.empty()
    played.source.control("step", 2)
    assert played.until(2) == [1, 2]
    assert (played.source.paused, played.source.position_s) == (True, 2)
    played.source.control("resume", 0)
    played.wake(3)
    assert played.until(5) == [3, 4, 5]
    played.source.stop()


def test_speed_changes_from_here_on_and_is_said(played: Played) -> None:
    played.until(0)
    played.source.control("speed", 4)
    announced = played.seen.get(timeout=10)
    assert isinstance(announced, Inventory)
    assert announced.source.speed == 4
    played.wake(2)
    assert played.until(8) == list(range(1, 9))
    played.source.stop()


def test_after_the_end_one_can_go_back(played: Played) -> None:
    played.source.control("seek", 1000)
    played.until(59)
    ended = played.seen.get(timeout=10)
    assert isinstance(ended, Inventory)
    assert ended.source.ended
    played.source.control("seek", 5)
    again = played.seen.get(timeout=10)
    assert isinstance(again, Inventory)
    assert not again.source.ended
    assert played.until(5) == list(range(6))
    played.source.stop()


@pytest.mark.parametrize(("action", "value"), [("seek", -1.0), ("speed", float("nan")), ("dance", 0.0)])
def test_what_cannot_be_is_one_line(played: Played, action: str, value: float) -> None:
    with pytest.raises(UsageError) as error:
        played.source.control(action, value)
    assert "\n" not in str(error.value)
    played.source.stop()
