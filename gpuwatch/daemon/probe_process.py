"""One probe as a child process in its own session: read within bounds, ended with everything that it started.

Owns: the child, its pipes, its time limit, who on the GPU belongs to it. Refuses: deciding that it may start.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch.daemon.probe_locks import unlock
from gpuwatch.model import DeviceSample, ProbeResult, ProbeStatus
from gpuwatch.verdict import probe_run

MAX_STDOUT_BYTES = 1024 * 1024
"""A result has a few kilobytes; more is not one."""
MAX_LINE_BYTES = 4096
KILL_AFTER_S = 0.5
"""From SIGTERM to SIGKILL: enough for a probe to remove its files, unless it is stuck in a driver call."""
ABANDON_AFTER_S = 1.0
"""After the child's end, for pipes that a process outside its session still holds open."""
POLL_S = 0.1


class Launch(NamedTuple):
    """Everything that is needed to start one probe."""

    probe: str
    argv: tuple[str, ...]
    env: dict[str, str]
    timeout_s: float
    lock_fds: tuple[int, ...] = ()
    """Inherited by the child, so that its GPUs stay locked when we die before it. Closed at its end."""
    device_indices: frozenset[int] = frozenset()
    """Empty: no GPU."""
    forced: bool = False


class _End(NamedTuple):
    status: ProbeStatus
    message: str
    contaminated: bool = False


class ProbeProcess:
    """``start`` returns at once; ``done`` is called once, from the reading thread."""

    def __init__(
        self, launch: Launch, done: Callable[[ProbeResult], None], progress: Callable[[str], None] | None = None
    ) -> None:
        """Starts the child. Raises OSError when the interpreter cannot be executed."""
        self.probe = launch.probe
        self.device_indices = launch.device_indices
        """Empty: no GPU."""
        self._launch = launch
        self._done = done
        self._progress = progress
        self._guard = threading.Lock()
        self._end: _End | None = None
        self._kill_at = float("inf")
        self._reaped = False
        self._stdout = bytearray()
        self._line = bytearray()
        self._last_line = ""
        self._started_wall_ns = time.time_ns()
        self._started = time.monotonic()
        self._child = subprocess.Popen(
            launch.argv,
            env=launch.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            pass_fds=launch.lock_fds,
        )
        self.pid = self._child.pid
        self._thread = threading.Thread(target=self._run, name=f"probe-{launch.probe}", daemon=True)

    def start(self) -> None:
        """Begin to read the child."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for ``done`` to have been called; False when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check(self, sample: DeviceSample) -> None:
        """End the probe when somebody else computes on one of its GPUs: SIGTERM now, SIGKILL half a second later."""
        if sample.device_index not in self.device_indices or self._launch.forced:
            return
        pids = probe_run.compute_pids(sample)
        own, invisible = sort_pids(pids, self.pid)
        # On several GPUs each has a rank of the probe, and one of them the process that started the ranks too.
        foreign = probe_run.intruder(pids, own, invisible, allowed=min(len(self.device_indices), 2))
        if foreign is not None:
            message = f"stopped: {describe_pid(foreign)} started to use GPU {sample.device_index}; run it again later"
            self._finish_early(_End(ProbeStatus.BUSY, message, contaminated=True))

    def stop(self) -> None:
        """End the probe because its owner does not want it any more."""
        self._finish_early(_End(ProbeStatus.FAILED, "stopped on request"))

    # ------------------------------------------------------------------ the reading thread

    def _run(self) -> None:
        """Whatever goes wrong here, the child ends and ``done`` is called: somebody waits for it."""
        broken = "the thread that reads the probe ended early"
        try:
            self._read()
            broken = ""
        except Exception as exc:
            broken = f"cannot read the probe: {type(exc).__name__}: {exc}"
        finally:
            self._signal(signal.SIGKILL)  # workers that outlived the probe
            returncode = self._child.wait()
            with self._guard:
                self._reaped = True
            unlock(self._launch.lock_fds)
            self._done(self._result(returncode, broken))

    def _result(self, returncode: int, broken: str) -> ProbeResult:
        end = self._end or (_End(ProbeStatus.FAILED, probe_run.printable(broken)) if broken else None)
        if end is None:
            result = probe_run.read_result(self.probe, bytes(self._stdout), returncode, self._last_line)
        else:
            result = probe_run.failed(self.probe, end.message, end.status)
        # Our own clock, so that a probe that never answered has a start and a duration too.
        return msgspec.structs.replace(
            result,
            started_wall_ns=result.started_wall_ns or self._started_wall_ns,
            duration_s=result.duration_s or time.monotonic() - self._started,
            contaminated=result.contaminated or self._launch.forced or (end is not None and end.contaminated),
        )

    def _read(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        out, err = self._child.stdout, self._child.stderr
        gone_at = float("inf")
        with out, err, selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ, self._take_stdout)
            ready.register(err, selectors.EVENT_READ, self._take_stderr)
            while ready.get_map():
                now = time.monotonic()
                self._keep_time(now)
                if gone_at == float("inf") and self._exited():
                    gone_at = now
                    self._signal(signal.SIGKILL)
                events = ready.select(POLL_S)
                for key, _ in events:
                    chunk = os.read(key.fd, 65536)
                    key.data(chunk)
                    if not chunk:
                        ready.unregister(key.fileobj)
                if not events and now > gone_at + ABANDON_AFTER_S:
                    return
        while not self._exited():  # it closed both pipes and goes on
            self._keep_time(time.monotonic())
            time.sleep(POLL_S)

    def _keep_time(self, now: float) -> None:
        limit_s = self._launch.timeout_s
        if now - self._started > limit_s:
            said = f"; it last said: {self._last_line}" if self._last_line else ""
            self._finish_early(_End(ProbeStatus.FAILED, f"no result within {limit_s:g} s, killed{said}"))
        if now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def _take_stdout(self, chunk: bytes) -> None:
        room = MAX_STDOUT_BYTES - len(self._stdout)
        self._stdout += chunk[:room]
        if len(chunk) > room:
            self._finish_early(_End(ProbeStatus.FAILED, f"more than {MAX_STDOUT_BYTES} bytes of output: no result"))

    def _take_stderr(self, chunk: bytes) -> None:
        self._line += chunk
        *lines, rest = bytes(self._line).split(b"\n")
        if not chunk:
            lines, rest = [*lines, rest], b""
        self._line = bytearray(rest[-MAX_LINE_BYTES:])
        for line in lines:
            text = probe_run.printable(line.decode("utf-8", "replace"))
            if text:
                self._last_line = text
                self._tell(text)

    def _tell(self, line: str) -> None:
        """To whoever follows the run. A stderr that cannot be written (a full disk, a reader that has gone) takes away
        the progress and must not take the result."""
        try:
            if self._progress is not None:
                self._progress(line)
        except Exception:
            self._progress = None

    # ------------------------------------------------------------------ ending it

    def _finish_early(self, end: _End) -> None:
        with self._guard:
            if self._end is not None or self._reaped or self._exited_unlocked():
                return
            self._end = end
            self._kill_at = time.monotonic() + KILL_AFTER_S
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group. The leader is not reaped before, so the number cannot be somebody else's."""
        with self._guard:
            if not self._reaped:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def _exited(self) -> bool:
        with self._guard:
            return self._exited_unlocked()

    def _exited_unlocked(self) -> bool:
        """Whether the child has ended; it stays a zombie, so that its group number stays taken."""
        if self._reaped:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


def sort_pids(pids: Iterable[int], group: int) -> tuple[frozenset[int], frozenset[int]]:
    """Which pids are in the process group or session ``group``, and which do not exist in our PID namespace."""
    own, invisible = set(), set()
    for pid in pids:
        try:
            if os.getpgid(pid) == group or os.getsid(pid) == group:
                own.add(pid)
        except ProcessLookupError:
            invisible.add(pid)
        except PermissionError:
            continue
    return frozenset(own), frozenset(invisible)


def describe_pid(pid: int) -> str:
    """ "pid 4242 (python train.py)", for a person."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes() or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return f"pid {pid} (not visible from here)"
    program, *arguments = raw.decode("utf-8", "replace").rstrip("\0\n").split("\0")
    return f"pid {pid} ({probe_run.printable(' '.join([Path(program).name, *arguments]), 60)})"
