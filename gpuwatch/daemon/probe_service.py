"""Probes as the daemon offers them: asked for, due by themselves, under way, finished.

Owns: which probe begins on which GPU, what is told of it, its result. Refuses: child processes (the runner's), judging
(the baseline's) and sockets.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from gpuwatch import wire
from gpuwatch.config import ProbesConfig
from gpuwatch.daemon.journal import LOGGER, OnChange
from gpuwatch.daemon.probe_judging import Baseline
from gpuwatch.daemon.publisher import Publish
from gpuwatch.daemon.ring import Picture
from gpuwatch.errors import GpuwatchError
from gpuwatch.model import Device, DeviceSample, ProbeResult

KEEP_RESULTS = 64
"""Eight GPUs with all their probes."""
LOOK_S = 0.25
"""A GPU with a probe is read so often, whatever the period is: somebody's job must not wait a second for us."""
PROGRESS_NS = 1_000_000_000
"""A probe under way is told of once in each second of its run."""

Done = Callable[[ProbeResult], None]


class ProbeRunner(Protocol):
    """Starts probes in child processes and ends them when somebody else needs the GPU."""

    def start(
        self,
        probe: str,
        device: Device | None,
        sample: DeviceSample | None,
        done: Done,
        *,
        seconds: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> str:
        """Begin; "" or one line with the reason for not doing so. ``done`` is called once, ``progress`` with each line
        that the probe says of itself, both from any thread. ``seconds``: measuring time of a case, None the probe's
        own. Raises UsageError for a name that is no probe."""

    def check(self, sample: DeviceSample) -> None:
        """A new reading: is somebody else there?"""

    def stop(self) -> None:
        """End all within two seconds."""

    def use(self, python: str) -> None:
        """Start the next ones with this interpreter, "" for our own; those that run are left alone."""


@runtime_checkable
class Hastens(Protocol):
    """A source that can read some devices more often."""

    def hasten(self, device_indices: frozenset[int], period_s: float) -> None:
        """From now on these, and no others, at least so often."""


class ProbeSchedule(Protocol):
    """When a probe runs by itself."""

    def due(self, device: Device, sample: DeviceSample, now_ns: int) -> str:
        """The probe to start on this GPU now, or ""."""

    def started(self, device: Device, probe: str, now_ns: int) -> None:
        """It has been started."""

    def configure(self, config: ProbesConfig) -> None:
        """Other settings; what has been started stays known. Raises UsageError."""


class _Run(Struct):
    """A probe under way."""

    probe: str
    started_ns: int
    total_s: float
    due_ns: int
    """When it is told of again."""
    message: str = "starting"
    """Replaced by the thread that reads the probe: one reference, so no lock."""


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
        clock: Callable[[], int] = time.monotonic_ns,
        source: object = None,
    ) -> None:
        """``source``: reads the GPUs with a probe more often if it can. Raises UsageError for a probe in ``settings``
        that does not exist."""
        self.results: tuple[ProbeResult, ...] = ()
        """The newest of each probe and device, newest first."""
        self.occupied: set[int] = set()
        """Indices of the devices on which a probe of ours runs: not a job to diagnose."""
        self._runner = runner
        self._source = source
        self._picture = picture
        self._publish = publish
        self._wake = wake
        self._clock = clock
        self._schedule: ProbeSchedule | None = None
        self._baseline = Baseline()
        self._told_note = ""
        """As of the last message about verdicts: the file may have been made meanwhile."""
        self._verdicts: tuple[wire.ProbeVerdict, ...] = ()
        """Of ``results``, newest first."""
        self._running: dict[int, _Run] = {}
        self._done: queue.SimpleQueue[tuple[int, ProbeResult, wire.ProbeVerdict | None]] = queue.SimpleQueue()
        self._log = logging.getLogger(LOGGER)
        self._said = OnChange(self._log)
        self._set(settings)

    def configure(self, settings: ProbesConfig) -> None:
        """Other settings, from the next reading on. When a probe last ran stays known; what has finished is judged
        again. Raises UsageError, and changes nothing then."""
        had = self._baseline.name
        self._set(settings)
        if had or self._baseline.name:
            found = (self._baseline.judge(result) for result in self.results)
            self._verdicts = tuple(verdict for verdict in found if verdict is not None)
            self._tell_verdicts(self._verdicts, complete=True)

    def _set(self, settings: ProbesConfig) -> None:
        if self._schedule is not None:
            self._schedule.configure(settings)
        elif self._runner is not None and settings.automatic:
            from gpuwatch.daemon.probing import Schedule

            self._schedule = Schedule(settings)
        if self._runner is not None:
            self._runner.use(settings.python)
        self._baseline.configure(settings.baseline)

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

    def watch(self, sample: DeviceSample) -> None:
        """One reading, as soon as it is there: end what is in somebody's way."""
        if self._runner is not None:
            self._runner.check(sample)

    def observe(self, samples: tuple[DeviceSample, ...], now_ns: int) -> None:
        """One tick: begin what is due."""
        if self._runner is None:
            return
        for sample in samples:
            device = self._device(sample.device_index)
            probe = self._schedule.due(device, sample, now_ns) if self._schedule and device else ""
            if probe and device and self._schedule:
                refusal = self._start(probe, device)
                if refusal:
                    self._said.log(logging.INFO, f"GPU {device.index}", f"probe {probe} is due: {refusal}")
                else:
                    self._schedule.started(device, probe, now_ns)

    def step(self) -> None:
        """Publish what has finished and what is under way."""
        while not self._done.empty():
            self._finish(*self._done.get())
        if self._baseline.note != self._told_note:
            self._tell_verdicts(())
        now_ns = self._clock()
        for index, run in self._running.items():
            if now_ns >= run.due_ns:
                run.due_ns += ((now_ns - run.due_ns) // PROGRESS_NS + 1) * PROGRESS_NS
                self._tell_progress(index, run, now_ns)

    def tell_all(self) -> None:
        """Publish all verdicts, if there is a baseline: somebody has asked for a snapshot."""
        if self._baseline.name:
            self._tell_verdicts(self._verdicts, complete=True)

    def stop(self) -> None:
        """End the children."""
        if self._runner is not None:
            self._runner.stop()

    def _start(self, probe: str, device: Device) -> str:
        if self._runner is None:
            return "this daemon runs no probes; use: gpuwatch probe run"
        index = device.index
        seconds, now_ns = self._baseline.seconds(probe), self._clock()
        usual_s = _rough_s(probe) if seconds is None else self._baseline.usual_s(probe)
        run = _Run(probe, now_ns, usual_s, now_ns)

        def done(result: ProbeResult) -> None:
            # Here, in the runner's thread: statistics over a large baseline must not cost the others a tick.
            self._done.put((index, result, self._baseline.judge(result)))
            self._wake()

        def progress(line: str) -> None:
            run.message = line.removeprefix(f"{probe}: ")

        sample = self._picture.devices.get(index)
        refusal = self._runner.start(probe, device, sample, done, seconds=seconds, progress=progress)
        if not refusal:
            self.occupied.add(index)
            self._running[index] = run
            self._hasten()
        return refusal

    def _finish(self, index: int, result: ProbeResult, verdict: wire.ProbeVerdict | None) -> None:
        self.occupied.discard(index)
        self._running.pop(index, None)
        self._hasten()
        about = (result.probe, result.device_uuid)
        others = [r for r in self.results if (r.probe, r.device_uuid) != about]
        self.results = (result, *others)[:KEEP_RESULTS]
        rest = tuple(v for v in self._verdicts if (v.probe, v.device_uuid) != about)[: KEEP_RESULTS - 1]
        self._verdicts = rest if verdict is None else (verdict, *rest)
        self._publish(lambda epoch, seq: wire.ProbeMessage(epoch, seq, result))
        if self._baseline.name:
            self._tell_verdicts(() if verdict is None else (verdict,))
        facts = {"status": result.status.value, "message": result.message}
        if verdict is not None:
            facts["against_baseline"] = verdict.level
        self._log.info("probe %s on GPU %d has ended", result.probe, index, extra={"facts": facts})

    def _hasten(self) -> None:
        if isinstance(self._source, Hastens):
            self._source.hasten(frozenset(self.occupied), LOOK_S)

    def _tell_verdicts(self, verdicts: tuple[wire.ProbeVerdict, ...], complete: bool = False) -> None:
        name, note = self._baseline.name, self._baseline.note
        self._told_note = note
        self._publish(lambda epoch, seq: wire.ProbeVerdictMessage(epoch, seq, name, note, verdicts, complete))

    def _tell_progress(self, index: int, run: _Run, now_ns: int) -> None:
        done_s = (now_ns - run.started_ns) / 1e9
        self._publish(
            lambda epoch, seq: wire.ProbeProgress(epoch, seq, run.probe, index, run.message, done_s, run.total_s)
        )

    def _device(self, index: int) -> Device | None:
        inventory = self._picture.inventory
        return next((d for d in inventory.devices if d.index == index), None) if inventory else None


def _rough_s(probe: str) -> float:
    """How long a run with the probe's own measuring time takes, roughly; 0.0 for a name that is no probe."""
    from gpuwatch.verdict.probe_run import PROBES

    return next((spec.gpu_s for spec in PROBES if spec.name == probe), 0.0)
