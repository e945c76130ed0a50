"""Jobs whose DataLoader workers do not all do the same: a second loader, one slow sample, a hand-over."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose import builders as b
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.model import Confidence, Diagnosis, Frame, Observation, StackSample, ThreadStack

PID = b.PID
STARVED = [(b.WAITING, False)] * 4 + [(b.LAUNCHING, True)]
S3 = (
    Frame("SSLSocket.read", "/usr/lib/python3.12/ssl.py", 1166),
    Frame("SocketIO.readinto", "/usr/lib/python3.12/socket.py", 706),
    Frame("HTTPResponse.read", b.LIB + "urllib3/response.py", 900),
    Frame("Photos.__getitem__", "/home/ann/photos.py", 20),
    Frame("_MapDatasetFetcher.fetch", b.LIB + "torch/utils/data/_utils/fetch.py", 54),
    Frame("_worker_loop", b.LIB + "torch/utils/data/_utils/worker.py", 358),
)
PIN_LOOP = Frame("_pin_memory_loop", b.LIB + "torch/utils/data/_utils/pin_memory.py", 60)
PIN_WAITS = (Frame("_PollLikeSelector.select", "/usr/lib/python3.12/selectors.py", 415), PIN_LOOP)
PIN_UNPACKS = (
    Frame("Connection._recv", "/usr/lib/python3.12/multiprocessing/connection.py", 395),
    Frame("rebuild_storage_fd", b.LIB + "torch/multiprocessing/reductions.py", 541),
    PIN_LOOP,
)
FUTURE = (
    Frame("Condition.wait", "/usr/lib/python3.12/threading.py", 359),
    Frame("Future.result", "/usr/lib/python3.12/concurrent/futures/_base.py", 451),
    Frame("fit", "/home/ann/fit.py", 31),
)
Worker = tuple[float, str, tuple[Frame, ...], bool]
BUSY: Worker = (1.0, "R", b.WORKER_FETCH, True)
REMOTE: Worker = (0.03, "S", S3, False)
IDLE: Worker = (0.0, "S", b.WORKER_QUEUE, False)
NEARLY_IDLE: Worker = (0.02, "S", b.WORKER_QUEUE, False)


def beside_a_pin_thread(stacks: Sequence[Observation], frames: tuple[Frame, ...]) -> list[Observation]:
    helper = (ThreadStack(PID + 9, "pt_data_pin", False, False, frames),) if frames else ()
    return [StackSample(s.pid, PID, s.mono_ns, (*s.threads, *helper)) for s in stacks if isinstance(s, StackSample)]


def judged(
    kinds: Sequence[Worker],
    *,
    busy: Sequence[float] = (0, 0, 0, 80),
    pin: tuple[Frame, ...] = (),
    main: Sequence[tuple[tuple[Frame, ...], bool]] = STARVED,
    stacks: bool = True,
) -> Diagnosis:
    seen: list[Observation] = [b.inventory(), *b.gpu(busy), *b.host()]
    seen += b.ticks(
        b.process(PID, 0.2, state="S"),
        [b.process(5001 + i, cores, state=state) for i, (cores, state, _, _) in enumerate(kinds)],
    )
    seen += beside_a_pin_thread(b.stacks(main), pin) if stacks else ()
    for i, (_, _, frames, active) in enumerate(kinds) if stacks else ():
        seen += b.stacks([(frames, active)], pid=5001 + i, every=20)
    return diagnose(seen, PID)


def test_idle_workers_of_a_validation_loader_do_not_hide_that_the_training_loader_is_short_of_workers() -> None:
    d = judged([BUSY] * 2 + [IDLE] * 8)
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_too_few_workers", Confidence.HIGH)
    assert "(now 2)" in d.verdict.remedy
    assert "8 more had nothing to do: another loader's" in d.verdict.summary


def test_the_advice_starts_from_the_workers_of_the_loader_that_is_late() -> None:
    assert "(now 4)" in judged([BUSY] * 4 + [IDLE] * 4).verdict.remedy
    assert "(now 4)" in judged([IDLE] * 4 + [BUSY] * 4).verdict.remedy


def test_without_stacks_the_idle_loader_is_told_by_the_cpu_it_does_not_use() -> None:
    d = judged([BUSY] * 2 + [IDLE] * 8, stacks=False)
    assert d.verdict.cause == "loader_too_few_workers"
    assert "(now 2)" in d.verdict.remedy


def test_a_remote_store_is_named_although_a_second_loader_is_idle() -> None:
    d = judged([REMOTE] * 4 + [IDLE] * 8)
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_storage_latency", Confidence.HIGH)
    assert "(now 4)" in d.verdict.remedy


def test_one_slow_sample_is_not_answered_by_more_workers_or_another_collate() -> None:
    d = judged([NEARLY_IDLE] * 3 + [BUSY] + [NEARLY_IDLE] * 4)
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_slow_sample", Confidence.MEDIUM)
    assert "loader_too_few_workers" in d.verdict.alternatives
    assert "num_workers" not in d.verdict.remedy
    assert d.verdict.location is not None
    assert d.verdict.location.file == "/home/ann/photos.py"


def test_a_slow_answer_for_one_sample_has_the_store_as_its_alternative() -> None:
    d = judged([NEARLY_IDLE] * 3 + [REMOTE] + [NEARLY_IDLE] * 4)
    assert d.verdict.cause == "loader_slow_sample"
    assert "loader_storage_latency" in d.verdict.alternatives


def test_slow_samples_that_visit_each_worker_in_turn_are_not_called_a_slow_hand_over() -> None:
    """Each worker is at work for an eighth of the time, one of them at any time."""
    seen: list[Observation] = [b.inventory(), *b.gpu([0, 0, 0, 80]), *b.host()]
    seen += b.ticks(b.process(PID, 0.2, state="S"), [b.process(5001 + i, 0.125, state="S") for i in range(8)])
    seen += beside_a_pin_thread(b.stacks(STARVED), PIN_WAITS)
    for i in range(8):
        kinds = [(b.WORKER_FETCH, True) if k == i else (b.WORKER_QUEUE, False) for k in range(8)]
        seen += b.stacks(kinds, pid=5001 + i, every=6)
    d = diagnose(seen, PID)
    assert (d.verdict.cause, d.verdict.confidence) == ("loader_slow_sample", Confidence.LOW)
    assert "loader_collate_or_ipc" in d.verdict.alternatives


def test_who_cannot_be_told_apart_from_a_slow_sample_is_said_with_less_confidence() -> None:
    interleaved = judged([BUSY, IDLE] * 4)
    assert interleaved.verdict.cause == "loader_too_few_workers"
    assert interleaved.verdict.confidence is Confidence.MEDIUM
    assert "loader_slow_sample" in interleaved.verdict.alternatives
    asleep = judged([BUSY] * 4 + [IDLE] * 4, busy=[0.4])
    assert asleep.verdict.confidence is not Confidence.HIGH
    assert "loader_slow_sample" in asleep.verdict.alternatives


def test_batches_that_are_seen_being_taken_apart_are_a_slow_hand_over_whoever_works() -> None:
    d = judged([NEARLY_IDLE] * 7 + [(0.3, "R", b.WORKER_FETCH, True)], pin=PIN_UNPACKS)
    assert d.verdict.cause == "loader_collate_or_ipc"


def test_workers_alike_are_one_group_whatever_a_few_stacks_say() -> None:
    """At the edge of keeping up, three samples of one worker may all find it waiting."""
    seen: list[Observation] = [b.inventory(), *b.gpu([0, 0, 0, 80]), *b.host()]
    seen += b.ticks(b.process(PID, 0.2, state="S"), [b.process(5001 + i, 0.75) for i in range(4)])
    seen += b.stacks(STARVED)
    for i in range(4):
        seen += b.stacks([(b.WORKER_QUEUE, False) if i == 3 else (b.WORKER_FETCH, True)], pid=5001 + i, every=25)
    d = diagnose(seen, PID)
    assert d.verdict.cause == "loader_too_few_workers"
    assert "(now 4)" in d.verdict.remedy


def test_a_wait_for_something_else_is_not_blamed_on_an_idle_loader() -> None:
    d = judged([IDLE] * 4, main=[(FUTURE, False)] * 3 + [(b.LAUNCHING, True)])
    assert d.verdict.cause != "loader_collate_or_ipc"
    assert d.verdict.confidence is not Confidence.HIGH
