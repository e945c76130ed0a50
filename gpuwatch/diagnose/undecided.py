"""Whether plain stacks leave open what the training loop does, so that native frames must tell.

Owns: that one decision. Refuses: taking stacks, and what native frames mean (frames.py, account.py).

The same classification as the account's: a look at native frames holds the job for a moment, so it is worth it only
where the account will use it, on lines that call C and of which neither text nor library says what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.frames import classify
from gpuwatch.diagnose.native_frames import driving_leaves, line_of
from gpuwatch.model import StackSample

DIVISIBLE = frozenset({Activity.USER_LINE, Activity.SYNCHRONISING, Activity.LAUNCHING, Activity.HOST_WORK})
"""What native frames can tell apart: all of these are C called from a line. What a function's name says they cannot."""


def undecided(stacks: Sequence[StackSample], text_of: Mapping[tuple[str, int], str]) -> bool:
    """Whether a share of the samples that could carry a finding stands on lines that only native frames can divide.

    ``stacks``: of the process that drives the GPU; those with native frames are of earlier looks, and what they have
    seen needs no other. ``text_of``: lines of the user's code, by file and line.
    """
    threads = [thread for _, thread in driven(stack for stack in stacks if not stack.native)]
    if len(threads) < t.MIN_STACKS:
        return False
    known = _divided(stacks)
    doings = [classify(thread, text_of) for thread in threads]
    open_samples = sum(
        not doing.sure and doing.activity in DIVISIBLE and (doing.leaf is None or line_of(doing.leaf) not in known)
        for doing in doings
    )
    return open_samples >= t.NAMED_FROM * len(threads)


def _divided(stacks: Sequence[StackSample]) -> set[tuple[str, int]]:
    """Lines that earlier looks have seen often enough to say what their C calls do."""
    seen = Counter(line_of(leaf) for _, leaf in driving_leaves(stacks))
    return {line for line, count in seen.items() if count >= t.SEEN_NATIVELY}
