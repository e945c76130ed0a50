"""Probes as child processes: finding them, keeping others out, ending them in time.

Owns: the probes folder, who may start, the child's environment and its end. Refuses: torch and CUDA in this
process, and judging what a probe says (``verdict.probe_run``).

The child runs ``PYTHON FOLDER NAME --json`` with the folder's path, so no name can be shadowed by the working
directory, which is / for the child. Neither ``-I`` nor ``-P`` is given: ``-I`` would hide a torch that the user has
in PYTHONPATH or in the user site, ``-P`` does not exist before Python 3.11 and changes nothing for a folder that is
started by path; the folder's ``__main__`` removes what could shadow it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch.config import ProbesConfig
from gpuwatch.daemon.probe_locks import lock_all, lock_folder, unlock
from gpuwatch.daemon.probe_process import Launch, ProbeProcess, describe_pid
from gpuwatch.model import Device, DeviceSample, ProbeResult, ProbeStatus
from gpuwatch.verdict import probe_run
from gpuwatch.verdict.catalogue import folder as probes_folder
from gpuwatch.verdict.observe import with_observed

MOST_SAMPLES = 2400
"""Readings kept of one run: ten minutes at four a second. From then on every second one is dropped."""
OWN_LOAD_NS = 2_000_000_000
"""NVML's utilization is an average over up to a second: this long after our own probe it is not somebody else's."""

Done = Callable[[ProbeResult], None]


class Seat(NamedTuple):
    """A GPU to measure on, and its newest reading."""

    device: Device
    sample: DeviceSample | None


class Runner:
    """Starts probes, one at a time per GPU and per machine's CPU, and ends them when somebody else needs the GPU.

    ``start``, ``check`` and ``stop`` may be called from any one thread; ``done`` is called from another, once per
    probe that was started.
    """

    def __init__(
        self,
        python: str = "",
        *,
        folder: Path | None = None,
        locks: Path | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``python``: the interpreter that has torch; empty means our own."""
        self._python = python
        self._folder = folder
        self._env = dict(os.environ if env is None else env)
        self._locks = locks or lock_folder(self._env)
        self._clock = clock
        self._guard = threading.Lock()
        self._running: dict[str, ProbeProcess] = {}
        self._ended_ns: dict[str, int] = {}
        self._seen: dict[int, list[DeviceSample]] = {}
        """By the child's pid."""

    def start(
        self,
        probe: str,
        device: Device | None,
        sample: DeviceSample | None,
        done: Done,
        *,
        seconds: float | None = None,
        force: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> str:
        """Begin; "" or one line with the reason for not doing so. See ``begin``."""
        refusal = self.begin(probe, device, sample, done, seconds=seconds, force=force, progress=progress)
        return refusal.message if refusal else ""

    def begin(
        self,
        probe: str,
        device: Device | None,
        sample: DeviceSample | None,
        done: Done,
        *,
        seconds: float | None = None,
        force: bool = False,
        progress: Callable[[str], None] | None = None,
        python: str = "",
    ) -> ProbeResult | None:
        """Begin; or the refusal, BUSY or UNAVAILABLE, as the result that it is. Without a device it runs on the CPU.

        ``sample``: the newest reading of the device. ``force``: run beside others; the result is marked.
        ``progress`` gets the child's lines from the reading thread. ``python``: instead of the runner's own.
        Raises UsageError for a name that is no probe.
        """
        seats = [Seat(device, sample)] if device else []
        return self.begin_on(probe, seats, done, seconds=seconds, force=force, progress=progress, python=python)

    def begin_on(
        self,
        probe: str,
        seats: Sequence[Seat],
        done: Done,
        *,
        seconds: float | None = None,
        force: bool = False,
        progress: Callable[[str], None] | None = None,
        python: str = "",
    ) -> ProbeResult | None:
        """As ``begin``, with one child that sees all these GPUs: it starts only when all of them are free, and is ended
        when somebody comes to any of them."""
        spec = probe_run.find_probe(probe)
        devices = [seat.device for seat in seats]
        label = probe_run.label(devices)

        def refuse(message: str, status: ProbeStatus = ProbeStatus.UNAVAILABLE) -> ProbeResult:
            return probe_run.placed(probe_run.failed(spec.name, message, status), devices)

        for seat in seats or (None,):
            obstacle = self._obstacle(seat, force)
            if obstacle:
                silent = seat is not None and seat.sample is not None and probe_run.unreadable(seat.sample)
                return refuse(obstacle, ProbeStatus.UNAVAILABLE if silent else ProbeStatus.BUSY)
        wanted = python or self._python or sys.executable
        python, folder = interpreter(wanted), self._folder or probes_folder()
        if not python:
            return refuse(f"no Python at {wanted!r}: set probes.python to one that has torch")
        if folder is None:
            return refuse("the probes are not installed beside gpuwatch: install the whole package again")
        keys = tuple(device.uuid for device in devices) or ("cpu",)
        try:
            locks = lock_all(keys, self._locks)
        except OSError as exc:
            return refuse(f"cannot lock {label}: {exc.filename}: {exc.strerror}")
        if not locks:
            return refuse(f"another probe is running on {label}: wait until it ends", ProbeStatus.BUSY)
        arguments = [python, str(folder), spec.name, "--json", "--device", "cuda" if devices else "cpu"]
        if seconds is not None:
            arguments += ["--seconds", f"{seconds:g}"]
        launch = Launch(
            probe=spec.name,
            argv=tuple(arguments),
            env=child_env(self._env, devices),
            timeout_s=probe_run.timeout_s(spec, bool(devices), seconds),
            lock_fds=locks,
            device_indices=frozenset(device.index for device in devices),
            forced=force,
        )
        try:
            process = ProbeProcess(launch, self._finisher(keys, seats, done), progress)
        except OSError as exc:
            unlock(locks)
            return refuse(f"cannot start {python}: {exc.strerror}")
        with self._guard:
            self._running |= dict.fromkeys(keys, process)
            self._seen[process.pid] = []
        process.start()
        return None

    def check(self, sample: DeviceSample) -> None:
        """End the probe on this GPU when a process that is not ours has appeared there. Call it with every sample.

        The samples go into the result's ``observed``.
        """
        here = [process for process in self.running() if sample.device_index in process.device_indices]
        with self._guard:
            for process in here:
                if process.pid in self._seen:
                    self._seen[process.pid] = thinned([*self._seen[process.pid], sample])
        for process in here:
            process.check(sample)

    def use(self, python: str) -> None:
        """Start the next ones with this interpreter, "" for our own; those that run are left alone."""
        self._python = python

    def stop(self) -> None:
        """End all probes and wait until their ``done`` has been called, two seconds at most."""
        for process in self.running():
            process.stop()
        self.wait(2.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing runs; False when something still does."""
        end = time.monotonic() + timeout_s
        for process in self.running():
            process.join(max(0.0, end - time.monotonic()))
        return not self.running()

    @property
    def has_run(self) -> bool:
        """Whether a probe of ours has ended: its traces on the GPU may last for a moment."""
        with self._guard:
            return bool(self._ended_ns)

    def running(self) -> list[ProbeProcess]:
        """The children of now."""
        with self._guard:
            return list({process.pid: process for process in self._running.values()}.values())

    def _obstacle(self, seat: Seat | None, force: bool) -> str:
        key = seat.device.uuid if seat else "cpu"
        with self._guard:
            if key in self._running:
                where = probe_run.label([seat.device] if seat else [])
                return f"probe {self._running[key].probe} is running on {where}: wait until it ends"
            own = self._clock() - self._ended_ns.get(key, -OWN_LOAD_NS) < OWN_LOAD_NS
        if seat is None or force:
            return ""
        if seat.sample is None:
            return f"no reading of GPU {seat.device.index} yet: whether it is free is not known"
        return probe_run.busy_reason(seat.sample, describe_pid, own)

    def _finisher(self, keys: Sequence[str], seats: Sequence[Seat], done: Done) -> Done:
        blind = (probe_run.blind_note(seat.sample) for seat in seats if seat.sample is not None)
        notes = tuple(dict.fromkeys(filter(None, blind)))
        devices = [seat.device for seat in seats]

        def finish(result: ProbeResult) -> None:
            seen: list[DeviceSample] = []
            with self._guard:
                for key in keys:
                    process = self._running.pop(key, None)
                    seen = self._seen.pop(process.pid, []) if process and process.pid in self._seen else seen
                    self._ended_ns[key] = self._clock()
            result = probe_run.placed(with_observed(result, seen), devices)
            done(msgspec.structs.replace(result, notes=(*result.notes, *notes)) if notes else result)

        return finish


class Schedule:
    """Decides when a probe runs by itself: on a GPU that has been idle for a while, each probe once per interval.

    Pure bookkeeping: ``now_ns`` is passed in. After a restart the first round comes as soon as a GPU has been idle.
    """

    def __init__(self, config: ProbesConfig) -> None:
        """Raises UsageError for a name that is no probe."""
        self._idle_since_ns: dict[str, int] = {}
        self._started_ns: dict[tuple[str, str], int] = {}
        self.configure(config)

    def configure(self, config: ProbesConfig) -> None:
        """Other settings. What has run stays known: reading the configuration again is no reason to measure again.
        Raises UsageError for a name that is no probe, and changes nothing then."""
        self._names = tuple(probe_run.find_probe(name).name for name in config.set) or probe_run.QUICK
        self._on = config.automatic
        self._idle_after_ns = int(config.idle_after_s * 1e9)
        self._every_ns = int(config.every_s * 1e9)
        if not self._on:
            self._idle_since_ns.clear()  # nobody follows it from now on

    def due(self, device: Device, sample: DeviceSample, now_ns: int) -> str:
        """The probe to start on this GPU now, or "". Call it with every sample: it follows how long the GPU idles."""
        if not self._on:
            return ""
        if probe_run.busy_reason(sample, str):
            self._idle_since_ns.pop(device.uuid, None)
            return ""
        since_ns = self._idle_since_ns.setdefault(device.uuid, now_ns)
        if now_ns - since_ns < self._idle_after_ns:
            return ""
        for name in self._names:
            started_ns = self._started_ns.get((device.uuid, name))
            if started_ns is None or now_ns - started_ns >= self._every_ns:
                return name
        return ""

    def started(self, device: Device, probe: str, now_ns: int) -> None:
        """The probe has been started; the GPU must idle again before the next."""
        self._started_ns[device.uuid, probe] = now_ns
        self._idle_since_ns.pop(device.uuid, None)


def probe_runner(config: ProbesConfig) -> Runner:
    """The daemon's runner."""
    return Runner(config.python)


def interpreter(python: str) -> str:
    """Absolute path of a Python, "" when there is none. Its symlink is kept: it names the virtual environment.

    The text stays text: a ``Path`` would drop the "./" of "./python", which is then looked up in PATH instead.
    """
    found = shutil.which(os.path.expanduser(python))  # noqa: PTH111 (see above)
    return str(Path(found).absolute()) if found else ""


def thinned(samples: list[DeviceSample]) -> list[DeviceSample]:
    """At most ``MOST_SAMPLES``, evenly spread over the run."""
    return samples if len(samples) <= MOST_SAMPLES else samples[::2]


def child_env(env: Mapping[str, str], devices: Sequence[Device]) -> dict[str, str]:
    """The environment of a probe: it sees these GPUs, by UUID because CUDA may count GPUs in another order, or none."""
    seen = ",".join(device.uuid for device in devices)
    return {**env, "CUDA_VISIBLE_DEVICES": seen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
