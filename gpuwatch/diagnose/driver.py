"""Which thread of a process runs the training loop, and which others stand in its way.

Owns: that choice, over a whole burst of stacks. Refuses: what the thread was doing (frames.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpuwatch.diagnose.frames import Phase, phase_of
from gpuwatch.diagnose.origin import INSTALLED, Origin, is_trainer, origin
from gpuwatch.model import StackSample, ThreadStack

_HELPER_THREADS = re.compile(
    r"(pin_memory|QueueFeeder|QueueManager|_serve|tqdm|Monitor|watchdog|heartbeat|asyncio|InductorSubproc|subproc_worker)",
    re.I,
)
_SERVES = re.compile(
    r"torch/(_inductor/compile_worker|distributed/(elastic|launcher)|utils/tensorboard|serialization\.py|"
    r"multiprocessing/reductions|utils/data/_utils/pin_memory)"
)
"""Threads of torch's own, and code that a thread beside the training runs as well: saving in the background."""
_LOADS = re.compile(r"torch/utils/data/dataloader\.py$|" + INSTALLED + r"nvidia/dali/")
_OF_TRAINING = re.compile(r"torch/(autograd|utils/data)/")


def driven(stacks: Iterable[StackSample]) -> Iterator[tuple[StackSample, ThreadStack]]:
    """Each stack sample with the thread that drives the GPU; those without one are left out.

    The main thread, unless it merely waits while another Python thread trains (notebooks, servers and trainers that
    run the loop in a thread). That other one is chosen over all samples: in single ones it may compute in numpy, or a
    thread that saves a checkpoint may stand in torch.
    """
    samples = list(stacks)
    usual = _usual(samples)
    for stack in samples:
        thread = _driving(stack, usual)
        if thread is not None:
            yield stack, thread


def _usual(samples: Sequence[StackSample]) -> dict[int, int]:
    """Process to the thread, not its main one, that is seen driving most often."""
    seen: dict[int, Counter[int]] = {}
    for stack in samples:
        for thread in stack.threads:
            if not _is_main(thread, stack.pid) and _trains(thread):
                seen.setdefault(stack.pid, Counter())[thread.os_tid] += 1
    return {pid: counts.most_common(1)[0][0] for pid, counts in seen.items()}


def _is_main(thread: ThreadStack, pid: int) -> bool:
    return thread.os_tid == pid or thread.name == "MainThread"


def _driving(stack: StackSample, usual: dict[int, int]) -> ThreadStack | None:
    main = next((th for th in stack.threads if _is_main(th, stack.pid)), None)
    if main is not None and main.frames and (main.active or _trains(main)):
        return main
    others = [th for th in stack.threads if th is not main and th.frames and not _HELPER_THREADS.search(th.name)]
    tid = usual.get(stack.pid)
    other = next((th for th in others if th.os_tid == tid), None) or next((th for th in others if _trains(th)), None)
    if other is not None:
        return other
    # A stack that could not be read says nothing; another thread's would say something else.
    return next(iter(others), None) if main is None else main if main.frames else None


def _trains(thread: ThreadStack) -> bool:
    """Whether this stack is of a loop that trains or infers, or of one that fetches its data."""
    frames = thread.frames
    if not frames or _HELPER_THREADS.search(thread.name) or any(_SERVES.search(f.file) for f in frames):
        return False
    if phase_of(frames) is not Phase.NONE or any(is_trainer(f) or _LOADS.search(f.file) for f in frames):
        return True
    return thread.active and origin(frames[0]) in (Origin.TORCH, Origin.LAUNCHER)


def competes(thread: ThreadStack) -> bool:
    """Whether a thread that holds the interpreter lock does so for itself: not one of the loader's, whose work the
    training thread would wait for anyway, nor autograd's or a replica's, which is the training."""
    return (
        bool(thread.frames)
        and not _HELPER_THREADS.search(thread.name)
        and phase_of(thread.frames) is Phase.NONE
        and not any(_OF_TRAINING.search(f.file) for f in thread.frames)
    )


def waits_in_python(thread: ThreadStack) -> bool:
    """Whether a thread sleeps until another one is done: a lock, a future, a queue, ``join``."""
    return not thread.active and bool(thread.frames) and origin(thread.frames[0]) is Origin.STANDARD
