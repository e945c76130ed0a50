"""Endpoint, memory bounds, sd_notify and log lines of the daemon."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from daemon_parts import S, info, inventory, newest, processes, runtime_dir, sample

from gpuwatch.client.endpoints import absence, candidates, serving
from gpuwatch.daemon import journal
from gpuwatch.daemon.endpoint import RuntimeDirectory, choose_directory
from gpuwatch.daemon.ring import History, ObservationRing, Picture, thin
from gpuwatch.daemon.saying import Saying
from gpuwatch.daemon.systemd import Notifier
from gpuwatch.errors import CannotCreateError, UsageError
from gpuwatch.model import (
    NOT_SUPPORTED,
    Absent,
    DeviceSample,
    HostSample,
    ProcessTick,
    Reason,
    SourceLine,
    Unwatched,
)
from gpuwatch.wire import Tick

# ------------------------------------------------------------------ endpoint


@pytest.mark.parametrize(
    ("flag", "configured", "env", "uid", "chosen"),
    [
        ("/a", "/b", {"RUNTIME_DIRECTORY": "/c"}, 1000, "/a"),
        (None, "ipc:///b", {"RUNTIME_DIRECTORY": "/c"}, 1000, "/b"),
        (None, "", {"RUNTIME_DIRECTORY": "/run/gpuwatch", "XDG_RUNTIME_DIR": "/run/user/1"}, 999, "/run/gpuwatch"),
        (None, "", {"XDG_RUNTIME_DIR": "/run/user/1"}, 1000, "/run/user/1/gpuwatch"),
        (None, "", {"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/gpuwatch"),
        (None, "", {}, 1000, "/run/gpuwatch"),
    ],
)
def test_a_daemon_serves_where_its_clients_look(
    flag: str | None, configured: str, env: dict[str, str], uid: int, chosen: str
) -> None:
    assert choose_directory(flag, configured, env, uid) == Path(chosen)


def test_a_named_endpoint_stands_alone() -> None:
    env = {"XDG_RUNTIME_DIR": "/run/user/1"}
    assert candidates(env=env) == ("ipc:///run/user/1/gpuwatch", "ipc:///run/gpuwatch")
    assert candidates(env={**env, "GPUWATCH_ENDPOINT": "/x"}) == ("ipc:///x",)
    assert candidates("ipc:///y", env={**env, "GPUWATCH_ENDPOINT": "/x"}) == ("ipc:///y",)
    with pytest.raises(UsageError, match="use ssh"):
        candidates("tcp://h:1", env={})


def test_what_a_killed_daemon_left_behind_is_replaced() -> None:
    with runtime_dir() as path:
        path.mkdir()
        (path / "lock").write_text("999999\n")
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path / "stream.sock"))
            assert not serving(str(path))
            with RuntimeDirectory(path):
                assert not (path / "stream.sock").exists()
                assert (path / "lock").read_text() == f"{os.getpid()}\n"


def test_sockets_forwarded_by_ssh_have_no_lock_and_count_as_served() -> None:
    with runtime_dir() as path:
        path.mkdir()
        with socket.socket(socket.AF_UNIX) as forwarded:
            forwarded.bind(str(path / "stream.sock"))
            assert serving(str(path))
            assert absence(str(path)) == f"{path}: a daemon's socket is there, nobody answers yet"


def test_a_place_that_cannot_be_a_directory_is_named() -> None:
    with runtime_dir() as path:
        path.write_text("a file")
        with pytest.raises(CannotCreateError, match=f"^{path}: cannot serve here: File exists"):
            RuntimeDirectory(path).open()


# ------------------------------------------------------------------ memory


def test_observations_are_kept_for_a_minute_and_given_back_in_order() -> None:
    ring = ObservationRing()
    for second in range(100):
        ring.add(HostSample(second * S))
    assert [o.mono_ns // S for o in ring.since(0)] == list(range(39, 100))
    assert ring.span_ns == 60 * S
    ring.add(HostSample(98 * S + 1))
    assert [o.mono_ns for o in ring.since(98 * S)] == [98 * S, 98 * S + 1, 99 * S]


def test_observations_are_bounded_in_number_too() -> None:
    ring = ObservationRing(keep_count=50)
    for n in range(200):
        ring.add(HostSample(n))
    assert len(ring) == 50


def test_a_replay_that_begins_again_does_not_mix_with_its_first_run() -> None:
    ring = ObservationRing()
    ring.add(HostSample(500 * S))
    ring.add(HostSample(1 * S))
    assert [o.mono_ns for o in ring.since(0)] == [S]


def test_process_changes_are_told_once_and_in_a_safe_order() -> None:
    picture = Picture(newest)
    picture.take(inventory())
    picture.take(processes(S, info(17), info(18)))
    picture.take(processes(2 * S, info(19), gone=(18,)))
    assert picture.take_process_changes() == ((info(17), info(19)), (18,))
    picture.take(ProcessTick(3 * S, infos=(info(18),), gone=(18,)))
    assert picture.take_process_changes() == ((info(18),), (18,)), "a pid used again: forgotten, then learnt"
    assert set(picture.infos) == {17, 18, 19}
    assert picture.take_process_changes() == ((), ())


def test_source_lines_go_with_their_process_and_are_bounded() -> None:
    picture = Picture(newest)
    for line in range(600):
        picture.take(SourceLine(17 + line % 2, S, "a.py", line, "x"))
    assert len(picture.lines) == 500
    picture.take(ProcessTick(2 * S, gone=(17,)))
    assert {line.root_pid for line in picture.lines.values()} == {18}


def test_all_readings_between_two_ticks_are_folded() -> None:
    folded: list[int] = []

    def fold(samples: Sequence[DeviceSample]) -> DeviceSample:
        folded.append(len(samples))
        return samples[-1]

    picture = Picture(fold)
    picture.take(inventory(2))
    before = picture.complete
    picture.take(HostSample(S))
    for n in range(5):
        picture.take(sample(0, S + n))
    picture.take(sample(1, S))
    assert (before, picture.complete) == (False, True)
    assert [s.mono_ns for s in picture.fold_pending()] == [S + 4, S]
    assert [s.mono_ns for s in picture.fold_pending()] == [S + 4, S], "nothing new: the old ones, with their old times"
    assert folded == [5, 1]


def ticks(count: int, devices: int) -> list[Tick]:
    return [Tick(1, n, n * S, n, tuple(sample(i, n * S) for i in range(devices))) for n in range(count)]


def test_history_of_eight_gpus_fits_and_stays_sharp_at_its_end() -> None:
    history = History()
    for tick in ticks(700, 8):
        history.append(tick)
    fitted = history.fitted()
    assert sum(len(msgspec.msgpack.encode(tick)) for tick in fitted) <= 300_000
    seqs = [tick.seq for tick in fitted]
    assert seqs == sorted(seqs)
    assert seqs[-100:] == list(range(600, 700))
    assert seqs[0] < 250, "the far past is coarse, not gone"
    assert history.fitted() is fitted, "computed once a tick, however many ask"


def test_thinning_ends_even_when_one_tick_is_too_large() -> None:
    assert thin(ticks(3, 8), 10) == ()
    assert [t.seq for t in thin(ticks(3, 1), 10**6)] == [0, 1, 2]


# ------------------------------------------------------------------ systemd


class Manager:
    """systemd's end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(5)

    def heard(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears_ready_status_reload_and_stop(abstract: bool) -> None:
    with runtime_dir() as path:
        path.mkdir()
        name = f"{path}/notify"
        manager = Manager("\0" + name if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name if abstract else name}, pid=7)
        try:
            notifier.ready("2 GPUs")
            assert manager.heard() == ["READY=1", "STATUS=2 GPUs"]
            notifier.status("2 GPUs")
            notifier.status("3 GPUs")
            assert manager.heard() == ["STATUS=3 GPUs"], "said when it changes"
            notifier.reloading()
            reloading, usec = manager.heard()
            assert reloading == "RELOADING=1"
            assert usec.removeprefix("MONOTONIC_USEC=").isdigit()
            notifier.stopping()
            assert manager.heard() == ["STOPPING=1"]
        finally:
            notifier.close()
            manager.socket.close()


def test_the_watchdog_is_fed_only_while_readings_are_completed() -> None:
    now = [100 * S]
    with runtime_dir() as path:
        path.mkdir()
        manager = Manager(f"{path}/notify")
        env = {"NOTIFY_SOCKET": f"{path}/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}
        notifier = Notifier(env, pid=7, clock=lambda: now[0])
        try:
            assert notifier.watchdog_ns == 15 * S
            assert notifier.feed(99 * S, 1.0)
            assert manager.heard() == ["WATCHDOG=1"]
            now[0] += 14 * S
            assert not notifier.feed(now[0], 1.0), "not yet time"
            now[0] += 2 * S
            assert not notifier.feed(now[0] - 6 * S, 1.0), "the driver hangs: let the watchdog bite"
            assert notifier.feed(now[0] - 4 * S, 1.0)
        finally:
            notifier.close()
            manager.socket.close()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"},
        {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "30000000"},
    ],
)
def test_nobody_watches_us_nobody_is_told(env: dict[str, str]) -> None:
    notifier = Notifier(env, pid=7)
    assert notifier.watchdog_ns == 0
    notifier.ready("x")
    assert not notifier.feed(0, 1.0)
    notifier.close()


# ------------------------------------------------------------------ log lines


def line(formatter: logging.Formatter, level: int, message: str, **facts: object) -> str:
    record = logging.LogRecord("gpuwatch", level, "f", 1, message, None, None)
    record.facts = facts
    return formatter.format(record)


def test_the_journal_gets_a_priority_and_pairs() -> None:
    formatter = journal.JournalFormatter()
    assert line(formatter, logging.WARNING, "GPU 3 hangs", gpu=3, command="a b") == '<4>GPU 3 hangs gpu=3 command="a b"'
    assert line(formatter, logging.INFO, "two\nlines") == "<6>two\n<6>lines"
    assert line(formatter, logging.INFO, "x", command='say "\n"') == '<6>x command="say \\"\\n\\""'


def test_people_and_programs_get_their_own_shape() -> None:
    human = journal.HumanFormatter("%(levelname)s %(message)s")
    assert line(human, logging.INFO, "pid 17: host_sync", lost="40 %") == "INFO pid 17: host_sync (lost 40 %)"
    as_json = json.loads(line(journal.JsonFormatter(), logging.ERROR, "x", pid=17))
    assert (as_json["level"], as_json["message"], as_json["pid"]) == ("error", "x", 17)


def test_the_journal_is_recognised_by_the_stream_not_by_the_variable_alone(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        stat = os.fstat(stream.fileno())
        assert journal.under_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}, stream.fileno())
        assert not journal.under_journal({"JOURNAL_STREAM": f"{stat.st_dev}:1"}, stream.fileno())
        assert not journal.under_journal({}, stream.fileno())


def test_the_same_thing_about_the_same_subject_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = journal.setup("info", env={})
    try:
        said = journal.OnChange(logger)
        assert [said.log(logging.INFO, "GPU 0", text) for text in ("hangs", "hangs", "answers", "hangs")] == [
            *(True, False, True, True)
        ]
        assert stream.getvalue().count("hangs") == 2
        logger.debug("not at this level")
        assert "not at" not in stream.getvalue()
    finally:
        logger.handlers.clear()
        logger.propagate = True


def test_a_part_that_is_not_watched_any_more_is_logged_once_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saying = Saying(journal.OnChange(logging.getLogger("test")))
    ended = Unwatched("XIDs and other events", Absent(Reason.DRIVER, "the driver was unloaded"))
    never = Unwatched("that", NOT_SUPPORTED)
    whole = inventory(1)
    with caplog.at_level(logging.INFO):
        for parts in ((), (ended, never), (ended, never), (never,), (never, ended)):
            saying.inventory(msgspec.structs.replace(whole, unwatched=parts))
    assert [(record.levelname, record.message) for record in caplog.records][1:] == [
        ("WARNING", "XIDs and other events: not watched: the driver was unloaded"),
        ("INFO", "that: not watched: not supported"),
        ("INFO", "XIDs and other events: watched again"),
        ("WARNING", "XIDs and other events: not watched: the driver was unloaded"),
    ]
