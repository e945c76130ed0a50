"""What the daemon's tests share: a source under the test's control, a service in a thread, bounded waiting.

Owns: no assertion. Real ipc sockets, real threads; only the hardware is scripted.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuwatch.client.connection import Connection
from gpuwatch.client.state import NodeState
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.config import Config, DiagnosisConfig
from gpuwatch.daemon.probe_service import ProbeRunner
from gpuwatch.daemon.service import Service
from gpuwatch.model import (
    Confidence,
    Device,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    Finding,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Role,
    Severity,
    Source,
    SourceKind,
)

S = 1_000_000_000
LIVE = Source(SourceKind.LIVE)
NODE = NodeInfo("node1", "6.1", "boot", 64, 1 << 40)


def device(index: int) -> Device:
    return Device(index, f"GPU-{index}", "NVIDIA H200", f"0000:{index:02x}:00.0", gpm=True)


def inventory(count: int = 1, source: Source = LIVE) -> Inventory:
    return Inventory(NODE, tuple(device(index) for index in range(count)), source=source)


def sample(index: int, mono_ns: int, busy_pct: float = 20.0, pids: Sequence[int] = ()) -> DeviceSample:
    return DeviceSample(
        index,
        mono_ns,
        busy_pct=busy_pct,
        processes=tuple(DeviceProcess(pid, 1 << 30, "C") for pid in pids),
        processes_absent=None,
    )


def info(pid: int, root_pid: int = 0, indices: tuple[int, ...] = (0,)) -> ProcessInfo:
    role = Role.MAIN if root_pid in (0, pid) else Role.LOADER_WORKER
    return ProcessInfo(
        *(pid, 1000 + pid, 1, root_pid or pid, role, "python", f"python train_{pid}.py", "ada", 1000),
        device_indices=indices,
    )


def processes(mono_ns: int, *infos: ProcessInfo, gone: tuple[int, ...] = ()) -> ProcessTick:
    samples = tuple(ProcessSample(i.pid, i.start_ticks, mono_ns, "S") for i in infos)
    return ProcessTick(mono_ns, samples, infos=infos, gone=gone)


def verdict(observations: Sequence[Observation], pid: int, indices: tuple[int, ...]) -> Diagnosis:
    """A judge that names a cause and counts what it was given."""
    seen = f"{len(observations)} observations"
    finding = Finding("loader_too_few_workers", seen, Severity.WARNING, 0.6, 2.5, "basis", Confidence.HIGH)
    return Diagnosis(pid, indices, 8.0, (finding,))


def newest(samples: Sequence[DeviceSample]) -> DeviceSample:
    return samples[-1]


class ScriptedSource:
    """Emits what the test says, when it says so."""

    def __init__(self, first: Inventory | None = None) -> None:
        self.first = inventory() if first is None else first
        self.focused: list[Focus | None] = []
        self.hastened: list[tuple[frozenset[int], float]] = []
        self.stopped = threading.Event()
        self.started = threading.Event()
        self.recorded_ns: int | None = None
        self._emit: Emit | None = None

    def start(self, emit: Emit) -> None:
        self._emit = emit
        emit(self.first)
        emit(HostSample(self.now_ns()))
        self.started.set()

    def emit(self, *observations: Observation) -> None:
        assert self._emit is not None
        for observation in observations:
            self._emit(observation)

    def stop(self) -> None:
        self.stopped.set()

    def focus(self, focus: Focus | None) -> None:
        self.focused.append(focus)

    def hasten(self, device_indices: frozenset[int], period_s: float) -> None:
        self.hastened.append((device_indices, period_s))

    def now_ns(self) -> int:
        return time.monotonic_ns() if self.recorded_ns is None else self.recorded_ns

    def progress_ns(self) -> int:
        return time.monotonic_ns()


QUIET = Config(period_s=0.1, diagnosis=DiagnosisConfig(automatic=False))


@contextmanager
def serving(
    source: ScriptedSource,
    directory: Path,
    config: Config = QUIET,
    judge: Callable[[Sequence[Observation], int, tuple[int, ...]], Diagnosis] = verdict,
    probes: ProbeRunner | None = None,
) -> Iterator[Service]:
    """A service that runs in a thread and is stopped at the end, whatever happens."""
    service = Service(source, config, judge, probes, directory=directory, fold=newest)
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            service.start()
            ready.set()
            try:
                while not service.stopping:
                    service.step(0.05)
            finally:
                service.stop()
        except BaseException as exc:
            failed.append(exc)
            ready.set()

    ready = threading.Event()
    thread = threading.Thread(target=loop, name="service")
    thread.start()
    try:
        assert ready.wait(10)
        if failed:
            raise failed[0]
        yield service
    finally:
        if not failed:
            service.request_stop()
        thread.join(10)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def until(connection: Connection, wanted: Callable[[NodeState], bool], timeout_s: float = 15.0) -> NodeState:
    """Step until the picture is as wanted; an assertion shows the last one otherwise."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = connection.step(0.05)
        if wanted(state):
            return state
        assert time.monotonic() < deadline, (
            f"never came: {state.link} {state.detail!r} {state.notice!r} seq {state.seq}"
        )


@contextmanager
def runtime_dir() -> Iterator[Path]:
    """A directory whose socket paths are short, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as name:
        yield Path(name) / "run"
