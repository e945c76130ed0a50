"""Optional help from inside a job: its step time and data wait, told to the gpuwatch on this machine.

    import gpuwatch.hook

    for batch in gpuwatch.hook.watch(loader):
        ...

Owns: measuring, summing, one datagram now and then. Refuses: threads, waiting, imports beyond the standard library (of
gpuwatch too: this file may be copied alone into any environment with Python 3.9 or newer), and raising anything that
the job's own code would not have raised.

Nobody there: nothing is sent and nothing is kept. A receiver that does not read: the sum grows and goes with the next
datagram. A datagram names no process: the kernel tells the receiver who sent it. docs/hook.md has format and cost.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time

TYPE_CHECKING = False  # `typing` costs more to import than all the rest of this file.
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")
    Loader = TypeVar("Loader", bound=Iterable[Any])

TELL_EVERY_NS = 500_000_000
LOOK_EVERY_NS = 2_000_000_000
"""How often receivers are looked for; a daemon that starts later is found within this."""
KEEP_NS = 10_000_000_000
"""A sum that no receiver takes for so long is dropped: it would say nothing of any window."""
MAX_RECEIVERS = 8
SYSTEM_DIRECTORY = "/run/gpuwatch"
RECEIVER_PREFIX = "steps."


def watch(iterable: Loader) -> Loader:
    """``iterable``, measured: the time that each ``next()`` takes is data wait, from one to the next is a step.

    An iterator becomes an iterator. Anything else stays reusable, epoch after epoch, with the length and the
    attributes of the original: wrap it once, or where it is iterated over.
    """
    number = next(_numbers)
    if hasattr(iterable, "__next__"):
        return _measured(iterable, _Loop(number, marked=False))  # type: ignore[return-value]
    return Watched(iterable, number)  # type: ignore[return-value]


def step() -> None:
    """A step ends here: for loops that ``watch`` cannot wrap, and where a step takes several batches. The first call
    of a thread begins the first step."""
    loop = getattr(_marks, "loop", None)
    if loop is None:
        loop = _marks.loop = _Loop(0, marked=True)
        loop.open(loop.clock())
    else:
        loop.mark()


class Watched:
    """An iterable with measured ``next()``; everything else is the original's."""

    __slots__ = ("_iterable", "_number")

    def __init__(self, iterable: Iterable[Any], number: int) -> None:
        self._iterable = iterable
        self._number = number

    def __iter__(self) -> Iterator[Any]:
        return _measured(self._iterable, _Loop(self._number, marked=False))

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getattr__(self, name: str) -> Any:
        if name in Watched.__slots__:  # Not there yet: while it is unpickled.
            raise AttributeError(name)
        return getattr(self._iterable, name)


def _measured(source: Iterable[T], loop: _Loop) -> Generator[T, None, None]:
    """The only code that runs at every step. Its frame is on the stack exactly while ``next()`` of ``source`` runs,
    which the diagnosis knows by its name."""
    clock = loop.clock
    asked = clock()
    loop.open(asked)
    try:
        for item in source:  # iter() of a DataLoader starts its workers: that is the first wait, too.
            wait = clock() - asked
            loop.wait_ns += wait
            if wait > loop.wait_max_ns:  # noqa: PLR1730 -- max() would double the cost of a step
                loop.wait_max_ns = wait
            yield item
            now = clock()
            took = now - asked
            asked = now
            loop.steps += 1
            loop.step_ns += took
            if took > loop.step_max_ns:  # noqa: PLR1730 -- as above
                loop.step_max_ns = took
            if now >= loop.due_ns:
                loop.tell(now)
        now = clock()
        loop.wait_ns += now - asked
        loop.wait_max_ns = max(loop.wait_max_ns, now - asked)
    finally:
        loop.close()


class _Loop:
    """Sums of one loop since they were last told. One thread at a time uses it."""

    __slots__ = (
        "clock", "due_ns", "marked", "number", "send", "since_ns", "step_max_ns", "step_ns", "steps", "thread",
        "wait_max_ns", "wait_ns",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        *,
        marked: bool,
        clock: Callable[[], int] = time.monotonic_ns,
        send: Callable[[bytes, int], bool] | None = None,
    ) -> None:
        self.number = number
        self.marked = marked
        self.clock = clock
        self.send = send
        self.thread = 0
        self.since_ns = self.due_ns = 0
        self.steps = self.step_ns = self.step_max_ns = self.wait_ns = self.wait_max_ns = 0

    def open(self, now_ns: int) -> None:
        """The loop begins, in this thread."""
        self.thread = threading.get_native_id()
        self.since_ns, self.due_ns = now_ns, now_ns + TELL_EVERY_NS
        self._zero()

    def mark(self) -> None:
        """A step ends now; the steps told and pending always add up to the time since ``since_ns``."""
        now_ns = self.clock()
        took = now_ns - self.since_ns - self.step_ns
        self.steps += 1
        self.step_ns += took
        self.step_max_ns = max(self.step_max_ns, took)
        if now_ns >= self.due_ns:
            self.tell(now_ns)

    def close(self) -> None:
        """The loop ends: tell what is left. Also from a generator that dies with the interpreter."""
        try:
            if self.steps or self.wait_ns:
                self.tell(self.clock())
        except Exception:  # noqa: S110 -- in a dying interpreter any name may be gone
            pass

    def tell(self, now_ns: int) -> None:
        """Send the sums; keep them when every receiver is busy. What else goes wrong is not the job's problem."""
        try:
            taken = (self.send or _sender.send)(self._datagram(now_ns), now_ns)
        except Exception:
            taken = True
        self.due_ns = now_ns + TELL_EVERY_NS
        if taken or now_ns - self.since_ns > KEEP_NS:
            self.since_ns = now_ns
            self._zero()

    def _zero(self) -> None:
        self.steps = self.step_ns = self.step_max_ns = self.wait_ns = self.wait_max_ns = 0

    def _datagram(self, now_ns: int) -> bytes:
        """JSON; numbers only, so that nothing needs escaping. Steps that are marked say nothing of waits."""
        waits = "" if self.marked else f',"wait_ns":{self.wait_ns},"wait_max_ns":{self.wait_max_ns}'
        return (
            f'{{"gpuwatch_steps":1,"loop":{self.number},"thread":{self.thread},"end_ns":{now_ns},'
            f'"span_ns":{now_ns - self.since_ns},"steps":{self.steps},"step_ns":{self.step_ns},'
            f'"step_max_ns":{self.step_max_ns}{waits}}}'
        ).encode("ascii")


def directories(env: Mapping[str, str]) -> tuple[str, ...]:
    """Where receivers may be: as for every client of the daemon, but all of them are told."""
    named = env.get("GPUWATCH_ENDPOINT", "")
    if named:
        scheme, separator, rest = named.partition("://")
        path = rest if separator else named
        return () if separator and scheme != "ipc" else (os.path.abspath(path),)  # noqa: PTH100 -- pathlib costs 5 ms
    user = env.get("XDG_RUNTIME_DIR", "")
    return (*((user + "/gpuwatch",) if user else ()), SYSTEM_DIRECTORY)


class _Sender:
    """Datagrams to whoever listens. Threads may share it: the kernel's socket is the only state that matters."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = directories
        self._receivers: tuple[str, ...] = ()
        self._look_ns: int | None = None
        """When to look for receivers next; None: at once."""
        self._socket: socket.socket | None = None

    def send(self, payload: bytes, now_ns: int) -> bool:
        """False when somebody is there and nobody has room: worth another try. Never waits."""
        if self._look_ns is None or now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_EVERY_NS
            self._receivers = self._find()
        if not self._receivers:
            return True
        opened = self._opened()
        taken = full = False
        for receiver in self._receivers:
            try:
                opened.sendto(payload, receiver)
                taken = True
            except BlockingIOError:
                full = True
            except OSError:
                self._receivers = tuple(other for other in self._receivers if other != receiver)
        return taken or not full

    def close(self) -> None:
        """Send nothing any more."""
        self._receivers, self._directories = (), ()
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def _find(self) -> tuple[str, ...]:
        found: list[str] = []
        for directory in self._directories:
            try:
                names = sorted(os.listdir(directory))  # noqa: PTH208 -- pathlib costs 5 ms
            except OSError:
                continue
            found += [directory + "/" + name for name in names if name.startswith(RECEIVER_PREFIX)]
        return tuple(found[:MAX_RECEIVERS])

    def _opened(self) -> socket.socket:
        if self._socket is None:
            import socket

            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self._socket


_numbers = itertools.count(1)
_marks = threading.local()
_sender = _Sender(directories(os.environ))


def _in_child() -> None:
    """A forked child has loops of its own, or none."""
    global _marks, _sender  # noqa: PLW0603 -- the module is the process's one instance
    _sender.close()
    _marks = threading.local()
    _sender = _Sender(directories(os.environ))


def _at_end() -> None:
    _sender.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_end)
