"""The daemon: observations in, ticks and verdicts out.

Owns: the loop, its deadlines, signals, what is answered to whom. Refuses: measuring, judging, drawing.

One thread owns all sockets and runs this loop. Collectors hand over through a queue, the judge and the probes run
in threads of their own, so a hung driver call or a slow rule costs nobody else a tick.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq

from gpuwatch import wire
from gpuwatch.collect.fold import fold_samples
from gpuwatch.collect.source import ObservationSource
from gpuwatch.config import Config
from gpuwatch.daemon.diagnosing import Diagnosing
from gpuwatch.daemon.endpoint import RuntimeDirectory
from gpuwatch.daemon.history import LongHistory
from gpuwatch.daemon.inquiries import Judge
from gpuwatch.daemon.journal import LOGGER, OnChange
from gpuwatch.daemon.probe_service import LOOK_S, ProbeRunner, ProbeService
from gpuwatch.daemon.publisher import Publisher
from gpuwatch.daemon.replaying import control
from gpuwatch.daemon.restart import Restart
from gpuwatch.daemon.ring import Fold, History, ObservationRing, Picture
from gpuwatch.daemon.saying import Saying
from gpuwatch.daemon.steps import Steps, daemons_paths
from gpuwatch.daemon.systemd import Notifier
from gpuwatch.daemon.telemetry import TelemetryPart
from gpuwatch.errors import GpuwatchError
from gpuwatch.model import DeviceSample, Inventory, Observation
from gpuwatch.verdict.ceilings import ceilings

HEARTBEAT_NS = 1_000_000_000
OBSERVATIONS_PER_ROUND = 5_000
"""A replay as fast as possible must not keep requests waiting."""
STOP_SOURCE_S = 1.8
"""Of the two seconds that a stop may take; a hung driver call is abandoned then."""
HUNG_SLACK_NS = 2_000_000_000
REWOUND_NS = 1_000_000_000
"""A recording is played in the order of its clock: a reading so much older than the newest means that it went back."""


class Service:
    """``start``, then ``step`` until ``stopping``, then ``stop``; ``run`` does that under signals."""

    def __init__(
        self,
        source: ObservationSource,
        config: Config,
        judge: Judge,
        probes: ProbeRunner | None,
        *,
        directory: Path,
        fold: Fold | None = None,
        notifier: Notifier | None = None,
        reload: Callable[[], Config] | None = None,
        restart: Restart | None = None,
        stop_fd: int = -1,
        private: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """``reload``: reads the configuration again on SIGHUP; without it SIGHUP ends the service.
        ``restart``: asked whether to end for a new process to take over (``replacing`` is True then).
        ``stop_fd``: end when it reaches end of file (an embedded daemon dies with its parent).
        ``private``: nobody can guess the directory, so jobs are listened to where they look as well."""
        self._source = source
        self._config = config
        self._directory = RuntimeDirectory(directory)
        self._notifier = notifier or Notifier()
        self._reload = reload
        self._restart = restart
        self._stop_fd = stop_fd
        self._clock = clock
        self._wall = wall
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._picture = Picture(fold or fold_samples)
        self._ring = ObservationRing()
        self._history = History()
        self._telemetry = TelemetryPart()
        self._steps = Steps(daemons_paths(self._directory.path, os.environ, os.getpid(), private=private))
        self._past = LongHistory()
        self._diagnosing = Diagnosing(
            source,
            judge,
            config.diagnosis,
            self._picture,
            self._ring,
            publish=self._publish,
            wake=self._wake,
            wall=wall,
            ceilings=lambda: ceilings(self._probes.results),
        )
        self._probes = ProbeService(
            probes, config.probes, self._picture, publish=self._publish, wake=self._wake, clock=clock, source=source
        )
        self._last_tick: wire.Tick | None = None
        self._cut_ns: int | None = None
        """In a recording: where the tick under way began."""
        self._log = logging.getLogger(LOGGER)
        self._said = OnChange(self._log)
        self._saying = Saying(self._said)
        self._publisher: Publisher | None = None
        self._poller = zmq.Poller()
        self._next_tick_ns = 0
        self._published_ns = 0
        self.stopping = False
        self.replacing = False
        """It stopped for a new process to take over; see restart.py."""
        self._reloading = False

    # ------------------------------------------------------------------ life

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or the end of ``stop_fd``. Main thread only. Gives the exit code."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.request_stop())
        if self._reload is not None:
            signal.signal(signal.SIGHUP, lambda *_: self.request_reload())
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants it to outlive its terminal
            signal.signal(signal.SIGHUP, lambda *_: self.request_stop())
        self.start()
        try:
            while not self.stopping:
                self.step(1.0)
        finally:
            signal.set_wakeup_fd(-1)
            self.stop()
        return 0

    def start(self) -> None:
        """Take the endpoint, then start the source. Raises EndpointInUseError and other GpuwatchErrors."""
        self._directory.open()
        try:
            self._publisher = Publisher(self._directory)
        except GpuwatchError:
            self._directory.close()
            raise
        for failure in self._steps.open():
            self._log.info("jobs cannot tell their step times: %s", failure)
        for readable in (self._publisher.stream, self._publisher.requests, self._wake_r):
            self._poller.register(readable, zmq.POLLIN)
        if self._stop_fd >= 0:
            self._poller.register(self._stop_fd, zmq.POLLIN)
        self._next_tick_ns = self._clock() + self._period_ns
        self._published_ns = self._clock()
        self._source.start(self._queue.put)
        self._log.info("serving at %s", self._directory.path, extra={"facts": {"pid": os.getpid()}})

    def request_stop(self) -> None:
        """From any thread or a signal handler."""
        self.stopping = True
        self._wake()

    def request_reload(self) -> None:
        """From any thread or a signal handler: read the configuration again."""
        self._reloading = True
        self._wake()

    def stop(self) -> None:
        """Say goodbye, end the source, give the endpoint back."""
        if self.replacing:
            # To systemd and to clients it goes on: the next process says READY and welcomes with a new epoch.
            self._notifier.reloading()
            self._out.close(0)
        else:
            self._notifier.stopping()
            self._out.say_goodbye()
        ends = time.monotonic() + STOP_SOURCE_S
        targets = (self._source.stop, self._probes.stop)
        ending = [threading.Thread(target=target, name="stop", daemon=True) for target in targets]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(max(0.0, ends - time.monotonic()))
        self._steps.close()
        if ending[0].is_alive():
            self._log.warning("a driver call does not return; leaving without it")
        self._directory.close()
        self._notifier.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._log.info("stopped")

    def step(self, max_wait_s: float) -> None:
        """One round: wait for something or the next deadline, then do what is due."""
        ready = dict(self._poller.poll(self._wait_ms(max_wait_s)))
        self._drain_wake()
        if self._stop_fd in ready and not _still_open(self._stop_fd):
            self._log.info("the program that started this daemon has ended")
            self.stopping = True
        if self._reloading:
            self._reloading = False
            self._reload_config()
        if self._restart is not None and not self.stopping and self._restart.due():
            self._log.warning("the driver was upgraded underneath: starting again to load the library that fits it")
            self.stopping = self.replacing = True
        self._out.poll_subscriptions()
        if self._out.answer_requests(self._answer) and self._out.refused:
            self._said.log(logging.WARNING, "malformed", "a client sends malformed requests")
        self._listen()
        self._take_observations()
        now = self._clock()
        self._tick_if_due(now)
        self._diagnosing.step(now)
        self._probes.step()
        if now - self._published_ns >= HEARTBEAT_NS:
            self._publish(lambda epoch, seq: wire.Heartbeat(epoch, seq, self._source.now_ns()))
        self._notifier.feed(now if self._picture.recorded else self._source.progress_ns(), self._config.period_s)

    # ------------------------------------------------------------------ small things

    @property
    def _out(self) -> Publisher:
        assert self._publisher is not None, "start() comes first"
        return self._publisher

    @property
    def _period_ns(self) -> int:
        return int(self._config.period_s * 1e9)

    def _publish(self, build: Callable[[int, int], wire.StreamMessage]) -> None:
        self._out.publish(build)
        self._published_ns = self._clock()

    def _wait_ms(self, max_wait_s: float) -> int:
        """Until the tick, or a twentieth of a second while observations may bring one of a recording."""
        now = self._clock()
        deadline = min(self._next_tick_ns, self._published_ns + HEARTBEAT_NS)
        wait_s = min(max_wait_s, max(0.0, (deadline - now) / 1e9))
        if self._probes.occupied:  # somebody may come to their GPU
            wait_s = min(wait_s, LOOK_S)
        starting = self._last_tick is None or (self._picture.recorded and not self._picture.ended)
        return int((min(wait_s, 0.05) if starting else wait_s) * 1000 + 0.999)

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_w, b"\0")

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_r, 4096)

    # ------------------------------------------------------------------ observations and ticks

    def _listen(self) -> None:
        """What jobs say of themselves is an observation as any other; while a recording plays it is of another time."""
        malformed = self._steps.malformed
        for report in self._steps.receive(self._source.now_ns(), self._picture.infos):
            if not self._picture.recorded:
                self._queue.put(report)
        if self._steps.malformed > malformed:
            self._said.log(logging.WARNING, "steps", "a process sends malformed step reports")

    def _take_observations(self) -> None:
        for _ in range(OBSERVATIONS_PER_ROUND):
            try:
                observation = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(observation, Inventory):
                self._take_inventory(observation)
                continue
            if self._picture.recorded:
                self._cut(observation.mono_ns)
            if isinstance(observation, DeviceSample):
                self._probes.watch(observation)
            self._ring.add(observation)
            self._picture.take(observation)
            self._telemetry.take(observation)
            self._steps.take(observation)

    def _cut(self, mono_ns: int) -> None:
        """A recording is cut into ticks by its own time, at whatever speed it is played."""
        if self._cut_ns is None:
            self._cut_ns = mono_ns
        elif mono_ns < self._ring.newest_ns - REWOUND_NS:
            for past in (self._ring, self._history, self._past):
                past.clear()
            self._cut_ns = mono_ns
        elif mono_ns - self._cut_ns >= self._period_ns:
            self._tick(mono_ns)

    def _position_ns(self) -> int:
        """The source's clock. A replay's may be ahead of what has been taken in: then that is where we are."""
        return self._ring.newest_ns if self._picture.recorded else self._source.now_ns()

    def _take_inventory(self, inventory: Inventory) -> None:
        first = self._picture.inventory is None
        changed = inventory != self._picture.inventory
        self._picture.take(inventory)
        if first:
            self._notifier.ready(self._status())
        if changed:
            self._diagnosing.forget_devices(inventory)
            self._saying.inventory(inventory)
            self._publish(lambda epoch, seq: wire.InventoryMessage(epoch, seq, inventory))
            if inventory.source.ended:
                self._tick(self._position_ns())

    def _tick_if_due(self, now_ns: int) -> None:
        if self._picture.inventory is None or (self._picture.ended and self._last_tick is not None):
            self._next_tick_ns = max(self._next_tick_ns, now_ns + self._period_ns // 4)
            return
        first = self._last_tick is None and self._picture.complete
        if first or (now_ns >= self._next_tick_ns and not (self._picture.recorded and self._last_tick is not None)):
            self._tick(self._position_ns())
        if now_ns >= self._next_tick_ns:
            self._next_tick_ns += self._period_ns
            if self._next_tick_ns <= now_ns:  # Late by more than a period: do not catch up with a burst.
                self._next_tick_ns = now_ns + self._period_ns

    def _tick(self, mono_ns: int) -> None:
        picture = self._picture
        devices = picture.fold_pending()
        infos, gone = picture.take_process_changes()
        if infos or gone:
            self._publish(lambda epoch, seq: wire.ProcessesMessage(epoch, seq, infos, gone))
        processes = picture.processes
        tick = self._out.publish(
            lambda epoch, seq: wire.Tick(
                epoch,
                seq,
                mono_ns,
                self._wall(),
                devices,
                picture.host,
                () if processes is None else processes.samples,
                () if processes is None else processes.cgroups,
            )
        )
        self._published_ns = self._clock()
        self._telemetry.publish(self._publish)
        self._steps.publish(self._publish)
        self._telemetry.demand(self._source, self._out.subscribers)
        self._last_tick = tick
        self._cut_ns = mono_ns
        self._history.append(tick)
        self._past.observe(tick)
        self._probes.observe(devices, self._clock())
        self._diagnosing.observe(tick, self._probes.occupied)
        self._say_devices(tick)
        self._notifier.status(self._status())

    # ------------------------------------------------------------------ requests

    def _answer(self, request: wire.Request) -> wire.Reply:
        match request:
            case wire.GetSnapshot():
                return self._snapshot(request.request_id)
            case wire.StartDiagnosis():
                return self._diagnosing.answer(request, self._clock())
            case wire.StartProbe():
                return self._probes.answer(request)
            case wire.GetHistory():
                return self._past.answer(request)
            case wire.ReplayControl():
                return control(self._source, request, self._publish)

    def _snapshot(self, request_id: int) -> wire.Reply:
        """Whatever protocol the asker speaks: our own number in it lets the asker decide."""
        inventory = self._picture.inventory
        if inventory is None:
            return wire.Refused(request_id, "starting: the driver has not answered yet")
        speed = inventory.source.speed
        snapshot = wire.Snapshot(
            request_id,
            self._out.epoch,
            self._out.seq,
            wire.PROTOCOL,
            inventory,
            self._last_tick,
            tuple(self._picture.infos.values()),
            self._diagnosing.finished,
            self._probes.results,
            self._history.fitted(),
            # A recording in slow motion ticks slower; the client must not call that stale.
            self._config.period_s / speed if self._picture.recorded and 0 < speed < 1 else self._config.period_s,
        )
        self._telemetry.tell_all(self._publish)
        self._diagnosing.tell_all()
        self._probes.tell_all()
        return snapshot

    # ------------------------------------------------------------------ configuration and what people read

    def _reload_config(self) -> None:
        if self._reload is None:
            return
        self._notifier.reloading()
        try:
            config = self._reload()
            self._probes.configure(config.probes)
        except GpuwatchError as exc:
            self._log.error("configuration not reloaded: %s", exc)
        else:
            if config.endpoint != self._config.endpoint:
                self._log.warning("endpoint: a running daemon stays where it is; restart it to move it")
            self._config = config
            self._diagnosing.settings = config.diagnosis
            self._log.setLevel(config.log_level.upper())
            self._next_tick_ns = self._clock() + self._period_ns
            self._log.info("configuration reloaded", extra={"facts": {"period_s": config.period_s}})
        self._notifier.ready(self._status())

    def _status(self) -> str:
        inventory = self._picture.inventory
        count = len(inventory.devices) if inventory else 0
        gpus = f"{count} GPU{'' if count == 1 else 's'}"
        return f"{gpus}, every {self._config.period_s:g} s, {self._out.subscribers} watching"

    def _say_devices(self, tick: wire.Tick) -> None:
        if self._picture.recorded:
            return
        for sample in tick.devices:
            self._saying.device(sample, hung=tick.mono_ns - sample.mono_ns > 3 * self._period_ns + HUNG_SLACK_NS)


def _still_open(fd: int) -> bool:
    """Data is read and ignored; end of file means that the other end has gone."""
    try:
        return bool(os.read(fd, 4096))
    except BlockingIOError:
        return True
    except OSError:
        return False
