"""Jobs of libraries that no recording shows: named right, or not surely. Frames as py-spy prints them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diagnose import builders as b
from gpuwatch.diagnose.driver import driven
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.origin import Origin, origin, user_frame
from gpuwatch.model import Confidence, Diagnosis, Frame, Observation, SourceLine, StackSample, ThreadStack

SITE, PYTHON, HOME = "/opt/conda/lib/python3.11/site-packages/", "/opt/conda/lib/python3.11/", "/home/ann/proj/"
LINEAR = (
    "forward SITE/torch/nn/modules/linear.py 134 < _call_impl SITE/torch/nn/modules/module.py 1790 < train train.py 40"
)
LAUNCH = (LINEAR, True)
QUEUE = "wait PY/threading.py 327 < get PY/queue.py 171"

Kind = tuple[str, bool]


def frames(text: str) -> tuple[Frame, ...]:
    """``function file line < caller …``, innermost first."""
    found = []
    for part in text.split(" < "):
        function, file, line = part.split()
        for short, long in (("SITE/", SITE), ("PY/", PYTHON)):
            file = file.replace(short, long)
        found.append(Frame(function, file if file.startswith(("/", "<")) else HOME + file, int(line)))
    return tuple(found)


def judged(
    busy: Sequence[float],
    kinds: Sequence[Kind],
    *,
    cores: float = 1.0,
    line: str = "",
    others: Sequence[ThreadStack] = (),
    rx: float = 1e7,
) -> Diagnosis:
    """A job without loader workers. ``line``: the text of train.py:35."""
    stacks: list[Observation] = []
    for i, at in enumerate(b.times()):
        text, active = kinds[i % len(kinds)]
        main = ThreadStack(b.PID, "MainThread", active, False, frames(text))
        stacks.append(StackSample(b.PID, b.PID, at - b.STEP_NS // 2, (main, *others)))
    source = [SourceLine(b.PID, b.times()[0], HOME + "train.py", 35, line)] if line else []
    process = b.ticks(
        b.process(b.PID, cores, threads=40, main_cores=min(cores, 1.0), state="R" if cores > 0.5 else "S")
    )
    return diagnose([b.inventory(), *b.gpu(busy, rx=rx), *process, *b.host(), *stacks, *source], b.PID)


BUSY, IDLE = [42.0, 45.0, 40.0], [0.0]
EPISODES = [*[0.0] * 6, *[95.0] * 6]


@pytest.mark.parametrize(
    ("stack", "busy"),
    [
        ("_encode_plus SITE/transformers/tokenization_utils_fast.py 552 < train train.py 31", BUSY),
        ("resize SITE/transformers/image_transforms.py 330 < preprocess SITE/transformers/models/vit/"
         "image_processing_vit.py 250 < train train.py 31", BUSY),
        ("_do_train SITE/ultralytics/engine/trainer.py 420 < <module> run.py 5", [60.0, 62.0]),
        ("_inner_training_loop SITE/transformers/trainer.py 2560 < <module> run.py 5", [60.0, 62.0]),
        ("_bookkeeping_sync SITE/vllm/v1/worker/gpu_model_runner.py 2300 < step SITE/vllm/v1/engine/core.py 270",
         [70.0, 72.0]),
        ("interpolate SITE/torch/nn/functional.py 4500 < augment train.py 22", BUSY),
        ("cache_miss SITE/jax/_src/pjit.py 180 < train train.py 70", BUSY),
    ],
)  # fmt: skip
def test_a_library_that_may_do_anything_is_no_sure_cause(stack: str, busy: list[float]) -> None:
    """Its line may wait for the GPU, launch or compute; each has another remedy."""
    verdict = judged(busy, [*[(stack, True)] * 6, *[LAUNCH] * 4]).verdict
    assert verdict.confidence is Confidence.LOW
    assert {"host_sync", "host_preprocessing", "launch_bound"} - {verdict.cause} <= set(verdict.alternatives)


@pytest.mark.parametrize(
    ("stack", "cause"),
    [
        ("_take SITE/pandas/core/generic.py 4000 < batches train.py 20", "host_preprocessing"),
        ("step SITE/mujoco/__init__.py 3 < step SITE/gymnasium/envs/mujoco/ant_v4.py 300 < "
         "collect_rollouts SITE/stable_baselines3/common/on_policy_algorithm.py 200", "host_preprocessing"),
        ("synchronize SITE/horovod/torch/mpi_ops.py 880 < train train.py 50", "nvlink_or_collective_wait"),
        ("block_until_ready SITE/jax/_src/api.py 2900 < train train.py 72", "host_sync"),
        ("decode SITE/PIL/ImageFile.py 300 < __next__ SITE/webdataset/pipeline.py 70 < train train.py 20",
         "loader_in_main_process"),
    ],
)  # fmt: skip
def test_what_a_package_can_only_do_names_the_cause(stack: str, cause: str) -> None:
    assert judged(BUSY, [*[(stack, True)] * 6, *[LAUNCH] * 4]).verdict.cause == cause


@pytest.mark.parametrize(
    "stack",
    [
        "load_file SITE/safetensors/torch.py 383 < main serve.py 12",
        "load SITE/torch/serialization.py 1500 < main serve.py 12",
        "read_data SITE/torch/distributed/checkpoint/filesystem.py 700 < load "
        "SITE/torch/distributed/checkpoint/state_dict_loader.py 170 < main train.py 12",
        "http_get SITE/huggingface_hub/file_download.py 450 < from_pretrained SITE/transformers/modeling_utils.py 3000",
        "_map_single SITE/datasets/arrow_dataset.py 3300 < map SITE/datasets/arrow_dataset.py 3000 < <module> t.py 3",
        "backend_compile SITE/jax/_src/compiler.py 340 < cache_miss SITE/jax/_src/pjit.py 180 < train train.py 70",
        "_try_wait PY/subprocess.py 2010 < _run_ninja_build SITE/torch/utils/cpp_extension.py 2100 < <module> t.py 3",
    ],
)
def test_a_job_that_starts_is_told_to_be_starting(stack: str) -> None:
    """Loading weights is not saving them, and a compiler is no preprocessing."""
    assert judged(IDLE, [(stack, True)]).verdict.cause == "warming_up"


def test_a_loop_that_reads_its_samples_with_torch_load_is_not_starting() -> None:
    load = ("load SITE/torch/serialization.py 1500 < train train.py 12", True)
    assert judged([0.0, 0.0, 0.0, 90.0], [load, load, load, LAUNCH]).verdict.cause == "host_preprocessing"


def test_without_any_work_for_the_gpu_preprocessing_is_not_sure() -> None:
    """A job of which no step was seen may still be preparing."""
    verdict = judged(IDLE, [("read_csv SITE/pandas/io/parsers/readers.py 1026 < main train.py 12", True)]).verdict
    assert verdict.confidence is not Confidence.HIGH
    assert "warming_up" in verdict.alternatives


@pytest.mark.parametrize(
    "text", ["n = int(np.linalg.norm(a))", "ids = arr.tolist()", "s = float(df.x.mean())", "bad = df.isnull().any()"]
)
def test_nobody_waits_for_a_gpu_that_sleeps(text: str) -> None:
    """Such a line reads a tensor, or computes on an array; a GPU that does nothing at all cannot be waited for."""
    line = ("fit train.py 35 < <module> train.py 90", True)
    assert judged([0.0, 0.0, 0.0, 0.0, 90.0], [line] * 4 + [LAUNCH], line=text).verdict.cause == "host_preprocessing"


def test_a_line_that_may_read_a_tensor_is_not_sure_to_do_so() -> None:
    line = ("fit train.py 35 < <module> train.py 90", True)
    verdict = judged([55.0, 58.0], [line] * 6 + [LAUNCH] * 4, line="losses.append(float(loss))").verdict
    assert (verdict.cause, verdict.confidence) == ("host_sync", Confidence.MEDIUM)
    verdict = judged([55.0, 58.0], [line] * 6 + [LAUNCH] * 4, line="losses.append(loss.item())").verdict
    assert (verdict.cause, verdict.confidence) == ("host_sync", Confidence.HIGH)


@pytest.mark.parametrize(
    "stack",
    [
        "wait PY/threading.py 327 < result PY/concurrent/futures/_base.py 451 < train train.py 77",
        QUEUE + " < rollout actor.py 50",
        "recv SITE/zmq/sugar/socket.py 950 < recv_requests SITE/sglang/srt/managers/scheduler.py 900",
        QUEUE + " < _process_input_queue SITE/vllm/v1/engine/core.py 730",
        "acquire_read SITE/vllm/distributed/device_communicators/shm_broadcast.py 500 < "
        "worker_busy_loop SITE/vllm/v1/executor/multiproc_executor.py 680",
    ],
)
def test_a_wait_for_something_else_is_not_a_wait_for_data(stack: str) -> None:
    assert judged([0.0, 0.0, 0.0, 60.0], [(stack, False)] * 3 + [LAUNCH], cores=0.2).verdict.cause == "unattributed"


@pytest.mark.parametrize(
    "stack",
    [
        "recv SITE/zmq/sugar/socket.py 950 < recv_requests SITE/sglang/srt/managers/scheduler.py 900",
        "acquire_read SITE/vllm/distributed/device_communicators/shm_broadcast.py 500",
    ],
)
def test_asking_a_queue_without_a_pause_is_a_wait_too(stack: str) -> None:
    """An inference server without requests keeps a core at 100 % and computes nothing."""
    assert judged([0.0, 0.0, 0.0, 60.0], [(stack, True)] * 3 + [LAUNCH]).verdict.cause == "unattributed"


def test_a_queue_with_batches_in_it_is_waited_for_as_data() -> None:
    """A prefetcher of the user's own: nothing but names tells it from other queues."""
    stack = (QUEUE + " < __next__ prefetch.py 12 < train train.py 30", False)
    verdict = judged([0.0, 0.0, 0.0, 60.0], [stack] * 3 + [LAUNCH], cores=0.2).verdict
    assert (verdict.cause, verdict.confidence) == ("unattributed", Confidence.LOW)
    assert "loader_too_few_workers" in verdict.alternatives


def _idle_thread(name: str, text: str, *, active: bool = False, gil: bool = False) -> ThreadStack:
    return ThreadStack(b.PID + 5, name, active, gil, frames(text))


def test_a_compiler_s_idle_helper_does_not_drive_the_gpu() -> None:
    """Any job that once used torch.compile has these threads, and was told to be warming up whenever it slept."""
    helper = _idle_thread(
        "Thread-3", "_recv_msg SITE/torch/_inductor/compile_worker/subproc_pool.py 62 < run PY/threading.py 982"
    )
    timer = _idle_thread("subproc_worker_timer", "check SITE/torch/_inductor/compile_worker/timer.py 40")
    verdict = judged(
        [5.0, 6.0], [("loop serve.py 33", False)] * 9 + [LAUNCH], cores=0.1, others=(helper, timer)
    ).verdict
    assert verdict.cause == "unattributed"
    assert verdict.location is not None
    assert verdict.location.file.endswith("serve.py")


def test_a_checkpoint_in_a_thread_is_what_the_training_waits_for() -> None:
    saving = _idle_thread(
        "ThreadPoolExecutor-0_0", "_save SITE/torch/serialization.py 1230 < _write ckpt.py 12", active=True
    )
    wait = ("wait PY/threading.py 327 < result PY/concurrent/futures/_base.py 451 < train train.py 77", False)
    verdict = judged([0.0, 0.0, 80.0], [wait] * 3 + [LAUNCH], cores=1.1, others=(saving,)).verdict
    assert (verdict.cause, verdict.confidence) == ("checkpoint_stall", Confidence.MEDIUM)
    assert verdict.location is not None
    assert verdict.location.line == 77, "what waits, not what writes"


def test_a_checkpoint_thread_that_holds_the_interpreter_is_named() -> None:
    saving = _idle_thread(
        "Thread-9 (save)", "_save SITE/torch/serialization.py 1230 < save_async train.py 80", active=True, gil=True
    )
    verdict = judged(BUSY, [LAUNCH], cores=1.3, others=(saving,)).verdict
    assert verdict.cause == "gil_contention"
    assert "Thread-9" in verdict.summary


@pytest.mark.parametrize("folder", ["neptune", "logging", "wandb", "matplotlib"])
def test_a_project_in_a_folder_of_that_name_does_not_log(folder: str) -> None:
    linear = LINEAR.replace("train train.py", f"train /home/ann/{folder}/train.py")
    assert judged([25.0, 28.0], [(linear, True)]).verdict.cause == "launch_bound"


@pytest.mark.parametrize("name", ["evaluate_actions", "validate_batch"])
def test_a_part_of_the_step_with_such_a_name_is_no_evaluation(name: str) -> None:
    linear = LINEAR.replace("train train.py", f"{name} policy.py 88 < update train.py")
    assert judged([22.0, 25.0], [(linear, True)]).verdict.cause == "launch_bound"


def test_a_name_alone_does_not_make_an_evaluation_sure() -> None:
    linear = LINEAR.replace("train train.py", "evaluate train.py 88 < main train.py")
    verdict = judged([22.0, 25.0], [(linear, True)]).verdict
    assert (verdict.cause, verdict.confidence) == ("logging_or_eval_stall", Confidence.MEDIUM)


def test_operators_on_many_cores_are_not_surely_launches() -> None:
    verdict = judged(BUSY, [LAUNCH], cores=8.0).verdict
    assert verdict.confidence is not Confidence.HIGH
    assert "host_preprocessing" in verdict.alternatives


def test_a_library_with_threads_of_its_own_computes_while_the_training_thread_sleeps() -> None:
    polars = ("collect SITE/polars/lazyframe/frame.py 2000 < batches train.py 20", False)
    verdict = judged([0.0, 0.0, 0.0, 60.0], [polars] * 3 + [LAUNCH], cores=10.0).verdict
    assert verdict.cause == "host_preprocessing"
    assert "10.0 cores" in verdict.summary


@pytest.mark.parametrize("prefix", ["kages/", "packages/", "e-packages/"])
def test_a_path_that_was_cut_in_the_middle_is_still_a_library_s(prefix: str) -> None:
    """Recordings may hold the last 60 characters only."""
    table = "_take SITE/pandas/core/generic.py 4000 < batches train.py 20"
    leaf, *outer = frames(table)
    cut = Frame(leaf.function, leaf.file.replace(SITE, prefix), leaf.line)
    assert origin(cut) is Origin.CPU
    assert user_frame([cut, *outer]) == outer[0]


def native(*names: str, leaf: str) -> list[StackSample]:
    """Looks at native frames below a Python line."""
    below = tuple(Frame(name, "libsomething.so", 0) for name in names)
    thread = ThreadStack(b.PID, "MainThread", True, False, (*below, *frames(leaf)))
    return [StackSample(b.PID, b.PID, at, (thread,), native=True) for at in b.times()[90:]]


UFUNC = "__call__ SITE/jax/_src/numpy/ufunc_api.py 183 < layers train.py 35 < main train.py 60"


@pytest.mark.parametrize(
    "names",
    [
        ("xla::Shape::Shape", "xla::PjRtStreamExecutorRawLoadedExecutable::Execute"),
        ("0x7f7678cab3ed", "free"),
        ("write", "0x7f75fe4ccfba", "cuLaunchHostFunc", "stream_executor::gpu::CudaStream::DoHostCallback"),
    ],
)
def test_a_library_that_hands_out_work_does_so_whatever_its_c_code_is_called(names: tuple[str, ...]) -> None:
    """JAX without jit on an H200: its own C++ takes the time, and was called preprocessing, and surely."""
    stacks: list[Observation] = []
    for at in b.times():
        main = ThreadStack(b.PID, "MainThread", True, False, frames(UFUNC))
        stacks.append(StackSample(b.PID, b.PID, at - b.STEP_NS // 2, (main,)))
    job = [b.inventory(), *b.gpu([4.0, 5.0]), *b.ticks(b.process(b.PID, 1.4)), *b.host(), *stacks]
    verdict = diagnose([*job, *native(*names, leaf=UFUNC)], b.PID).verdict
    assert verdict.cause == "launch_bound"
    assert verdict.confidence is not Confidence.HIGH


def test_the_standard_library_within_torch_is_torch() -> None:
    step = "wrapper PY/contextlib.py 81 < step SITE/torch/optim/adam.py 240 < train train.py 50"
    assert judged([25.0, 28.0], [(step, True)]).verdict.cause == "launch_bound"


def test_one_line_that_calls_a_library_is_no_python_to_be_rewritten() -> None:
    """scikit-learn's metric holds the interpreter all the time, and the user's loop has one line of it."""
    metric = "_unique1d SITE/numpy/lib/_arraysetops_impl.py 373 < roc_auc_score SITE/sklearn/metrics/_ranking.py 741 < "
    kinds = [metric + "train train.py 63"] * 46 + [metric + f"train train.py {n}" for n in range(70, 74)]
    stacks: list[Observation] = []
    for i, at in enumerate(b.times()):
        main = ThreadStack(b.PID, "MainThread", True, True, frames(kinds[i % 50]))
        stacks.append(StackSample(b.PID, b.PID, at - b.STEP_NS // 2, (main,)))
    job = [b.inventory(), *b.gpu([0.0, 8.0]), *b.ticks(b.process(b.PID, 1.0)), *b.host(), *stacks]
    assert diagnose(job, b.PID).verdict.cause == "host_preprocessing"


def test_a_few_samples_of_something_are_not_charged_with_what_follows() -> None:
    """A trainer stood on a line of its own in two of fifty-nine samples, and was told to preprocess."""
    table = ("_take SITE/pandas/core/generic.py 4000 < batches train.py 20", True)
    read = ("fit train.py 35 < <module> train.py 90", True)
    kinds = [table] * 4 + [read] * 5 + [LAUNCH] * 91
    found = judged([0.0] * 9 + [82.0] * 91, kinds, line="loss.item()").findings
    assert "host_sync" in {finding.cause for finding in found}, "five samples are no accident"
    assert "host_preprocessing" not in {finding.cause for finding in found}


def test_a_stack_that_could_not_be_read_is_not_replaced_by_another_thread_s() -> None:
    listener = _idle_thread("commands", "_hear train.py 9 < run PY/threading.py 982")
    unread = ThreadStack(b.PID, "MainThread", True, False, ())
    sample = StackSample(b.PID, b.PID, b.times()[0], (unread, listener))
    assert list(driven([sample])) == []
