"""The clock beside a load: counted in a stream of its own, read only when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from fakegpu.logged import event_class

from bench.jobs import loads


class Torch:
    """Streams on which a spin waits 0.4 ms for room and takes its cycles at 1500 MHz; ``log`` is what was asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.at_ms, self.on = 0.0, "main"
        event = event_class(self.log, lambda: self.at_ms, lambda: f"event on {self.on}")
        self.cuda = SimpleNamespace(
            Event=event, Stream=lambda priority: f"side {priority}", stream=self.stream, _sleep=self.sleep
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
