"""The live source: GPUs, host, processes and stacks of this machine as one stream of observations.

Owns: which threads run, opening the driver and opening it again, the rates of a focus. Refuses: how anything is
read (the parts are passed in), what becomes of the observations.

No call into the driver is made by a thread that somebody waits for: ``nvmlInit`` can hang as well as any reading.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatch.collect.driver import NO_ANSWER, Driver, Opened
from gpuwatch.collect.events import EventWatcher
from gpuwatch.collect.gpu_processes import GpuProcesses
from gpuwatch.collect.gpu_threads import GpuThreads
from gpuwatch.collect.host_sampler import HostPart, HostSampler, ProcessPart
from gpuwatch.collect.nvml_identity import gpu_of
from gpuwatch.collect.shared_memory import with_shared_memory
from gpuwatch.collect.sleep import HINT, Sleep
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.collect.survey import Survey
from gpuwatch.model import (
    Absent,
    Device,
    DeviceSample,
    DriverState,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessTick,
    Reason,
    Unwatched,
)

RETRY_S: Final = 30.0
"""Between two attempts to open a driver that is not there."""
PATIENCE_S: Final = 5.0
"""nvmlInit takes 10 ms; without persistence mode seconds per GPU. After this long the screen is told."""
SURVEY_S: Final = 5.0
"""How often to look whether GPUs or MIG instances have come or gone: two calls, some more where MIG is on."""
FOCUS_DEVICE_PERIOD_S: Final = 0.1
FOCUS_HOST_PERIOD_S: Final = 0.25
"""The host and the processes are read no more often than that: at 10 Hz they would cost more than all GPU readings."""
_STOP_S: Final = 1.5
_CLOSE_S: Final = 0.4

_log = logging.getLogger(__name__)


class StackPart(Protocol):
    """What samples stacks: ``stacks.StackSampler``."""

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        """Sample until the burst is over or ``stop`` is set."""


class NodeSource:
    """Implements ``ObservationSource`` for this machine. ``start`` once; ``stop`` ends it for good."""

    def __init__(
        self,
        driver: Driver,
        host: HostPart,
        processes: ProcessPart,
        stacks: StackPart,
        node: Callable[[], NodeInfo],
        *,
        period_s: float = 1.0,
        clock: Callable[[], int] = time.monotonic_ns,
        retry_s: float = RETRY_S,
        patience_s: float = PATIENCE_S,
        survey_s: float = SURVEY_S,
        sleep: Sleep | None = None,
    ) -> None:
        """``sleep``: leave GPUs that sleep alone, and let them (None: watch them always)."""
        self._driver = driver
        self._stacks = stacks
        self._node = node
        self._period_s = period_s
        self._clock = clock
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._survey_ns = int(survey_s * 1e9)
        self._sleep = sleep
        self._resting = False
        """NVML is to be given back, for the GPUs to sleep."""
        self._was_ok = False
        self._restart = False
        self._shared: frozenset[int] = frozenset()
        """Devices that count the host's memory as theirs."""
        self._jobs = GpuProcesses()
        self._emit: Emit = _nowhere
        self._stopping = threading.Event()
        self._opened: queue.SimpleQueue[Opened | None] = queue.SimpleQueue()
        self._host_period_s = max(period_s, FOCUS_HOST_PERIOD_S)
        self._host = HostSampler(
            host, processes, self._jobs.roots, self._deliver, period_s=self._host_period_s, clock=clock
        )
        self._lock = threading.Lock()
        self._gpus = GpuThreads(self._on_sample, period_s, retry_s, clock)
        self._gpus.more = self._deliver
        self._events: EventWatcher | None = None
        self._survey: Survey | None = None
        self._low_demand = False
        self._threads: list[threading.Thread] = []
        self._inventory: Inventory | None = None
        self._hasty: dict[int, float] = {}
        """Devices that are read more often, and how often in seconds."""
        self._focus: Focus | None = None
        self._focus_ends = threading.Event()
        self._timer: threading.Timer | None = None

    def start(self, emit: Emit) -> None:
        """Begin; the Inventory comes first. Returns at once."""
        self._emit = emit
        self._launch(threading.Thread(target=self._supervise, name="driver", daemon=True))

    def stop(self) -> None:
        """End all threads within two seconds; one that hangs in the driver is abandoned, and NVML left open then."""
        self._stopping.set()
        self._opened.put(None)
        self.focus(None)
        self._host.end()
        for sampler in self._gpus.samplers:
            sampler.end()
        if self._events is not None:
            self._events.end()
        ends = time.monotonic() + _STOP_S
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        if not any(thread.is_alive() for thread in threads):
            self._close(_CLOSE_S)

    def focus(self, focus: Focus | None) -> None:
        """10 Hz on the devices, 4 Hz on the processes and stacks of one job, until the seconds are over."""
        with self._lock:
            self._set_focus(focus)
        if focus is not None and focus.stacks and focus.root_pid:
            arguments = (focus, lambda: self._jobs.others_of(focus.root_pid), self._deliver, self._focus_ends)
            self._launch(threading.Thread(target=self._stacks.run, args=arguments, name="stacks", daemon=True))

    def set_demand(self, low: bool) -> None:
        """``low``: no client and no alert, so that slow readings may be rarer. During a focus they are not."""
        with self._lock:
            self._low_demand = low
            self._gpus.set_demand(low and self._focus is None)

    def hasten(self, device_indices: frozenset[int], period_s: float) -> None:
        """Read these devices at least so often from now on, and no others."""
        with self._lock:
            self._hasty = dict.fromkeys(device_indices, period_s)
            self._set_rates()

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self._clock()

    def progress_ns(self) -> int:
        """When the last reading of any GPU or of the host was completed."""
        return max(self._host.progress_ns, *(sampler.progress_ns for sampler in self._gpus.samplers), 0)

    def stuck_since_ns(self) -> dict[int, int]:
        """Device index to when the reading under way began: old ones hang in the driver."""
        return self._gpus.stuck_since_ns()

    def restart_wanted(self) -> bool:
        """The driver was upgraded underneath: only a new process can load the library that fits it."""
        return self._restart

    # ------------------------------------------------------------------ the driver's thread

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            self._let_sleep()
            if self._stopping.is_set():
                return
            opened = self._open()
            if opened is None:
                return
            self._announce(opened)
            self._start_host()
            if opened.state is DriverState.OK:
                self._was_ok = True
                self._sample(opened.devices)
                self._watch()
            elif opened.state is DriverState.MISMATCH:
                self._wait_for_match()
            else:
                self._stopping.wait(self._retry_s)

    def _let_sleep(self) -> None:
        """Wait while the GPUs sleep, or are about to because NVML is given back."""
        if self._sleep is None or not (self._resting or self._sleep.asleep()):
            return
        self._resting = False
        self._close(self._patience_s)
        known = self._inventory.devices if self._inventory is not None else ()
        self._announce(Opened(DriverState.ASLEEP, HINT, devices=known))
        self._start_host()
        self._sleep.wait(self._stopping, lambda: not self._low_demand)

    def _close(self, patience_s: float) -> None:
        """Give NVML back, on a thread of its own: that may hang as well."""
        closing = threading.Thread(target=self._driver.close, name="close", daemon=True)
        closing.start()
        closing.join(patience_s)

    def _unused(self) -> bool:
        """No process is on a GPU, and nobody watches."""
        with self._lock:
            return self._low_demand and self._focus is None and self._jobs.none()

    def _wait_for_match(self) -> None:
        """Library and kernel module differ. When the library was replaced or has worked before, a new process helps;
        otherwise the module must change first: each nvmlInit before that only adds a line to the kernel's log."""
        while not self._stopping.is_set():
            if self._was_ok or self._driver.library_replaced():
                self._restart = True
            elif self._driver.kernel_changed():
                return
            self._stopping.wait(self._retry_s)

    def _open(self) -> Opened | None:
        """Open the driver on a thread of its own. None when stopping."""
        self._launch(threading.Thread(target=lambda: self._opened.put(self._try_open()), name="nvmlInit", daemon=True))
        try:
            return self._opened.get(timeout=self._patience_s)
        except queue.Empty:
            self._announce(NO_ANSWER)
            self._start_host()
            return self._opened.get()

    def _try_open(self) -> Opened:
        try:
            state, hint = self._driver.open()
            devices = self._driver.devices() if state is DriverState.OK else ()
            return Opened(state, hint, self._driver.driver_facts(), devices)
        except Exception as exc:
            _log.exception("opening NVML failed")
            return Opened(DriverState.UNKNOWN, f"opening NVML failed: {type(exc).__name__}: {exc}")

    def _announce(self, opened: Opened) -> None:
        facts = opened.facts
        node = msgspec.structs.replace(
            self._node(),
            driver_version=facts.driver_version,
            cuda_driver_version=facts.cuda_driver_version,
            nvml_version=facts.nvml_version,
        )
        devices = tuple(
            msgspec.structs.replace(d, mem_total_bytes=node.mem_total_bytes) if d.mem_shared_with_host else d
            for d in opened.devices
        )
        self._tell(Inventory(node, devices, opened.state, opened.hint, unwatched=self._unwatched()))

    def _tell(self, inventory: Inventory) -> None:
        if inventory != self._inventory:
            self._inventory = inventory
            self._deliver(inventory)

    def _unwatched(self) -> tuple[Unwatched, ...] | UnsetType:
        """What is not watched while the rest is."""
        failing = self._host.failures.now | self._gpus.failing()
        if self._survey is not None:
            failing |= self._survey.failures.now
        found = [Unwatched(what, Absent(Reason.ERROR, why)) for what, why in failing.items()]
        found += self._host.silent()
        if self._events is not None:
            found += self._events.unwatched()
        return tuple(found) or UNSET

    def _start_host(self) -> None:
        if self._host.ident is None and not self._stopping.is_set():
            self._launch(self._host)

    def _sample(self, devices: tuple[Device, ...]) -> None:
        self._shared = frozenset(d.index for d in devices if d.mem_shared_with_host)
        self._jobs.begin(devices)
        samplers = self._gpus.prepare(devices, self._driver.reader, self._rate)
        with self._lock:
            self._set_rates()
        for sampler in samplers:
            self._launch(sampler)
        self._events = self._driver.events(self._deliver)
        self._launch(self._events)
        if self._stopping.is_set():
            self._events.end()
            for sampler in samplers:
                sampler.end()

    def _watch(self) -> None:
        """Wait until NVML must be opened again, then end the threads of the GPUs."""
        self._survey = Survey(self._driver.changed, self._survey_ns, self._clock, self._launch)
        while not self._stopping.wait(min(1.0, self._retry_s)):
            self._gpus.tell_silent()
            if self._inventory is not None:
                self._tell(msgspec.structs.replace(self._inventory, unwatched=self._unwatched()))
            if self._sleep is not None and self._sleep.due(idle=self._unused()):
                self._resting = True
                break
            if self._gpus.driver_gone() or self._gpus.answers_again(self._driver.settled()):
                break
            if self._survey.found(lambda: frozenset(map(gpu_of, self._gpus.stuck()))):
                break
        else:
            return
        if self._events is not None:
            self._events.end()
        self._gpus.end()
        if self._events is not None:
            self._events.join(1.0)
            self._events = None
        self._stopping.wait(min(1.0, self._retry_s))

    # ------------------------------------------------------------------ what the other threads call

    def _deliver(self, observation: Observation) -> None:
        if self._stopping.is_set():
            return
        if isinstance(observation, ProcessTick):
            self._jobs.remember(observation)
        self._emit(observation)

    def _on_sample(self, sample: DeviceSample) -> None:
        if sample.device_index in self._shared:
            sample = with_shared_memory(sample)
        if self._jobs.listed(sample):
            self._host.hurry()
        self._deliver(sample)

    def _unfocus(self, focus: Focus) -> None:
        with self._lock:
            if self._focus is focus:
                self._set_focus(None)

    def _set_focus(self, focus: Focus | None) -> None:
        """With the lock held."""
        self._focus_ends.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._focus = focus
        if focus is not None:
            self._focus_ends = threading.Event()
            self._timer = threading.Timer(focus.seconds, self._unfocus, (focus,))
            self._timer.daemon = True
            self._timer.start()
        self._set_rates()

    def _rate(self, index: int) -> float:
        if self._focus is not None and index in self._focus.device_indices:
            return FOCUS_DEVICE_PERIOD_S
        return min(self._period_s, self._hasty.get(index, self._period_s))

    def _set_rates(self) -> None:
        self._gpus.set_demand(self._low_demand and self._focus is None)
        for sampler in self._gpus.samplers:
            sampler.set_period(self._rate(sampler.index))
        self._host.set_period(FOCUS_HOST_PERIOD_S if self._focus is not None else self._host_period_s)

    def _launch(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads = [known for known in self._threads if known.is_alive()]
            thread.start()
            self._threads.append(thread)


def _nowhere(observation: Observation) -> None:
    """Before ``start``."""


def live_source(period_s: float = 1.0, retry_s: float = RETRY_S, *, let_sleep: bool = False) -> NodeSource:
    """The source for this machine, with the real readers. ``period_s`` from 0.1 to 5. ``let_sleep``: see ``sleep``."""
    from gpuwatch.collect.host import HostReader, node_info
    from gpuwatch.collect.nvml import Nvml
    from gpuwatch.collect.procfs import ProcessReader
    from gpuwatch.collect.stacks import StackSampler

    parts = Nvml(), HostReader(), ProcessReader(), StackSampler(), node_info
    return NodeSource(
        *parts,
        period_s=period_s,
        retry_s=retry_s,
        survey_s=min(SURVEY_S, retry_s),
        sleep=Sleep() if let_sleep else None,
    )
