"""What jobs say of themselves: datagrams of ``gpuwatch.hook``, and what of them is told.

Owns: the sockets, their rights, who sent what, limits on what a sender may do to us. Refuses: believing a word about
any process but the sender, waiting, and being woken: sockets are emptied once a round, so a flood costs no more.

The kernel names the sender of each datagram (SO_PASSCRED); only somebody who may already be any process, CAP_SYS_ADMIN,
can name another. The kernel holds net.unix.max_dgram_qlen datagrams; a sender who finds no room tries again with the
next sum.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from gpuwatch.config import STEP_SOCKET, SYSTEM_RUNTIME_DIR, runtime_directory
from gpuwatch.daemon.endpoint import DIRECTORY_MODE, UMASK, umask
from gpuwatch.errors import CannotCreateError, UsageError
from gpuwatch.model import NOT_READ, Observation, StepReport
from gpuwatch.wire import StepsMessage

if TYPE_CHECKING:  # It imports zmq, which a look in the foreground needs not.
    from gpuwatch.daemon.publisher import Publish

MAX_DATAGRAM_BYTES = 1024
DATAGRAMS_PER_ROUND = 64
REPORTS_PER_SECOND = 16
"""Of one process: eight loops at the hook's own pace. A job that says more is cut short, not the others."""
REPORTS_PER_TICK = 64
PREFIX = "steps."
OLDEST_NS = 60_000_000_000
AHEAD_NS = 100_000_000
"""A report whose end is not near our own clock is of another time namespace: it ends when it arrives."""
_CREDENTIALS = struct.Struct("3i")
_FORMAT = 1

Count = Annotated[int, Meta(ge=0, le=2**62)]


class _Datagram(Struct, frozen=True):
    """What ``gpuwatch.hook`` sends; docs/hook.md. Fields of a newer hook are skipped."""

    gpuwatch_steps: int
    end_ns: Count
    span_ns: Count
    steps: Count
    step_ns: Count
    step_max_ns: Count
    loop: Count = 0
    thread: Count = 0
    wait_ns: Count | None = None
    wait_max_ns: Count | None = None


_decoder = msgspec.json.Decoder(_Datagram)


class StepSocket:
    """One socket that jobs may write to. Use as a context manager, or ``open`` and ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.malformed = 0
        """Datagrams that were not understood, so far."""
        self._socket: socket.socket | None = None
        self._second = 0
        self._said: Counter[int] = Counter()
        """Reports of each process in this second."""

    def open(self) -> None:
        """Bind, with the rights of the sockets beside it, and clear away what killed receivers left. Raises
        CannotCreateError."""
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            _sweep(self.path.parent)
            self.path.unlink(missing_ok=True)
            with umask(UMASK):
                receiver.bind(str(self.path))
        except OSError as exc:
            receiver.close()
            raise CannotCreateError(f"{self.path}: cannot bind a socket there: {exc.strerror or exc}") from None
        with suppress(OSError):  # Root beside a daemon with a group of its own: that group may write here too.
            os.chown(self.path, -1, self.path.parent.stat().st_gid)
        self._socket = receiver

    def close(self) -> None:
        """Remove the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> StepSocket:
        """Open."""
        self.open()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self.close()

    def receive(self, now_ns: int) -> list[StepReport]:
        """What has come since the last call, at most DATAGRAMS_PER_ROUND. ``now_ns``: CLOCK_MONOTONIC."""
        reports: list[StepReport] = []
        if self._socket is None:
            return reports
        if now_ns // 1_000_000_000 != self._second:
            self._second = now_ns // 1_000_000_000
            self._said.clear()
        for _ in range(DATAGRAMS_PER_ROUND):
            try:
                # Room for the credentials and for nothing else: file descriptors that somebody sends are not taken.
                payload, ancillary, flags, _sender = self._socket.recvmsg(
                    MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:
                break
            pid = _pid(ancillary)
            report = None if flags & socket.MSG_TRUNC or pid <= 0 else parse(payload, pid, now_ns)
            if report is None:
                self.malformed += 1
            elif self._said[pid] < REPORTS_PER_SECOND:
                self._said[pid] += 1
                reports.append(report)
        return reports


def parse(payload: bytes, pid: int, now_ns: int) -> StepReport | None:
    """One datagram of process ``pid``, or None when it is not one or contradicts itself."""
    try:
        said = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    wait_max_ns = said.wait_max_ns if said.wait_max_ns is not None else said.wait_ns
    if said.gpuwatch_steps != _FORMAT or max(said.step_ns, said.wait_ns or 0) > said.span_ns:
        return None
    if said.step_max_ns > said.step_ns or (wait_max_ns or 0) > (said.wait_ns or 0):
        return None
    end_ns = said.end_ns if now_ns - OLDEST_NS <= said.end_ns <= now_ns + AHEAD_NS else now_ns
    return StepReport(
        *(pid, end_ns, said.span_ns, said.steps, said.step_ns, said.step_max_ns),
        NOT_READ if said.wait_ns is None else said.wait_ns,
        NOT_READ if wait_max_ns is None else wait_max_ns,
        said.loop,
        said.thread,
    )


def _pid(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Of the sender in our PID namespace; 0 for one that cannot be seen from here."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack(data)[0])
    return 0


def _sweep(directory: Path) -> None:
    """Remove sockets of receivers that were killed. ``steps.sock`` belongs to whoever holds the directory's lock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knock:
        knock.setblocking(False)
        for path in directory.glob(f"{PREFIX}[0-9]*"):
            try:
                knock.connect(str(path))
            except ConnectionRefusedError:
                with suppress(OSError):
                    path.unlink()
            except OSError:
                continue


def beside_the_daemon(env: Mapping[str, str], pid: int) -> Path | None:
    """Where a program that is not the daemon of a directory can listen so that jobs find it: None where the
    environment names no directory of this machine."""
    user = env.get("XDG_RUNTIME_DIR", "")
    named = env.get("GPUWATCH_ENDPOINT", "") or (f"{user}/gpuwatch" if user else SYSTEM_RUNTIME_DIR)
    try:
        return runtime_directory(named) / f"{PREFIX}{pid}"
    except UsageError:
        return None


class Steps:
    """Receives and tells. Not thread-safe: the loop that owns it calls it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._sockets = [StepSocket(path) for path in paths]
        self._untold: deque[StepReport] = deque(maxlen=REPORTS_PER_TICK)

    @property
    def malformed(self) -> int:
        """Datagrams that were not understood, so far."""
        return sum(receiver.malformed for receiver in self._sockets)

    def open(self) -> tuple[str, ...]:
        """Listen wherever it is possible; gives a line for each place where it is not: no job needs it."""
        failed = []
        for receiver in self._sockets:
            try:
                with suppress(OSError):
                    receiver.path.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                receiver.open()
            except CannotCreateError as exc:
                failed.append(str(exc))
        return tuple(failed)

    def close(self) -> None:
        """Remove the sockets."""
        for receiver in self._sockets:
            receiver.close()

    def receive(self, now_ns: int, known: Collection[int]) -> list[StepReport]:
        """What processes of GPU jobs (``known`` pids) have said since the last call; others are not our subject."""
        return [report for receiver in self._sockets for report in receiver.receive(now_ns) if report.pid in known]

    def take(self, observation: Observation) -> None:
        """Keep it to be told if it is one of ours."""
        if isinstance(observation, StepReport):
            self._untold.append(observation)

    def publish(self, publish: Publish) -> None:
        """Tell what is new, if anything."""
        reports = tuple(self._untold)
        self._untold.clear()
        if reports:
            publish(lambda epoch, seq: StepsMessage(epoch, seq, reports))


def listening(env: Mapping[str, str], pid: int) -> Steps:
    """For a program that looks by itself: open and close are the caller's."""
    path = beside_the_daemon(env, pid)
    return Steps([path] if path is not None else [])


def daemons_paths(directory: Path, env: Mapping[str, str], pid: int, *, private: bool) -> list[Path]:
    """Where a daemon listens. One in a directory that nobody can guess also where jobs look."""
    beside = beside_the_daemon(env, pid) if private else None
    return [directory / STEP_SOCKET, *([beside] if beside is not None else [])]
