"""Jobs that no recording shows: other severities, decoys, missing evidence."""

from __future__ import annotations

import pytest

from diagnose import builders as b
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import Confidence, DeviceSample, Diagnosis, Frame, Observation, Severity, StackSample, Standing

PID = b.PID


def judged(
    *parts: list[Observation], extra: tuple[Observation, ...] = (), cpus: int = 16, gpm: bool = True
) -> Diagnosis:
    return diagnose([b.inventory(cpus, gpm=gpm), *extra, *(o for part in parts for o in part)], PID)


def test_data_loaded_in_the_training_process_asks_for_workers_and_names_the_decoding_line() -> None:
    d = judged(b.gpu([0, 0, 0, 0, 90]), b.ticks(b.process(PID, 1.0)), b.host(),
               b.stacks([(b.FETCHING, True)] * 4 + [(b.LAUNCHING, True)]))  # fmt: skip
    assert d.verdict.cause == "loader_in_main_process"
    assert d.verdict.location is not None
    assert (d.verdict.location.file, d.verdict.location.line) == ("/home/ann/photos.py", 12)
    # The loop prepares 4/5 of the time: one worker delivers a batch per 4 units, the rest of the step takes 1.
    assert "num_workers=5" in d.verdict.remedy
    assert d.verdict.severity is Severity.CRITICAL


def test_a_data_wait_that_the_gpu_queue_hides_is_not_a_cause() -> None:
    d = judged(b.gpu([98, 99]), b.ticks(b.process(PID, 0.2, state="S"), [b.process(5001, 0.6)]), b.host(),
               b.stacks([(b.WAITING, False), (b.WAITING, False), (b.LAUNCHING, True)]))  # fmt: skip
    assert d.verdict.cause == "healthy"


def test_workers_on_all_cores_are_not_told_to_be_more() -> None:
    workers = [b.process(5001 + i, 1.0) for i in range(15)]
    d = judged(b.gpu([0, 0, 60]), b.ticks(b.process(PID, 0.1, state="S"), workers), b.host(97.0),
               b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_slow_transform"
    assert "num_workers=" not in d.verdict.remedy


def test_cores_taken_by_others_are_said_so_that_nobody_rewrites_his_transform_for_them() -> None:
    d = judged(b.gpu([0, 0, 60]), b.ticks(b.process(PID, 0.1, state="S"), [b.process(5001, 0.9)]), b.host(97.0),
               b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_slow_transform"
    assert "other processes use 14.5 of 16" in d.verdict.summary


def test_workers_that_wait_for_work_point_at_the_transfer_not_at_their_number() -> None:
    workers = [b.process(5001 + i, 0.05, state="S") for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.3), workers), b.host(), b.stacks([(b.WAITING, False)]),
               b.stacks([(b.WORKER_QUEUE, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "loader_collate_or_ipc"


def test_workers_off_the_cpu_inside_a_fetch_wait_for_storage() -> None:
    workers = [b.process(5001 + i, 0.1, state="S", reads_per_s=20) for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.1, state="S"), workers), b.host(),
               b.stacks([(b.WAITING, False)]), b.stacks([(b.WORKER_FETCH, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "loader_storage_latency"
    assert d.verdict.location is not None
    assert d.verdict.location.file == "/home/ann/photos.py"


def test_workers_in_uninterruptible_sleep_wait_for_a_local_disk() -> None:
    workers = [b.process(5001 + i, 0.1, state="D", reads_per_s=20) for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.1, state="S"), workers), b.host(),
               b.stacks([(b.WAITING, False)]), b.stacks([(b.WORKER_FETCH, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "loader_storage_bandwidth"


def test_a_loader_in_which_nothing_moves_is_hung_not_slow() -> None:
    workers = [b.process(5001, 0.0, state="S")]
    d = judged(b.gpu([0]), b.ticks(b.process(PID, 0.0, state="S"), workers), b.host(),
               b.stacks([(b.WAITING, False)]), b.stacks([(b.WORKER_FETCH, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "loader_hung"


def test_framework_code_on_an_idle_gpu_computes_on_the_cpu_and_is_not_launching() -> None:
    d = judged(b.gpu([0, 0, 0, 80]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert d.verdict.cause == "host_preprocessing"


def test_small_kernels_are_launch_bound_and_free_memory_suggests_a_larger_batch() -> None:
    d = judged(
        b.gpu([25, 30], sm_of_busy=0.05), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)])
    )
    assert d.verdict.cause == "launch_bound"
    assert "larger batch" in d.verdict.remedy


def test_a_gpu_busy_with_kernels_that_fill_no_sm_is_not_called_healthy() -> None:
    d = judged(b.gpu([99], sm_of_busy=0.1), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert d.verdict.cause == "batch_too_small"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("loss_sum += loss.item()", "host_sync"),
        ("if torch.isnan(loss).any():", "host_sync"),
        # Hardly a byte goes over the link: it waits there for what was launched before.
        ("batch = batch.to(device)", "host_sync"),
        ("x = np.fft.fft2(batch)", "host_preprocessing"),
    ],
)
def test_the_text_of_a_line_that_calls_c_tells_what_it_does(text: str, cause: str) -> None:
    d = judged(b.gpu([40, 45]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source(text),))  # fmt: skip
    assert d.verdict.cause == cause


def test_a_copying_line_with_the_traffic_of_a_pageable_copy_is_one() -> None:
    d = judged(b.gpu([10], rx=6 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source("batch = batch.to(device)"),))  # fmt: skip
    assert [f.cause for f in d.findings] == ["pageable_copies"]


def test_gigabytes_on_the_link_make_an_unreadable_line_a_copy() -> None:
    d = judged(b.gpu([4], rx=7 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]))
    assert d.verdict.cause == "pageable_copies"


def test_copies_at_link_speed_are_not_blamed_on_pageable_memory() -> None:
    d = judged(b.gpu([4], rx=45 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]))
    assert d.verdict.cause == "pcie_bound"


def test_under_a_quota_the_quota_is_the_root_and_the_rest_are_symptoms() -> None:
    workers = [b.process(5001 + i, 0.15) for i in range(8)]
    d = judged(b.gpu([0, 20]), b.ticks(b.process(PID, 0.1), workers, quota=(1.5, 0.9)), b.host(),
               b.stacks([(b.WAITING, False), (b.LAUNCHING, True)]))  # fmt: skip
    assert d.verdict.cause == "cpu_quota_throttled"
    assert all(f.standing is Standing.SYMPTOM for f in d.findings[1:])
    assert len(d.findings) > 1


def test_a_quota_that_never_throttles_is_no_cause() -> None:
    d = judged(
        b.gpu([0, 0, 50]), b.ticks(b.process(PID, 1.0), quota=(8.0, 0.0)), b.host(), b.stacks([(b.FETCHING, True)])
    )
    assert d.verdict.cause == "loader_in_main_process"


def test_a_forgotten_process_is_told_from_one_that_waits_for_its_first_batch() -> None:
    forgotten = judged(b.gpu([0]), b.ticks(b.process(PID, 0.0, state="S")), b.host(),
                       b.stacks([((Frame("<module>", "/home/ann/cell.py", 3),), False)]))  # fmt: skip
    assert forgotten.verdict.cause == "idle_process_holds_memory"
    waiting = judged(b.gpu([0]), b.ticks(b.process(PID, 0.0, state="S"), [b.process(5001, 1.0)]), b.host(),
                     b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert waiting.verdict.cause == "loader_too_few_workers"


def test_a_loop_in_a_thread_is_found_behind_a_main_thread_that_only_waits() -> None:
    def threads(stack: Observation) -> Observation:
        assert isinstance(stack, StackSample)
        from gpuwatch.model import ThreadStack

        loop = ThreadStack(PID + 1, "Thread-1 (train)", True, False, b.FETCHING)
        main = ThreadStack(
            PID, "MainThread", False, False, (Frame("Thread.join", "/usr/lib/python3.12/threading.py", 1149),)
        )
        return StackSample(PID, PID, stack.mono_ns, (main, loop))

    d = judged(b.gpu([0, 0, 0, 90]), b.ticks(b.process(PID, 1.0)), b.host(),
               [threads(s) for s in b.stacks([(b.FETCHING, True)])])  # fmt: skip
    assert d.verdict.cause == "loader_in_main_process"


def test_refused_stacks_are_said_with_their_remedy_and_the_verdict_names_what_it_cannot_exclude() -> None:
    error = StackSample(PID, PID, b.times()[0], error="permission denied (ptrace_scope=1); run as the job's user")
    d = judged(b.gpu([20, 30]), b.ticks(b.process(PID, 1.0)), b.host(), [error])
    assert d.verdict.confidence is Confidence.LOW
    assert d.verdict.alternatives
    assert any("ptrace_scope" in note for note in d.missing)


def test_without_gpm_the_proxy_is_named_and_never_called_sure() -> None:
    d = judged(
        b.gpu([97], util_only=True), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]), gpm=False
    )
    assert d.verdict.cause == "healthy"
    assert d.verdict.confidence is not Confidence.HIGH
    assert any("GPM" in note for note in d.missing)
    assert all("SM active" not in row.name for row in d.verdict.evidence)


def test_a_gpu_without_a_process_is_idle_and_not_ill() -> None:
    d = diagnose([b.inventory(), *b.gpu([0], pids=())], 0, (0,))
    assert d.verdict.cause == "idle"
    assert d.verdict.severity is Severity.INFO


def test_a_process_in_another_pid_namespace_is_judged_by_the_gpu_and_said_to_be_invisible() -> None:
    d = judged(b.gpu([20, 30]))
    assert d.verdict.cause == "unattributed"
    assert any("PID namespace" in note for note in d.missing)


def test_no_readings_at_all_end_in_a_verdict_and_not_in_a_division_by_zero() -> None:
    assert diagnose([b.inventory()], PID).verdict.cause == "unattributed"
    assert diagnose([], PID).verdict.cause == "unattributed"


def test_a_second_worker_on_the_same_gpu_that_sleeps_is_no_tenant() -> None:
    sleeping = judged(
        b.gpu([99], pids=(PID, 9000)), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)])
    )
    assert sleeping.verdict.cause == "gpu_shared", "nothing is known of the other process: it may compute"
    idle: list[Observation] = b.ticks(b.process(PID, 1.0))
    from gpuwatch.model import ProcessTick

    known = [ProcessTick(s.mono_ns, (s,)) for s in b.process(9000, 0.0, state="S")]
    d = judged(b.gpu([99], pids=(PID, 9000)), idle, list(known), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert d.verdict.cause == "healthy"


def test_thermal_throttling_is_named_beside_the_load_and_power_capping_is_not_a_fault() -> None:
    import msgspec

    def with_bits(bits: int, clock: int) -> list[Observation]:
        return [
            msgspec.structs.replace(s, clocks_event_reasons=bits, sm_clock_mhz=clock)
            for s in b.gpu([98]) if isinstance(s, DeviceSample)
        ]  # fmt: skip

    loop = (b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert judged(with_bits(0x20, 1200), *loop).verdict.cause == "thermal_throttle"
    assert judged(with_bits(0x4, 1530), *loop).verdict.cause == "healthy"


IMPORTING = (
    Frame("get_code", "<frozen importlib._bootstrap_external>", 1),
    Frame("<module>", "/home/ann/fit.py", 1),
)


def test_a_start_up_at_the_beginning_of_the_window_is_not_mixed_into_the_steady_state() -> None:
    """Averaged over all of it, the loader would seem to need half of the workers that it needs."""
    starting = b.stacks([(IMPORTING, True)])[:40]
    steady = b.stacks([(b.WAITING, False)] * 9 + [(b.LAUNCHING, True)])[40:]
    d = judged(b.gpu([0] * 9 + [90]), b.ticks(b.process(PID, 0.1, state="S"), [b.process(5001, 1.0)]), b.host(),
               starting, steady)  # fmt: skip
    assert d.verdict.cause == "loader_too_few_workers"
    assert len(d.findings) == 1
    waiting = next(row for row in d.verdict.evidence if "waits for a batch" in row.name)
    assert waiting.value == pytest.approx(90.0, abs=3)
    assert any("start-up" in note for note in d.missing)


def test_a_job_that_only_starts_up_is_told_so_and_not_ill() -> None:
    d = judged(b.gpu([0, 0, 3]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(IMPORTING, True)]))
    assert d.verdict.cause == "warming_up"
    assert d.verdict.severity is Severity.INFO


def test_compilation_scattered_over_the_window_is_a_cause_and_not_a_start_up() -> None:
    compiling = (
        Frame("compile_inner", b.LIB + "torch/_inductor/compile_fx.py", 5),
        Frame("fit", "/home/ann/fit.py", 33),
    )
    d = judged(b.gpu([0, 60, 60]), b.ticks(b.process(PID, 1.0)), b.host(),
               b.stacks([(compiling, True), (b.LAUNCHING, True), (b.LAUNCHING, True)]))  # fmt: skip
    assert d.verdict.cause == "recompilation"


def test_torn_reads_in_a_good_burst_are_no_news() -> None:
    torn = StackSample(PID, PID, b.times()[3], error="py-spy: torn read (3 times; sampling goes on)")
    d = judged(b.gpu([98]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]), [torn])
    assert d.verdict.cause == "healthy"
    assert d.missing == ()


def test_one_more_worker_beside_fourteen_is_not_an_advice() -> None:
    workers = [b.process(5001 + i, 0.8) for i in range(14)]
    d = judged(b.gpu([90, 90, 10]), b.ticks(b.process(PID, 0.5), workers), b.host(78.0),
               b.stacks([(b.LAUNCHING, True), (b.LAUNCHING, True), (b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_slow_transform"


def test_numpy_work_beside_small_copies_is_not_blamed_on_the_copies() -> None:
    """Seen on an H200: 1.4 GiB/s over the link, and four fifths of the time in numpy."""
    d = judged(b.gpu([15], rx=1.4 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source("y = (img.astype(np.float32) - 127.0) / 64.0"),))  # fmt: skip
    assert d.verdict.cause == "host_preprocessing"


def test_a_line_that_computes_and_copies_is_split_by_what_went_over_the_link() -> None:
    d = judged(b.gpu([15], rx=1.0 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source("t = torch.from_numpy(np.flip(y, 3).copy()).to(device)"),))  # fmt: skip
    assert [f.cause for f in d.findings] == ["host_preprocessing", "pageable_copies"]
    assert sum(share.share for share in d.account) == pytest.approx(1.0)


def test_a_job_that_ends_in_the_window_is_judged_by_its_life_and_not_by_the_idle_gpu_after_it() -> None:
    from gpuwatch.model import ProcessTick

    cut = b.times()[60]
    alive = [t for t in b.ticks(b.process(PID, 1.0)) if isinstance(t, ProcessTick) and t.mono_ns <= cut]
    gone = ProcessTick(alive[-1].mono_ns + 300_000_000, gone=(PID,))
    windows = [s for s in b.gpu([98]) if isinstance(s, DeviceSample) and s.mono_ns <= cut]
    after = [s for s in b.gpu([0], pids=()) if isinstance(s, DeviceSample) and s.mono_ns > cut]
    d = judged([*windows, *after], [*alive, gone], b.host(), b.stacks([(b.LAUNCHING, True)])[:60])
    assert d.verdict.cause == "healthy"
    assert any("ended" in note for note in d.missing)


def test_empty_cache_in_the_loop_is_named_with_its_line() -> None:
    d = judged(b.gpu([40, 45]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source("torch.cuda.empty_cache()"),))  # fmt: skip
    assert d.verdict.cause == "allocator_thrash"
    assert "empty_cache()" in d.verdict.summary


def test_an_explicit_garbage_collection_is_named() -> None:
    d = judged(b.gpu([0, 80]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.USER_LINE, True)]),
               extra=(b.source("gc.collect()"),))  # fmt: skip
    assert d.verdict.cause == "gc_pauses"


def test_a_thread_that_holds_the_interpreter_lock_is_named_with_its_line() -> None:
    from gpuwatch.model import ThreadStack

    def crowded(stack: Observation) -> Observation:
        assert isinstance(stack, StackSample)
        other = ThreadStack(PID + 5, "Thread-7 (metrics)", True, True, (Frame("count", "/home/ann/metrics.py", 8),))
        return StackSample(PID, PID, stack.mono_ns, (*stack.threads, other))

    d = judged(
        b.gpu([40]), b.ticks(b.process(PID, 1.0)), b.host(), [crowded(s) for s in b.stacks([(b.LAUNCHING, True)])]
    )
    finding = next(f for f in d.findings if f.cause == "gil_contention")
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("/home/ann/metrics.py", 8)


def test_a_full_dev_shm_is_told_from_a_slow_collate() -> None:
    from gpuwatch.model import HostSample

    full = [HostSample(t, 10.0, shm_total_bytes=64 * 2**20, shm_used_bytes=63 * 2**20) for t in b.times()[::10]]
    workers = [b.process(5001 + i, 0.05, state="S") for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.3), workers), list(full), b.stacks([(b.WAITING, False)]),
               b.stacks([(b.WORKER_QUEUE, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "shm_too_small"


def test_workers_that_wait_for_swapped_pages_are_short_of_memory_and_not_of_a_faster_disk() -> None:
    from gpuwatch.model import HostSample, Pressure

    thrash = [HostSample(t, 10.0, psi_memory=Pressure(20.0), psi_io=Pressure(30.0)) for t in b.times()[::10]]
    workers = [b.process(5001 + i, 0.1, state="D") for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.1, state="S"), workers), list(thrash),
               b.stacks([(b.WAITING, False)]), b.stacks([(b.WORKER_FETCH, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "memory_thrash"


def test_a_lost_gpu_is_nothing_but_lost() -> None:
    from gpuwatch.model import Absent, Reason

    gone = [DeviceSample(0, t, power_w=Absent(Reason.LOST), busy_pct=Absent(Reason.LOST)) for t in b.times()[50:]]
    d = judged(b.gpu([90])[:50], list(gone), b.ticks(b.process(PID, 1.0)), b.host())
    assert (d.verdict.cause, d.verdict.severity) == ("gpu_lost", Severity.CRITICAL)


@pytest.mark.parametrize("renamed", ["python", "my-loader"])
def test_workers_under_another_name_are_still_judged_by_what_they_do(renamed: str) -> None:
    """setproctitle and spawn: the role says what they are, whatever the comm."""
    import msgspec

    from gpuwatch.model import ProcessTick

    ticks = [
        msgspec.structs.replace(t, infos=tuple(msgspec.structs.replace(i, comm=renamed) for i in t.infos))
        for t in b.ticks(b.process(PID, 0.1, state="S"), [b.process(5001, 1.0)]) if isinstance(t, ProcessTick)
    ]  # fmt: skip
    d = judged(b.gpu([0] * 9 + [90]), list(ticks), b.host(), b.stacks([(b.WAITING, False)]))
    assert d.verdict.cause == "loader_too_few_workers"


def test_half_of_the_readings_give_the_same_cause() -> None:
    parts = (b.gpu([0] * 9 + [90])[::2], b.ticks(b.process(PID, 0.1, state="S"), [b.process(5001, 1.0)]),
             b.host()[::2], b.stacks([(b.WAITING, False)])[::2])  # fmt: skip
    assert judged(*parts).verdict.cause == "loader_too_few_workers"


def test_five_hundred_threads_do_not_hide_the_loop() -> None:
    from gpuwatch.model import ThreadStack

    idle = tuple(
        ThreadStack(9000 + i, f"pool-{i}", False, False, (Frame("wait", "/usr/lib/python3.12/threading.py", 355),))
        for i in range(500)
    )
    crowd: list[Observation] = [
        StackSample(s.pid, s.root_pid, s.mono_ns, (*idle, *s.threads))
        for s in b.stacks([(b.FETCHING, True)]) if isinstance(s, StackSample)
    ]  # fmt: skip
    d = judged(b.gpu([0, 0, 0, 90]), b.ticks(b.process(PID, 1.0)), b.host(), crowd)
    assert d.verdict.cause == "loader_in_main_process"


def test_without_psi_storage_is_still_told_by_the_state_of_the_workers() -> None:
    from gpuwatch.model import NOT_SUPPORTED, HostSample, Pressure

    old = Pressure(NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED)
    kernel = [HostSample(t, 10.0, psi_cpu=old, psi_io=old, psi_memory=old) for t in b.times()[::10]]
    workers = [b.process(5001 + i, 0.1, state="D", reads_per_s=20) for i in range(4)]
    d = judged(b.gpu([0, 60]), b.ticks(b.process(PID, 0.1, state="S"), workers), list(kernel),
               b.stacks([(b.WAITING, False)]), b.stacks([(b.WORKER_FETCH, False)], pid=5001, every=5))  # fmt: skip
    assert d.verdict.cause == "loader_storage_bandwidth"


def two_ranks(our_busy: float, our_sm_of_busy: float, other_busy: float) -> list[Observation]:
    """A distributed job: rank PID on GPU 0, rank 4243 on GPU 1, both children of one launcher."""
    import msgspec

    from gpuwatch.model import DeviceProcess, ProcessInfo, ProcessTick, Role

    theirs = [
        msgspec.structs.replace(s, device_index=1, processes=(DeviceProcess(4243, 20 * 2**30, "C"),))
        for s in b.gpu([other_busy]) if isinstance(s, DeviceSample)
    ]  # fmt: skip
    other = ProcessInfo(
        4243, 8, 1, 4243, Role.MAIN, "python", "python fit.py", "ann", 1000, device_indices=(1,), python=True
    )
    return [*b.gpu([our_busy], sm_of_busy=our_sm_of_busy), *theirs, ProcessTick(b.times()[0], infos=(other,))]


def test_a_rank_that_waits_in_a_collective_points_at_the_one_that_idles() -> None:
    d = judged(two_ranks(99, 0.1, 30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert d.verdict.cause == "nvlink_or_collective_wait"
    assert "pid 4243 on GPU 1" in d.verdict.summary
    assert "batch_too_small" not in [f.cause for f in d.findings]


def test_the_slow_rank_is_judged_by_its_own_cause_and_blames_nobody() -> None:
    d = judged(two_ranks(10, 0.9, 99), b.ticks(b.process(PID, 0.1, state="S"), [b.process(5001, 1.0)]), b.host(),
               b.stacks([(b.WAITING, False)]))  # fmt: skip
    assert d.verdict.cause == "loader_too_few_workers"
    assert "nvlink_or_collective_wait" not in [f.cause for f in d.findings]


def test_two_healthy_ranks_are_healthy() -> None:
    d = judged(two_ranks(97, 0.9, 96), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(b.LAUNCHING, True)]))
    assert d.verdict.cause == "healthy"


def test_copies_are_judged_by_what_this_machine_was_measured_to_reach() -> None:
    seen = [
        b.inventory(),
        *b.gpu([4], rx=11e9),
        *b.ticks(b.process(PID, 1.0)),
        *b.host(),
        *b.stacks([(b.USER_LINE, True)]),
    ]
    typical = diagnose(seen, PID)
    assert typical.verdict.cause == "pageable_copies"
    slow_link = diagnose(seen, PID, ceilings={"h2d_pinned_bytes_per_s": 12.5e9})
    assert slow_link.verdict.cause == "pcie_bound", "this link does not give more, pinned or not"
    fast = diagnose(seen, PID, ceilings={"h2d_pinned_bytes_per_s": 55.5e9})
    row = next(r for r in fast.verdict.evidence if r.name == "pinned copies reach")
    assert row.value == pytest.approx(55.5e9 / 2**30, abs=0.1)
    assert "measured here" in row.source


def test_an_environment_in_a_folder_called_torch_does_not_make_its_libraries_torch() -> None:
    """Seen on an H200 whose Python lives in /opt/torch/.venv: Pillow at work was taken for launching."""
    from gpuwatch.diagnose.activity import Activity
    from gpuwatch.diagnose.frames import classify
    from gpuwatch.model import ThreadStack

    home = "/opt/torch/.venv/lib/python3.12/site-packages/"
    pillow = (Frame("Image.resize", home + "PIL/Image.py", 2438), Frame("fit", "/home/ann/fit.py", 35))
    linear = (Frame("Linear.forward", home + "torch/nn/modules/linear.py", 134), Frame("fit", "/home/ann/fit.py", 33))
    truncated = (Frame("Linear.forward", "thon3.12/site-packages/torch/nn/modules/linear.py", 134), pillow[1])

    def doing(frames: tuple[Frame, ...]) -> Activity:
        return classify(ThreadStack(1, "MainThread", True, False, frames), {}).activity

    assert doing(pillow) is Activity.HOST_WORK
    assert doing(linear) is Activity.LAUNCHING
    assert doing(truncated) is Activity.LAUNCHING


def test_what_is_lost_while_the_queue_fills_again_after_a_stall_belongs_to_the_stall() -> None:
    """Launching keeps this GPU busy by itself; it idles during launches only because the stall has drained it."""
    d = judged(b.gpu([0, 60, 95, 95, 95]), b.ticks(b.process(PID, 1.0)), b.host(),
               b.stacks([(b.USER_LINE, True), *[(b.LAUNCHING, True)] * 4]),
               extra=(b.source("torch.cuda.empty_cache()"),))  # fmt: skip
    assert [f.cause for f in d.findings] == ["allocator_thrash"]
    assert d.verdict.lost_share == pytest.approx(1.0 - 0.69, abs=0.02)
    assert sum(share.share for share in d.account) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["evaluate", "validate", "Trainer.validation_step", "run_eval"])
def test_an_evaluation_is_told_by_the_name_of_its_function(name: str) -> None:
    frames = (Frame("max_pool", b.LIB + "numpy/core/x.py", 3), Frame(name, "/home/ann/fit.py", 80))
    d = judged(b.gpu([0, 90]), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(frames, True), (b.LAUNCHING, True)]))
    assert d.verdict.cause == "logging_or_eval_stall"
    assert "evaluates" in d.verdict.summary


@pytest.mark.parametrize(
    ("threads", "cores", "cause"), [(17, 1.3, "cpu_oversubscribed"), (17, 1.0, "loader_slow_transform")]
)
def test_crowded_threads_are_told_from_a_slow_transform_and_idle_pools_from_working_ones(
    threads: int, cores: float, cause: str
) -> None:
    workers = [b.process(5001 + i, cores, threads=threads) for i in range(12)]
    d = judged(
        b.gpu([0, 0, 60]),
        b.ticks(b.process(PID, 0.1, state="S"), workers),
        b.host(98.0),
        b.stacks([(b.WAITING, False)]),
    )
    assert d.verdict.cause == cause


def test_asynchronous_copies_that_fill_the_link_are_not_called_synchronising() -> None:
    """Pinned and non-blocking: the thread stands in synchronize(), the engines idle, the bytes tell."""
    waiting = (Frame("synchronize", b.LIB + "torch/cuda/__init__.py", 1162), Frame("fit", "/home/ann/fit.py", 40))
    d = judged(b.gpu([5], rx=45 * 2**30), b.ticks(b.process(PID, 1.0)), b.host(), b.stacks([(waiting, True)]))
    assert [f.cause for f in d.findings] == ["pcie_bound"]


def test_workers_that_are_exchanged_again_and_again_are_a_restart_and_not_too_few() -> None:
    import msgspec

    from gpuwatch.model import ProcessInfo, ProcessTick, Role

    ticks: list[Observation] = list(b.ticks(b.process(PID, 0.1, state="S")))
    for i, sample in enumerate(b.process(6000, 1.0)):
        pid = 6000 + i // 8  # eight readings each, 2.4 s
        info = ProcessInfo(
            pid, pid, PID, PID, Role.LOADER_WORKER, "pt_data_worker", "python fit.py", "ann", 1000, python=True
        )
        ticks.append(
            ProcessTick(sample.mono_ns, (msgspec.structs.replace(sample, pid=pid, start_ticks=pid),), infos=(info,))
        )
    d = judged(b.gpu([0, 0, 60]), ticks, b.host(), b.stacks([(b.WAITING, False)]))
    assert d.verdict.cause == "loader_worker_restart"
