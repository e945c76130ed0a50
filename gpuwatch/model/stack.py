"""What threads of a job were doing at an instant.

Owns: StackSample and lines of the job's code. Refuses: what a frame means.
"""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True, array_like=True):
    """One stack frame. ``line`` 0 when unknown; native frames have ``file`` such as "libcuda.so.1"."""

    function: str
    file: str
    line: int = 0


class ThreadStack(Struct, frozen=True, array_like=True):
    """One thread's stack, innermost frame first."""

    os_tid: int
    name: str
    active: bool
    """On a CPU or runnable, by the sampler's judgement."""
    owns_gil: bool
    frames: tuple[Frame, ...]


class StackSample(Struct, frozen=True):
    """The stacks of one process at one instant."""

    pid: int
    root_pid: int
    mono_ns: int
    threads: tuple[ThreadStack, ...] = ()
    error: str = ""
    """Why there is no stack: one line, such as "permission denied (ptrace_scope=1)"."""
    native: bool = False


class SourceLine(Struct, frozen=True):
    """The text of one line of the job's own code that a stack sample stood on.

    A C call (``.item()``, ``.to(device)``) leaves no Python frame of its own: only the line tells what it is.
    """

    root_pid: int
    mono_ns: int
    file: str
    line: int
    text: str
