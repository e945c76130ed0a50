"""One look at the native frames of a process: ``py-spy record --native`` for a second.

Owns: which py-spy may do it, the command and its bounds, what its collapsed stacks mean. Refuses: when, and of whom.

Native frames cannot be read from a running process: py-spy holds all threads while it unwinds one. It does that with
PTRACE_SEIZE and PTRACE_INTERRUPT, which send no signal; when a tracer dies, however it dies, the kernel lets go of what
it has seized (ptrace(2), "Attaching and detaching"). So the job runs on when py-spy, this process or the whole control
group is killed at any moment, and nobody has to resume it: a job in state T was stopped by somebody else, and stays so.
py-spy before 0.4.0 used PTRACE_ATTACH, whose SIGSTOP outlives the tracer (github.com/benfred/py-spy/issues/390, 416):
such a one is refused. What remains is a py-spy that hangs while it holds the job and nobody there to end it: timeout(1)
is its parent, outlives us, and kills it.

One ``record`` instead of several ``dump``: the job is held while symbols are read, which each run does anew (torch 2.11
with CUDA on an H200: 0.4 to 0.5 s). The samples after the first hold it for 1 to 8 ms each. py-spy takes up to 500 MiB
for it, half of that its own and half the job's libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpuwatch.collect.proc_parse import printable
from gpuwatch.collect.py_spy import NOT_INSTALLED, Dump, Failure, PySpy, run_program
from gpuwatch.model import Frame, ThreadStack

LOOK_S = 1
"""py-spy takes whole seconds only. H200: two seconds cost five jobs 4 to 22 % of the speed of the seven around them."""
RATE_HZ = 15
"""So 14 samples: a line's time in steps of 7 %, less than what a finding needs to be named."""
TIMEOUT_S = 3.5
"""A second less than two took: 2.3 to 3.3 s on an H200, up to 3.9 s on two busy cores. A job whose symbols take 2.5 s
is let go of then."""
GUARD_S = 5
"""What timeout(1) is told: later than ours, so that it acts only when we are not there to."""
OLDEST = (0, 4, 0)
"""The first release that seizes instead of stopping."""


class Look(NamedTuple):
    """Stacks of single threads at single instants, or a failure with one line for a person."""

    stacks: tuple[ThreadStack, ...] = ()
    failure: Failure | None = None
    error: str = ""


class NativeSpy:
    """Takes native looks. Thread-safe."""

    def __init__(self, spy: PySpy | None = None) -> None:
        self._spy = spy or PySpy()

    def look(self, pid: int, stop: threading.Event | None = None) -> Look:
        """Native stacks of the threads of ``pid`` that are on a CPU. Takes about ``LOOK_S`` + 1.5 s, ``TIMEOUT_S`` at
        most. Never raises; ``stop`` kills a child that is under way."""
        program = self._spy.executable
        if program is None:
            return _failure(Failure.MISSING, NOT_INSTALLED)
        guard = shutil.which("timeout", path=os.defpath)
        if guard is None:
            return _failure(Failure.MISSING, "timeout(1) is not in /bin or /usr/bin: install coreutils")
        if (refusal := _too_old(program)) is not None:
            return refusal
        if self._spy.state(pid) in ("T", "t"):
            return _failure(Failure.STOPPED, f"process {pid} is stopped or being traced")
        command = [guard, "-s", "KILL", str(GUARD_S), *_record(program, pid)]
        try:
            code, output, errors = run_program(command, TIMEOUT_S, stop)
        except OSError as error:
            return _failure(Failure.MISSING, f"{guard} cannot be started: {error.strerror}")
        if code is None:
            if stop is not None and stop.is_set():
                return _failure(Failure.STOPPED, "stopped")
            return _failure(Failure.TIMEOUT, f"py-spy did not finish within {TIMEOUT_S:g} s; not tried again")
        if code < 0 or code > 128:
            return _failure(Failure.TORN, "py-spy was killed")
        if code != 0:
            dump: Dump = self._spy.failed(pid, errors)
            return _failure(dump.failure or Failure.TORN, dump.error)
        stacks = parse_collapsed(output)
        return Look(stacks) if stacks else _failure(Failure.TORN, "no thread was on a CPU")


def _failure(failure: Failure, text: str) -> Look:
    return Look((), failure, f"native frames: {text}")


def _record(program: Path, pid: int) -> list[str]:
    return [
        *(str(program), "record", "--native", "--pid", str(pid)),
        *("--rate", str(RATE_HZ), "--duration", str(LOOK_S)),
        *("--threads", "--full-filenames", "--format", "raw", "--output", "/dev/stdout"),
    ]


def _too_old(program: Path) -> Look | None:
    """Why this py-spy must not hold a job; None when it may."""
    try:
        version = _version(program)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return _failure(Failure.TORN, f"{program} --version: {error}")
    if version >= OLDEST:
        return None
    wanted, found = (".".join(map(str, numbers)) for numbers in (OLDEST, version))
    text = f"{program} is {found}; before {wanted} it can leave a job stopped: pip install -U py-spy"
    return _failure(Failure.VERSION, text)


@cache
def _version(program: Path) -> tuple[int, ...]:
    """Of this py-spy; asked once. Raises OSError, TimeoutExpired, and ValueError when it does not say."""
    done = subprocess.run([str(program), "--version"], capture_output=True, timeout=TIMEOUT_S, check=False)
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise ValueError(f"no version in {done.stdout[:40]!r}")
    return tuple(map(int, found.groups()))


_FRAME = re.compile(r"^(?P<function>.*?) \((?P<file>/.*?|[^()]*?)(?::(?P<line>\d+))?\)$")
"""``function (file:line)`` or ``function (library)``. C++ names and paths have brackets of their own."""
_THREAD = re.compile(r"^thread \((?P<tid>\d+)\)(?:: (?P<name>.*))?$")


def parse_collapsed(output: bytes) -> tuple[ThreadStack, ...]:
    """py-spy's raw format: a line is a stack, outermost frame first, and how many samples saw it; each sample becomes
    a stack of its own. Lines that are something else are py-spy talking and are left out."""
    stacks: list[ThreadStack] = []
    for line in output.splitlines():
        text, _, count = line.rpartition(b" ")
        stack = _collapsed(printable(text))
        if stack is not None and count.isdigit():
            stacks.extend([stack] * int(count))
    return tuple(stacks)


def _collapsed(text: str) -> ThreadStack | None:
    head, *frames = text.split(";")
    thread = _THREAD.match(head)
    if thread is None:
        return None
    # It lists only threads that are on a CPU, and does not say who holds the interpreter lock.
    return ThreadStack(int(thread["tid"]), thread["name"] or "", True, False, tuple(map(_frame, reversed(frames))))


def _frame(text: str) -> Frame:
    """A native frame has no file but the library it lies in, and no line."""
    match = _FRAME.match(text)
    if match is None:
        return Frame(sys.intern(text), "", 0)
    line = int(match["line"] or 0)
    file = match["file"] if line else match["file"].rsplit("/", 1)[-1]
    return Frame(sys.intern(match["function"]), sys.intern(file), line)
