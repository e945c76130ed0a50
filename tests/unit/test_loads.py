"""The clock beside a load: counted in a stream of its own, read only when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bench.jobs import loads


class Torch:
    """Streams on which a spin waits 0.4 ms for room and takes its cycles at 1500 MHz; ``log`` is what was asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.at_ms, self.on = 0.0, "main"
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = 0.0

            def record(self) -> None:
                outer.log.append(f"event on {outer.on}")
                self.at_ms = outer.at_ms

            def synchronize(self) -> None:
                outer.log.append("wait")

            def elapsed_time(self, later: Any) -> float:
                return float(later.at_ms - self.at_ms)

        self.cuda = SimpleNamespace(
            Event=Event, Stream=lambda priority: f"side {priority}", stream=self.stream, _sleep=self.sleep
        )

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        self.on, before = name, self.on
        yield
        self.on = before

    def sleep(self, cycles: int) -> None:
        self.log.append(f"spin on {self.on}")
        self.at_ms += 0.4 + cycles / 1.5e6


def test_the_clock_is_cycles_over_time_beside_the_load_without_the_wait_for_room() -> None:
    torch = Torch()
    spin = loads.Spin(torch)
    spin.turn()
    turn = ["spin on side -1", "event on side -1"] * 3
    assert torch.log == turn, "a turn waits for nobody"
    spin.turn()
    spin.read()
    spin.read()
    assert torch.log == [*turn, "wait", *turn, "wait"]
    assert spin.found_mhz == pytest.approx([1500.0, 1500.0])
