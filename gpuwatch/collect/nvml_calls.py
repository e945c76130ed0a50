"""One guarded driver call: timed, and what the binding raises turned into a reading's reason.

Owns: the boundary at which exceptions stop, fallbacks to older calls, limits of what can be true. Refuses: importing
pynvml (the binding is passed in), knowing which quantities there are.

Besides NVMLError the binding raises TypeError, UnicodeDecodeError and NVMLLibraryMismatchError, so ``Exception`` is
caught at each call, and of an NVMLError only ``value`` is used (its ``str`` calls into the library again).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from gpuwatch.collect.nvml_fields import (
    DRIVER_CODES,
    FALLBACK_CODES,
    FUNCTION_NOT_FOUND,
    LOST_CODES,
    PERMANENT_CODES,
    absent_for,
)
from gpuwatch.model import NOT_SUPPORTED, Absent, Int, Num, Reason

T = TypeVar("T")

_log = logging.getLogger(__name__)
Clock = Callable[[], int]

MEMORY_V2: Final = 0x02000028
TEXT_BYTES: Final = 96
CLOCK_SM: Final = 1
CLOCK_MEM: Final = 2

# Above these the driver has answered garbage, such as 4294967295.
MAX_PCT: Final = 100
MAX_TEMP_C: Final = 200
MAX_MHZ: Final = 20_000
MAX_MILLIWATT: Final = 20_000_000


KEPT_NS: Final = 600_000_000_000
"""How long "not supported" is believed. It is true of a mode, not of a card: without utilization under MIG, without
counters while ECC is off, and after a reset or under confidential computing it may be otherwise. Asking all of it again
every ten minutes costs what the first reading did, 30 ms on an H200, once in 600 readings."""


class GoneError(Exception):
    """Two calls in a row said that the GPU or the driver is gone: asking on is useless."""

    def __init__(self, absent: Absent) -> None:
        super().__init__(absent)
        self.absent = absent


class Calls:
    """Makes driver calls for one owner: times them, and turns what the binding raises into a code."""

    def __init__(self, binding: Any, clock: Clock) -> None:
        self.n = binding
        self._clock = clock
        self.spent_ns = 0
        self.era = 0
        """Answers that were kept in another one have to be asked for again."""
        self._era_ns = clock()
        self.answered = False
        self._gone = 0
        self._odd: set[str] = set()

    def begin(self) -> None:
        """A new reading begins."""
        self.spent_ns, self.answered, self._gone = 0, False, 0
        if self._clock() - self._era_ns >= KEPT_NS:
            self.forget()

    def forget(self) -> None:
        """What this GPU does not have may have come: ask again."""
        self.era += 1
        self._era_ns = self._clock()

    def timed(self, call: Callable[[], T]) -> T:
        """The call's result. Raises what it raises."""
        began_ns = self._clock()
        try:
            return call()
        finally:
            self.spent_ns += self._clock() - began_ns

    def code_of(self, exc: Exception) -> int:
        """NVML's return code behind an exception, 0 when there is none."""
        if isinstance(exc, self.n.NVMLError):
            return int(exc.value)
        # A binding that is older than a call lacks its wrapper or struct; an older call may be there.
        if isinstance(exc, AttributeError) and exc.obj is self.n:
            return FUNCTION_NOT_FOUND
        mismatch = getattr(self.n, "NVMLLibraryMismatchError", None)
        return FUNCTION_NOT_FOUND if mismatch is not None and isinstance(exc, mismatch) else 0

    def heard(self, code: int) -> None:
        """Count answers that say "gone"; raise when nothing but such answers comes."""
        if code not in LOST_CODES and code not in DRIVER_CODES:
            self.answered = True
            return
        self._gone += 1
        if self._gone >= 2 and not self.answered:
            raise GoneError(absent_for(code))

    def code(self, symbol: str, *arguments: Any) -> int:
        """The return code of one of the library's own functions. Raises GoneError, and what no code stands for."""
        function = self.n._nvmlGetFunctionPointer
        try:
            code = int(self.timed(lambda: function(symbol)(*arguments)))
        except Exception as exc:
            code = self.code_of(exc)
            if code == 0:
                raise
        self.heard(code)
        return code

    def odd(self, what: str, exc: Exception) -> None:
        """Log once for each ``what`` that reading it failed in a way that no driver answer explains."""
        if what not in self._odd:
            self._odd.add(what)
            _log.error("reading %s of a GPU failed: %s: %s", what, type(exc).__name__, exc)


class Query(Generic[T]):
    """One quantity: the calls that can give it, newest first, and what is known about them."""

    def __init__(self, calls: Calls, *ways: Callable[[], T]) -> None:
        self._calls = calls
        self._ways = list(ways)
        self._never: Absent | None = None
        self._era = 0
        """In which that was learned."""

    def read(self) -> T | Absent:
        """The value or why there is none. Raises GoneError when the GPU no longer answers."""
        if self._never is not None and self._era == self._calls.era:
            return self._never
        try:
            value = self._calls.timed(self._ways[0])
        except Exception as exc:
            return self._failed(exc)
        self._calls.heard(0)
        return value

    def _failed(self, exc: Exception) -> T | Absent:
        code = self._calls.code_of(exc)
        self._calls.heard(code)
        if code == 0:
            return Absent(Reason.ERROR, f"{type(exc).__name__}: {exc}"[:200])
        if code in FALLBACK_CODES and len(self._ways) > 1:
            del self._ways[0]
            return self.read()
        if code in PERMANENT_CODES:
            self._never, self._era = absent_for(code), self._calls.era
        return absent_for(code)


def text(n: Any, symbol: str, *args: Any) -> str:
    """A string from the driver. The binding decodes strictly, and names exist that are not UTF-8."""
    buffer = ctypes.create_string_buffer(TEXT_BYTES)
    code = n._nvmlGetFunctionPointer(symbol)(*args, buffer, ctypes.c_uint(TEXT_BYTES))
    if code != 0:
        raise n.NVMLError(code)
    return buffer.value.decode("utf-8", "replace")


def memory_ways(n: Any, handle: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Version 2, whose ``used`` excludes what the driver reserves, then version 1, which cannot tell them apart."""
    return (
        lambda: n.nvmlDeviceGetMemoryInfo(handle, version=MEMORY_V2),
        lambda: n.nvmlDeviceGetMemoryInfo(handle),
    )


def within(value: int | Absent, limit: int) -> Int:
    """The value, or OUT_OF_RANGE above ``limit``."""
    if isinstance(value, Absent):
        return value
    return value if value <= limit else Absent(Reason.OUT_OF_RANGE, str(value))


def scaled(value: Int, divisor: int) -> Num:
    """Such as milliwatts to watts."""
    return value if isinstance(value, Absent) else value / divisor


def total_of(memory: Any) -> Int:
    """Bytes of device memory."""
    if isinstance(memory, Absent):
        return memory
    # A unified-memory part without its own memory may answer success and 0.
    return int(memory.total) if memory.total else NOT_SUPPORTED


def used_of(memory: Any) -> Int:
    """Bytes in use; with a version 1 answer the driver's reserve is among them."""
    total = total_of(memory)
    return total if isinstance(total, Absent) else within(int(memory.used), total)
