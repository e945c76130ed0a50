"""One run of the py-spy program: command, output, and what its errors mean for a person.

Owns: finding the executable, the child process, its JSON, error texts with the setting that would help.
Refuses: when to sample and whom.

Always ``--nonblocking``: py-spy then only reads the other process's memory (process_vm_readv) and never stops it.
Native frames need more than that: native_look.py.
"""

from __future__ import annotations

import enum
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gpuwatch.collect import roles
from gpuwatch.collect.own_memory import NOTHING, OwnMemory, executable, read_memory
from gpuwatch.collect.proc_files import read_all, reading
from gpuwatch.collect.proc_parse import parse_stat, parse_status, printable
from gpuwatch.collect.slow_calls import Asked, SlowCalls
from gpuwatch.model import Absent, Frame, ThreadStack

TIMEOUT_S = 2.0
NOT_INSTALLED = "py-spy is not installed beside gpuwatch: pip install py-spy"
_POLL_S = 0.05
_CAP_SYS_PTRACE = 1 << 19


class Failure(enum.Enum):
    """What kind of failure, for the sampler: go on, or leave that process alone."""

    MISSING = "missing"
    """py-spy is not installed."""
    PERMISSION = "permission"
    GONE = "gone"
    NOT_PYTHON = "not python"
    VERSION = "version"
    """This py-spy does not know that Python, or is too old for what it is asked for."""
    TIMEOUT = "timeout"
    OUTPUT = "output"
    """py-spy succeeded and wrote something else than its JSON."""
    TORN = "torn"
    """Memory changed while it was read: try again."""
    STOPPED = "stopped"
    """We were told to stop, or the process is stopped and has nothing to tell."""


class Dump(NamedTuple):
    """Threads, or a failure with one line for a person."""

    threads: tuple[ThreadStack, ...] = ()
    failure: Failure | None = None
    error: str = ""


class _Frame(Struct):
    name: str
    filename: str = ""
    line: int = 0


class _Thread(Struct):
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: tuple[_Frame, ...] = ()


_decoder = msgspec.json.Decoder(tuple[_Thread, ...])


def find_py_spy() -> Path | None:
    """Beside our own interpreter, then by the installed package's record, then on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return beside
    if found := shutil.which("py-spy"):
        return Path(found)
    # Only here: it loads the email package.
    import importlib.metadata

    try:
        files = importlib.metadata.files("py-spy") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    scripts = (Path(str(file.locate())) for file in files if file.name == "py-spy")
    return next((script.resolve() for script in scripts if os.access(script, os.X_OK)), None)


def parse_dump(output: bytes) -> tuple[ThreadStack, ...]:
    """py-spy's JSON. Raises ValueError (msgspec's are) when it is something else."""
    return tuple(
        ThreadStack(
            os_tid=thread.os_thread_id or 0,
            name=thread.thread_name or _name_of_main(thread),
            active=thread.active,
            owns_gil=thread.owns_gil,
            frames=_stack(tuple((f.name, f.filename, f.line) for f in thread.frames)),
        )
        for thread in _decoder.decode(output)
    )


@lru_cache(maxsize=2048)
def _stack(frames: tuple[tuple[str, str, int], ...]) -> tuple[Frame, ...]:
    """The same stack again is the same object: a burst repeats a few stacks hundreds of times (20 MiB otherwise)."""
    return tuple(_frame(*frame) for frame in frames)


@lru_cache(maxsize=4096)
def _frame(name: str, filename: str, line: int) -> Frame:
    return Frame(sys.intern(name), sys.intern(filename), max(0, line))


def _name_of_main(thread: _Thread) -> str:
    """Names live in the threading module: a program that never imported it has a main thread without one."""
    return "MainThread" if thread.pid and thread.os_thread_id == thread.pid else ""


class PySpy:
    """Starts py-spy. Thread-safe: it keeps only the questions that a process's memory has not answered."""

    def __init__(self, executable: Path | None = None, root: Path = Path("/proc")) -> None:
        self.executable = executable or find_py_spy()
        """None when py-spy is not installed."""
        self._root = root
        self._slow = SlowCalls("py-spy")
        self._asked: dict[tuple[int, int], Asked[OwnMemory]] = {}
        """By pid and start time."""
        self._lock = threading.Lock()

    def unfit(self, pid: int) -> Failure | None:
        """Why it makes no sense to dump this process; None for one that runs CPython, by name or by a mapped libpython.

        TIMEOUT when only its memory could tell and that cannot be read now; to be asked again.
        """
        stat = reading(self._root / str(pid) / "stat", parse_stat)
        if isinstance(stat, Absent):
            return Failure.GONE
        exe = executable(str(self._root), pid)
        if roles.looks_python(roles.Names(stat.comm, exe, ())):
            return None
        process = pid, stat.start_ticks
        with self._lock:
            asked = self._asked.pop(process, None)
            if asked is None:
                self._slow.tick()
                asked = self._slow.ask(lambda: read_memory(str(self._root), pid, stat.comm, exe, main=True), NOTHING)
            if not asked.done.is_set():
                self._asked[process] = asked
                return Failure.TIMEOUT
        return None if asked.value.python else Failure.NOT_PYTHON

    def dump(self, pid: int, stop: threading.Event | None = None) -> Dump:
        """One dump of all threads. Never raises; ``stop`` kills a child that is under way."""
        executable = self.executable
        if executable is None:
            return Dump((), Failure.MISSING, NOT_INSTALLED)
        command = [str(executable), "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            code, output, errors = run_program(command, TIMEOUT_S, stop)
        except OSError as error:
            return Dump((), Failure.MISSING, f"{executable} cannot be started: {error.strerror}")
        if code is None:
            if stop is not None and stop.is_set():
                return Dump((), Failure.STOPPED, "stopped")
            why = "the process waits in the kernel" if self.state(pid) == "D" else "machine overloaded?"
            return Dump((), Failure.TIMEOUT, f"py-spy did not finish within {TIMEOUT_S:g} s: {why}")
        if code != 0:
            return self.failed(pid, errors)
        try:
            threads = parse_dump(output)
        except ValueError as error:
            return Dump((), Failure.OUTPUT, f"py-spy's output was not understood: {error}")
        return Dump(threads) if threads else Dump((), Failure.TORN, "py-spy found no thread")

    def state(self, pid: int) -> str:
        """The letter of ``/proc/PID/stat``, "?" when there is no such process."""
        stat = reading(self._root / str(pid) / "stat", parse_stat)
        return "?" if isinstance(stat, Absent) else stat.state

    def failed(self, pid: int, errors: bytes) -> Dump:
        """The failure behind py-spy's message, named."""
        text = printable(b"; ".join(line.strip() for line in errors.splitlines()[:6] if line.strip()))
        lower = text.lower()
        if "permission denied" in lower or "not permitted" in lower:
            return Dump((), Failure.PERMISSION, f"permission denied ({self._permission_advice(pid)}")
        if self.state(pid) in ("?", "Z", "X"):
            return Dump((), Failure.GONE, f"process {pid} has ended")
        if "unsupported version of python" in lower:
            detail = text.removeprefix("Error: ")
            return Dump((), Failure.VERSION, f"{detail}: this py-spy does not know it, a newer one may")
        if "failed to find python version" in lower or "executable name" in lower:
            return Dump((), Failure.NOT_PYTHON, f"process {pid} is not a Python process")
        return Dump((), Failure.TORN, f"py-spy: {text.removeprefix('Error: ')[:200] or 'failed without a word'}")

    def _permission_advice(self, pid: int) -> str:
        """Which of the four locks it is, and its key. Ends the bracket that the caller opened."""
        scope = reading(self._root / "sys/kernel/yama/ptrace_scope", int)
        scope_text = "no ptrace_scope here" if isinstance(scope, Absent) else f"ptrace_scope={scope}"
        ours, theirs = os.geteuid(), reading(self._root / str(pid) / "status", parse_status)
        if scope == 3:
            return f"{scope_text}): the kernel forbids it to everybody until a reboot with a lower value"
        if self._may_ptrace():
            return f"{scope_text}): we have CAP_SYS_PTRACE, so a container's or security module's filter forbids it"
        if ours == 0:
            return f"{scope_text}, root without CAP_SYS_PTRACE): start the container with --cap-add=SYS_PTRACE"
        if not isinstance(theirs, Absent) and theirs.uid != ours:
            return f"{scope_text}, process of uid {theirs.uid}, we are uid {ours}): run as that user or as root"
        if scope in (1, 2):
            key = "sysctl kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE" if scope == 1 else "run as root"
            return f"{scope_text}, not root): {key}"
        return f"{scope_text}, not root): the job is not dumpable or in another user namespace; run as root"

    def _may_ptrace(self) -> bool:
        try:
            lines = read_all(self._root / "self" / "status").splitlines()
            effective = next(int(line.split()[1], 16) for line in lines if line.startswith(b"CapEff:"))
        except (OSError, ValueError, StopIteration):
            return False
        return bool(effective & _CAP_SYS_PTRACE)


def run_program(command: list[str], timeout_s: float, stop: threading.Event | None) -> tuple[int | None, bytes, bytes]:
    """(exit code or None when it had to be killed with all that it started, stdout, stderr). Raises OSError when it
    cannot be started."""
    deadline = time.monotonic() + timeout_s
    # Backtraces would bury the message; an own process group keeps a terminal's Ctrl-C to us.
    environment = {"PATH": os.defpath, "RUST_BACKTRACE": "0"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        process_group=0,
    ) as child:
        while True:
            try:
                output, errors = child.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline and not (stop is not None and stop.is_set()):
                    continue
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                return None, b"", b""
            return child.returncode, output, errors
