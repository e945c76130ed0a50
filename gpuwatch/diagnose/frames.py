"""What a thread was doing, from its stack.

Owns: the table of frames that give an activity away, and whether they do so for sure. Refuses: time, GPU counters,
whose code a frame is (origin.py), what a line's text says (line_text.py), which thread it is about (driver.py).

Functions are compared by their last part: py-spy prints ``Class.method`` from Python 3.11 on and ``method`` before.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.line_text import line_activity
from gpuwatch.diagnose.origin import INSTALLED, PACKAGE, Origin, is_users, origin, user_frame
from gpuwatch.model import Frame, ThreadStack

_COMPILER = re.compile(
    r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|variables/|bytecode_|guards|backends/(?!debugging))|"
    r"torch/_inductor/(compile_fx|graph|scheduler|codecache|codegen/|fx_passes/|lowering|async_compile|autotune|"
    r"select_algorithm|ir\.py|sizevars|pattern_matcher)|"
    r"torch/_functorch/(partitioners|aot_autograd\.py|_aot_autograd/(?!runtime_wrappers|utils))|"
    r"torch/fx/(graph|graph_module|node|interpreter|proxy|_symbolic_trace|passes/|experimental/)|"
    r"triton/(compiler|runtime/(build|autotuner))"
)
"""Where compilers work. Compiled code runs through frames of theirs as well (eval_frame, runtime_wrappers, output_code,
backends/debugging): a job that compiles nothing any more has those on every stack."""
_OTHER_COMPILERS = re.compile(
    PACKAGE
    + r"(jax/_src/(compiler|interpreters/(mlir|partial_eval|ad))|jaxlib/mlir/|numba/(core|cuda)/(compiler|typeinfer|"
    r"codegen|lowering)|tensorflow/python/(framework/func_graph|autograph/)|torch/utils/cpp_extension)"
)
"""XLA, numba, TensorFlow's tracing, and C++ that a job builds for itself. Their calls of what is compiled already run
through other files."""
_COMPILED_RUNS = re.compile(r"torch/_functorch/aot_autograd\.py$")
_RUN_FUNCTIONS = frozenset({"forward", "__call__", "runtime_wrapper", "boxed_call", "boxed_forward"})

_LOADS = frozenset({
    "load", "_load", "_legacy_load", "load_file", "load_model", "load_state_dict", "read_data", "from_pretrained",
    "load_state_dict_from_url", "hf_hub_download", "snapshot_download", "http_get", "create_model",
})  # fmt: skip

_LOADS_DATA = frozenset(
    {"map", "load_dataset", "filter", "from_generator", "download_and_prepare", "load_from_disk", "_map_single"}
)

# (activity, file pattern, function names or None for any). Order matters: the first match on any frame decides.
_RULES: tuple[tuple[Activity, re.Pattern[str], frozenset[str] | None], ...] = (
    (Activity.CHECKPOINTING, re.compile(r"torch/serialization\.py$"),
     frozenset({"save", "_save", "_legacy_save"})),
    (Activity.CHECKPOINTING, re.compile(r"torch/distributed/checkpoint/"),
     frozenset({"save", "async_save", "save_state_dict", "write_data", "_write_item", "_save_state_dict"})),
    (Activity.CHECKPOINTING, re.compile(r"safetensors/(torch|numpy|flax|tensorflow)\.py$"),
     frozenset({"save", "save_file", "save_model"})),
    (Activity.CHECKPOINTING, re.compile(PACKAGE + r"orbax/checkpoint/"), frozenset({"save", "wait_until_finished"})),
    (Activity.CHECKPOINTING,
     re.compile(PACKAGE + r"(transformers|diffusers|peft|accelerate|lightning|pytorch_lightning)/"),
     frozenset({"save_pretrained", "save_model", "_save_checkpoint", "save_checkpoint", "save_state"})),
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
    (Activity.COMMUNICATING, re.compile(PACKAGE + r"(horovod|mpi4py|byteps)/"), None),
    (Activity.SYNCHRONISING, re.compile(PACKAGE + r"jax/_src/"),
     frozenset({"block_until_ready", "_value", "__array__", "device_get", "try_to_block"})),
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
    (Activity.LOGGING,
     re.compile(INSTALLED + r"(wandb|tensorboard|tensorboardX|mlflow|neptune|matplotlib|comet_ml|clearml|aim|swanlab)/|"
                r"thon3\.\d+/logging/|torch/utils/tensorboard/"), None),
    (Activity.LOGGING, re.compile(r"numpy/lib/(_?npyio|_npyio_impl|format)\.py$|thon3\.\d+/csv\.py$"),
     frozenset({"save", "savez", "savez_compressed", "savetxt", "write_array", "writerow", "writerows"})),
    (Activity.STARTING, re.compile(r"torch/(serialization|hub)\.py$"), _LOADS),
    (Activity.STARTING, re.compile(r"torch/distributed/checkpoint/"), _LOADS),
    (Activity.STARTING, re.compile(r"safetensors/(torch|numpy|flax|tensorflow)\.py$"), _LOADS),
    (Activity.STARTING,
     re.compile(INSTALLED + r"(transformers|diffusers|huggingface_hub|timm|peft|sentence_transformers|vllm|sglang)/"),
     _LOADS),
    (Activity.STARTING, re.compile(INSTALLED + r"datasets/"), _LOADS_DATA),
)  # fmt: skip

_SYNC_FUNCTIONS = frozenset({"synchronize"})
_SYNC_FILE = re.compile(r"torch/cuda/(__init__|streams)\.py$")
_COPY_FUNCTIONS = frozenset(
    {"to", "cuda", "copy_", "send_to_device", "move_data_to_device", "batch_to", "_prepare_input"}
)
_QUEUE_FILES = re.compile(r"(^|/)(queue|multiprocessing/(queues|connection|synchronize)|concurrent/futures/_base)\.py$")
_LOADER_FILES = re.compile(r"torch/utils/data/")
_DATA_FILES = re.compile(INSTALLED + r"(datasets|webdataset|torchdata|streaming|litdata|torch_geometric|dgl)/")
_ITERATES = frozenset({"__next__", "__iter__", "iterator", "iterator1"})
_DATA_NAMES = re.compile(r"^(__next__|__iter__|next)$|batch|loader|prefetch|dataset|fetch")
_TALKS = re.compile(
    r"thon3\.\d+/(socket|ssl|selectors|subprocess|multiprocessing/connection)\.py$|" + INSTALLED + "zmq/"
)
_TALK_FUNCTIONS = frozenset(
    {"recv", "recv_into", "recv_multipart", "recvfrom", "_recv", "read", "readinto", "poll", "select", "accept", "wait",
     "_wait", "_try_wait", "sendall"}
)  # fmt: skip
_NAMED_WAIT = re.compile(r"(^|_)(wait|poll|recv|receive|dequeue|acquire|sleep|spin)(_|$)")
"""A server that asks its queue again and again computes nothing, busy as the thread is."""
_HANDS_OUT = re.compile(
    r"torch/(cuda|_inductor)/|torchinductor_|<eval_with_key>|" + PACKAGE + r"(triton|flash_attn|xformers)/"
)
_WORKER_LOOP = re.compile(r"torch/utils/data/_utils/worker\.py$")

_SAVES = re.compile(r"checkpoint|ckpt|snapshot|^save$|(^|_)save_(model|state|weights|params)")
"""A function of the user's that writes a checkpoint in a way of its own: np.save, pickle, a file of JSON."""
_EVALUATION = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation)"
    r"(_(models?|net|network|one_epoch|epoch|loop|step|set|split|dataset|data|loader|all|loss|metrics?|acc|accuracy|"
    r"policy|agent|checkpoint|fn|func|run|performance|generation))?$|^compute_metrics?$"
)
"""Functions that evaluate. Others that begin so (``evaluate_actions``, ``validate_batch``) are parts of a step."""


class Doing(Struct, frozen=True):
    """One thread at one instant."""

    activity: Activity
    where: Frame | None
    """Innermost frame of the user's own code."""
    leaf: Frame | None = None
    """Innermost frame of all: the line whose C calls native frames can tell apart."""
    sure: bool = True
    """The frames themselves say so. Else it is what they say most often: other code may stand on the same lines."""


def last_name(function: str) -> str:
    """``Class.method`` or ``fn.<locals>.inner`` to the bare name."""
    return function.rsplit(".", 1)[-1]


def classify(thread: ThreadStack, text_of: Mapping[tuple[str, int], str]) -> Doing:
    """What ``thread`` was doing. ``text_of`` maps (file, line) to the text of lines of code that are not torch's."""
    frames = thread.frames
    where = user_frame(frames)
    activity, sure = _by_frames(thread) or _by_leaf(thread, text_of)
    return Doing(activity, where, frames[0] if frames else None, sure)


def _by_frames(thread: ThreadStack) -> tuple[Activity, bool] | None:
    """What any frame of the stack gives away."""
    frames = thread.frames
    if compiles(frames):
        return Activity.COMPILING, True
    for activity, file, functions in _RULES:
        if any(file.search(f.file) and (functions is None or last_name(f.function) in functions) for f in frames):
            if activity is Activity.LOGGING and any(
                is_users(f) and _SAVES.search(last_name(f.function)) for f in frames
            ):
                return Activity.CHECKPOINTING, False
            # What loads before the training does so within it too: a loop that reads its samples with torch.load.
            return activity, functions is not _LOADS and functions is not _LOADS_DATA
    if not frames:
        return Activity.WAITING, True
    if any(_DATA_FILES.search(f.file) and last_name(f.function) in _ITERATES for f in frames):
        return (Activity.PREPARING_DATA if thread.active else Activity.WAITING_FOR_DATA), True
    if phase_of(frames) not in (Phase.BACKWARD, Phase.UPDATE) and any(
        is_users(f) and _EVALUATION.search(last_name(f.function)) for f in frames
    ):
        return Activity.EVALUATING, False
    return None


def _by_leaf(thread: ThreadStack, text_of: Mapping[tuple[str, int], str]) -> tuple[Activity, bool]:
    """What the innermost frames say where no other does."""
    frames, leaf = thread.frames, thread.frames[0]
    if _SYNC_FILE.search(leaf.file) and last_name(leaf.function) in _SYNC_FUNCTIONS:
        return Activity.SYNCHRONISING, True
    if any(last_name(f.function) in _COPY_FUNCTIONS and not is_users(f) for f in frames[:2]):
        return Activity.COPYING, True
    if any(_QUEUE_FILES.search(f.file) for f in frames[:3]) and not thread.active:
        return (Activity.WAITING_FOR_DATA if _asks_for_data(frames) else Activity.WAITING), True
    if _TALKS.search(leaf.file) and last_name(leaf.function) in _TALK_FUNCTIONS:
        # Polling without a pause is waiting too.
        return Activity.WAITING, True
    kind, in_step = origin(leaf), phase_of(frames) is not Phase.NONE
    if kind in (Origin.TORCH, Origin.LAUNCHER):
        # Outside of modules, backward and optimizers the same functions compute on the CPU, when that is where their
        # tensors are: image transforms, collation, metrics.
        return Activity.LAUNCHING, in_step or bool(_HANDS_OUT.search(leaf.file))
    if kind is Origin.STANDARD and _caller(frames) in (Origin.TORCH, Origin.LAUNCHER):
        # functools, contextlib, weakref: what a framework's own Python is made of.
        return Activity.LAUNCHING, in_step
    if kind in (Origin.CPU, Origin.STANDARD):
        return (Activity.HOST_WORK if thread.active else Activity.WAITING), True
    text = text_of.get((leaf.file, leaf.line), "")
    if kind is Origin.OTHER and not text and not in_step and _NAMED_WAIT.search(last_name(leaf.function)):
        return Activity.WAITING, False
    activity, sure = line_activity(text, active=thread.active)
    if in_step and activity is Activity.USER_LINE and (text or kind is Origin.OTHER):
        # What a model's own line calls is most often the framework, unless its text says otherwise.
        return Activity.LAUNCHING, True
    if in_step and kind is Origin.OTHER and activity is Activity.WAITING:
        return Activity.LAUNCHING, True
    return activity, sure


def _caller(frames: Sequence[Frame]) -> Origin:
    """Whose code called the standard library."""
    return next((kind for f in frames if (kind := origin(f)) is not Origin.STANDARD), Origin.STANDARD)


def _asks_for_data(frames: Sequence[Frame]) -> bool:
    """Whether somebody who sleeps in a queue waits for a batch there, by the names on the way."""
    return any(
        _LOADER_FILES.search(f.file) or _DATA_FILES.search(f.file) or _DATA_NAMES.search(last_name(f.function))
        for f in frames
    )


def compiles(frames: Sequence[Frame]) -> bool:
    """Whether a compiler works in this stack, rather than code that it has made."""
    return any(
        _OTHER_COMPILERS.search(f.file)
        or (
            _COMPILER.search(f.file) and not (_COMPILED_RUNS.search(f.file) and last_name(f.function) in _RUN_FUNCTIONS)
        )
        for f in frames
    )


class Phase(enum.IntEnum):
    """Where in a training step a stack stands; within one step they come in this order."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3


_BACKWARD = re.compile(PACKAGE + r"torch/(autograd/|_tensor\.py)")
_UPDATE = re.compile(PACKAGE + r"torch/optim/")
_MODULES = re.compile(PACKAGE + r"torch/nn/modules/module\.py$")


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
