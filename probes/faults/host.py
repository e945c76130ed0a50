"""What stands around a job: the process that forks it, its CPU quota, other programs on the host.

Owns: starting and ending these, all bounded. Refuses: what the job does, and measuring.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_S = 90.0
"""For torch to load and the pictures to be drawn, on a slow disk."""
PERIOD_US = 100_000
_BUSY = "import os, zlib\nnoise = os.urandom(1 << 20)\nwhile True: zlib.compress(noise, 6)"


class NotHereError(Exception):
    """This machine cannot stage the case; the message says why."""


class Peer:
    """A forked process at the other end of a channel of JSON lines."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid, self._link, self._rest = pid, link, b""
        self.ended = False

    def say(self, **message: Any) -> None:
        """Send one object. A process that is gone is noticed by ``hear``."""
        with contextlib.suppress(OSError):
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        """The next object, or None when none came in time or the process has ended."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            # Looked at once also when the time is over: with no time to wait there may be something already.
            if not select.select([self._link], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            try:
                chunk = self._link.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                self.ended = True
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> None:
        """Kill the process and its children, which share its process group."""
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Forker:
    """The process that has loaded torch and forks jobs and stores."""

    def __init__(self, folder: Path, python: str) -> None:
        ours, theirs = socket.socketpair()
        root = Path(__file__).resolve().parents[2]
        module = f"{__package__}.train"
        # is_available() must not initialise CUDA before the fork, and threads must not be there to be lost in it.
        env = {
            **os.environ,
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "PYTHONWARNINGS": "ignore",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": _path(root),
        }
        self._control = ours
        self._process = subprocess.Popen(
            [python, "-m", module, str(theirs.fileno()), str(folder)], pass_fds=[theirs.fileno()], env=env
        )
        theirs.close()
        ours.settimeout(START_S)
        if ours.recv(16) != b"ready\n":
            raise NotHereError(
                "the training process did not start; see its message above (torch and Pillow are needed)"
            )

    def job(self) -> Peer:
        """A job that waits for its plan."""
        return self._fork(b"J")

    def store(self, delay_ms: float) -> tuple[Peer, int]:
        """An object store with this latency, and its port."""
        peer = self._fork(b"S")
        peer.say(delay_ms=delay_ms)
        answer = peer.hear(10.0)
        if answer is None:
            raise NotHereError("the object store did not start")
        return peer, int(answer["port"])

    def _fork(self, kind: bytes) -> Peer:
        ours, theirs = socket.socketpair()
        socket.send_fds(self._control, [kind], [theirs.fileno()])
        theirs.close()
        return Peer(int(self._control.recv(16)), ours)

    def close(self) -> None:
        """End it; the jobs end by themselves when their channels close."""
        self._control.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _path(root: Path) -> str:
    before = os.environ.get("PYTHONPATH", "")
    return f"{root}{os.pathsep}{before}" if before else str(root)


class Quota:
    """A CPU quota for a job and the workers that it will start (cgroup v2, else v1). Needs root."""

    def __init__(self, pid: int, cores: float) -> None:
        root = Path("/sys/fs/cgroup")
        self._v2 = (root / "cgroup.controllers").exists()
        root = root if self._v2 else root / "cpu"
        self._folder = root / f"job-{pid}"
        try:
            if self._v2 and "cpu" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            self.set(cores)
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as exc:
            self.close()
            raise NotHereError(
                f"no CPU quota can be set here ({exc.strerror or exc}): run as root on the host"
            ) from None

    def set(self, cores: float) -> None:
        """Change it; 0 is none."""
        if self._v2:
            limit = "max" if not cores else str(int(cores * PERIOD_US))
            (self._folder / "cpu.max").write_text(f"{limit} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_quota_us").write_text("-1" if not cores else str(int(cores * PERIOD_US)))

    def close(self) -> None:
        """Remove the group once its processes are gone."""
        for _ in range(50):
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)
            else:
                return


class Crowd:
    """Other programs that keep some cores busy."""

    def __init__(self, cores: int) -> None:
        self._busy: list[subprocess.Popen[bytes]] = [
            subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(cores)
        ]

    def close(self) -> None:
        """End them."""
        for process in self._busy:
            process.kill()
            process.wait()
        self._busy = []
