"""Probes as the daemon offers them: asked for, due by themselves, finished.

Owns: which probe begins on which GPU, its result. Refuses: child processes (the runner's) and sockets.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Protocol

from gpuwatch import wire
from gpuwatch.config import ProbesConfig
from gpuwatch.daemon.journal import LOGGER
from gpuwatch.daemon.ring import Picture
from gpuwatch.errors import GpuwatchError
from gpuwatch.model import Device, DeviceSample, ProbeResult

KEEP_RESULTS = 64
"""Eight GPUs with all their probes."""

Publish = Callable[[Callable[[int, int], wire.StreamMessage]], None]
Done = Callable[[ProbeResult], None]


class ProbeRunner(Protocol):
    """Starts probes in child processes and ends them when somebody else needs the GPU."""

    def start(self, probe: str, device: Device | None, sample: DeviceSample | None, done: Done) -> str:
        """Begin; "" or one line with the reason for not doing so. ``done`` is called once, from any thread.
        Raises UsageError for a name that is no probe."""

    def check(self, sample: DeviceSample) -> None:
        """A new reading: is somebody else there?"""

    def stop(self) -> None:
        """End all within two seconds."""


class ProbeSchedule(Protocol):
    """When a probe runs by itself."""

    def due(self, device: Device, sample: DeviceSample, now_ns: int) -> str:
        """The probe to start on this GPU now, or ""."""

    def started(self, device: Device, probe: str, now_ns: int) -> None:
        """It has been started."""


class ProbeService:
    """Called by the service's loop only; ``done`` comes from the runner's threads through a queue."""

    def __init__(
        self,
        runner: ProbeRunner | None,
        settings: ProbesConfig,
        picture: Picture,
        *,
        publish: Publish,
        wake: Callable[[], None],
    ) -> None:
        """Raises UsageError for a probe in ``settings`` that does not exist."""
        self.results: tuple[ProbeResult, ...] = ()
        """The newest of each probe and device, newest first."""
        self.occupied: set[int] = set()
        """Indices of the devices on which a probe of ours runs: not a job to diagnose."""
        self._runner = runner
        self._picture = picture
        self._publish = publish
        self._wake = wake
        self._done: queue.SimpleQueue[tuple[int, ProbeResult]] = queue.SimpleQueue()
        self._log = logging.getLogger(LOGGER)
        self.configure(settings)

    def configure(self, settings: ProbesConfig) -> None:
        """Other settings, from the next reading on. Raises UsageError."""
        self._schedule: ProbeSchedule | None = None
        if self._runner is not None and settings.automatic:
            from gpuwatch.daemon.probing import Schedule

            self._schedule = Schedule(settings)

    def answer(self, request: wire.StartProbe) -> wire.Reply:
        """Begin one that somebody asks for, or say in one line why not."""
        device = self._device(request.device_index)
        if device is None:
            return wire.Refused(request.request_id, f"no GPU {request.device_index}")
        try:
            refusal = self._start(request.probe, device)
        except GpuwatchError as exc:
            refusal = str(exc)
        if refusal:
            return wire.Refused(request.request_id, refusal)
        return wire.Accepted(request.request_id, f"probe {request.probe} started on GPU {device.index}")

    def observe(self, samples: tuple[DeviceSample, ...], now_ns: int) -> None:
        """One tick: end what is in somebody's way, begin what is due."""
        if self._runner is None:
            return
        for sample in samples:
            self._runner.check(sample)
            device = self._device(sample.device_index)
            probe = self._schedule.due(device, sample, now_ns) if self._schedule and device else ""
            if probe and device and self._schedule and not self._start(probe, device):
                self._schedule.started(device, probe, now_ns)

    def step(self) -> None:
        """Publish what has finished."""
        while not self._done.empty():
            index, result = self._done.get()
            self.occupied.discard(index)
            about = (result.probe, result.device_uuid)
            others = [r for r in self.results if (r.probe, r.device_uuid) != about]
            self.results = (result, *others)[:KEEP_RESULTS]
            self._publish(_message(result))
            facts = {"status": result.status.value, "message": result.message}
            self._log.info("probe %s on GPU %d has ended", result.probe, index, extra={"facts": facts})

    def stop(self) -> None:
        """End the children."""
        if self._runner is not None:
            self._runner.stop()

    def _start(self, probe: str, device: Device) -> str:
        if self._runner is None:
            return "this daemon runs no probes; use: gpuwatch probe run"
        index = device.index

        def done(result: ProbeResult) -> None:
            self._done.put((index, result))
            self._wake()

        refusal = self._runner.start(probe, device, self._picture.devices.get(index), done)
        if not refusal:
            self.occupied.add(index)
        return refusal

    def _device(self, index: int) -> Device | None:
        inventory = self._picture.inventory
        return next((d for d in inventory.devices if d.index == index), None) if inventory else None


def _message(result: ProbeResult) -> Callable[[int, int], wire.StreamMessage]:
    return lambda epoch, seq: wire.ProbeMessage(epoch, seq, result)
