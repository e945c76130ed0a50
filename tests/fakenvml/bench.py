"""One GPU's reader over the fake, on a clock that moves only when told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakenvml.build import Fake, loaded
from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.model import Burst, DeviceHealth, DeviceSample

MS = 1_000_000


class Telemetry:
    """What one tick of one GPU gave."""

    def __init__(self, sample: DeviceSample, extras: tuple[Burst | DeviceHealth, ...], calls: dict[str, int]) -> None:
        self.sample = sample
        self.burst = next((e for e in extras if isinstance(e, Burst)), None)
        self.health = next((e for e in extras if isinstance(e, DeviceHealth)), None)
        self.calls = calls
        """How often each function was called for this GPU, or for no GPU."""


class Ticking:
    """Reads a GPU tick by tick, as its sampler does."""

    def __init__(self, fake: Fake, clock: list[int], reader: DeviceReader, index: int) -> None:
        self.fake = fake
        self.clock = clock
        self.reader = reader
        self._index = index

    def tick(self, after_ms: int = 1000) -> Telemetry:
        """A full reading and what comes after it."""
        self.clock[0] += after_ms * MS
        self.fake.advance(after_ms)
        self.fake.forget_calls()
        sample = self.reader.read(self.clock[0])
        extras = self.reader.extras(self.clock[0])
        made = self.fake.calls()
        return Telemetry(sample, extras, {name: n for (name, gpu), n in made.items() if gpu in (self._index, None)})

    def health(self, ticks: int = 1) -> DeviceHealth:
        """The newest slow reading after so many ticks of a second."""
        found = [t.health for t in (self.tick() for _ in range(ticks)) if t.health is not None]
        return found[-1]

    def bursts(self, ticks: int, after_ms: int = 1000) -> list[Burst]:
        """What the driver sampled by itself over so many ticks."""
        return [t.burst for t in (self.tick(after_ms) for _ in range(ticks)) if t.burst is not None]


@contextmanager
def ticking(tmp_path: Path, scenario: str = "gpus=1", index: int = 0) -> Iterator[Ticking]:
    """A reader whose driver follows ``scenario``; its time moves with ours only."""
    with loaded(tmp_path, f"frozen=1\n{scenario}") as fake:
        clock = [10**12]
        nvml = Nvml(clock=lambda: clock[0])
        nvml.open()
        yield Ticking(fake, clock, nvml.reader(index), index)
        nvml.close()
