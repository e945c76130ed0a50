"""What a DataLoader worker waits for that is off the CPU inside a fetch.

Owns: the frames and kernel functions that give a socket, a lock or a pause away. Refuses: judging.

A lock and a remote store look alike from outside: asleep, no CPU, no bytes. The frames between the sleeping call and
the user's line tell them apart; where there are none, because the call is C, the kernel function that it sleeps in may.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from gpuwatch.diagnose.frames import last_name
from gpuwatch.model import Frame, ThreadStack


class Wait(enum.StrEnum):
    """What is waited for."""

    SOCKET = "socket"
    LOCK = "lock"
    PAUSE = "pause"
    """time.sleep: a limit on requests, a retry, a simulation."""
    FILE = "file"
    UNKNOWN = "unknown"


_SOCKET_FILE = re.compile(
    r"(^|/)(ssl|socket|http/client)\.py$|"
    r"(site|dist)-packages/(urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|aiobotocore|s3fs|gcsfs|"
    r"adlfs|fsspec/asyn|fsspec/implementations/http|minio|smart_open|azure|google/cloud|google/resumable_media|"
    r"huggingface_hub|grpc|redis|pymongo|psycopg|psycopg2|asyncpg|pymysql|MySQLdb|paramiko)(/|\.py$)"
)
_LOCK_FILE = re.compile(r"(^|/)multiprocessing/synchronize\.py$|-packages/(filelock|portalocker|fasteners)/")
_THREAD_FILE = re.compile(r"(^|/)threading\.py$")
_LOCK_CALLS = frozenset({"acquire", "__enter__"})
_CHILD_FILE = re.compile(r"(^|/)subprocess\.py$")
"""Reading from a program that was started for a sample: a pipe, which is polled as a socket is."""
_SOCKET_WCHAN = re.compile(r"^(wait_woken|sk_wait_data|sk_stream_wait|tcp_recvmsg|inet_stream_conn|poll_sched|ep_poll)")
_PAUSE_WCHAN = re.compile(r"nanosleep")
REMOTE_WCHAN = re.compile(r"nfs|rpc_|fuse|ceph|ptlrpc|cl_sync_io")
"""Kernel functions in which a process waits for the server of a file system (NFS and SunRPC, FUSE, Ceph, Lustre)."""
_FILE_WCHAN = re.compile(r"folio_wait|wait_on_page|io_schedule|wait_on_buffer|" + REMOTE_WCHAN.pattern)
LOCAL_WCHAN = re.compile(r"^(blk_|submit_bio)")
"""In which it waits for a disk, whatever else it has open."""


def waits_for(thread: ThreadStack, others: Sequence[ThreadStack], wchans: Sequence[str]) -> Wait:
    """What the main thread of a worker waits for. ``others``: its other threads; one that fetches for it may hold the
    socket. ``wchans``: where the process was seen to sleep, commonest first."""
    inner = _within_fetch(thread.frames)
    if any(_SOCKET_FILE.search(f.file) for f in inner):
        return Wait.SOCKET
    if any(_LOCK_FILE.search(f.file) for f in inner):
        return Wait.LOCK
    if any(_THREAD_FILE.search(f.file) for f in inner):
        if any(_THREAD_FILE.search(f.file) and last_name(f.function) in _LOCK_CALLS for f in inner):
            return Wait.LOCK
        fetches = any(_SOCKET_FILE.search(f.file) for other in others for f in other.frames)
        return Wait.SOCKET if fetches else Wait.UNKNOWN
    if any(_CHILD_FILE.search(f.file) for f in inner):
        return Wait.UNKNOWN
    for wchan in wchans[:1]:
        for kind, names in ((Wait.SOCKET, _SOCKET_WCHAN), (Wait.FILE, _FILE_WCHAN), (Wait.PAUSE, _PAUSE_WCHAN)):
            if names.search(wchan):
                return kind
    return Wait.UNKNOWN


def _within_fetch(frames: Sequence[Frame]) -> Sequence[Frame]:
    """From the sleeping call out to the fetch of the loader, whose own locks are not the dataset's."""
    end = next((i for i, f in enumerate(frames) if last_name(f.function) == "fetch"), len(frames))
    return frames[:end]
