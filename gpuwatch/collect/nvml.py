"""Opening NVML: the only file that imports pynvml.

Owns: opening NVML, what a failure to do so means, which GPUs there are and whether that has changed, whether the
library on disk is still the one in this process. Refuses: schedules, opinions.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpuwatch.collect.events import EmitEvent, EventWatcher
from gpuwatch.collect.gpm import GpmBusyError, GpmGate
from gpuwatch.collect.nvml_calls import Calls, Clock, text
from gpuwatch.collect.nvml_fields import (
    NO_BINDING_HINT,
    NO_DEVICES_HINT,
    WRONG_BINDING_HINT,
    broken_binding_hint,
    driver_state_for,
)
from gpuwatch.collect.nvml_identity import Identity, Mig, unreadable
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.model import Absent, Device, DriverState, Reason, Text

IDENTIFY_S: Final = 0.8
"""Asking one GPU what it is takes some milliseconds; one that takes longer must not hide the others."""
_SYSFS_PCI: Final = Path("/sys/bus/pci/devices")
_PROC_DRIVER: Final = Path("/proc/driver/nvidia")
_COUNT: Final = -1
_NOTHING: Final = -2
_LIBRARY: Final = "libnvidia-ml.so.1"


class DriverFacts(NamedTuple):
    """Versions, for NodeInfo."""

    driver_version: Text
    cuda_driver_version: Text
    nvml_version: Text


class Nvml:
    """The driver's library, opened once for the life of the process."""

    def __init__(
        self,
        clock: Clock = time.monotonic_ns,
        sysfs_pci: Path = _SYSFS_PCI,
        *,
        proc_driver: Path = _PROC_DRIVER,
        maps: Path = Path("/proc/self/maps"),
        identify_s: float = IDENTIFY_S,
    ) -> None:
        self._clock = clock
        self._sysfs_pci = sysfs_pci
        self._proc_driver = proc_driver
        self._maps = maps
        self._identify_s = identify_s
        self._n: Any = None
        self._initialised = False
        self._count = 0
        self._kernel_side: tuple[str, ...] = ()
        self._mig: dict[int, Mig | None] = {}
        self._identifying: set[int] = set()
        self._looking: dict[int, int] = {}
        """Thread to what it is asking, for ``changed``: a GPU, or one of the two below."""
        self._gate = GpmGate(clock)
        self._readers: list[DeviceReader] = []
        self._watchers: list[EventWatcher] = []
        self._references = 0
        """Openings that have not been given back."""
        self._closing = threading.Lock()

    def open(self) -> tuple[DriverState, str]:
        """Initialise (again) and count the GPUs: the state, and for a person what to do when it is not OK.

        Blocks as long as the driver does: 10 ms as a rule, seconds per GPU without persistence mode.
        """
        self._n, hint = _binding()
        if self._n is None:
            return DriverState.NO_LIBRARY, hint
        calls = Calls(self._n, self._clock)
        self._kernel_side = self._look_at_kernel()
        self._mig = {}
        try:
            self.close()
            self._n.nvmlInit()
            self._references += 1
            self._initialised = True
            self._count = int(self._n.nvmlDeviceGetCount())
            # nvmlInit may have loaded the module.
            self._kernel_side = self._look_at_kernel()
        except Exception as exc:
            code = calls.code_of(exc)
            return driver_state_for(code) if code else (DriverState.UNKNOWN, f"NVML does not start: {exc}")
        if self._count == 0:
            return DriverState.NO_DEVICES, NO_DEVICES_HINT
        return DriverState.OK, ""

    def driver_facts(self) -> DriverFacts:
        """Versions of the driver, of the newest CUDA that it supports and of the library."""
        if not self._initialised:
            absent = Absent(Reason.DRIVER)
            return DriverFacts(absent, absent, absent)
        once = self._identity().once
        cuda = once(lambda: int(self._n.nvmlSystemGetCudaDriverVersion()))
        return DriverFacts(
            once(lambda: text(self._n, "nvmlSystemGetDriverVersion")),
            cuda if isinstance(cuda, Absent) else f"{cuda // 1000}.{cuda % 1000 // 10}",
            once(lambda: text(self._n, "nvmlSystemGetNVMLVersion")),
        )

    def devices(self) -> tuple[Device, ...]:
        """Identity of every GPU and MIG instance, also of a GPU that cannot be opened.

        All GPUs are asked at once, each by a thread of its own: one that hangs stands as unreadable after 0.8 s, and
        is not asked again while its thread has not returned.
        """
        if not self._initialised:
            return ()
        answers: queue.SimpleQueue[tuple[int, tuple[Device, ...]]] = queue.SimpleQueue()
        waiting = set(range(self._count)) - self._identifying
        self._identifying |= waiting
        for index in sorted(waiting):
            name = f"identify{index}"
            threading.Thread(target=self._identify, args=(index, answers), name=name, daemon=True).start()
        found: dict[int, tuple[Device, ...]] = {}
        ends = time.monotonic() + self._identify_s
        while waiting:
            try:
                index, devices = answers.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                break
            waiting.discard(index)
            found[index] = devices
        silent = {index: (unreadable(index, "does not answer"),) for index in range(self._count)}
        return tuple(device for index in range(self._count) for device in (silent | found)[index])

    def reader(self, index: int) -> DeviceReader:
        """What reads the device with this index. One thread at a time may use it."""
        reader = DeviceReader(self._n, index, self._gate, self._clock)
        self._readers.append(reader)
        return reader

    def events(self, emit: EmitEvent) -> EventWatcher:
        """The thread that waits for events of all GPUs, not started. It must have ended before the next ``open``."""
        watcher = EventWatcher(self._n, range(self._count), emit, self._clock)
        self._watchers.append(watcher)
        return watcher

    def settled(self) -> bool:
        """No GPU is still being asked what it is."""
        return not self._identifying

    def changed(self, skip: frozenset[int]) -> bool:
        """GPUs or MIG instances have come or gone, or MIG was switched, since ``devices``.

        GPUs in ``skip`` (they hang) are not asked. Two calls into the driver and, for each GPU with MIG on, some more.
        Blocks as long as the driver does; another call of this meanwhile leaves out what this one hangs in.
        """
        if not self._initialised:
            return False
        if self.kernel_changed():
            return True
        me = threading.get_ident()
        self._looking[me] = _NOTHING
        try:
            return self._looks_different(me, skip)
        finally:
            del self._looking[me]

    def _looks_different(self, me: int, skip: frozenset[int]) -> bool:
        identity, mig = self._identity(), self._mig
        if self._may_ask(me, _COUNT):
            count = identity.once(lambda: int(self._n.nvmlDeviceGetCount()))
            if not isinstance(count, Absent) and count != self._count:
                return True
        for index, known in tuple(mig.items()):
            if self._mig is not mig:
                # It took so long that NVML has been opened again.
                return False
            if known is not None and index not in skip and self._may_ask(me, index):
                now = identity.mig(index)
                if now is not None and now != known:
                    return True
        return False

    def _may_ask(self, me: int, what: int) -> bool:
        """False while an earlier look has not come back from asking this."""
        if what in tuple(self._looking.values()):
            return False
        self._looking[me] = what
        return True

    def kernel_changed(self) -> bool:
        """The kernel module is another one than at ``open``, or lists other GPUs. Asks /proc, not the driver."""
        return self._look_at_kernel() != self._kernel_side

    def library_replaced(self) -> bool:
        """The library on disk is not the one in this process any more: only a new process can load it."""
        try:
            lines = self._maps.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        for path in {line[line.index("/") :] for line in lines if "libnvidia-ml.so" in line and "/" in line}:
            link = Path(path.removesuffix(" (deleted)")).with_name(_LIBRARY)
            if path.endswith(" (deleted)") or (link.is_symlink() and str(link.resolve()) != str(Path(path).resolve())):
                return True
        return False

    def close(self) -> None:
        """Give everything back; while a call hangs in the driver NVML is not, because the call may still use it.

        NVML counts its openings, and is initialised anew only when each has been given back: what could not be is made
        up for when this is called again, as it is before the next opening.
        """
        self._initialised = False
        # Giving back can hang too, and the next opening then comes here while it does.
        if not self._references or not self._closing.acquire(blocking=False):
            return
        try:
            identity = self._identity()
            self._readers = [reader for reader in self._readers if not self._freed(identity, reader)]
            # A reader that is left would free its counters in another initialisation of NVML.
            while self._references and not self._readers and not self._busy():
                self._references -= 1
                identity.once(self._n.nvmlShutdown)
        finally:
            self._closing.release()

    def _freed(self, identity: Identity, reader: DeviceReader) -> bool:
        """A reader that is not in the driver gives its counters back, though another one may be."""
        if reader.busy:
            return False
        try:
            with self._gate.hold():
                identity.once(reader.close)
        except GpmBusyError:
            return False
        return True

    def _busy(self) -> bool:
        """A call other than a reader's may be under way, also one from an earlier opening."""
        self._watchers = [watcher for watcher in self._watchers if watcher.busy]
        return bool(self._watchers or self._looking or self._identifying)

    def _identity(self) -> Identity:
        return Identity(self._n, self._clock, self._sysfs_pci)

    def _identify(self, index: int, answers: queue.SimpleQueue[tuple[int, tuple[Device, ...]]]) -> None:
        try:
            identity = self._identity()
            devices = identity.gpu(index)
            self._mig[index] = identity.mig(index)
        except Exception as exc:
            devices = (unreadable(index, f"cannot be identified ({type(exc).__name__}: {exc})"[:200]),)
        self._identifying.discard(index)
        answers.put((index, devices))

    def _look_at_kernel(self) -> tuple[str, ...]:
        """Version of the loaded module and the PCI addresses of its GPUs; empty where /proc has no such files."""
        try:
            version = (self._proc_driver / "version").read_text(encoding="ascii", errors="replace")
        except OSError:
            version = ""
        try:
            gpus = sorted(entry.name for entry in (self._proc_driver / "gpus").iterdir())
        except OSError:
            gpus = []
        return (version, *gpus)


def _binding() -> tuple[Any, str]:
    """The pynvml module of nvidia-ml-py, or None and what to install."""
    try:
        import pynvml
    except ModuleNotFoundError as exc:
        # A module that it wants in its turn is another fault: it is there and broken.
        return None, NO_BINDING_HINT if exc.name == "pynvml" else broken_binding_hint(exc)
    except Exception as exc:
        return None, broken_binding_hint(exc)
    # Several distributions install a pynvml.py; those of others lack GPM and the versioned process lists.
    if not all(hasattr(pynvml, name) for name in ("_nvmlGetFunctionPointer", "nvmlGpmMetricsGet")):
        return None, WRONG_BINDING_HINT
    return pynvml, ""
