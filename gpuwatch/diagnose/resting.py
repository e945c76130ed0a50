"""What a GPU process that does nothing waits for, by its stacks and by the kernel function that it sleeps in.

Owns: the table of frames in which programs wait, and which of a process' threads says it. Refuses: what a program
that works does (frames.py), and what follows from the wait (idle.py).

A stack is read from its innermost frame out to the first line of the user's own: further out stands what called that
line, such as the server whose handler it is, and that is not what is waited for.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.evidence import Evidence
from gpuwatch.diagnose.frames import last_name
from gpuwatch.diagnose.origin import PACKAGE, is_users, user_frame
from gpuwatch.model import CodeLocation, Frame, StackSample, ThreadStack


class Rest(enum.StrEnum):
    """What a process waits for, in words that follow "waits for"."""

    LOADER = "a batch"
    PERSON = "somebody to type something"
    KERNEL = "the next cell of its notebook"
    PAUSE = "the end of a pause"
    POLL = "a condition that it looks at between pauses"
    SERVES = "requests"
    COLLECTIVE = "other ranks in a collective operation"
    CHILD = "another process that it has started"
    CALL = "an answer from another process or machine"
    FUTURE = "the result of a task that it has handed out"
    QUEUE = "an item of a queue or a pipe"
    LOCK = "a lock that another process holds"
    STORAGE = "storage"
    EVENTS = "something in its event loop: a request, an answer or a timer"
    MESSAGE = "a message on a socket or a pipe"
    THREAD = "another thread of its own"
    UNKNOWN = "something that its stacks do not tell"


class Resting(Struct, frozen=True):
    """The commonest wait of a window."""

    kind: Rest
    share: float
    """Of the stacks, 0..1; 0 when only the kernel function tells."""
    stacks: int
    where: CodeLocation | None = None
    text: str = ""
    """The user's line that waits, where it could be read."""


_LOADERS = re.compile(
    r"torch/utils/data/|"
    + PACKAGE
    + r"(nvidia/dali|ffcv|streaming|petastorm|ray/data|tensorflow/python/data|webdataset|"
    r"torchdata|grain|torch_geometric/loader|dgl/dataloading)/"
)
_NOTEBOOKS = re.compile(r"(^|/)(ipykernel|ipykernel_launcher|\w*colab\w*|spyder_kernels|marimo/_runtime)(/|\.py$|_)")
_SERVERS = re.compile(
    PACKAGE
    + r"(uvicorn|hypercorn|gunicorn|daphne|granian|sanic|aiohttp/web|werkzeug|waitress|cheroot|cherrypy|twisted|"
    r"gradio|streamlit|litserve|bentoml|ray/serve|mlserver|ts|pytriton|text_generation_server|lmdeploy|tensorrt_llm|"
    r"mii|fastchat|lightllm|aphrodite|sagemaker_inference|runpod|cog|jina|celery|kombu|rq|dramatiq|huey|arq)/|"
    # Often installed in place, from a checkout.
    r"(^|/)vllm/(v1|engine|executor|worker|entrypoints|distributed)/|(^|/)sglang/srt/|"
    r"(^|/)(socketserver|http/server|xmlrpc/server)\.py$|" + PACKAGE + r"grpc/(aio/)?_server\.py$"
)
_MACHINERY = re.compile(
    r"(^|/)(asyncio|multiprocessing|concurrent/futures|zmq|uvloop|tornado|anyio|trio|gevent|eventlet|grpc|traitlets|"
    r"sniffio|redis|torch/distributed)/|(^|/)(selectors|socket|ssl|threading|queue|contextlib|functools|runpy)\.py$|"
    r"<frozen runpy>"
)
"""What programs wait with. A server frame with anything else inside it handles a request."""
_CLIENTS = re.compile(r"(^|/)(vllm/(entrypoints/llm|v1/engine/core_client)|sglang/srt/entrypoints/engine)\.py$")
"""Of these very servers, inside the program that asks: it waits for what it has asked for."""
_MODELS = re.compile(r"torch/(nn|autograd|_dynamo|_inductor|optim)/")
_EVENT_LOOP = re.compile(r"(^|/)(asyncio/(base_events|runners)|trio/_core/_run|gevent/hub|tornado/ioloop)\.py$|uvloop/")

# (kind, file pattern, function names or None for any), over the inner frames; the first that fits any of them decides.
_RULES: tuple[tuple[Rest, re.Pattern[str], frozenset[str] | None], ...] = (
    (Rest.PERSON, re.compile(r"ipykernel/kernelbase\.py$"), frozenset({"_input_request", "raw_input", "getpass"})),
    (Rest.PERSON, re.compile(r"(^|/)(pdb|bdb|cmd|code|getpass|_pyrepl/\w+)\.py$|prompt_toolkit/|IPython/terminal/"),
     None),
    (Rest.CALL, re.compile(r"torch/distributed/rpc/"), None),
    (Rest.COLLECTIVE, re.compile(
        r"torch/distributed/(?!run\.py|launch|elastic/(agent|multiprocessing)|checkpoint)|"
        r"torch/nn/parallel/distributed\.py$|" + PACKAGE +
        r"(horovod|mpi4py|deepspeed/comm|oneccl_bindings_for_pytorch|jax/experimental/multihost_utils|"
        r"ray/util/collective)"), None),
    (Rest.COLLECTIVE, re.compile(r"accelerate/(state|accelerator)\.py$"), frozenset({"wait_for_everyone"})),
    (Rest.QUEUE, re.compile(r"multiprocessing/pool\.py$"), frozenset({"worker"})),
    (Rest.QUEUE, re.compile(r"concurrent/futures/process\.py$"), frozenset({"_process_worker"})),
    # By function: at the bottom of its stack a process that was started this way has these files too.
    (Rest.CHILD, re.compile(r"multiprocessing/(popen_\w+|pool|process)\.py$"),
     frozenset({"join", "poll", "wait", "get", "next"})),
    (Rest.CHILD, re.compile(
        r"(^|/)subprocess\.py$|torch/multiprocessing/spawn\.py$|torch/distributed/elastic/(agent|multiprocessing)/|"
        + PACKAGE + r"(joblib|loky|pexpect|invoke|sh)[/.]"), None),
    (Rest.LOCK, re.compile(
        PACKAGE + r"(filelock|fasteners|portalocker)/|torch/utils/file_baton\.py$|multiprocessing/synchronize\.py$"),
     None),
    (Rest.POLL, re.compile(PACKAGE + r"(tenacity|backoff|retrying|retry)/"), None),
    (Rest.CALL, re.compile(
        r"(^|/)(ssl|socket|http/client|urllib/request|xmlrpc/client|ftplib|smtplib)\.py$|multiprocessing/managers\.py$|"
        + PACKAGE + r"(ray|urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|s3fs|fsspec|gcsfs|adlfs|"
        r"google|azure|grpc|distributed|dask|zmq|redis|pymongo|psycopg2?|pymysql|sqlalchemy|pyarrow|huggingface_hub|"
        r"wandb|mlflow|websocket|websockets|paramiko|rpyc|Pyro\d|thrift|openai|anthropic|kazoo|etcd3?|pika|kafka|"
        r"aiokafka|confluent_kafka|nats)/"), None),
    (Rest.FUTURE, re.compile(r"concurrent/futures/_base\.py$|torch/futures/"), None),
    (Rest.QUEUE, re.compile(r"(^|/)queue\.py$|multiprocessing/(queues|connection)\.py$"), None),
    (Rest.EVENTS, _EVENT_LOOP, None),
    (Rest.THREAD, re.compile(r"(^|/)threading\.py$"),
     frozenset({"wait", "acquire", "join", "_wait_for_tstate_lock", "__enter__"})),
)  # fmt: skip

# The text of a user's line that calls C: no frame of its own shows what it waits in.
_TEXT: tuple[tuple[Rest, re.Pattern[str]], ...] = (
    (Rest.PERSON, re.compile(r"\b(input|getpass|breakpoint|set_trace)\(")),
    (Rest.PAUSE, re.compile(r"\b(sleep|pause|sigwait|sigwaitinfo)\(")),
    (Rest.COLLECTIVE, re.compile(r"\b([Bb]arrier|all_?reduce|all_?gather|[Bb]cast|broadcast|Allreduce)\(")),
    (Rest.CHILD, re.compile(r"\b(os\.system|waitpid|os\.wait\d?|communicate|check_call|check_output)\(")),
    (Rest.LOCK, re.compile(r"\b(flock|lockf)\(")),
    (Rest.MESSAGE, re.compile(r"\.(recv|recv_into|recvfrom|accept|readline|read)\(|\b(select|poll|os\.read)\(")),
    (Rest.FUTURE, re.compile(r"\.result\(|\bray\.(get|wait)\(")),
    (Rest.QUEUE, re.compile(r"\.get\(")),
    (Rest.THREAD, re.compile(r"\.(acquire|join|wait)\(|\bwith\b")),
)
_WCHANS: tuple[tuple[Rest, re.Pattern[str]], ...] = (
    (Rest.PAUSE, re.compile(r"nanosleep|sys_pause|sigtimedwait|sigsuspend")),
    (Rest.CHILD, re.compile(r"^(do_wait|kernel_wait4?|waitid)")),
    (Rest.LOCK, re.compile(r"(flock|locks?_lock|posix_lock)\w*wait|fcntl_setlk")),
    (Rest.STORAGE, re.compile(r"^(io_schedule|folio_wait|wait_on_page|nfs|rpc_wait|fuse_|request_wait|ceph|lustre)")),
    (Rest.MESSAGE, re.compile(r"^(unix_|tcp_|inet_|sk_wait|skb_|__skb_|pipe_|anon_pipe|wait_for_unix)")),
)  # fmt: skip
_LOOKS_AGAIN = re.compile(r"(^|_)(wait|waits|waiting|poll|polls|polling|until|ready|retry|barrier|acquire|lock)(_|$)")
_LOOKS_AGAIN_TEXT = re.compile(r"poll|retry|retries|backoff|interval", re.I)
_KEEPS_UP = re.compile(r"forever|keep_?alive", re.I)
_PAUSE_LENGTH = re.compile(r"\bsleep\(\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*\)")

_HELPERS = re.compile(
    r"pin_memory|QueueFeeder|QueueManager|tqdm|Monitor|watchdog|heartbeat|IOPub|Control|History|wandb|Inductor", re.I
)
_HELPER_FRAMES = re.compile(
    r"(^|/)(wandb|tensorboard|tensorboardX|prometheus_client|debugpy|pydevd|ipykernel|IPython|jupyter_\w+|tqdm|mlflow|"
    r"neptune|comet_ml|sentry_sdk|opentelemetry|posthog|torch/_inductor|torch/utils/data/_utils/pin_memory)(/|\.py)"
)
"""Threads of tools that stand beside the work of a process; what they wait for is nothing that it waits for."""

_OPEN = frozenset({Rest.UNKNOWN, Rest.THREAD, Rest.PAUSE, Rest.KERNEL, Rest.EVENTS})
"""Where the main thread waits like this, another thread may be the one that has work."""
_OF_ANY_THREAD = frozenset({Rest.LOADER, Rest.COLLECTIVE, Rest.SERVES})
_OF_JOINED = _OF_ANY_THREAD | {Rest.CHILD, Rest.CALL, Rest.FUTURE, Rest.LOCK, Rest.POLL, Rest.PERSON}


def resting(evidence: Evidence) -> Resting | None:
    """What the GPU process waits for most of the time; None when nothing tells it, neither stacks nor kernel."""
    below = _by_kernel(evidence)
    seen = [
        (kind, frames)
        for stack in evidence.main_stacks
        if (found := _of_stack(stack, evidence.source, below)) is not None
        for kind, frames in (found,)
    ]
    if not seen:
        return Resting(below, 0.0, 0) if below is not Rest.UNKNOWN else None
    kind, count = Counter(kind for kind, _ in seen).most_common(1)[0]
    places = Counter(f for k, frames in seen if k is kind and (f := _place(kind, frames)) is not None)
    if not places:
        return Resting(kind, count / len(seen), len(seen))
    frame, on_line = places.most_common(1)[0]
    where = CodeLocation(frame.file, frame.line, frame.function, on_line / count)
    return Resting(kind, count / len(seen), len(seen), where, evidence.source.get((frame.file, frame.line), ""))


def _place(kind: Rest, frames: Sequence[Frame]) -> Frame | None:
    """The line that says most: the user's own, or the server's that looks for requests."""
    if kind is not Rest.SERVES or any(is_users(f) for f in frames):
        return user_frame(frames)
    return next((f for f in frames if _SERVERS.search(f.file)), None) or user_frame(frames)


def pauses_for_s(text: str) -> float | None:
    """The length of the pause that a line of code says, None when it does not say one."""
    found = _PAUSE_LENGTH.search(text)
    return float(found[1]) if found else None


def _of_stack(
    stack: StackSample, source: Mapping[tuple[str, int], str], below: Rest
) -> tuple[Rest, Sequence[Frame]] | None:
    main = next((th for th in stack.threads if th.os_tid == stack.pid or th.name == "MainThread"), None)
    if main is None or not main.frames:
        main = _driver(stack, stack.threads)
    if main is None:
        return None
    kind = _of_frames(main.frames, source, below)
    others = [th for th in stack.threads if th is not main and not _helps(th)]
    if kind is Rest.SERVES:
        return _at_work(stack, main, others, source) or (kind, main.frames)
    if kind in _OPEN:
        accepted = _OF_JOINED if kind is Rest.THREAD else _OF_ANY_THREAD
        for other in others:
            its = _of_frames(other.frames, source, Rest.UNKNOWN)
            if its in accepted:
                return its, other.frames
    return kind, main.frames


def _at_work(
    stack: StackSample, main: ThreadStack, others: Sequence[ThreadStack], source: Mapping[tuple[str, int], str]
) -> tuple[Rest, Sequence[Frame]] | None:
    """What a thread beside a server's loop does for a request, or for a training that was started from it."""
    driver = _driver(stack, (main, *others))
    if driver is not None and driver is not main:
        return _of_frames(driver.frames, source, Rest.UNKNOWN), driver.frames
    handlers = [th for th in others if any(is_users(f) for f in th.frames)]
    working = ((_of_frames(th.frames, source, Rest.UNKNOWN), th) for th in handlers)
    return next(((kind, th.frames) for kind, th in working if th.active or kind in _OF_JOINED), None)


def _driver(stack: StackSample, threads: Sequence[ThreadStack]) -> ThreadStack | None:
    chosen = driven([msgspec.structs.replace(stack, threads=tuple(threads))])
    return next((thread for _, thread in chosen), None)


def _helps(thread: ThreadStack) -> bool:
    return bool(_HELPERS.search(thread.name)) or any(_HELPER_FRAMES.search(f.file) for f in thread.frames)


def _of_frames(frames: Sequence[Frame], source: Mapping[tuple[str, int], str], below: Rest) -> Rest:
    """What a thread with these frames waits for. ``below``: what the kernel function says, for lines that call C."""
    if any(_LOADERS.search(f.file) for f in frames):
        return Rest.LOADER
    own = next((i for i, f in enumerate(frames) if is_users(f) and not _SERVERS.search(f.file)), len(frames))
    inner = frames[:own]
    if not inner:
        return _of_line(frames, source, below)
    if _stands_in(_NOTEBOOKS, inner) and not any(_MODELS.search(f.file) for f in inner):
        return _of_rules(inner, (Rest.PERSON,)) or Rest.KERNEL
    if any(_CLIENTS.search(f.file) for f in inner):
        return Rest.CALL
    if _serves(inner):
        return Rest.SERVES
    found = _of_rules(inner, tuple(Rest))
    if found is None and below is Rest.PAUSE:
        return Rest.POLL  # a library that sleeps does so between two looks at something
    return found or (below if below in (Rest.CHILD, Rest.LOCK, Rest.STORAGE) else Rest.UNKNOWN)


def _of_rules(inner: Sequence[Frame], kinds: Sequence[Rest]) -> Rest | None:
    for kind, file, functions in _RULES:
        if kind in kinds and any(
            file.search(f.file) and (functions is None or last_name(f.function) in functions) for f in inner
        ):
            return kind
    return None


def _stands_in(files: re.Pattern[str], inner: Sequence[Frame]) -> bool:
    """Whether the thread waits in these files, with nothing inside them but what programs wait with."""
    for frame in inner:
        if files.search(frame.file):
            return True
        if not _MACHINERY.search(frame.file):
            return False
    return False


def _serves(inner: Sequence[Frame]) -> bool:
    ray = any(f.file.endswith("ray/_private/worker.py") and last_name(f.function) == "main_loop" for f in inner[:2])
    return ray or (_stands_in(_SERVERS, inner) and not any(_MODELS.search(f.file) for f in inner))


def _of_line(frames: Sequence[Frame], source: Mapping[tuple[str, int], str], below: Rest) -> Rest:
    """A line of the user's that sleeps in C."""
    if not frames or below is Rest.STORAGE:
        return below
    text = source.get((frames[0].file, frames[0].line), "").split("#", 1)[0]
    kind = next((kind for kind, pattern in _TEXT if pattern.search(text)), below)
    if kind is not Rest.PAUSE:
        return kind
    callers = [last_name(f.function) for f in frames[:2] if is_users(f)]
    looks = any(_LOOKS_AGAIN.search(name) and not _KEEPS_UP.search(name) for name in callers)
    return Rest.POLL if looks or _LOOKS_AGAIN_TEXT.search(text) else Rest.PAUSE


def _by_kernel(evidence: Evidence) -> Rest:
    """What the kernel function says that the main thread sleeps in nearly all the time."""
    main = evidence.main
    if main is None:
        return Rest.UNKNOWN
    if main.states.get("D", 0.0) >= t.RESTS_ALL_THE_TIME:
        return Rest.STORAGE
    if not main.wchans or main.wchans[0][1] < t.RESTS_ALL_THE_TIME:
        return Rest.UNKNOWN
    name = main.wchans[0][0]
    return next((kind for kind, pattern in _WCHANS if pattern.search(name)), Rest.UNKNOWN)
