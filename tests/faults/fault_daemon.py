"""A real daemon on the fake library, and a client of it.

Owns: starting, steering, watching and ending it. Refuses: scenarios and expectations.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fakenvml.build import fake_env, steer

from gpuwatch.client.connection import Connection
from gpuwatch.client.state import NodeState
from gpuwatch.config import STREAM_SOCKET
from gpuwatch.model import Device, DeviceSample, DriverState
from gpuwatch.wire import StartDiagnosis

PERIOD_S = 0.1
PATIENCE_S = 15.0


class Watched:
    """A daemon and its client."""

    def __init__(self, child: subprocess.Popen[bytes], runtime: Path, folder: Path) -> None:
        self.child = child
        self.runtime = runtime
        self._connection: Connection | None = None
        self._ending = False
        self.folder = folder

    @property
    def _client(self) -> Connection:
        """Connected at the first use, once the socket is there: reconnecting comes with growing pauses."""
        if self._connection is None:
            ends = time.monotonic() + PATIENCE_S
            while not (self.runtime / STREAM_SOCKET).is_socket() and self.child.poll() is None:
                assert time.monotonic() < ends, f"never served: {self.log()}"
                time.sleep(0.005)
            self._connection = Connection(str(self.runtime))
        return self._connection

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()

    @property
    def state(self) -> NodeState:
        """The picture as the client has it."""
        return self._client.state

    @property
    def driver(self) -> DriverState | None:
        """What the daemon says about the driver."""
        inventory = self.state.inventory
        return None if inventory is None else inventory.driver

    @property
    def hint(self) -> str:
        """What the daemon tells a person to do about it."""
        return self.state.inventory.driver_hint if self.state.inventory is not None else ""

    def until(self, wanted: Callable[[NodeState], object], what: str) -> NodeState:
        """Take in what is published until the picture is as wanted."""
        ends = time.monotonic() + PATIENCE_S
        pause_s = 0.0
        while True:
            state = self._client.step(pause_s)
            if wanted(state):
                return state
            pause_s = 0.05
            assert self.child.poll() is None, f"the daemon ended: {self.log()}"
            assert time.monotonic() < ends, f"never came: {what}; it says {self.driver}, {self.log()}"

    def until_driver(self, driver: DriverState) -> NodeState:
        """Until the inventory says so."""
        return self.until(lambda _: self.driver is driver, f"driver {driver}")

    def sample(self, index: int) -> DeviceSample:
        """The newest published sample of a device."""
        return self.until(lambda s: index in s.devices, f"a sample of GPU {index}").devices[index]

    def device(self, index: int) -> Device:
        """The identity of a device."""
        state = self.until(lambda s: s.device(index) is not None, f"GPU {index} in the inventory")
        device = state.device(index)
        assert device is not None
        return device

    def ticks(self, count: int = 3) -> NodeState:
        """Until ``count`` more ticks were published."""
        seen, last = 0, self.state.tick_mono_ns
        while seen < count:
            last_seen = last
            state = self.until(lambda s: s.tick_mono_ns > last_seen, "a tick")  # noqa: B023 - called at once
            last, seen = state.tick_mono_ns, seen + 1
        return self.state

    def steer(self, line: str) -> None:
        """Change what the driver answers from now on."""
        steer(self.folder, line)

    def diagnose(self, pid: int, seconds: float) -> None:
        """Ask for a diagnosis of a job."""
        self._client.request(StartDiagnosis(0, pid, seconds=seconds))

    def end(self) -> None:
        """Ask it to stop, once: while Python shuts down a second SIGTERM would kill it."""
        if not self._ending:
            self.child.terminate()
        self._ending = True

    def log(self) -> str:
        """What the daemon wrote to stderr."""
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def watched(
    folder: Path,
    scenario: str,
    generation: str = "",
    env: dict[str, str] | None = None,
    period_s: float = PERIOD_S,
    runtime: Path | None = None,
) -> Iterator[Watched]:
    """Start a daemon on the scenario, connect, end it with SIGTERM: it must end by itself and leave no traceback.
    ``runtime``: where it serves; a place of its own otherwise."""
    child_env = {**fake_env(folder, scenario, generation), **(env or {})}
    # Not under tmp_path: a socket's path may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as short, (folder / "log").open("wb") as log:
        place = Path(short) / "run" if runtime is None else runtime
        argv = [sys.executable, "-m", "gpuwatch", "daemon", "--runtime-dir", str(place), "--retry", "0.1"]
        argv += ["--period", str(period_s)]
        child = subprocess.Popen(argv, env=child_env, stdin=subprocess.DEVNULL, stderr=log, cwd=folder)
        run = Watched(child, place, folder)
        try:
            yield run
            run.end()
            assert child.wait(10) == 0
            assert "Traceback" not in run.log()
        finally:
            run.close()
            if child.poll() is None:
                child.kill()
            child.wait()


def fake_module(folder: Path, name: str, text: str) -> dict[str, str]:
    """The environment in which a child finds this module before the installed one."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / f"{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH", ""))))}
