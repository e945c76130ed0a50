"""What C code below a Python line was doing, from stacks with native frames.

Owns: the table of native functions that give an activity away. Refuses: Python frames (frames.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.origin import Origin, origin
from gpuwatch.model import Frame, StackSample, ThreadStack

_NATIVE: tuple[tuple[Activity, re.Pattern[str]], ...] = (
    (Activity.SYNCHRONISING, re.compile(r"_local_scalar_dense")),
    (Activity.COPYING, re.compile(r"^(cu|cuda)Memcpy|copy_kernel_cuda|_copy_from_and_resize")),
    (Activity.SYNCHRONISING, re.compile(r"^(cu|cuda)(Stream|Event|Ctx|Device)Synchronize")),
    (Activity.ALLOCATING, re.compile(r"^(cu|cuda)(Mem(Alloc|Free|Create|Map|Unmap|Release|AddressFree)|Malloc|Free)")),
    (Activity.COLLECTING, re.compile(r"^(gc_collect_main|gc_collect_region|gc_collect_full|deduce_unreachable)")),
    (Activity.COMMUNICATING, re.compile(r"^nccl[A-Z]|ProcessGroupNCCL")),
    # Before what it uses itself: handing a callback to the driver writes to a pipe of its own.
    (Activity.LAUNCHING, re.compile(r"^(cu|cuda)Launch")),
    (
        Activity.LOGGING,
        re.compile(
            r"^(os_|_*(GI_+)?(libc_)?)(f(data)?sync|p?writev?(64)?)(_impl)?$|^_io_\w+_(write|flush)|"
            r"^_buffered\w*flush"
        ),
    ),
    (
        Activity.WAITING,
        re.compile(
            r"^(time_sleep|pysleep|clock_nanosleep|(__)?(select|poll|ppoll|epoll_wait)$|sock_recv|"
            r"(lock_)?PyThread_acquire_lock_timed|acquire_timed)"
        ),
    ),
    (
        Activity.HOST_WORK,
        re.compile(
            r"(^|::)(AVX2|AVX512|DEFAULT|VSX|ZVECTOR|SVE256)::|mkldnn|dnnl|^mkl_|[gG]?omp_|GOMP_|"
            r"cpublas|_cpu_kernel|cpu_kernel|^xla::cpu::"
        ),
    ),
    (
        Activity.LAUNCHING,
        re.compile(
            r"^(cu|cuda)(Launch|Graph|Mem|Func|Module)|^(at|c10|torch)::|THPVariable|"
            r"^(xla|pjrt|jax|stream_executor|tensorflow)::|PjitFunction"
        ),
    ),
)
"""What a native function is for; the first that matches any frame below the innermost Python frame decides. Reading a
scalar copies and waits, and the wait is what costs; a pageable copy waits too, and the copy is what costs. Operators
without a kernel launch in sight may run on either side: only their CPU kernels tell, or a GPU that does nothing."""


def _is_python(frame: Frame) -> bool:
    return frame.line > 0 and (frame.file.endswith(".py") or frame.file.startswith("<"))


def python_leaf(frames: Sequence[Frame]) -> Frame | None:
    """Innermost Python frame of a stack with native frames."""
    return next((frame for frame in frames if _is_python(frame)), None)


def driving_leaves(stacks: Iterable[StackSample]) -> Iterator[tuple[ThreadStack, Frame]]:
    """Of each stack with native frames the thread that drives the GPU, and its innermost Python frame."""
    for _, thread in driven(stack for stack in stacks if stack.native):
        leaf = python_leaf(thread.frames)
        if leaf is not None:
            yield thread, leaf


def line_of(frame: Frame) -> tuple[str, int]:
    """(file name, line): what stacks with and without native frames have in common; the former shorten paths."""
    return frame.file.rsplit("/", 1)[-1], frame.line


def native_activity(frames: Sequence[Frame]) -> Activity:
    """What the C code below the innermost Python frame was doing. Where no name is known it computes, except below a
    library whose business is to hand out work: that is its own overhead."""
    below = [frame.function for frame in itertools.takewhile(lambda frame: not _is_python(frame), frames)]
    found = (activity for activity, pattern in _NATIVE if any(pattern.search(name) for name in below))
    leaf = python_leaf(frames)
    hands_out = leaf is not None and origin(leaf) in (Origin.TORCH, Origin.LAUNCHER)
    return next(found, Activity.LAUNCHING if hands_out else Activity.HOST_WORK)
