"""What the first look at recorded jobs got wrong: each kind of mistake on jobs built from values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from diagnose import builders as b
from gpuwatch.diagnose import thresholds as t
from gpuwatch.diagnose.activity import Activity
from gpuwatch.diagnose.frames import classify
from gpuwatch.diagnose.gpu_windows import GpuWindow, throttle_shares
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.diagnose.native_frames import native_activity
from gpuwatch.model import (
    Confidence,
    CounterGrowth,
    DeviceHealth,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    EventKind,
    EventOrigin,
    EventRecord,
    Frame,
    HostSample,
    Observation,
    Pressure,
    ProcessSample,
    ProcessTick,
    Role,
    Severity,
    StackSample,
    ThreadStack,
)

PID = b.PID
LIB = b.LIB
MAIN = (Frame("main", "/home/ann/fit.py", 90),)
STEP = (Frame("step", "/home/ann/fit.py", 40), *MAIN)
MODULE = Frame("Module._call_impl", LIB + "torch/nn/modules/module.py", 1790)
FORWARD = (Frame("Conv2d._conv_forward", LIB + "torch/nn/modules/conv.py", 548), MODULE, *STEP)
BACKWARD = (
    Frame("_engine_run_backward", LIB + "torch/autograd/graph.py", 869),
    Frame("Tensor.backward", LIB + "torch/_tensor.py", 631),
    *STEP,
)
UPDATE = (Frame("Adam.step", LIB + "torch/optim/adam.py", 240), *STEP)
COMPILE = (Frame("_compile", LIB + "torch/_dynamo/convert_frame.py", 1300), MODULE, *STEP)

Kinds = list[tuple[tuple[Frame, ...], bool]]


def judged(*parts: list[Observation], extra: tuple[Observation, ...] = (), gpm: bool = True) -> Diagnosis:
    return diagnose([b.inventory(16, gpm=gpm), *extra, *(o for part in parts for o in part)], PID)


def job(busy: Sequence[float], kinds: Kinds, *more: Observation, cores: float = 1.0, host: float = 10.0) -> Diagnosis:
    return judged(b.gpu(busy), b.ticks(b.process(PID, cores)), b.host(host), b.stacks(kinds), extra=more)


def causes(d: Diagnosis) -> list[str]:
    return [f.cause for f in d.findings]


def test_what_the_gpu_did_is_charged_to_what_the_job_did_then_and_not_a_tenth_of_a_second_later() -> None:
    """Saving stops the GPU in three windows of six. Joined a window too early, training would pay for a part of it."""
    saving = (Frame("save", LIB + "torch/serialization.py", 960), Frame("keep", "/home/ann/fit.py", 70), *MAIN)
    d = job([0, 0, 0, 95, 95, 95], [(saving, True)] * 3 + [(BACKWARD, True)] * 3)
    assert causes(d) == ["checkpoint_stall"]
    shares = {s.activity: s.share for s in d.account}
    assert shares["checkpointing"] == pytest.approx(0.5, abs=0.03)
    assert shares["launching"] < 0.05


@pytest.mark.parametrize("lag_ms", [0, 240])
def test_counters_of_another_lag_are_joined_by_what_the_job_itself_shows(lag_ms: int) -> None:
    """Other drivers may be faster or slower; a job that alternates tells."""
    saving = (Frame("save", LIB + "torch/serialization.py", 960), Frame("keep", "/home/ann/fit.py", 70), *MAIN)
    busy, kinds = [0.0] * 3 + [95.0] * 6, [(saving, True)] * 3 + [(BACKWARD, True)] * 6
    moved: list[Observation] = [
        msgspec.structs.replace(s, mono_ns=s.mono_ns - t.GPM_LAG_NS + lag_ms * 1_000_000)
        for s in b.gpu(busy)
        if isinstance(s, DeviceSample)
    ]
    d = judged(moved, b.ticks(b.process(PID, 1.0)), b.host(), b.stacks(kinds))
    shares = {s.activity: s.share for s in d.account}
    assert shares["checkpointing"] == pytest.approx(1 / 3, abs=0.04)
    assert shares.get("launching", 0.0) < 0.06


# ---------------------------------------------------------------- compilation


def test_a_compiled_model_that_merely_runs_is_not_compiling() -> None:
    """Its stacks hold frames of the compiler's packages all the time."""
    runs = (
        Frame("call", "/tmp/torchinductor_ann/ab/cab.py", 300),
        Frame("CompiledFxGraph.__call__", LIB + "torch/_inductor/output_code.py", 588),
        Frame("runtime_wrapper", LIB + "torch/_functorch/_aot_autograd/runtime_wrappers.py", 371),
        Frame("forward", LIB + "torch/_functorch/aot_autograd.py", 1130),
        Frame("compile_wrapper", LIB + "torch/_dynamo/eval_frame.py", 736),
        *STEP,
    )
    assert classify(ThreadStack(1, "MainThread", True, False, runs), {}).activity is not Activity.COMPILING
    assert causes(job([97, 98], [(runs, True), (BACKWARD, True)])) == ["healthy"]


def test_compiling_between_steps_is_recompilation_and_before_them_warming_up() -> None:
    compiling: Kinds = [(COMPILE, True)] * 14
    training: Kinds = [(BACKWARD, True)] * 6
    again = job([0] * 14 + [80] * 6, compiling + training)
    assert again.verdict.cause == "recompilation"
    first = job([0], compiling)
    assert first.verdict.cause == "warming_up"


def test_a_compiler_at_work_in_autograds_own_thread_is_compiling_although_the_main_thread_only_waits() -> None:
    codegen = Frame("Graph.python_code", LIB + "torch/fx/graph.py", 1962)
    threads = (
        ThreadStack(PID + 7, "", True, True, (codegen,)),
        ThreadStack(PID, "MainThread", False, False, BACKWARD),
    )
    stacks: list[Observation] = [
        msgspec.structs.replace(s, threads=threads) for s in b.stacks([(BACKWARD, False)]) if isinstance(s, StackSample)
    ]
    d = judged(b.gpu([0, 0, 5]), b.ticks(b.process(PID, 1.0)), b.host(), stacks)
    assert d.verdict.cause == "warming_up"


# ---------------------------------------------------------------- episodes

REVIEW = (Frame("overlap", "/home/ann/fit.py", 60), Frame("look_at_it", "/home/ann/fit.py", 55), *MAIN)
REVIEW_FORWARD = (*FORWARD[:2], Frame("look_at_it", "/home/ann/fit.py", 53), *MAIN)


def test_work_between_many_steps_is_an_evaluation_whatever_its_function_is_called() -> None:
    review: Kinds = [(REVIEW_FORWARD, True), (REVIEW, True), (REVIEW, True), (REVIEW, True), (REVIEW, True)]
    steps: Kinds = [(BACKWARD, True), (FORWARD, True), (UPDATE, True), (FORWARD, True), (BACKWARD, True)]
    d = job([5] * 5 + [95] * 5, review + steps)
    assert d.verdict.cause == "logging_or_eval_stall"
    assert d.verdict.location is not None
    assert d.verdict.location.line == 60


def test_an_evaluation_is_one_at_half_the_stacks_because_it_runs_the_network_and_never_trains_it() -> None:
    """At five stacks a second an episode is two stacks long, no longer than chance would make it."""
    steps: Kinds = [(FORWARD, True), (BACKWARD, True), (FORWARD, True), (UPDATE, True)]
    rarely: Kinds = [(REVIEW_FORWARD, True), (REVIEW, True), *steps]
    busy = [5] * 2 + [95] * 4
    assert job(busy, rarely).verdict.cause == "logging_or_eval_stall"
    without = [(REVIEW, True) if stack is REVIEW_FORWARD else (stack, active) for stack, active in rarely]
    assert job(busy, without).verdict.cause in ("host_preprocessing", "python_bound")


def test_a_frozen_teacher_that_runs_in_each_step_is_no_evaluation() -> None:
    """It too runs forward and never back; it is seen at random between the parts of the step."""
    kinds: Kinds = [
        *[(REVIEW_FORWARD, True), (BACKWARD, True), (REVIEW, True), (FORWARD, True), (BACKWARD, True)],
        *[(FORWARD, True), (REVIEW, True), (UPDATE, True), (BACKWARD, True), (REVIEW_FORWARD, True)],
    ]
    d = job([5, 95, 5, 95, 95, 95, 5, 95, 95, 5], kinds)
    assert d.verdict.cause != "logging_or_eval_stall"


def test_slow_preprocessing_of_every_step_is_no_evaluation() -> None:
    """One step of a second: the phases of the step go forward only."""
    prepare: Kinds = [(REVIEW, True)] * 5
    step: Kinds = [(FORWARD, True), (FORWARD, True), (BACKWARD, True), (BACKWARD, True), (UPDATE, True)]
    d = job([5] * 5 + [95] * 5, prepare + step)
    assert d.verdict.cause in ("host_preprocessing", "python_bound")


def test_a_function_that_saves_is_saving_also_while_it_opens_and_syncs_its_file() -> None:
    keep = Frame("keep", "/home/ann/fit.py", 70)
    sync = Frame("keep", "/home/ann/fit.py", 72)
    save = (Frame("save", LIB + "torch/serialization.py", 960), keep, *MAIN)
    kinds: Kinds = [(save, True), ((sync, *MAIN), False), ((sync, *MAIN), False), (BACKWARD, True)]
    d = job([0, 0, 0, 95], kinds, b.source("os.fsync(f.fileno())", 72))
    assert causes(d) == ["checkpoint_stall"]


# ---------------------------------------------------------------- what only looks like launching


def test_a_thread_that_holds_the_interpreter_is_the_cause_and_slow_launches_its_effect() -> None:
    parser = ThreadStack(PID + 1, "Thread-1 (parse)", True, True, (Frame("parse", "/home/ann/log.py", 12),))
    stacks: list[Observation] = []
    for i, s in enumerate(b.stacks([(BACKWARD, True)])):
        assert isinstance(s, StackSample)
        parses = msgspec.structs.replace(parser, owns_gil=i % 2 == 0)
        stacks.append(msgspec.structs.replace(s, threads=(parses, *s.threads)))
    d = judged(b.gpu([8]), b.ticks(b.process(PID, 1.0)), b.host(), stacks)
    assert d.verdict.cause == "gil_contention"
    assert "log.py:12" in d.verdict.summary


def test_an_emptied_cache_goes_before_the_launches_in_which_memory_is_asked_for_again() -> None:
    d = job([50], [((Frame("step", "/home/ann/fit.py", 35), *MAIN), True), *[(FORWARD, True)] * 3],
            b.source("torch.cuda.empty_cache()"))  # fmt: skip
    assert causes(d)[0] == "allocator_thrash"


def test_small_pageable_copies_that_stop_the_run_ahead_are_named_although_their_bytes_cost_nothing() -> None:
    copy = (Frame("step", "/home/ann/fit.py", 35), *MAIN)
    d = judged(b.gpu([76], rx=1.2e9), b.ticks(b.process(PID, 1.0)), b.host(),
               b.stacks([(copy, True), *[(BACKWARD, True)] * 4]), extra=(b.source("x = x.to(device)"),))  # fmt: skip
    assert d.verdict.cause == "pageable_copies"
    assert d.verdict.gain_max == pytest.approx(1.25, abs=0.02), "without the wait the thread still takes 80 % of a step"


def test_copies_in_the_kernels_own_stream_are_bound_by_the_link_although_it_is_not_full() -> None:
    d = judged(b.gpu([48], rx=27e9), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(BACKWARD, True)]))
    assert causes(d) == ["pcie_bound"]


def test_a_thread_without_a_core_is_not_told_to_use_cuda_graphs() -> None:
    d = job([5], [(FORWARD, True), (BACKWARD, True)], cores=0.15, host=99.0)
    assert d.verdict.cause == "cpu_oversubscribed"


def test_gaps_between_the_kernels_of_a_well_used_gpu_are_a_note_and_not_a_fault() -> None:
    d = job([80], [(FORWARD, True), (BACKWARD, True)])
    assert causes(d) == ["healthy", "launch_bound"]
    assert d.findings[1].severity is Severity.INFO
    assert d.findings[1].gain_max > 1.1


def test_a_model_left_on_the_cpu_is_told_by_its_training_step_also_with_one_thread() -> None:
    d = job([0], [(BACKWARD, True), (UPDATE, True), (FORWARD, True)], cores=1.0)
    assert d.verdict.cause == "model_on_cpu"


@pytest.mark.parametrize(
    ("below", "activity"),
    [
        (
            ("sched_yield", "cuLaunchKernel", "cudaLaunchKernel", "at::native::gpu_kernel", "THPVariable_add"),
            "launching",
        ),
        (
            ("at::native::AVX2::vectorized_loop", "at::TensorIteratorBase::for_each", "THPVariable_mul"),
            "other_host_work",
        ),
        (("GOMP_parallel", "at::native::_upsample_bicubic2d_out_frame"), "other_host_work"),
        (("fsync", "os_fsync"), "logging"),
        (("__GI___libc_write", "_Py_write", "_bufferedwriter_raw_write"), "logging"),
        (("_io_TextIOWrapper_write_impl", "builtin_print"), "logging"),
        (("clock_nanosleep", "pysleep", "time_sleep"), "waiting"),
        (("at::_local_scalar_dense", "THPVariable_item"), "synchronising"),
        ((), "other_host_work"),
    ],
)
def test_native_frames_tell_cpu_kernels_writes_and_sleeps_from_launches(below: tuple[str, ...], activity: str) -> None:
    frames = (*(Frame(name, "lib.so", 0) for name in below), Frame("step", "/home/ann/fit.py", 35))
    assert native_activity(frames) == activity


def test_fetching_small_results_each_layer_is_waiting_for_the_gpu_although_nobody_read_the_line() -> None:
    """``x.cpu()``: native frames show a copy, the link carries nothing to speak of."""
    line = Frame("step", "/home/ann/fit.py", 35)
    below = (Frame("cuMemcpyDtoHAsync_v2", "libcuda.so.1", 0), Frame("at::native::copy_kernel_cuda", "libtorch.so", 0))
    thread = ThreadStack(PID, "MainThread", True, True, (*below, line))
    native = [StackSample(PID, PID, at, (thread,), native=True) for at in b.times()[:10]]
    d = job([40], [((line, *MAIN), True), (FORWARD, True), (BACKWARD, True)], *native)
    assert d.verdict.cause == "host_sync"


def test_tensor_operations_on_the_cpu_are_not_launches_when_the_gpu_does_nothing_meanwhile() -> None:
    line = Frame("step", "/home/ann/fit.py", 35)
    thread = ThreadStack(PID, "MainThread", True, True, (Frame("at::mul", "libtorch.so", 0), line))
    native = [StackSample(PID, PID, at, (thread,), native=True) for at in b.times()[:10]]
    d = job([0, 0, 0, 80], [((line, *MAIN), True)] * 3 + [(BACKWARD, True)], *native)
    assert d.verdict.cause == "host_preprocessing"


# ---------------------------------------------------------------- loader and device


def test_workers_that_read_many_small_files_are_told_to_pack_them_although_half_their_time_is_cpu() -> None:
    workers = [
        [
            msgspec.structs.replace(s, main_thread_state="D" if i % 4 == 0 else "R", rchar=i * 900 * 8192)
            for i, s in enumerate(b.process(5001 + number, 0.5, reads_per_s=3000))
        ]
        for number in range(4)
    ]
    pressed: list[Observation] = [
        HostSample(at, 30.0, cpus_online=16, psi_io=Pressure(30.0, 10.0)) for at in b.times()[::10]
    ]
    d = judged(b.gpu([0, 0, 60]), b.ticks(b.process(PID, 0.2, state="S"), workers), pressed,
               b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_small_files"


def test_tensor_operations_beside_a_gpu_that_does_nothing_at_all_may_be_a_model_left_on_the_cpu() -> None:
    """No module, no training loop that could be known: a script of tensor operations."""
    script = (Frame("einsum", LIB + "torch/functional.py", 407), Frame("<module>", "/home/ann/fit.py", 31))
    nothing, little = (job([busy], [(script, True)], cores=8.0) for busy in (0.0, 4.0))
    assert (nothing.verdict.cause, little.verdict.cause) == ("host_preprocessing", "launch_bound")
    assert "model_on_cpu" in nothing.verdict.alternatives
    assert "model_on_cpu" not in little.verdict.alternatives, "this one does send work to the GPU"
    assert "parameters()).device" in nothing.verdict.experiment


def test_nobody_launches_kernels_on_a_gpu_that_does_nothing_at_all() -> None:
    """Its own step's frames, but it sleeps: it may wait for a rank without a GPU."""
    d = job([0], [(FORWARD, True), (BACKWARD, True)], cores=0.3)
    assert "launch_bound" not in causes(d)


@pytest.mark.parametrize(("reads_per_s", "told"), [(3000, ("loader_small_files",)), (20, ())])
def test_workers_that_are_too_few_and_read_small_files_are_told_that_packing_them_may_do_as_well(
    reads_per_s: int, told: tuple[str, ...]
) -> None:
    workers = [
        [
            msgspec.structs.replace(s, rchar=s.rchar // 8 if isinstance(s.rchar, int) else s.rchar)
            for s in b.process(5001 + number, 0.9, reads_per_s=reads_per_s)
        ]
        for number in range(2)
    ]
    d = judged(b.gpu([0, 0, 60]), b.ticks(b.process(PID, 0.2, state="S"), workers), b.host(),
               b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_too_few_workers"
    assert d.verdict.alternatives == told
    assert d.verdict.confidence is (Confidence.MEDIUM if told else Confidence.HIGH)
    assert ("packed file" in d.verdict.experiment) == bool(told)
    seen = {row.name: (round(row.value), row.unit) for row in d.verdict.evidence if isinstance(row.value, float)}
    assert seen.get("bytes a read") == ((8, "KiB") if told else None)


@pytest.mark.parametrize(("fp32", "cause"), [(60.0, "tensor_cores_unused"), (8.0, "healthy")])
def test_mostly_fp32_is_told_although_a_few_blocks_use_tensor_cores(fp32: float, cause: str) -> None:
    gpu: list[Observation] = [
        msgspec.structs.replace(s, fp32_active_pct=fp32, tensor_active_pct=4.4)
        for s in b.gpu([100])
        if isinstance(s, DeviceSample)
    ]
    d = judged(gpu, b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(BACKWARD, True)]))
    assert d.verdict.cause == cause


# ---------------------------------------------------------------- other people's frames


def doing(*frames: Frame, text: str = "", name: str = "MainThread") -> Activity:
    thread = ThreadStack(1, name, True, True, frames)
    return classify(thread, {(frames[0].file, frames[0].line): text} if text else {}).activity


CALL = Frame("Module._call_impl", LIB + "torch/nn/modules/module.py", 1790)


def test_the_lines_of_a_librarys_model_and_of_compiled_code_launch_and_do_not_preprocess() -> None:
    assert doing(Frame("Block.forward", LIB + "timm/models/resnet.py", 200), CALL, *STEP) is Activity.LAUNCHING
    assert doing(Frame("call", "/var/tmp/torchinductor_ann/ab/cab.py", 30), *STEP) is Activity.LAUNCHING
    assert doing(Frame("run", LIB + "triton/runtime/jit.py", 700), *STEP) is Activity.LAUNCHING
    assert doing(Frame("resize", LIB + "PIL/Image.py", 2300), *STEP) is Activity.HOST_WORK


def test_a_line_of_the_users_model_launches_unless_its_text_says_otherwise() -> None:
    line = Frame("Net.forward", "/home/ann/net.py", 12)
    assert doing(line, CALL, *STEP, text="h = h * self.scale + x") is Activity.LAUNCHING
    assert doing(line, CALL, *STEP, text="if h.isnan().any().item():") is Activity.SYNCHRONISING
    assert doing(line, CALL, *STEP) is Activity.USER_LINE, "an unread line may do anything: native frames tell"


def test_printing_a_tensor_and_asking_a_gradient_scaler_wait_for_the_gpu() -> None:
    shown = Frame("_tensor_str", LIB + "torch/_tensor_str.py", 400)
    formatted = Frame("Tensor.__format__", LIB + "torch/_tensor.py", 1100)
    scaled = Frame("GradScaler._maybe_opt_step.<locals>.<genexpr>", LIB + "torch/amp/grad_scaler.py", 350)
    assert [doing(f, *STEP) for f in (shown, formatted, scaled)] == [Activity.SYNCHRONISING] * 3
    update = (Frame("Adam.step", LIB + "torch/optim/adam.py", 200),
              Frame("GradScaler._maybe_opt_step", LIB + "torch/amp/grad_scaler.py", 352))  # fmt: skip
    assert doing(*update, *STEP) is Activity.LAUNCHING, "the optimizer runs within the scaler"


def test_an_evaluation_within_a_trainer_is_one_although_no_function_of_the_users_runs() -> None:
    hugging = Frame("Trainer.evaluation_loop", LIB + "transformers/trainer.py", 4100)
    lightning = Frame("_EvaluationLoop.run", LIB + "lightning/pytorch/loops/evaluation_loop.py", 140)
    forward = Frame("Linear.forward", LIB + "torch/nn/modules/linear.py", 134)
    assert doing(forward, CALL, hugging, *MAIN) is Activity.EVALUATING
    assert doing(forward, CALL, lightning, *MAIN) is Activity.EVALUATING
    training = Frame("Trainer.training_step", LIB + "transformers/trainer.py", 3700)
    assert doing(forward, CALL, training, *MAIN) is Activity.LAUNCHING


def test_waiting_for_a_pipeline_that_is_not_torchs_is_waiting_for_data() -> None:
    """DALI, FFCV and others prepare in threads of C++: there is no worker process to see."""
    dali = (Frame("Pipeline.share_outputs", LIB + "nvidia/dali/pipeline.py", 1200), *STEP)
    assert doing(*dali) is Activity.WAITING_FOR_DATA
    d = job([0, 0, 60], [(dali, False)], cores=0.1)
    assert d.verdict.cause == "unattributed"
    assert "loader_too_few_workers" in d.verdict.alternatives


def test_the_loaders_own_threads_do_not_contend_for_the_interpreter() -> None:
    pin = ThreadStack(PID + 1, "Thread-1 (_pin_memory_loop)", True, True,
                      (Frame("recv", "/usr/lib/python3.12/multiprocessing/connection.py", 250),))  # fmt: skip
    stacks: list[Observation] = [
        msgspec.structs.replace(s, threads=(pin, *s.threads))
        for s in b.stacks([(BACKWARD, True)])
        if isinstance(s, StackSample)
    ]
    d = judged(b.gpu([40]), b.ticks(b.process(PID, 1.0)), b.host(), stacks)
    assert causes(d) == ["launch_bound"]


# ---------------------------------------------------------------- condition of the card


def link(gen: int, width: int, *, loaded: bool = True) -> tuple[Observation, ...]:
    return tuple(
        DeviceHealth(0, at, pcie_gen=gen, pcie_width=width, pcie_gen_max=5, pcie_width_max=16, pcie_under_load=loaded)
        for at in b.times()[::20]
    )


def test_copies_over_a_link_of_half_the_lanes_are_the_links_fault() -> None:
    d = judged(b.gpu([48], rx=13e9), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(BACKWARD, True)]),
               extra=link(5, 8))  # fmt: skip
    assert d.verdict.cause == "pcie_link_degraded"
    assert "x8" in d.verdict.summary
    assert "pcie_bound" in causes(d)


def test_an_idle_link_that_rests_is_no_fault_and_an_unused_slow_one_a_note() -> None:
    kinds: Kinds = [(BACKWARD, True)]
    assert causes(job([98], kinds, *link(1, 16, loaded=False))) == ["healthy"]
    slow = job([98], kinds, *link(3, 16))
    assert slow.verdict.severity is Severity.INFO
    assert "pcie_link_degraded" in causes(slow)


def event(origin: EventOrigin, xid: int) -> Observation:
    return EventRecord(0, b.times()[50], 0, EventKind.XID, origin, xid, text="what it means")


def test_an_error_of_the_card_is_critical_and_one_of_the_job_is_not_the_cards() -> None:
    kinds: Kinds = [(BACKWARD, True)]
    broken = job([98], kinds, event(EventOrigin.HARDWARE, 95))
    assert broken.verdict.cause == "ecc_or_xid"
    assert broken.verdict.severity is Severity.CRITICAL
    assert "XID 95" in broken.verdict.summary
    assert causes(job([98], kinds, event(EventOrigin.APPLICATION, 13))) == ["healthy"]


def test_errors_from_before_the_job_are_not_held_against_it_but_faulty_memory_is_told() -> None:
    old = tuple(DeviceHealth(0, at, ecc_volatile_uncorrected=7, remap_pending=0) for at in b.times()[::20])
    assert causes(job([98], [(BACKWARD, True)], *old)) == ["healthy"]
    pending = tuple(DeviceHealth(0, at, remap_pending=1) for at in b.times()[::20])
    told = job([98], [(BACKWARD, True)], *pending)
    assert (told.verdict.cause, told.verdict.severity) == ("ecc_or_xid", Severity.WARNING)


def test_a_link_that_repeats_packets_is_told_and_one_that_did_before_is_not() -> None:
    kinds: Kinds = [(BACKWARD, True)]

    def health(replays: int, window_s: int) -> tuple[Observation, ...]:
        growth = (CounterGrowth("pcie_replays", replays), CounterGrowth("ecc_volatile_corrected", 3))
        return tuple(DeviceHealth(0, at, pcie_replays=9000, grown=growth, grown_window_ns=window_s * 10**9)
                     for at in b.times()[::20])  # fmt: skip

    storm = job([98], kinds, *health(1200, 600))
    assert (storm.verdict.cause, storm.verdict.severity) == ("ecc_or_xid", Severity.WARNING)
    assert "repeats 120 packets a minute" in storm.verdict.summary
    said = {row.name: (row.value, row.window_s) for row in storm.verdict.evidence}
    assert (said["PCIe replays, new"], said["memory errors corrected, new"]) == ((1200.0, 600.0), (3.0, 600.0))
    assert causes(job([98], kinds, *health(80, 600))) == ["healthy"]
    assert causes(job([98], kinds, *health(1200, 30))) == ["healthy"], "too short for a rate"
    old = tuple(DeviceHealth(0, at, pcie_replays=9000) for at in b.times()[::20])
    assert causes(job([98], kinds, *old)) == ["healthy"]


def test_heat_between_two_readings_is_found_by_the_drivers_own_counters() -> None:
    def duty(share: float) -> tuple[Observation, ...]:
        return tuple(
            DeviceHealth(0, at, throttle_window_ns=2 * 10**9 + n, throttle_hw_thermal_share=share,
                         throttle_power_cap_share=0.9)
            for n, at in enumerate(b.times()[::20])
        )  # fmt: skip

    hot = job([98], [(BACKWARD, True)], *duty(0.3))
    assert "thermal_throttle" in causes(hot)
    found = next(f for f in hot.findings if f.cause == "thermal_throttle")
    assert "30 % of the time" in found.summary
    assert {"held down by hw_thermal", "held down by sw_power_cap"} <= {row.name for row in found.evidence}
    assert causes(job([98], [(BACKWARD, True)], *duty(0.02))) == ["healthy"]


def test_reasons_that_only_newer_drivers_tell_are_not_dropped() -> None:
    end = 10**12
    window = GpuWindow(0, end - 10**8, end, 0.9)
    sample = DeviceSample(0, end, clocks_event_reasons=0x200 | 0x400 | 0x8000)
    assert throttle_shares([sample], [window]) == {"board_limit": 1.0, "reliability": 1.0}


def grown(*steps_mib: float) -> list[Observation]:
    """GPU samples over twenty seconds in which the job's memory takes these steps, one per second."""
    found: list[Observation] = []
    used = 20 * 2**30
    for second, step in enumerate(steps_mib):
        used += int(step * 2**20)
        at = 10**12 + second * 10**9 + t.GPM_LAG_NS
        found.append(DeviceSample(0, at, gpu_util_pct=98, gpm_window_ns=b.STEP_NS, busy_pct=98.0, sm_active_pct=90.0,
                                  mem_used_bytes=used, processes=(DeviceProcess(PID, used, "C"),),
                                  processes_absent=None))  # fmt: skip
    return found


def test_memory_that_grows_to_the_end_is_a_leak_and_an_allocator_that_settles_is_not() -> None:
    def said(*steps_mib: float) -> list[str]:
        return causes(judged(grown(*steps_mib), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(BACKWARD, True)])))

    assert "gpu_memory_leak" in said(*[40.0] * 20)
    assert "gpu_memory_leak" not in said(*[400.0] * 3, *[0.0] * 17)
    assert "gpu_memory_leak" not in said(*[400.0, -400.0] * 10)


# ---------------------------------------------------------------- how sure


def test_a_few_samples_make_no_verdict_sure() -> None:
    kinds: Kinds = [(FORWARD, True), (BACKWARD, True)]
    few = judged(b.gpu([20]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks(kinds, every=5))
    many = job([20], kinds)
    assert few.verdict.cause == many.verdict.cause == "launch_bound"
    assert (few.verdict.confidence, many.verdict.confidence) == (Confidence.MEDIUM, Confidence.HIGH)


def test_a_line_that_nobody_could_read_is_not_surely_preprocessing() -> None:
    line = (Frame("step", "/home/ann/fit.py", 35), *MAIN)
    d = job([0, 40], [(line, True)])
    assert d.verdict.cause == "host_preprocessing"
    assert d.verdict.confidence is not Confidence.HIGH


def test_a_hung_loader_is_told_without_stacks_and_not_taken_for_a_forgotten_process() -> None:
    d = judged(b.gpu([0]), b.ticks(b.process(PID, 0.0, state="S"), [b.process(5001, 0.0, state="S")]), b.host())
    assert d.verdict.cause == "loader_hung"


def test_what_the_gpu_did_not_do_while_we_held_the_job_is_not_held_against_it() -> None:
    """A look at native frames ends the burst: the GPU of this healthy job idles only while py-spy holds it."""
    end = b.times()[-1]
    busy = [98.0] * 75 + [10.0] * 25
    plain = [s for s in b.stacks([(BACKWARD, True)]) if isinstance(s, StackSample) and s.mono_ns < b.times()[74]]
    held = StackSample(PID, PID, end, (ThreadStack(PID, "MainThread", True, True, BACKWARD),), native=True)
    d = judged(b.gpu(busy), b.ticks(b.process(PID, 1.0)), b.host(), [*plain, held])
    assert causes(d) == ["healthy"]


def test_loader_workers_that_the_job_has_renamed_are_told_by_their_stacks() -> None:
    """setproctitle changes name and command line: nothing of /proc tells them from other children."""
    workers = [b.process(5001 + i, 1.0) for i in range(2)]
    ticks = [
        msgspec.structs.replace(
            o,
            infos=tuple(i if i.pid == PID else msgspec.structs.replace(i, role=Role.CHILD, comm="x") for i in o.infos),
        )
        for o in b.ticks(b.process(PID, 0.1, state="S"), workers)
        if isinstance(o, ProcessTick)
    ]
    parts: list[Observation] = [*ticks, *b.stacks([(b.WORKER_FETCH, True)], pid=5001, every=5),
                                *b.stacks([(b.WORKER_FETCH, True)], pid=5002, every=5)]  # fmt: skip
    d = judged(b.gpu([0, 60]), parts, b.host(), b.stacks([(b.WAITING, False)]))
    assert d.verdict.cause == "loader_too_few_workers"


# ---------------------------------------------------------------- without stacks


def blind(busy: Sequence[float], main: list[ProcessSample]) -> Diagnosis:
    return judged(b.gpu(busy), b.ticks(main), b.host())


def test_without_stacks_a_writer_a_cpu_model_and_gaps_are_told_by_counters_and_never_for_sure() -> None:
    writer = [
        msgspec.structs.replace(s, write_bytes=int((s.mono_ns - b.times()[0]) * 0.15)) for s in b.process(PID, 0.8)
    ]
    found = {
        "checkpoint_stall": blind([0, 0, 90, 90], writer),
        "model_on_cpu": blind([0], b.process(PID, 12.0)),
        "launch_bound": blind([20], b.process(PID, 1.0)),
        "healthy": blind([80], b.process(PID, 1.0)),
        "unattributed": blind([5] * 6 + [95] * 6, b.process(PID, 1.0)),
    }
    assert [d.verdict.cause for d in found.values()] == list(found)
    assert all(d.verdict.confidence is not Confidence.HIGH for d in found.values())
