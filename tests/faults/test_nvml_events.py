"""Events through the C ABI: told once, with what they mean, and a lost GPU costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
from fakenvml.build import Fake, loaded

from gpuwatch.collect import event_set, events
from gpuwatch.collect.event_set import HANGS
from gpuwatch.collect.events import WANTED, EventWatcher
from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.xids import XIDS, xid
from gpuwatch.model import NOT_SUPPORTED, Absent, EventKind, EventOrigin, EventRecord, Reason, Unwatched

XID = 8
APPLICATION = {13, 31, 43, 45, 68, 109}
HARDWARE = {48, 63, 64, 74, 79, 94, 95, 119, 120}


class Watching:
    def __init__(self, fake: Fake, watcher: EventWatcher, got: list[EventRecord], clock: list[int]) -> None:
        self.fake = fake
        self.watcher = watcher
        self.got = got
        self.clock = clock

    def steps(self, count: int) -> list[float | None]:
        """So many waits, each followed by its pause."""
        pauses = []
        for _ in range(count):
            pause_s = self.watcher.step()
            pauses.append(pause_s)
            self.clock[0] += int((pause_s or 0.01) * 1e9)
        return pauses


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_MS", 4)
    monkeypatch.setattr(event_set, "REGISTER_S", 0.2)


@contextmanager
def watching(tmp_path: Path, scenario: str = "gpus=2", *, register: bool = True) -> Iterator[Watching]:
    with loaded(tmp_path, scenario) as fake:
        nvml = Nvml()
        nvml.open()
        got: list[EventRecord] = []
        clock = [10**12]
        count = pynvml.nvmlDeviceGetCount()
        watcher = EventWatcher(pynvml, range(count), got.append, clock=lambda: clock[0], wall=lambda: 5)
        assert not register or watcher.register()
        yield Watching(fake, watcher, got, clock)
        nvml.close()


def test_an_xid_is_told_once_with_its_gpu_and_what_it_means(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=2\ngpu 1 event=8:79") as w:
        w.steps(3)
    assert [(e.device_index, e.kind, e.origin, e.xid, e.wall_ns) for e in w.got] == [
        (1, EventKind.XID, EventOrigin.HARDWARE, 79, 5)
    ]
    assert "fell off the PCIe bus" in w.got[0].text
    assert (w.got[0].gpu_instance, w.got[0].compute_instance) == (-1, -1)


def test_a_fault_of_the_job_is_not_one_of_the_card(tmp_path: Path) -> None:
    assert {number for number in APPLICATION if xid(number).origin is not EventOrigin.APPLICATION} == set()
    assert {number for number in HARDWARE if xid(number).origin is not EventOrigin.HARDWARE} == set()
    with watching(tmp_path, "gpu 0 event=8:31\ngpu 0 event=8:9999") as w:
        w.steps(3)
    assert [e.origin for e in w.got] == [EventOrigin.APPLICATION, EventOrigin.UNKNOWN]
    assert "9999" in w.got[1].text


def test_every_xid_has_one_line() -> None:
    for number, entry in XIDS.items():
        assert 10 < len(entry.text) <= 110, number
        assert "\n" not in entry.text


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("2:0", EventKind.ECC_UNCORRECTED),
        ("256:0", EventKind.MIG_CONFIG),
        ("8192:0", EventKind.FATAL_POISON),
        ("16384:0", EventKind.UNAVAILABLE),
        ("32768:1", EventKind.RECOVERY_ACTION),
    ],
)
def test_other_events_have_their_kind(tmp_path: Path, event: str, kind: EventKind) -> None:
    with watching(tmp_path, f"gpu 0 event={event}") as w:
        w.steps(2)
    assert [e.kind for e in w.got] == [kind]
    assert w.got[0].text


def test_an_event_of_a_mig_instance_names_it(tmp_path: Path) -> None:
    with watching(tmp_path, "gpu 0 event=8:43:7") as w:
        w.steps(2)
    assert w.got[0].gpu_instance == 7


def test_only_what_a_gpu_can_report_is_asked_for_or_the_driver_registers_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=3\ngpu 0 events=415\ngpu 1 events=65439\ngpu 2 events=20") as w:
        assert w.watcher.registered == {0: 0x10A, 1: WANTED}
        # Clock and P-state changes come all the time.
        assert not WANTED & 0x95


def test_without_events_there_is_no_thread_that_waits(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=2\ngpu * events=0", register=False) as w:
        assert not w.watcher.register()
        w.watcher.run()
        assert w.fake.calls()["nvmlEventSetWait_v2", None] == 0
    with watching(tmp_path, "gpus=1 rc.nvmlEventSetCreate=3", register=False) as w:
        assert not w.watcher.register()


def test_a_lost_gpu_costs_the_others_no_event_and_no_processor_time(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=2") as w:
        w.fake.set("gpu 1 rc.*=15")
        w.fake.set("gpu 0 event=8:13")
        w.steps(4)
        assert [(e.device_index, e.xid) for e in w.got] == [(0, 13)]
        assert w.watcher.registered.keys() == {0}
        waits = w.fake.calls()["nvmlEventSetWait_v2", None]
        assert waits <= 4


def test_when_all_are_lost_the_waits_become_rare(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=1") as w:
        w.fake.set("gpu 0 rc.nvmlEventSetWait_v2=15")
        pauses = w.steps(8)
    # The set is made anew once; then 2, 4, 8 … 30 seconds pass.
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_gpu_that_answers_later_is_registered_later(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=2\ngpu 1 rc.nvmlDeviceRegisterEvents=999,0") as w:
        assert w.watcher.registered.keys() == {0}
        w.clock[0] += 61_000_000_000
        w.steps(1)
        assert w.watcher.registered.keys() == {0, 1}


REGISTERING = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents")


def until(w: Watching, condition: Callable[[], object]) -> None:
    """Wait for threads of their own, with the driver's waits as pauses."""
    for _ in range(2000):
        if condition():
            return
        w.steps(1)
    raise AssertionError("never happened")


@pytest.mark.parametrize("function", REGISTERING)
def test_a_gpu_that_hangs_as_it_is_registered_silences_no_other_and_is_named(tmp_path: Path, function: str) -> None:
    with watching(tmp_path, f"gpus=4\ngpu 2 hang.{function}=1") as w:
        w.fake.set("gpu 0 event=8:79")
        w.fake.set("gpu 3 event=8:48")
        w.steps(3)
        assert {(e.device_index, e.xid) for e in w.got} == {(0, 79), (3, 48)}
        assert w.watcher.unwatched() == (Unwatched("XIDs and other events of GPU 2", HANGS),)
        w.clock[0] += 61_000_000_000
        w.steps(2)
        assert w.fake.calls()[function, 2] == 1, "while it hangs no other thread is sent after it"
        w.fake.set(f"gpu 2 hang.{function}=0")
        until(w, lambda: 2 in w.watcher.registered)
        assert w.watcher.unwatched() == ()
        w.fake.set("gpu 2 event=8:31")
        until(w, lambda: (w.got[-1].device_index, w.got[-1].xid) == (2, 31))


def test_an_only_gpu_that_hangs_is_waited_for_and_joins(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=1\ngpu 0 hang.nvmlDeviceRegisterEvents=1") as w:
        assert w.watcher.unwatched() == (Unwatched("XIDs and other events", HANGS),)
        w.steps(2)
        assert w.fake.calls()["nvmlEventSetWait_v2", None] == 0, "there is nothing to wait for"
        w.fake.set("gpu 0 hang.nvmlDeviceRegisterEvents=0 event=8:79")
        until(w, lambda: w.got)
        assert w.watcher.unwatched() == ()


def test_a_gpu_that_hung_in_a_set_that_is_used_no_more_joins_the_new_one(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=3\ngpu 2 hang.nvmlDeviceRegisterEvents=1") as w:
        w.fake.set("gpu 1 rc.*=15")
        w.steps(2)
        assert w.watcher.registered.keys() == {0}
        assert w.fake.calls()["nvmlEventSetFree", None] == 0, "a set that a thread may still use is not freed"
        w.fake.set("gpu 2 hang.nvmlDeviceRegisterEvents=0")
        until(w, lambda: w.watcher.registered.keys() == {0, 2})
        w.fake.set("gpu 2 event=8:79")
        until(w, lambda: w.got)


def test_a_gpu_that_refuses_its_events_is_named_while_the_others_are_watched(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=3\ngpu 1 rc.nvmlDeviceRegisterEvents=999\ngpu 2 events=0") as w:
        # A card that has no events never had them.
        refused = Absent(Reason.ERROR, "NVML error 999")
        assert w.watcher.unwatched() == (Unwatched("XIDs and other events of GPU 1", refused),)


def test_a_driver_that_does_not_answer_the_waiting_thread_at_all_is_told(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=1 hang.nvmlEventSetCreate=1", register=False) as w:
        w.watcher.start()
        assert w.watcher.unwatched() == ()
        while not w.fake.calls()["nvmlEventSetCreate", None]:
            w.watcher.join(0.005)
        w.clock[0] += 6_000_000_000
        assert w.watcher.unwatched() == (Unwatched("XIDs and other events", HANGS),)
        w.watcher.end()
        w.fake.release()
        w.watcher.join(20)


def test_nvml_stays_open_while_a_gpu_hangs_as_it_is_registered(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=2\ngpu 1 hang.nvmlDeviceRegisterEvents=1", register=False) as w:
        w.watcher.start()
        while 0 not in w.watcher.registered:
            w.watcher.join(0.005)
        w.watcher.end()
        w.watcher.join(20)
        assert not w.watcher.is_alive()
        assert w.watcher.busy
        assert w.fake.calls()["nvmlEventSetFree", None] == 0
        w.fake.release()
        while w.watcher.busy:
            w.watcher.join(0.005)


def test_a_storm_is_told_once_a_second_with_its_number(tmp_path: Path) -> None:
    storm = "\n".join(["gpu 0 event=8:31"] * 50)
    with watching(tmp_path, f"{storm}\ngpu 0 event=8:13") as w:
        for _ in range(51):
            w.watcher.step()
        assert [(e.xid, e.repeats) for e in w.got] == [(31, 0), (13, 0)]
        w.clock[0] += 1_500_000_000
        w.watcher.step()
    assert [(e.xid, e.repeats) for e in w.got[2:]] == [(31, 49)]


@pytest.mark.parametrize("code", [1, 9, 13])
def test_a_driver_that_is_gone_ends_the_waiting(tmp_path: Path, code: int) -> None:
    with watching(tmp_path, "gpus=1") as w:
        w.fake.set(f"rc.nvmlEventSetWait_v2={code}")
        assert w.steps(1) == [None]


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        ("gpus=2\ngpu * events=0", NOT_SUPPORTED),
        ("gpus=1 rc.nvmlEventSetCreate=4", Absent(Reason.NO_PERMISSION)),
        ("gpus=1\ngpu 0 rc.nvmlDeviceRegisterEvents=999", Absent(Reason.ERROR, "NVML error 999")),
        ("gpus=1 rc.nvmlEventSetWait_v2=13", NOT_SUPPORTED),
        ("gpus=1 rc.nvmlEventSetWait_v2=9", Absent(Reason.DRIVER, "the driver was unloaded")),
    ],
)
def test_a_thread_that_waits_no_more_knows_why(tmp_path: Path, scenario: str, why: Absent) -> None:
    with watching(tmp_path, scenario, register=False) as w:
        assert w.watcher.ended is None
        w.watcher.run()
        assert w.watcher.ended == why


def test_a_bug_in_the_waiting_is_told_as_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(tmp_path, "gpus=1", register=False) as w:

        def step() -> float:
            raise RuntimeError("a bug")

        monkeypatch.setattr(w.watcher, "step", step)
        w.watcher.run()
        assert w.watcher.ended == Absent(Reason.ERROR, "RuntimeError: a bug")


def test_an_ended_thread_gives_its_set_back(tmp_path: Path) -> None:
    with watching(tmp_path, "gpus=1", register=False) as w:
        w.watcher.start()
        w.watcher.end()
        w.watcher.join(20)
        assert not w.watcher.is_alive()
        assert w.watcher.ended is None, "it was asked to end"
        assert w.fake.calls()["nvmlEventSetFree", None] == 1


def test_a_driver_that_goes_while_the_thread_ends_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(tmp_path, "gpus=1 rc.nvmlEventSetFree=18", register=False) as w:

        def step() -> float:
            w.watcher.end()
            return 0.0

        monkeypatch.setattr(w.watcher, "step", step)
        w.watcher.run()
        assert w.fake.calls()["nvmlEventSetFree", None] == 1
    assert caplog.records == []
