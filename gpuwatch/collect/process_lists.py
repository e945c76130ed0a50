"""The processes of one GPU: NVML's three lists as one.

Owns: the layout of their entries, the arrays that are kept, what is no process, how the lists are merged. Refuses:
importing pynvml, how often they are read.

The entries are read with a struct of our own. Drivers 535.43 to 535.86 write 32 bytes for each, all others 24, and each
release of the binding knows one of the two: with the wrong one three of four processes are lost or have the memory of
another, and nothing says so (nvitop#75, #76, #88, MangoHud#1715). One call on a kept array takes the place of the
binding's two.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from gpuwatch.collect.nvml_calls import Calls, Query
from gpuwatch.collect.nvml_fields import INSUFFICIENT_SIZE
from gpuwatch.model import NOT_SUPPORTED, Absent, DeviceProcess, Reason

_LENGTH: Final = 32
_MAX_LENGTH: Final = 4096
_TRIES: Final = 3
_UNKNOWN_BYTES: Final = (1 << 64) - 1
_JUNK_PIDS: Final = frozenset({0, 0xFFFFFFFF})
_PID_MAX: Final = 1 << 22
"""No Linux process has a higher one."""

Processes = tuple[tuple[DeviceProcess, ...], Absent | None]
"""And why they cannot be trusted to be complete."""
Entry = tuple[int, int]
"""(pid, bytes of GPU memory)"""


_ENTRY: Final = (
    ("pid", ctypes.c_uint),
    ("used", ctypes.c_ulonglong),
    ("gpu_instance", ctypes.c_uint),
    ("compute_instance", ctypes.c_uint),
)


class _Entry24(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = _ENTRY


class _Entry32(ctypes.Structure):
    """Of 535.43 to 535.86."""

    _fields_ = (*_ENTRY, ("protected", ctypes.c_ulonglong))


class ProcessLists:
    """Not thread-safe: its sampler owns it."""

    def __init__(self, calls: Calls, handle: Any) -> None:
        newest = _Entry32 if _writes_32_bytes(calls.n) else _Entry24

        def query(kind: str) -> Query[list[Entry]]:
            symbol = f"nvmlDeviceGet{kind}RunningProcesses"
            ways = _List(calls, handle, f"{symbol}_v3", newest), _List(calls, handle, f"{symbol}_v2", _Entry24)
            return Query(calls, *(way.read for way in ways))

        self._compute = query("Compute")
        self._graphics = query("Graphics")
        self.mps = query("MPSCompute")

    def read(self, mps: list[Entry] | Absent) -> Processes:
        """The processes of all lists, merged by pid. ``mps``: that list, which changes rarely."""
        compute, graphics = self._compute.read(), self._graphics.read()
        found: dict[int, DeviceProcess] = {}
        for kind, entries in (("C", compute), ("G", graphics), ("M", mps)):
            for pid, used in () if isinstance(entries, Absent) else entries:
                _merge(found, pid, used, kind)
        if isinstance(compute, Absent):
            return tuple(found.values()), compute
        # Cards without a display answer NOT_SUPPORTED to the graphics list: nothing is missing then.
        if isinstance(graphics, Absent) and graphics.reason is not Reason.NOT_SUPPORTED:
            return tuple(found.values()), graphics
        return tuple(found.values()), None


class _List:
    """One of the driver's functions, and the array that it fills."""

    def __init__(self, calls: Calls, handle: Any, symbol: str, entry: type[ctypes.Structure]) -> None:
        self._n = calls.n
        self._handle = handle
        self._symbol = symbol
        self._entry = entry
        self._array: Any = None

    def read(self) -> list[Entry]:
        """All entries. Raises what the binding raises."""
        function = self._n._nvmlGetFunctionPointer(self._symbol)
        if self._array is None:
            self._array = (self._entry * _LENGTH)()
        for _ in range(_TRIES):
            count = ctypes.c_uint(len(self._array))
            code = function(self._handle, ctypes.byref(count), self._array)
            if code != INSUFFICIENT_SIZE:
                break
            # Some more: processes may start meanwhile.
            self._array = (self._entry * min(_MAX_LENGTH, max(count.value, len(self._array)) * 2))()
        if code != 0:
            raise self._n.NVMLError(code)
        return [(entry.pid, entry.used) for entry in self._array[: min(count.value, len(self._array))]]


def _writes_32_bytes(binding: Any) -> bool:
    """By the symbols that came with the longer entry and with its end; no version has to be read for that."""
    return _has(binding, "nvmlDeviceGetConfComputeMemSizeInfo") and not _has(
        binding, "nvmlDeviceGetRunningProcessDetailList"
    )


def _has(binding: Any, symbol: str) -> bool:
    try:
        binding._nvmlGetFunctionPointer(symbol)
    except Exception:
        return False
    return True


def _merge(found: dict[int, DeviceProcess], pid: int, used: int, kind: str) -> None:
    """Add an entry unless it is junk; the same pid in two lists becomes one entry of a kind such as "CG"."""
    if pid in _JUNK_PIDS or pid > _PID_MAX:
        return
    memory = NOT_SUPPORTED if used == _UNKNOWN_BYTES else used
    known = found.get(pid)
    if known is None:
        kind = "CM" if kind == "M" else kind  # A client of MPS computes, whichever list has it.
        found[pid] = DeviceProcess(pid, memory, kind)
    elif kind not in known.kind:
        kept = memory if isinstance(known.mem_used_bytes, Absent) else known.mem_used_bytes
        found[pid] = DeviceProcess(pid, kept, known.kind + kind)
