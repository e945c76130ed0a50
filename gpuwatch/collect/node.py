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
from typing import Final, NamedTuple, Protocol

import msgspec

from gpuwatch.collect.host_sampler import HostPart, HostSampler, ProcessPart, Roots
from gpuwatch.collect.nvml import UNREADABLE, DriverFacts
from gpuwatch.collect.nvml_reader import GONE_AFTER_READS
from gpuwatch.collect.sampler import DeviceSampler, Reader
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.collect.source_lines import SourceLines
from gpuwatch.model import (
    NOT_READ,
    Device,
    DeviceSample,
    DriverState,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessTick,
)

RETRY_S: Final = 30.0
"""Between two attempts to open a driver that is not there."""
PATIENCE_S: Final = 5.0
"""nvmlInit takes 10 ms; without persistence mode seconds per GPU. After this long the screen is told."""
FOCUS_DEVICE_PERIOD_S: Final = 0.1
FOCUS_HOST_PERIOD_S: Final = 0.25
_STOP_S: Final = 1.5
_CLOSE_S: Final = 0.4
_NOT_KNOWN: Final = DriverFacts(NOT_READ, NOT_READ, NOT_READ)

_log = logging.getLogger(__name__)


class Driver(Protocol):
    """What opens the driver: ``nvml.Nvml``."""

    def open(self) -> tuple[DriverState, str]:
        """Open (again): the state, and a hint when it is not OK."""

    def driver_facts(self) -> DriverFacts:
        """Versions."""

    def devices(self) -> tuple[Device, ...]:
        """Identity of every GPU."""

    def reader(self, index: int) -> Reader:
        """What reads one GPU."""

    def close(self) -> None:
        """Give everything back; only when no call is under way."""


class StackPart(Protocol):
    """What samples stacks: ``stacks.StackSampler``."""

    def run(
        self, focus: Focus, workers: Callable[[], Sequence[ProcessInfo]], emit: Emit, stop: threading.Event
    ) -> None:
        """Sample until the burst is over or ``stop`` is set."""


class _Opened(NamedTuple):
    """What an attempt to open the driver gave."""

    state: DriverState
    hint: str
    facts: DriverFacts = _NOT_KNOWN
    devices: tuple[Device, ...] = ()


_NO_ANSWER: Final = _Opened(
    DriverState.UNKNOWN,
    "the NVIDIA driver has not answered for some seconds: it may still be starting (persistence mode makes that "
    "short), or it hangs; 'dmesg | grep NVRM' says more",
)


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
    ) -> None:
        self._driver = driver
        self._stacks = stacks
        self._node = node
        self._period_s = period_s
        self._clock = clock
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._emit: Emit = _nowhere
        self._stopping = threading.Event()
        self._opened: queue.SimpleQueue[_Opened | None] = queue.SimpleQueue()
        self._host = HostSampler(host, processes, self.roots, self._deliver, period_s=period_s, clock=clock)
        self._lock = threading.Lock()
        self._samplers: tuple[DeviceSampler, ...] = ()
        self._threads: list[threading.Thread] = []
        self._opener: threading.Thread | None = None
        self._inventory: Inventory | None = None
        self._pids: dict[int, tuple[int, ...]] = {}
        self._infos: dict[int, ProcessInfo] = {}
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
        for sampler in self._samplers:
            sampler.end()
        ends = time.monotonic() + _STOP_S
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        if not any(thread.is_alive() for thread in threads):
            closing = threading.Thread(target=self._driver.close, name="close", daemon=True)
            closing.start()
            closing.join(_CLOSE_S)

    def focus(self, focus: Focus | None) -> None:
        """10 Hz on the devices, 4 Hz on the processes and stacks of one job, until the seconds are over."""
        with self._lock:
            self._set_focus(focus)
        if focus is not None and focus.stacks and focus.root_pid:
            emit = SourceLines(self._deliver).emit
            arguments = (focus, lambda: self._job(focus.root_pid), emit, self._focus_ends)
            self._launch(threading.Thread(target=self._stacks.run, args=arguments, name="stacks", daemon=True))

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self._clock()

    def progress_ns(self) -> int:
        """When the last reading of any GPU or of the host was completed."""
        return max(self._host.progress_ns, *(sampler.progress_ns for sampler in self._samplers), 0)

    def stuck_since_ns(self) -> dict[int, int]:
        """Device index to when the reading under way began: old ones hang in the driver."""
        since = {sampler.index: sampler.stuck_since_ns for sampler in self._samplers}
        return {index: ns for index, ns in since.items() if ns is not None}

    def roots(self) -> Roots:
        """Pids that NVML lists, with the devices that it lists them on; of a lost GPU the last that were known."""
        with self._lock:
            listed = list(self._pids.items())
        found: dict[int, list[int]] = {}
        for index, pids in listed:
            for pid in pids:
                found.setdefault(pid, []).append(index)
        return {pid: tuple(sorted(indices)) for pid, indices in found.items()}

    # ------------------------------------------------------------------ the driver's thread

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            opened = self._open()
            if opened is None:
                return
            self._announce(opened)
            self._start_host()
            if opened.state is DriverState.OK:
                self._sample(opened.devices)
                self._watch(frozenset(d.index for d in opened.devices if d.uuid.startswith(UNREADABLE)))
            elif opened.state is DriverState.MISMATCH:
                # Only a reboot or a reload cures it, and a reload needs gpuwatch restarted: the library stays mapped.
                self._stopping.wait()
            else:
                self._stopping.wait(self._retry_s)

    def _open(self) -> _Opened | None:
        """Open the driver on a thread of its own. None when stopping."""
        self._launch(threading.Thread(target=lambda: self._opened.put(self._try_open()), name="nvmlInit", daemon=True))
        try:
            return self._opened.get(timeout=self._patience_s)
        except queue.Empty:
            self._announce(_NO_ANSWER)
            self._start_host()
            return self._opened.get()

    def _try_open(self) -> _Opened:
        try:
            state, hint = self._driver.open()
            devices = self._driver.devices() if state is DriverState.OK else ()
            return _Opened(state, hint, self._driver.driver_facts(), devices)
        except Exception as exc:
            _log.exception("opening NVML failed")
            return _Opened(DriverState.UNKNOWN, f"opening NVML failed: {type(exc).__name__}: {exc}")

    def _announce(self, opened: _Opened) -> None:
        facts = opened.facts
        node = msgspec.structs.replace(
            self._node(),
            driver_version=facts.driver_version,
            cuda_driver_version=facts.cuda_driver_version,
            nvml_version=facts.nvml_version,
        )
        inventory = Inventory(node, opened.devices, opened.state, opened.hint)
        if inventory != self._inventory:
            self._inventory = inventory
            self._deliver(inventory)

    def _start_host(self) -> None:
        if self._host.ident is None and not self._stopping.is_set():
            self._launch(self._host)

    def _sample(self, devices: tuple[Device, ...]) -> None:
        samplers = tuple(
            DeviceSampler(d.index, self._driver.reader(d.index), self._on_sample, self._rate(d.index), self._clock)
            for d in devices
        )
        with self._lock:
            self._samplers = samplers
            self._set_rates()
        for sampler in samplers:
            self._launch(sampler)
        if self._stopping.is_set():
            for sampler in samplers:
                sampler.end()

    def _watch(self, unreadable: frozenset[int]) -> None:
        """Wait until NVML must be opened again, then end the threads of the GPUs.

        That is when the driver has gone from under all GPUs, or when one that had no identity answers now. One GPU
        that fell off the bus is no reason: opening again would not bring it back and would stop the others.
        """
        while not self._stopping.wait(min(1.0, self._retry_s)):
            if all(sampler.reader.driver_gone_reads >= GONE_AFTER_READS for sampler in self._samplers):
                break
            if any(sampler.reader.opened for sampler in self._samplers if sampler.index in unreadable):
                break
        else:
            return
        for sampler in self._samplers:
            sampler.end()
        for sampler in self._samplers:
            sampler.join(1.0)
        self._samplers = ()
        self._stopping.wait(min(1.0, self._retry_s))

    # ------------------------------------------------------------------ what the other threads call

    def _deliver(self, observation: Observation) -> None:
        if self._stopping.is_set():
            return
        if isinstance(observation, ProcessTick):
            self._remember(observation)
        self._emit(observation)

    def _on_sample(self, sample: DeviceSample) -> None:
        if sample.processes_absent is None:
            pids = tuple(process.pid for process in sample.processes)
            with self._lock:
                before, self._pids[sample.device_index] = self._pids.get(sample.device_index, ()), pids
            if not set(pids) <= set(before):
                self._host.hurry()
        self._deliver(sample)

    def _remember(self, tick: ProcessTick) -> None:
        with self._lock:
            for pid in tick.gone:
                self._infos.pop(pid, None)
            self._infos.update((info.pid, info) for info in tick.infos)

    def _job(self, root_pid: int) -> tuple[ProcessInfo, ...]:
        """The processes of a job other than the one that holds the GPU."""
        with self._lock:
            return tuple(i for i in self._infos.values() if i.root_pid == root_pid and i.pid != root_pid)

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
        focus = self._focus
        return FOCUS_DEVICE_PERIOD_S if focus is not None and index in focus.device_indices else self._period_s

    def _set_rates(self) -> None:
        for sampler in self._samplers:
            sampler.set_period(self._rate(sampler.index))
        self._host.set_period(FOCUS_HOST_PERIOD_S if self._focus is not None else self._period_s)

    def _launch(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads = [known for known in self._threads if known.is_alive()]
            thread.start()
            self._threads.append(thread)


def _nowhere(observation: Observation) -> None:
    """Before ``start``."""


def live_source(period_s: float = 1.0) -> NodeSource:
    """The source for this machine, with the real readers. ``period_s`` from 0.1 to 5."""
    from gpuwatch.collect.host import HostReader, node_info
    from gpuwatch.collect.nvml import Nvml
    from gpuwatch.collect.procfs import ProcessReader
    from gpuwatch.collect.stacks import StackSampler

    return NodeSource(Nvml(), HostReader(), ProcessReader(), StackSampler(), node_info, period_s=period_s)
