"""A GPU process that does nothing: ending one that waits loses its work, keeping a forgotten one loses a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from diagnose import builders as b
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import (
    Confidence,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    Frame,
    Observation,
    ProcessInfo,
    ProcessTick,
    Role,
    Severity,
    SourceLine,
    StackSample,
    ThreadStack,
)

PID = b.PID
PACKAGES = "/opt/conda/lib/python3.11/site-packages/"
PYTHON = "/opt/conda/lib/python3.11/"
USER = "/home/ann/proj/"
FORGOTTEN = "idle_process_holds_memory"
COLLECTIVE = "nvlink_or_collective_wait"


def at(*frames: str) -> tuple[Frame, ...]:
    """Frames, innermost first: "function file line", the file below packages:, python: or user:."""
    found = []
    for text in frames:
        function, file, line = text.split(" ", 1)[0], *text.split(" ", 1)[1].rsplit(" ", 1)
        for short, folder in (("packages:", PACKAGES), ("python:", PYTHON), ("user:", USER)):
            file = file.replace(short, folder)
        found.append(Frame(function, file, int(line)))
    return tuple(found)


LOOP = (
    "select python:selectors.py 468",
    "_run_once python:asyncio/base_events.py 1884",
    "run_forever python:asyncio/base_events.py 607",
)
NOTEBOOK = at(
    *LOOP,
    "start packages:tornado/platform/asyncio.py 205",
    "start packages:ipykernel/kernelapp.py 739",
    "launch_instance packages:traitlets/config/application.py 1075",
    "<module> packages:ipykernel_launcher.py 18",
    "_run_code <frozen runpy> 88",
)
UVICORN = at(
    *LOOP, "run python:asyncio/runners.py 190", "run packages:uvicorn/server.py 60", "<module> user:serve.py 9"
)
SLEEP = at("hold user:hold.py 5", "<module> user:hold.py 9")


def asleep(
    frames: Sequence[Frame],
    *,
    text: str = "",
    cores: float = 0.0,
    wchan: str = "futex_do_wait",
    threads: Sequence[ThreadStack] = (),
    more: Sequence[Observation] = (),
    active: bool = False,
    command: str = "python fit.py",
) -> Diagnosis:
    """Ten seconds in which the GPU does nothing; the text is that of the innermost line."""
    process = [msgspec.structs.replace(s, wchan=wchan) for s in b.process(PID, cores, state="S")]
    seen: list[Observation] = [b.inventory(), *b.gpu([0])]
    for tick in b.ticks(process):
        assert isinstance(tick, ProcessTick)
        infos = tuple(msgspec.structs.replace(i, command=command) for i in tick.infos)
        seen.append(msgspec.structs.replace(tick, infos=infos))
    for stack in b.stacks([(tuple(frames), active)]) if frames else ():
        assert isinstance(stack, StackSample)
        seen.append(msgspec.structs.replace(stack, threads=(*stack.threads, *threads)))
    if text:
        seen.append(SourceLine(PID, b.times()[0], frames[0].file, frames[0].line, text))
    return diagnose([*seen, *b.host(), *more], PID)


def other(name: str, *frames: str) -> ThreadStack:
    return ThreadStack(PID + 1, name, False, False, at(*frames))


@pytest.mark.parametrize(
    ("frames", "cause", "word"),
    [
        (("barrier packages:torch/distributed/distributed_c10d.py 4100", "wrapper packages:torch/distributed/x.py 80",
          "main user:train.py 50"), COLLECTIVE, "other ranks"),
        (("_env_rendezvous_handler packages:torch/distributed/rendezvous.py 258",
          "init_process_group packages:torch/distributed/distributed_c10d.py 1700", "main user:train.py 12"),
         COLLECTIVE, "other ranks"),
        (("wait_for_everyone packages:accelerate/state.py 368", "main user:train.py 50"), COLLECTIVE, "other ranks"),
        (("get packages:ray/_private/worker.py 2800", "wrapper packages:ray/_private/auto_init_hook.py 22",
          "learn user:learner.py 50"), "unattributed", "an answer"),
        (("_try_wait python:subprocess.py 2010", "wait python:subprocess.py 1264", "run python:subprocess.py 550",
          "prepare user:train.py 3"), "unattributed", "process that it has started"),
        (("poll python:multiprocessing/popen_fork.py 27", "wait python:multiprocessing/popen_fork.py 43",
          "join python:multiprocessing/process.py 149", "main user:train.py 70"),
         "unattributed", "process that it has started"),
        (("read python:ssl.py 1166", "recv_into python:ssl.py 1314", "read packages:urllib3/response.py 900",
          "get packages:requests/api.py 73", "rewards user:train.py 3"),
         "unattributed", "an answer"),
        (("wait python:threading.py 327", "result python:concurrent/futures/_base.py 451", "main user:train.py 44"),
         "unattributed", "the result of a task"),
        (("wait python:threading.py 327", "get python:queue.py 171", "main user:train.py 44"),
         "unattributed", "an item of a queue"),
        (("recv packages:zmq/sugar/socket.py 950", "ask user:train.py 44"), "unattributed", "an answer"),
        (("acquire packages:filelock/_api.py 333", "__enter__ packages:filelock/_api.py 340", "main user:train.py 4"),
         "unattributed", "a lock that another process"),
        (("recv python:multiprocessing/connection.py 250", "get python:multiprocessing/queues.py 103",
          "worker python:multiprocessing/pool.py 114", "run python:multiprocessing/process.py 108",
          "_bootstrap python:multiprocessing/process.py 314"), "unattributed", "an item of a queue"),
        ((*LOOP, "run_until_complete python:asyncio/base_events.py 641", "run python:asyncio/runners.py 118",
          "<module> user:agent.py 80"), "unattributed", "event loop"),
    ],
)  # fmt: skip
def test_a_job_that_waits_for_others_is_not_called_forgotten_and_what_it_waits_for_is_said(
    frames: tuple[str, ...], cause: str, word: str
) -> None:
    verdict = asleep(at(*frames)).verdict
    assert verdict.cause == cause
    assert verdict.confidence is not Confidence.HIGH
    assert verdict.severity is Severity.WARNING
    assert word in verdict.summary
    assert "end it" not in verdict.remedy
    if "user:" in frames[-1]:
        assert verdict.location is not None
        assert verdict.location.file.startswith(USER)


@pytest.mark.parametrize(
    "inside",
    [
        ("_try_wait python:subprocess.py 2010", "wait python:subprocess.py 1264",
         "_run_ninja_build packages:torch/utils/cpp_extension.py 2100"),
        ("read python:ssl.py 1166", "recv_into python:ssl.py 1314", "read packages:urllib3/response.py 900",
         "http_get packages:huggingface_hub/file_download.py 450"),
    ],
)  # fmt: skip
def test_a_job_that_builds_or_downloads_at_its_start_is_not_called_forgotten(inside: tuple[str, ...]) -> None:
    verdict = asleep(at(*inside, "<module> user:train.py 3")).verdict
    assert verdict.cause == "warming_up"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("comm.Barrier()", COLLECTIVE),
        ("os.system('make -C ext')", "unattributed"),
        ("pid, status = os.waitpid(child, 0)", "unattributed"),
        ("item = inbox.get()", "unattributed"),
        ("fcntl.flock(f, fcntl.LOCK_EX)", "unattributed"),
    ],
)
def test_a_line_that_waits_in_c_is_known_by_its_text(text: str, cause: str) -> None:
    verdict = asleep(SLEEP, text=text).verdict
    assert (verdict.cause, verdict.confidence) == (cause, Confidence.MEDIUM)


@pytest.mark.parametrize("wchan", ["do_wait", "locks_lock_inode_wait", "rpc_wait_bit_killable"])
def test_without_stacks_the_kernel_says_that_a_process_waits_for_a_child_a_lock_or_storage(wchan: str) -> None:
    verdict = asleep((), wchan=wchan).verdict
    assert (verdict.cause, verdict.confidence) == ("unattributed", Confidence.LOW)


@pytest.mark.parametrize(
    ("frames", "text", "wchan"),
    [
        (NOTEBOOK, "", "ep_poll"),
        (at(*LOOP, "_input_request packages:ipykernel/kernelbase.py 1200", "raw_input packages:ipykernel/kernelbase.py"
            " 1180", "<module> /tmp/ipykernel_77/12.py 3"), "", "ep_poll"),
        (SLEEP, "name = input('continue? ')", "wait_woken"),
        (SLEEP, "time.sleep(86400)", "hrtimer_nanosleep"),
        (SLEEP, "signal.pause()", "do_sys_pause"),
        (SLEEP, "", "hrtimer_nanosleep"),
        (at("cmdloop python:cmd.py 126", "interaction python:pdb.py 440", "fit user:train.py 8"), "", "wait_woken"),
    ],
)  # fmt: skip
def test_what_waits_for_a_person_or_for_nothing_is_forgotten_for_sure(
    frames: tuple[Frame, ...], text: str, wchan: str
) -> None:
    verdict = asleep(frames, text=text, wchan=wchan).verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.HIGH)
    assert verdict.remedy.startswith("If nobody needs it any more")


def test_a_pause_between_two_looks_at_something_is_a_wait() -> None:
    waits = at("wait_for_file user:train.py 5", "main user:train.py 9")
    assert asleep(waits, text="time.sleep(5)").verdict.cause == "unattributed"
    assert asleep(SLEEP, text="time.sleep(poll_interval)").verdict.cause == "unattributed"
    backoff = at("sleep packages:tenacity/nap.py 31", "__call__ packages:tenacity/__init__.py 480", "f user:a.py 3")
    assert asleep(backoff).verdict.cause == "unattributed"


def test_a_pause_shorter_than_the_window_comes_again_and_something_may_be_looked_at_between() -> None:
    verdict = asleep(SLEEP, text="time.sleep(1)").verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.MEDIUM)


def test_a_few_seconds_without_stacks_do_not_say_for_sure_that_nobody_needs_a_process() -> None:
    verdict = asleep(()).verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.MEDIUM)
    assert "If nobody needs it" in verdict.remedy
    assert "--for 120s" in verdict.experiment


def test_of_a_process_whose_cpu_is_not_visible_nobody_knows_that_it_does_nothing() -> None:
    verdict = diagnose([b.inventory(), *b.gpu([0]), *b.host()], PID).verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.LOW)
    assert "no CPU" not in verdict.summary
    assert not any("CPU of the process" in row.name for row in verdict.evidence)


def test_a_bare_read_of_a_socket_may_be_that_of_a_job_that_is_needed() -> None:
    verdict = asleep(SLEEP, text="chunk = self._link.recv(65536)", wchan="unix_stream_read_generic").verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.LOW)
    assert "a message on a socket" in verdict.summary


def longer(seen: Sequence[Observation], factor: int) -> list[Observation]:
    """The same readings, further apart."""
    start = b.times()[0]

    def later(ns: int) -> int:
        return start + factor * (ns - start)

    found: list[Observation] = []
    for o in seen:
        if isinstance(o, DeviceSample):
            found.append(msgspec.structs.replace(o, mono_ns=later(o.mono_ns), gpm_window_ns=factor * b.STEP_NS))
        elif isinstance(o, ProcessTick):
            moved = tuple(msgspec.structs.replace(s, mono_ns=later(s.mono_ns)) for s in o.samples)
            found.append(msgspec.structs.replace(o, mono_ns=later(o.mono_ns), samples=moved))
        else:
            found.append(o)
    return found


def test_a_minute_without_anything_is_long_enough_also_without_stacks() -> None:
    seen = [b.inventory(), *b.gpu([0]), *b.ticks(b.process(PID, 0.0, state="S")), *b.host()]
    verdict = diagnose(longer(seen, 7), PID).verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.HIGH)


SERVERS = {
    "fastapi": UVICORN,
    "vllm": at(
        "wait python:threading.py 327", "get python:queue.py 171",
        "_process_input_queue packages:vllm/v1/engine/core.py 730", "run_busy_loop packages:vllm/v1/engine/core.py 700",
        "run python:multiprocessing/process.py 108", "_bootstrap python:multiprocessing/process.py 314",
    ),
    "vllm from a checkout": at(
        "acquire_read /src/vllm/vllm/distributed/device_communicators/shm_broadcast.py 480",
        "dequeue /src/vllm/vllm/distributed/device_communicators/shm_broadcast.py 540",
        "worker_busy_loop /src/vllm/vllm/v1/executor/multiproc_executor.py 520",
        "_bootstrap python:multiprocessing/process.py 314",
    ),
    "sglang": at(
        "recv packages:zmq/sugar/socket.py 950", "recv_pyobj packages:zmq/sugar/socket.py 980",
        "recv_requests packages:sglang/srt/managers/scheduler.py 900",
        "event_loop_overlap packages:sglang/srt/managers/scheduler.py 700",
    ),
    "another rank of sglang": at(
        "broadcast packages:torch/distributed/distributed_c10d.py 2400",
        "broadcast_pyobj packages:sglang/srt/utils.py 900",
        "recv_requests packages:sglang/srt/managers/scheduler.py 920",
    ),
    "flask": at(
        "select python:selectors.py 415", "serve_forever python:socketserver.py 232",
        "serve_forever packages:werkzeug/serving.py 800", "run packages:flask/app.py 660", "<module> user:app.py 30",
    ),
    "ray actor": at(
        "main_loop packages:ray/_private/worker.py 876", "<module> packages:ray/_private/workers/default_worker.py 300"
    ),
    "celery": at(
        "select python:selectors.py 415", "drain_events packages:kombu/connection.py 340",
        "start packages:celery/worker/consumer/consumer.py 330", "<module> packages:celery/__main__.py 15",
    ),
    "grpc": at(
        "wait python:threading.py 331", "_wait_once packages:grpc/_common.py 116", "wait packages:grpc/_common.py 156",
        "wait_for_termination packages:grpc/_server.py 1448", "serve user:serve.py 40",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_between_two_requests_is_neither_forgotten_nor_a_fault(name: str) -> None:
    verdict = asleep(SERVERS[name]).verdict
    assert (verdict.cause, verdict.severity) == ("unattributed", Severity.INFO)
    assert "waits for requests" in verdict.summary
    assert "None while it is needed" in verdict.remedy


def test_a_server_that_looks_for_requests_without_a_pause_is_not_called_preprocessing() -> None:
    verdict = asleep(SERVERS["sglang"], cores=1.0, active=True).verdict
    assert "waits for requests" in verdict.summary
    assert "1.0 cores" in verdict.summary


def test_a_server_in_a_thread_is_found_behind_a_main_thread_that_only_keeps_it_alive() -> None:
    thread = other("Thread-3 (run)", *LOOP, "run python:asyncio/runners.py 190", "run packages:uvicorn/server.py 60")
    assert "waits for requests" in asleep(SLEEP, text="time.sleep(0.1)", threads=[thread]).verdict.summary
    join = at("join python:threading.py 1149", "<module> user:app.py 3")
    assert "waits for requests" in asleep(join, threads=[thread]).verdict.summary


def test_the_metrics_server_of_a_forgotten_job_does_not_make_it_a_server() -> None:
    thread = other("Thread-3", "select python:selectors.py 415", "serve_forever python:socketserver.py 232",
                   "_run packages:prometheus_client/exposition.py 200")  # fmt: skip
    assert asleep(SLEEP, text="time.sleep(86400)", threads=[thread]).verdict.cause == FORGOTTEN


def test_a_compilers_thread_does_not_make_a_forgotten_notebook_one_that_is_starting() -> None:
    thread = other("Thread-5 (_read_thread)", "_recv_msg packages:torch/_inductor/compile_worker/subproc_pool.py 60",
                   "_read_thread packages:torch/_inductor/compile_worker/subproc_pool.py 190")  # fmt: skip
    assert asleep(NOTEBOOK, threads=[thread]).verdict.cause == FORGOTTEN


def test_a_handler_that_waits_inside_a_server_is_not_called_a_wait_for_requests() -> None:
    handler = at(
        "read python:ssl.py 1166", "urlopen packages:urllib3/connectionpool.py 700", "features user:app.py 20", *LOOP,
        "run packages:uvicorn/server.py 60",
    )  # fmt: skip
    assert "an answer" in asleep(handler).verdict.summary


def test_a_handler_in_a_thread_that_waits_for_an_answer_keeps_its_server_from_lacking_requests() -> None:
    handler = other("AnyIO worker thread", "read python:ssl.py 1166", "request packages:httpx/_client.py 900",
                    "features user:app.py 20", "run packages:anyio/_backends/_asyncio.py 960")  # fmt: skip
    assert "an answer" in asleep(UVICORN, threads=[handler]).verdict.summary
    idle = other("AnyIO worker thread", "wait python:threading.py 320", "get python:queue.py 171",
                 "run packages:anyio/_backends/_asyncio.py 950")  # fmt: skip
    assert "waits for requests" in asleep(UVICORN, threads=[idle]).verdict.summary


FORWARD = (
    "forward packages:torch/nn/modules/linear.py 134", "_call_impl packages:torch/nn/modules/module.py 1790",
    "predict user:serve.py 22", "run packages:anyio/_backends/_asyncio.py 960",
)  # fmt: skip
STARVED = (
    "wait python:threading.py 327", "get python:queue.py 171",
    "_try_get_data packages:torch/utils/data/dataloader.py 1310", "fit user:train.py 30",
)  # fmt: skip


def served(thread: Sequence[str], *, cores: float, each: int) -> Diagnosis:
    """A server whose other thread stands there in each so manieth sample, when the GPU is busy."""
    seen: list[Observation] = [b.inventory(), *b.gpu([60, *[0] * (each - 1)])]
    for place, stack in enumerate(b.stacks([(UVICORN, False)])):
        assert isinstance(stack, StackSample)
        more = (ThreadStack(PID + 1, "worker", True, False, at(*thread)),) if place % each == 0 else ()
        seen.append(msgspec.structs.replace(stack, threads=(*stack.threads, *more)))
    return diagnose([*seen, *b.ticks(b.process(PID, cores, state="S")), *b.host()], PID)


def test_a_server_with_few_requests_has_no_fault_of_its_own() -> None:
    verdict = served(FORWARD, cores=0.3, each=5).verdict
    assert (verdict.cause, verdict.severity) == ("unattributed", Severity.INFO)
    assert "those that came kept the GPU busy 12 %" in verdict.summary


def test_a_server_that_computes_on_the_cpu_for_its_requests_does_not_lack_them() -> None:
    assert "waits for requests" not in served(FORWARD, cores=1.0, each=5).verdict.summary


def test_a_training_that_was_started_from_a_server_is_judged_as_one() -> None:
    assert "waits for requests" not in served(STARVED, cores=0.2, each=1).verdict.summary
    starved = other("Thread-7 (fit)", *STARVED)
    assert "waits for requests" not in asleep(UVICORN, threads=[starved]).verdict.summary


def test_the_program_that_asks_a_server_inside_it_waits_for_its_answer() -> None:
    asks = at("recv packages:zmq/sugar/socket.py 950", "get_output packages:vllm/v1/engine/core_client.py 700",
              "generate packages:vllm/entrypoints/llm.py 400", "rollout user:rl.py 30")  # fmt: skip
    assert "an answer" in asleep(asks).verdict.summary


def test_a_server_without_python_is_known_by_its_command() -> None:
    verdict = asleep((), command="/opt/tritonserver/bin/tritonserver --model-repository=/m").verdict
    assert (verdict.cause, verdict.severity) == ("unattributed", Severity.INFO)
    assert verdict.confidence is Confidence.LOW


def test_a_compiler_that_the_job_has_started_works_for_it() -> None:
    build = at("_try_wait python:subprocess.py 2010", "wait python:subprocess.py 1264", "<module> user:train.py 3")
    child = b.process(6001, 8.0)
    info = ProcessInfo(6001, 7, PID, PID, Role.CHILD, "ninja", "ninja -v", "ann", 1000)
    ticks = [ProcessTick(s.mono_ns, (s,), (), (info,)) for s in child]
    verdict = asleep(build, more=ticks).verdict
    assert (verdict.cause, verdict.severity) == ("unattributed", Severity.WARNING)
    assert any(row.value == 8.0 for row in verdict.evidence)


def second_rank(cores: float) -> list[Observation]:
    """Another rank of the job, on GPU 1, which does nothing either."""
    other_pid = PID + 500
    info = ProcessInfo(other_pid, 7, 1, other_pid, Role.MAIN, "python", "python fit.py", "ann", 1000,
                       device_indices=(1,), python=True)  # fmt: skip
    samples = [
        msgspec.structs.replace(s, device_index=1, processes=(DeviceProcess(other_pid, 2**30, "C"),))
        for s in b.gpu([0])
        if isinstance(s, DeviceSample)
    ]
    ticks = [ProcessTick(s.mono_ns, (s,), (), (info,)) for s in b.process(other_pid, cores)]
    return [*samples, *ticks]


def test_a_rank_beside_one_that_works_on_the_cpu_waits_for_it_whatever_its_own_line_says() -> None:
    verdict = asleep(SLEEP, text="time.sleep(86400)", more=second_rank(1.0)).verdict
    assert (verdict.cause, verdict.confidence) == ("unattributed", Confidence.LOW)
    assert f"pid {PID + 500}" in verdict.summary
    barrier = at("barrier packages:torch/distributed/distributed_c10d.py 4100", "main user:train.py 50")
    assert f"Pid {PID + 500}" in asleep(barrier, more=second_rank(1.0)).verdict.summary


def test_ranks_that_all_sleep_without_a_reason_are_forgotten_but_not_for_sure() -> None:
    verdict = asleep(SLEEP, text="time.sleep(86400)", more=second_rank(0.0)).verdict
    assert (verdict.cause, verdict.confidence) == (FORGOTTEN, Confidence.MEDIUM)


def test_a_process_whose_gpu_memory_grows_loads_something() -> None:
    samples = [
        msgspec.structs.replace(s, processes=(DeviceProcess(PID, 2**30 + i * 2**24, "C"),))
        for i, s in enumerate(b.gpu([0]))
        if isinstance(s, DeviceSample)
    ]
    verdict = diagnose([b.inventory(), *samples, *b.ticks(b.process(PID, 0.02, state="S")), *b.host()], PID).verdict
    assert (verdict.cause, verdict.confidence) == ("unattributed", Confidence.LOW)
    assert "loads" in verdict.summary
