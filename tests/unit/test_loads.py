"""The clock beside a load: counted in a stream of its own, read only when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bench.jobs import loads


class Torch:
    """A kernel that takes its cycles at 1500 MHz; ``log`` is what was asked for."""

    int64 = "int64"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.found = [0, 0]
        self.cuda = SimpleNamespace(
            Stream=self.side, stream=self.stream, _compile_kernel=lambda _source, _name: self.spin
        )

    def side(self, priority: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"side {priority}", synchronize=lambda: self.log.append("wait"))

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        self.log.append(f"read on {stream.name}")
        yield

    def spin(self, grid: object, block: object, args: list[object], stream: SimpleNamespace) -> None:
        cycles = args[0]
        assert isinstance(cycles, int)
        self.log.append(f"spin on {stream.name}")
        self.found = [cycles, int(cycles / 1.5)]

    def zeros(self, count: int, dtype: str, device: str) -> SimpleNamespace:
        return SimpleNamespace(tolist=lambda: self.found)


def test_the_clock_is_cycles_over_nanoseconds_within_a_kernel_beside_the_load() -> None:
    torch = Torch()
    spin = loads.Spin(torch, "cuda:0")
    spin.turn()
    assert torch.log == ["spin on side -1"], "a turn waits for nobody"
    spin.turn()
    spin.read()
    spin.read()
    assert torch.log == ["spin on side -1", "wait", "read on side -1"] * 2
    assert spin.found_mhz == pytest.approx([1500.0, 1500.0])


def test_a_torch_that_compiles_no_kernel_leaves_the_clock_to_nvml(capsys: pytest.CaptureFixture[str]) -> None:
    old = SimpleNamespace(cuda=SimpleNamespace())
    assert loads.spin_of(SimpleNamespace(torch=old, device="cuda:0", is_cuda=True)) is None  # type: ignore[arg-type]
    assert "compiles no kernel" in capsys.readouterr().err
