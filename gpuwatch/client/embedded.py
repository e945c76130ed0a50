"""A daemon of our own, for as long as we run: what ``gpuwatch tui`` does when no daemon is there.

Owns: the child process, its runtime directory, its last words. Refuses: talking to it (connection.py does).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import gpuwatch
from gpuwatch.client.endpoints import serving
from gpuwatch.errors import UnavailableError

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0


class EmbeddedDaemon:
    """Context manager. The daemon ends when its standard input does: also when we are killed."""

    def __init__(self, extra_args: Sequence[str] = ()) -> None:
        self._extra_args = list(extra_args)
        self._directory: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where to connect; valid after ``start``."""
        assert self._directory is not None, "start() comes first"
        return f"ipc://{self._directory}"

    @property
    def pid(self) -> int:
        """The child's pid; valid after ``start``."""
        assert self._child is not None, "start() comes first"
        return self._child.pid

    def start(self) -> None:
        """Start the child; it may take a moment to serve, which a Connection copes with."""
        # Not $TMPDIR: a batch system's may be too long for a socket path of 107 bytes.
        base = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 -- mkdtemp makes it 0700 and unguessable
        self._directory = Path(tempfile.mkdtemp(prefix="gpuwatch-", dir=base))
        self._stderr = (self._directory / "stderr").open("w+b")
        self._child = subprocess.Popen(
            [
                # -P: a folder of the user's that is called zmq or gpuwatch must not be taken for the library.
                *(sys.executable, "-P", "-m", "gpuwatch", "daemon"),
                *("--runtime-dir", str(self._directory), "--embedded"),
                *self._extra_args,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=_child_env(os.environ),
            # Ctrl-C in the terminal is for the screen; the daemon ends when the screen does.
            start_new_session=True,
        )

    def wait_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when its sockets are there. Raises UnavailableError with its last words when it fails to start."""
        deadline = time.monotonic() + timeout_s
        while not serving(self.endpoint):
            reason = self.failure()
            if reason:
                raise UnavailableError(reason)
            if time.monotonic() > deadline:
                raise UnavailableError(f"the embedded daemon does not serve within {timeout_s:.0f} s")
            time.sleep(0.02)

    def failure(self) -> str:
        """One line if the child has ended, else ""."""
        if self._child is None or self._child.poll() is None:
            return ""
        return f"the embedded daemon ended with code {self._child.returncode}: {self._last_words()}"

    def close(self) -> None:
        """End the child and remove its directory."""
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> EmbeddedDaemon:
        """Start and wait until it serves."""
        try:
            self.start()
            self.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self.close()

    def _last_words(self) -> str:
        """The last line that is not empty of what it wrote to stderr."""
        assert self._directory is not None
        text = (self._directory / "stderr").read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1].removeprefix("gpuwatch: ") if lines else "it said nothing"


def _child_env(env: Mapping[str, str]) -> dict[str, str]:
    """With -P a checkout that is not installed would not be found by its own child."""
    parent = Path(gpuwatch.__file__).parents[1]
    if parent.name in ("site-packages", "dist-packages"):
        return dict(env)
    path = [str(parent), *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])]
    return {**env, "PYTHONPATH": os.pathsep.join(path)}
