"""What a thread was doing, from its stack.

Owns: the table of frames that give an activity away, and which frame is the user's own. Refuses: time, GPU counters.

Functions are compared by their last part (py-spy prints ``Class.method`` from Python 3.11 on and ``method`` before),
files by their tail, since the prefix is the environment's.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuwatch.model import Frame, ThreadStack


class Activity(enum.StrEnum):
    """What a thread was doing at one instant."""

    WAITING_FOR_DATA = "waiting_for_data"
    """Blocked in the DataLoader (or another queue) for the next batch."""
    PREPARING_DATA = "preparing_data"
    """Fetching, decoding or collating samples in this very process."""
    RECEIVING_DATA = "receiving_data"
    """Unpickling or rebuilding a batch that a worker has sent."""
    CHECKPOINTING = "checkpointing"
    COMPILING = "compiling"
    STARTING = "starting"
    """Importing modules."""
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
    """On a line of the user's code that calls C: the line's text and the counters must tell what."""
    WAITING = "waiting"
    """Not on a CPU, not in any of the above: a lock, a socket, sleep, input()."""
    WAITING_FOR_WORK = "waiting_for_work"
    """A DataLoader worker with nothing to do."""


_LIBRARY = re.compile(
    r"(site-packages|dist-packages|/lib/python3\.\d+/|^lib/python3|<frozen|<string>|<__array_function__|"
    r"torchinductor_|<eval_with_key>|"
    r"/torch/(nn|optim|utils|autograd|_|cuda|distributed|multiprocessing|amp|functional|serialization)|"
    r"multiprocessing/|importlib/|threading\.py$|runpy\.py$|(^|/)gpuwatch[_/]hook\.py$)"
)
"""Files that are not the user's. ``site-packages`` covers every installed library, also in a truncated path."""

_PACKAGE = r"(?:^|(?:site|dist)-packages/|/pytorch/)"
"""Where a package's folder begins: an environment may itself lie in a folder called torch (``/opt/torch/.venv``)."""
_FRAMEWORK = re.compile(
    _PACKAGE + r"(torch|lightning|pytorch_lightning|accelerate|transformers|ignite|fastai|deepspeed|triton)/|"
    r"torchinductor_|<eval_with_key>"
)
"""Compiled code stands in files of the compiler's cache, or in none."""

_COMPILER = re.compile(
    r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|variables/|bytecode_|guards|backends/(?!debugging))|"
    r"torch/_inductor/(compile_fx|graph|scheduler|codecache|codegen/|fx_passes/|lowering|async_compile|autotune|"
    r"select_algorithm|ir\.py|sizevars|pattern_matcher|compile_worker)|"
    r"torch/_functorch/(partitioners|aot_autograd\.py|_aot_autograd/(?!runtime_wrappers|utils))|"
    r"torch/fx/(graph|graph_module|node|interpreter|proxy|_symbolic_trace|passes/|experimental/)|"
    r"triton/(compiler|runtime/(build|autotuner))"
)
"""Where compilers work. Compiled code runs through frames of theirs as well (eval_frame, runtime_wrappers, output_code,
backends/debugging): a job that compiles nothing any more has those on every stack."""
_COMPILED_RUNS = re.compile(r"torch/_functorch/aot_autograd\.py$")
_RUN_FUNCTIONS = frozenset({"forward", "__call__", "runtime_wrapper", "boxed_call", "boxed_forward"})

# (activity, file pattern, function names or None for any). Order matters: the first match on any frame decides.
_RULES: tuple[tuple[Activity, re.Pattern[str], frozenset[str] | None], ...] = (
    (Activity.CHECKPOINTING, re.compile(r"torch/serialization\.py$"),
     frozenset({"save", "_save", "_legacy_save"})),
    (Activity.CHECKPOINTING, re.compile(r"torch/distributed/checkpoint/|safetensors/(torch|numpy)\.py$"), None),
    (Activity.STARTING, re.compile(r"<frozen importlib"), None),
    (Activity.RESTARTING_WORKERS, re.compile(r"torch/utils/data/dataloader\.py$"),
     frozenset({"__init__", "_shutdown_workers", "_reset"})),
    (Activity.PREPARING_DATA, re.compile(r"torch/utils/data/(dataloader|_utils/fetch)\.py$"),
     frozenset({"fetch"})),
    (Activity.RECEIVING_DATA, re.compile(r"torch/multiprocessing/reductions\.py$"), None),
    (Activity.RECEIVING_DATA, re.compile(r"torch/utils/data/_utils/pin_memory\.py$"), frozenset({"pin_memory"})),
    (Activity.WAITING_FOR_DATA, re.compile(r"torch/utils/data/dataloader\.py$"),
     frozenset({"_try_get_data", "_get_data"})),
    (Activity.WAITING_FOR_DATA,
     re.compile(r"(site|dist)-packages/(nvidia/dali|ffcv|streaming|petastorm|ray/data|tensorflow/python/data)/"),
     frozenset({"__next__", "next", "share_outputs", "_get_outputs"})),
    (Activity.ALLOCATING, re.compile(r"torch/cuda/memory\.py$"), frozenset({"empty_cache"})),
    # Printing or formatting a tensor reads its values; a gradient scaler reads whether any overflowed.
    (Activity.SYNCHRONISING, re.compile(r"torch/_tensor_str\.py$"), None),
    (Activity.SYNCHRONISING, re.compile(r"torch/_tensor\.py$"), frozenset({"__format__", "__repr__", "__array__"})),
    (Activity.SYNCHRONISING, re.compile(r"torch/amp/grad_scaler\.py$"), frozenset({"<genexpr>"})),
    (Activity.COMMUNICATING, re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$"), None),
    (Activity.COMMUNICATING, re.compile(r"torch/nn/parallel/distributed\.py$"),
     frozenset({"_sync_buffers", "_sync_module_buffers", "_default_broadcast_coalesced",
                "_distributed_broadcast_coalesced"})),
    (Activity.LOGGING, re.compile(r"(^|/)json/(encoder|__init__)\.py$"),
     frozenset({"dumps", "dump", "iterencode", "encode"})),
    (Activity.LOGGING, re.compile(r"PIL/\w+\.py$"), frozenset({"save", "_save", "_encode_tile"})),
    (Activity.LOGGING, re.compile(r"/tqdm/\w+\.py$"), frozenset({"refresh", "display", "update", "set_postfix"})),
    (Activity.EVALUATING, re.compile(r"lightning/(pytorch/)?loops/(\w+/)?evaluation_loop\.py$"), None),
    (Activity.EVALUATING, re.compile(r"transformers/trainer(_seq2seq)?\.py$"),
     frozenset({"evaluate", "evaluation_loop", "predict", "prediction_loop"})),
    (Activity.LOGGING, re.compile(r"(wandb|tensorboard|tensorboardX|mlflow|neptune|matplotlib|logging)/"), None),
)  # fmt: skip

_SYNC_FUNCTIONS = frozenset({"synchronize"})
_SYNC_FILE = re.compile(r"torch/cuda/(__init__|streams)\.py$")
_COPY_FUNCTIONS = frozenset(
    {"to", "cuda", "copy_", "send_to_device", "move_data_to_device", "batch_to", "_prepare_input"}
)
_QUEUE_FILES = re.compile(r"(^|/)(queue|multiprocessing/(queues|connection|synchronize)|concurrent/futures/_base)\.py$")
_WORKER_LOOP = re.compile(r"torch/utils/data/_utils/worker\.py$")

_SYNC_TEXT = re.compile(
    r"\.item\(|\.tolist\(|\.cpu\(|\.numpy\(|\bisnan\b|\bisinf\b|\bisfinite\b|\.any\(\)|\.all\(\)|synchronize\(|"
    r"\.nonzero\(|\bbool\(|\bprint\(|\bfloat\(|\bint\(|\.to\(\s*[\"']cpu"
)
_LOG_TEXT = re.compile(
    r"\bfsync\(|\.write(lines|_text|_bytes)?\(|\bprint\(|json\.dumps?\(|\.savefig\(|\bimwrite\(|"
    r"\.add_(scalar|image|histogram|figure)s?\(|\blog(ger|ging)?\.(debug|info|warning|log)\("
)
_EVALUATION = re.compile(r"(^|_)(eval|evaluate|evaluation|valid|validate|validation)(_|$)|^compute_metrics?$")
_ALLOCATE_TEXT = re.compile(r"\bempty_cache\(")
_COLLECT_TEXT = re.compile(r"\bgc\.collect\(")
_COPY_TEXT = re.compile(
    r"\.cuda\(|\.to\((?!\s*torch\.(float|half|bfloat|int|long|double))|\.copy_\(|from_numpy\(|to_device"
)


class Doing(Struct, frozen=True):
    """One thread at one instant."""

    activity: Activity
    where: Frame | None
    """Innermost frame of the user's own code."""


def last_name(function: str) -> str:
    """``Class.method`` or ``fn.<locals>.inner`` to the bare name."""
    return function.rsplit(".", 1)[-1]


def is_users(frame: Frame) -> bool:
    """Whether this frame is the user's own code rather than a library's."""
    return bool(frame.file) and not _LIBRARY.search(frame.file)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """Innermost frame of the user's own code; if everything is installed, the innermost outside frameworks."""
    own = next((frame for frame in frames if is_users(frame)), None)
    if own is not None:
        return own
    return next((f for f in frames if "site-packages" in f.file and not _FRAMEWORK.search(f.file) and f.line > 0), None)


def classify(thread: ThreadStack, text_of: Mapping[tuple[str, int], str]) -> Doing:
    """What ``thread`` was doing. ``text_of`` maps (file, line) to the text of lines of the user's code."""
    frames = thread.frames
    where = user_frame(frames)
    return Doing(_activity(thread, where, text_of), where)


def _activity(thread: ThreadStack, where: Frame | None, text_of: Mapping[tuple[str, int], str]) -> Activity:
    frames = thread.frames
    if compiles(frames):
        return Activity.COMPILING
    for activity, file, functions in _RULES:
        if any(file.search(f.file) and (functions is None or last_name(f.function) in functions) for f in frames):
            return activity
    if not frames:
        return Activity.WAITING
    if any(is_users(f) and _EVALUATION.search(last_name(f.function)) for f in frames):
        return Activity.EVALUATING
    leaf = frames[0]
    if _SYNC_FILE.search(leaf.file) and last_name(leaf.function) in _SYNC_FUNCTIONS:
        return Activity.SYNCHRONISING
    if any(last_name(f.function) in _COPY_FUNCTIONS and not is_users(f) for f in frames[:2]):
        return Activity.COPYING
    if not thread.active and any(_QUEUE_FILES.search(f.file) for f in frames[:3]):
        return Activity.WAITING_FOR_DATA
    if _FRAMEWORK.search(leaf.file):
        return Activity.LAUNCHING
    in_step = phase_of(frames) is not Phase.NONE
    if is_users(leaf):
        text = text_of.get((leaf.file, leaf.line), "")
        activity = _line_activity(text, active=thread.active)
        # What a model's own line calls is most often the framework, unless its text says otherwise.
        return Activity.LAUNCHING if activity is Activity.USER_LINE and in_step and text else activity
    if in_step:
        # The model comes from a library: its lines call the framework as the user's would.
        return Activity.LAUNCHING
    return Activity.HOST_WORK if thread.active else Activity.WAITING


def compiles(frames: Sequence[Frame]) -> bool:
    """Whether a compiler works in this stack, rather than code that it has made."""
    return any(
        _COMPILER.search(f.file) and not (_COMPILED_RUNS.search(f.file) and last_name(f.function) in _RUN_FUNCTIONS)
        for f in frames
    )


class Phase(enum.IntEnum):
    """Where in a training step a stack stands; within one step they come in this order."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3


_BACKWARD = re.compile(_PACKAGE + r"torch/(autograd/|_tensor\.py)")
_UPDATE = re.compile(_PACKAGE + r"torch/optim/")
_MODULES = re.compile(_PACKAGE + r"torch/nn/modules/module\.py$")


def outside_modules(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames that called the outermost module, or all of them: what is left out is the model's own code."""
    calls = [place for place, frame in enumerate(frames) if _MODULES.search(frame.file)]
    return frames[calls[-1] + 1 :] if calls else frames


def phase_of(frames: Sequence[Frame]) -> Phase:
    """The phase by the framework's own frames."""
    if any(_BACKWARD.search(f.file) and last_name(f.function) in ("backward", "_engine_run_backward") for f in frames):
        return Phase.BACKWARD
    if any(_UPDATE.search(f.file) for f in frames):
        return Phase.UPDATE
    return Phase.FORWARD if any(_MODULES.search(f.file) for f in frames) else Phase.NONE


def _line_activity(text: str, *, active: bool) -> Activity:
    """A user's line that calls C. Waiting for the GPU spins or sleeps, so ``active`` does not decide for it."""
    code = text.split("#", 1)[0]
    if _ALLOCATE_TEXT.search(code):
        return Activity.ALLOCATING
    if _COLLECT_TEXT.search(code):
        return Activity.COLLECTING
    if _LOG_TEXT.search(code) and ".item(" not in code:
        return Activity.LOGGING
    if _SYNC_TEXT.search(code) and "torch.tensor(" not in code:
        return Activity.SYNCHRONISING
    if _COPY_TEXT.search(code):
        return Activity.COPYING
    return Activity.USER_LINE if active else Activity.WAITING


_CALL = re.compile(r"(\.?\w+)\(")
_COPY_CALLS = frozenset({".to", ".cuda", ".copy_", ".non_blocking", ".pin_memory"})


def only_copies(text: str) -> bool:
    """Whether a line of code calls nothing but copies."""
    calls = _CALL.findall(text.split("#", 1)[0])
    return bool(calls) and all(call in _COPY_CALLS for call in calls)


def in_worker_loop(frames: Sequence[Frame]) -> bool:
    """Whether this is a stack of a DataLoader worker."""
    return any(_WORKER_LOOP.search(f.file) and last_name(f.function) == "_worker_loop" for f in frames)


def worker_activity(thread: ThreadStack) -> Activity:
    """What the main thread of a DataLoader worker was doing."""
    frames = thread.frames
    in_loop = in_worker_loop(frames)
    fetching = any(last_name(f.function) == "fetch" for f in frames)
    if in_loop and not fetching:
        queue = any(_QUEUE_FILES.search(f.file) for f in frames)
        return Activity.WAITING_FOR_WORK if queue and not thread.active else Activity.RECEIVING_DATA
    if fetching or in_loop:
        return Activity.PREPARING_DATA if thread.active else Activity.WAITING
    return Activity.HOST_WORK if thread.active else Activity.WAITING


_HELPER_THREADS = re.compile(
    r"(pin_memory|QueueFeeder|QueueManager|_serve|tqdm|Monitor|watchdog|heartbeat|asyncio)", re.I
)


def driving_thread(pid: int, threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The thread that runs the training loop.

    The main thread, unless it merely waits while another Python thread is inside a framework or a DataLoader
    (notebooks, servers and trainers that run the loop in a thread).
    """
    main = next((t for t in threads if t.os_tid == pid or t.name == "MainThread"), None)
    if main is not None and main.frames and (main.active or _drives(main)):
        return main
    others = [t for t in threads if t is not main and t.frames and not _HELPER_THREADS.search(t.name)]
    driver = next((t for t in others if _drives(t)), None)
    if driver is not None:
        return driver
    return main if main is not None and main.frames else next(iter(others), None)


def competes(thread: ThreadStack) -> bool:
    """Whether a thread that holds the interpreter lock does so for itself: not one of the loader's, whose work the
    training thread would wait for anyway, nor autograd's, which is the training."""
    return (
        bool(thread.frames)
        and not _HELPER_THREADS.search(thread.name)
        and not any(_FRAMEWORK.search(f.file) for f in thread.frames)
    )


def _drives(thread: ThreadStack) -> bool:
    return any(
        _FRAMEWORK.search(f.file) and "pin_memory" not in f.file and "reductions" not in f.file for f in thread.frames
    )
