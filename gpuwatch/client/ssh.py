"""A daemon on another machine, through the user's own ssh.

Owns: the ssh processes, a private directory with the forwarded sockets, trying again. Refuses: keys, passwords and
host names (ssh's configuration has them), the protocol (connection.py's).

ssh never asks anything here (BatchMode): the screen owns the terminal. The forwarding ssh runs ``cat`` on the other
side, so that it ends when our end of its standard input does, also when we are killed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from gpuwatch.client.connection import Connection
from gpuwatch.client.feed import Asked
from gpuwatch.client.state import HISTORY_TICKS, Link, NodeState
from gpuwatch.config import REQUEST_SOCKET, STREAM_SOCKET
from gpuwatch.errors import UsageError

SCHEME = "ssh://"
RETRY_FIRST_S, RETRY_MOST_S = 2.0, 30.0
NO_DAEMON = 69
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_FORWARD_OPTIONS = (
    *("-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes", "-o", "StreamLocalBindMask=0177"),
)
_FIND = (
    """sh -c 'for d in "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/gpuwatch" /run/gpuwatch; do """
    f"""[ -S "$d/{STREAM_SOCKET}" ] && echo "$d" && exit 0; done; exit {NO_DAEMON}'"""
)
_TARGET = re.compile(r"(?P<host>(?:[^@/\s:-][^@/\s:]*@)?[^@/\s:-][^@/\s:]*)(?::(?P<port>\d{1,5}))?(?P<path>/[^:\s]*)?")


class Target(Struct, frozen=True):
    """Where to."""

    host: str
    """As ssh takes it, with the user if there is one."""
    port: str = ""
    path: str = ""
    """Runtime directory of the daemon there; empty: look where daemons usually are."""


def target(endpoint: str) -> Target:
    """``ssh://[user@]host[:port][/directory]``. Raises UsageError."""
    match = _TARGET.fullmatch(endpoint.removeprefix(SCHEME))
    if match is None or not endpoint.startswith(SCHEME):
        raise UsageError(f"{endpoint!r} is no ssh endpoint: write ssh://[user@]host[:port][/directory of its daemon]")
    return Target(match["host"], match["port"] or "", (match["path"] or "").rstrip("/"))


class SshFeed:
    """A Feed. Its state is that of the connection, and ssh's own words while there is none."""

    def __init__(
        self, endpoint: str, clock: Callable[[], float] = time.monotonic, *, keep_ticks: int = HISTORY_TICKS
    ) -> None:
        """Starts at the first ``step``. Raises UsageError."""
        self.endpoint = endpoint
        self._target = target(endpoint)
        self._clock = clock
        base = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 -- a socket's path may have 107 bytes only
        self._directory = Path(tempfile.mkdtemp(prefix="gpuwatch-ssh-", dir=base))
        self._connection = Connection(f"ipc://{self._directory}", keep_ticks=keep_ticks)
        self._there = self._target.path
        self._process: subprocess.Popen[bytes] | None = None
        self._forwarding = False
        self._words = f"asking {self._target.host} for its daemon"
        self._retry_s = RETRY_FIRST_S
        self._retry_at = 0.0
        self._lost = False

    def step(self, timeout_s: float) -> NodeState:
        """As Feed's. Starts ssh, and starts it again when it has ended."""
        self._look()
        state = self._connection.step(timeout_s)
        if self._forwarding and state.inventory is not None and state.link is Link.LIVE:
            self._retry_s, self._lost = RETRY_FIRST_S, False
        changes: dict[str, object] = {"endpoint": self.endpoint}
        if self._lost and state.inventory is not None:
            changes |= {"link": Link.LOST, "detail": self._words}
        elif state.link is Link.CONNECTING and self._words:
            changes["detail"] = self._words
        return msgspec.structs.replace(state, **changes)

    def request(self, message: Asked, /) -> None:
        """To the daemon there."""
        self._connection.request(message)

    def close(self) -> None:
        """End ssh, then give everything back."""
        self._end_process()
        self._connection.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _look(self) -> None:
        """Begin what is due, take note of what has ended."""
        if self._process is None:
            if self._clock() >= self._retry_at:
                self._begin()
            return
        code = self._process.poll()
        if code is None:
            return
        found = self._read("stdout").strip().splitlines()
        words = self._read("stderr").strip().splitlines()
        was_forwarding = self._forwarding
        self._end_process()
        if code == 0 and not was_forwarding and found and found[-1].startswith("/"):
            self._there = found[-1]
            self._begin()
            return
        host = self._target.host
        if code == NO_DAEMON and not was_forwarding:
            self._words = f"{host}: no daemon is running there; start one with: gpuwatch daemon"
        else:
            said = words[-1] if words else f"ssh ended with code {code}"
            # OpenSSH itself begins with the host, if it says who refused.
            self._words = f"{host}: {said.removeprefix(f'{host}: ')}"
        self._lost = True
        if not self._target.path:
            self._there = ""
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MOST_S)

    def _begin(self) -> None:
        port = ("-p", self._target.port) if self._target.port else ()
        self._forwarding = bool(self._there)
        if not self._forwarding:
            self._start(("ssh", *_OPTIONS, *port, "--", self._target.host, _FIND))
            return
        sockets: list[str] = []
        for name in (STREAM_SOCKET, REQUEST_SOCKET):
            sockets += ["-L", f"{self._directory / name}:{self._there}/{name}"]
        self._words = f"forwarding {self._there} of {self._target.host}"
        self._start(("ssh", *_OPTIONS, *_FORWARD_OPTIONS, *port, *sockets, "--", self._target.host, "cat"))

    def _start(self, command: Sequence[str]) -> None:
        # Files, not pipes: a master connection that outlives its ssh would keep a pipe open for ever.
        with self._open("stdout") as stdout, self._open("stderr") as stderr:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True
                )
            except OSError as exc:
                self._words = f"cannot start ssh: {exc.strerror}"
                self._retry_at = self._clock() + RETRY_MOST_S

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self._forwarding = False
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _open(self, name: str) -> IO[bytes]:
        return (self._directory / name).open("wb")

    def _read(self, name: str) -> str:
        return (self._directory / name).read_text(encoding="utf-8", errors="replace")
