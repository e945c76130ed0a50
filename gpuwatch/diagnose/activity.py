"""What a thread can be seen doing.

Owns: the names. Refuses: how it is seen (frames.py, line_text.py, native_frames.py), what it costs (account.py).
"""

from __future__ import annotations

import enum


class Activity(enum.StrEnum):
    """What a thread was doing at one instant."""

    WAITING_FOR_DATA = "waiting_for_data"
    """Blocked for the next batch: in the DataLoader, in another library that loads, or in a queue named for it."""
    PREPARING_DATA = "preparing_data"
    """Fetching, decoding or collating samples in this very process."""
    RECEIVING_DATA = "receiving_data"
    """Unpickling or rebuilding a batch that a worker has sent."""
    CHECKPOINTING = "checkpointing"
    COMPILING = "compiling"
    STARTING = "starting"
    """Importing modules, or loading weights and data sets."""
    RESTARTING_WORKERS = "restarting_workers"
    """Starting or stopping DataLoader workers."""
    SYNCHRONISING = "synchronising"
    """Waiting for the GPU."""
    COPYING = "copying"
    COPY_WAIT = "copy_wait"
    """On a line that only copies, for longer than its bytes take: a pageable copy waits for all that was launched."""
    LAUNCHING = "launching"
    """Inside the framework's own Python, or in backward: handing work to the GPU."""
    COMMUNICATING = "communicating"
    LOGGING = "logging"
    EVALUATING = "evaluating"
    """In a function of the user's that is called evaluation or validation, or that comes between training steps."""
    ALLOCATING = "allocating"
    """Giving GPU memory back to the driver or asking it for more: each such call stops the GPU."""
    COLLECTING = "collecting_garbage"
    """In Python's garbage collector, called explicitly (its own runs leave no frame)."""
    HOST_WORK = "other_host_work"
    """Computing on the CPU: numpy, PIL, pandas, the user's own loops."""
    USER_LINE = "user_line"
    """On a line that calls C, of the user's or of a library that may do anything: text and counters must tell what."""
    WAITING = "waiting"
    """Not on a CPU, not in any of the above: a lock, a socket, sleep, input()."""
    WAITING_FOR_WORK = "waiting_for_work"
    """A DataLoader worker with nothing to do."""
