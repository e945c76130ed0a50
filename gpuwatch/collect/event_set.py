"""One set of NVML events: which GPUs are in it, which are not, and why.

Owns: making and freeing the set, what is asked for of each GPU, deadlines. Refuses: waiting for events, what they mean.

A GPU that hangs does so in any call, also in the three that register it, and must not keep the events of the others
(an XID 79 of GPU 0 was never told while GPU 3 of 8 hung). So each GPU is asked on a thread of its own, one at a time,
and the set is used as soon as the others are in it.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from gpuwatch.collect.nvml_calls import Calls, Clock, GoneError, Query
from gpuwatch.model import NOT_SUPPORTED, Absent, Reason

REGISTER_S: Final = 0.5
"""The three calls take a millisecond; a GPU that takes longer joins when it answers."""
HANGS: Final = Absent(Reason.TIMEOUT, "the driver does not answer for this GPU")


class _Joined(NamedTuple):
    bits: int
    address: int


class _Answer(NamedTuple):
    device: int
    made: Any
    """The set that it was asked for: the thread may come back when another one is in use."""
    joined: _Joined | Absent


class EventSet:
    """Used by one thread; ``missing`` and ``busy`` may be read by any."""

    def __init__(self, binding: Any, indices: Iterable[int], wanted: int, clock: Clock) -> None:
        self._n = binding
        self._indices = tuple(indices)
        self._wanted = wanted
        self._clock = clock
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._asked: set[int] = set()
        """GPUs whose answer has not been taken in."""
        self._silent: frozenset[int] = frozenset()
        """Of those the ones that had their time."""
        self._running: dict[int, Any] = {}
        """GPUs whose thread is in the driver, with the set that it may still use."""
        self._refused: dict[int, Absent] = {}
        self.handle: Any = None
        self.registered: dict[int, int] = {}
        """Device index to the event bits that this GPU can report and that are waited for."""
        self._by_address: dict[int, int] = {}
        self.refusal = NOT_SUPPORTED
        """Why the last GPU, or the set, gives no events."""

    @property
    def wanted(self) -> bool:
        """A GPU is in it, or may still join."""
        return bool(self.registered or self._asked)

    @property
    def nothing_yet(self) -> bool:
        """There is nothing to wait for until a GPU that hangs answers."""
        return bool(self._asked and not self.registered)

    @property
    def busy(self) -> bool:
        """A thread is in the driver. It may be, also when nobody takes answers in any more."""
        return bool(self._running)

    def missing(self) -> dict[int, Absent]:
        """GPUs whose events are not waited for, and why. One that has no events never had them: not told."""
        refused = {i: why for i, why in tuple(self._refused.items()) if why.reason is not Reason.NOT_SUPPORTED}
        return refused | dict.fromkeys(self._silent, HANGS)

    def open(self) -> bool:
        """A fresh set with every GPU that has events. False when there is none, and nothing to wait for."""
        self.refusal, self.registered, self._by_address, self._refused = NOT_SUPPORTED, {}, {}, {}
        made = asked(self._n, self._clock, self._n.nvmlEventSetCreate)
        if isinstance(made, Absent):
            self.refusal = made
            return False
        self.handle = made
        self.register()
        return self.wanted

    def free(self) -> None:
        """Give the set back; not while a thread may still use it. It may fail: the driver can have gone."""
        if not any(made is self.handle for made in tuple(self._running.values())):
            asked(self._n, self._clock, lambda: self._n.nvmlEventSetFree(self.handle))

    def register(self) -> None:
        """Ask every GPU that is not in the set, and is not being asked; those that do not answer in time join later."""
        for index in self._indices:
            if index not in self.registered and index not in self._asked:
                self._begin(index)
        ends = time.monotonic() + REGISTER_S
        while self._asked - self._silent and time.monotonic() < ends:
            self.gather(ends - time.monotonic())
        self._silent = frozenset(self._asked)

    def gather(self, timeout_s: float = 0.0) -> None:
        """Take in the next answer, if there is one within ``timeout_s``, and those that wait."""
        try:
            while True:
                self._take(self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait())
                timeout_s = 0.0
        except queue.Empty:
            return

    def index_of(self, handle: Any) -> int:
        """The GPU that an event is of; -1 for one that is not known."""
        return self._by_address.get(_address(handle), -1)

    def _take(self, answer: _Answer) -> None:
        index, joined = answer.device, answer.joined
        if answer.made is not self.handle:
            # The set that it joined is not used any more.
            self._begin(index)
            return
        self._asked.discard(index)
        self._silent -= {index}
        if isinstance(joined, Absent):
            self._refused[index] = joined
            # Answers come in any order; trouble is the better reason.
            self.refusal = joined if self.refusal == NOT_SUPPORTED else self.refusal
        else:
            self._refused.pop(index, None)
            self.registered[index] = joined.bits
            if joined.address:
                self._by_address[joined.address] = index

    def _begin(self, index: int) -> None:
        self._asked.add(index)
        self._running[index] = self.handle
        arguments = (index, self.handle)
        threading.Thread(target=self._ask, args=arguments, name=f"events{index}", daemon=True).start()

    def _ask(self, index: int, made: Any) -> None:
        """Body of one GPU's thread."""
        try:
            joined = self._join(index, made)
        except Exception as exc:
            joined = Absent(Reason.ERROR, f"{type(exc).__name__}: {exc}"[:200])
        del self._running[index]
        self._answers.put(_Answer(index, made, joined))

    def _join(self, index: int, made: Any) -> _Joined | Absent:
        n = self._n
        handle = asked(n, self._clock, lambda: n.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Absent):
            return handle
        supported = asked(n, self._clock, lambda: int(n.nvmlDeviceGetSupportedEventTypes(handle)))
        if isinstance(supported, Absent):
            return supported
        # One bit too many, and the driver registers none at all.
        bits = supported & self._wanted
        if not bits:
            return NOT_SUPPORTED
        registered = asked(n, self._clock, lambda: n.nvmlDeviceRegisterEvents(handle, bits, made) or bits)
        return registered if isinstance(registered, Absent) else _Joined(bits, _address(handle))


def asked(binding: Any, clock: Clock, call: Callable[[], Any]) -> Any:
    """The answer of one call, or why there is none."""
    try:
        return Query(Calls(binding, clock), call).read()
    except GoneError as gone:
        return gone.absent


def _address(handle: Any) -> int:
    """Where a handle points to: the driver gives the same address with each event. 0 for none, as after a loss."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
