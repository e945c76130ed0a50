"""Datagrams of ``gpuwatch.hook``: who may send what, who is believed, and that nobody can hurt the daemon with them."""

from __future__ import annotations

import array
import json
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_parts import S, ScriptedSource, info, inventory, processes, runtime_dir, sample, serving, until

from gpuwatch.client.connection import Connection
from gpuwatch.config import STEP_SOCKET
from gpuwatch.daemon import steps
from gpuwatch.daemon.steps import Steps, StepSocket, beside_the_daemon, daemons_paths, parse
from gpuwatch.daemon.watch import Watch
from gpuwatch.errors import CannotCreateError
from gpuwatch.model import NOT_READ, Observation, StepReport

NOW = 100 * S
SAID = {
    "gpuwatch_steps": 1, "loop": 7, "thread": 42, "end_ns": NOW - 1000, "span_ns": 500, "steps": 3, "step_ns": 490,
    "step_max_ns": 200, "wait_ns": 100, "wait_max_ns": 60,
}  # fmt: skip
NOBODY = 65534


def datagram(**changes: object) -> bytes:
    return json.dumps({**SAID, **changes}).encode()


@pytest.fixture
def folder() -> Iterator[Path]:
    with runtime_dir() as path:
        path.mkdir()
        yield path


def sender() -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.setblocking(False)
    return found


def test_a_report_is_what_was_said_by_the_process_that_said_it(folder: Path) -> None:
    with StepSocket(folder / STEP_SOCKET) as receiver, sender() as job:
        job.sendto(datagram(), str(receiver.path))
        job.sendto(datagram(wait_ns=None, wait_max_ns=None, added_later=[1]), str(receiver.path))
        assert receiver.receive(NOW) == [
            StepReport(os.getpid(), NOW - 1000, 500, 3, 490, 200, 100, 60, 7, 42),
            StepReport(os.getpid(), NOW - 1000, 500, 3, 490, 200, NOT_READ, NOT_READ, 7, 42),
        ]
        assert receiver.receive(NOW) == []
        assert receiver.malformed == 0


def test_a_job_cannot_speak_about_another(folder: Path) -> None:
    code = (
        "import os, socket, struct, sys\n"
        # Root may be anybody, on Unix sockets as elsewhere.
        f"if os.geteuid() == 0:\n    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "forged = struct.pack('3i', 1, os.getuid(), os.getgid())\n"
        "try:\n"
        "    s.sendmsg([b'{}'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, forged)], 0, sys.argv[1])\n"
        "except PermissionError:\n    print('refused', os.getpid())\n"
        "s.sendto(sys.argv[2].encode(), sys.argv[1])"
    )
    with StepSocket(folder / STEP_SOCKET) as receiver:
        folder.parent.chmod(0o755)
        folder.chmod(0o755)
        receiver.path.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", code, str(receiver.path), datagram(pid=1, root_pid=1).decode()],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        refused, child = done.stdout.split()
        assert refused == "refused"
        assert [report.pid for report in receiver.receive(NOW)] == [int(child)]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0" * 40,
        b"\xff\xfe{",
        b"{}",
        b"[" * 900,
        b"null",
        datagram(gpuwatch_steps=2),
        datagram(steps=-1),
        datagram(steps=1e300),
        datagram(steps="3"),
        datagram(step_ns=2**70),
        datagram(step_ns=501),
        datagram(step_max_ns=491),
        datagram(wait_ns=501, wait_max_ns=1),
        datagram(wait_max_ns=101),
        datagram(wait_ns=None, wait_max_ns=5),
        datagram(padding="x" * 2000),
    ],
)
def test_garbage_is_counted_and_the_next_report_is_read(folder: Path, payload: bytes) -> None:
    with StepSocket(folder / STEP_SOCKET) as receiver, sender() as job:
        job.sendto(payload, str(receiver.path))
        job.sendto(datagram(), str(receiver.path))
        assert len(receiver.receive(NOW)) == 1
        assert receiver.malformed == 1


def test_a_clock_of_another_namespace_does_not_move_a_report_out_of_the_window() -> None:
    for end_ns in (0, NOW - steps.OLDEST_NS - 1, NOW + steps.AHEAD_NS + 1):
        report = parse(datagram(end_ns=end_ns), 5, NOW)
        assert report is not None
        assert report.mono_ns == NOW
    late = parse(datagram(end_ns=NOW - 9 * S), 5, NOW)
    assert late is not None
    assert late.mono_ns == NOW - 9 * S, "it waited while the daemon was stopped"


def test_file_descriptors_that_somebody_sends_are_not_kept(folder: Path) -> None:
    with StepSocket(folder / STEP_SOCKET) as receiver, sender() as job:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())]
            job.sendmsg([datagram()], rights, 0, str(receiver.path))
            assert len(receiver.receive(NOW)) == 1
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_flood_of_one_job_is_cut_to_what_a_job_has_to_say(folder: Path) -> None:
    with StepSocket(folder / STEP_SOCKET) as receiver, sender() as job:
        read = 0
        for _ in range(50):
            try:
                job.sendto(datagram(), str(receiver.path))
            except BlockingIOError:
                read += len(receiver.receive(NOW))
        read += len(receiver.receive(NOW))
        assert read == steps.REPORTS_PER_SECOND
        job.sendto(datagram(), str(receiver.path))
        assert len(receiver.receive(NOW + S)) == 1


# ------------------------------------------------------------------ places and rights


def test_it_has_the_rights_of_the_sockets_beside_it(folder: Path) -> None:
    with StepSocket(folder / STEP_SOCKET) as receiver:
        assert stat.S_IMODE(receiver.path.stat().st_mode) == 0o770
    assert not receiver.path.exists()


def test_what_a_killed_receiver_left_is_replaced_and_who_lives_is_left_alone(folder: Path) -> None:
    for name in (STEP_SOCKET, "steps.77"):
        dead = sender()
        dead.bind(str(folder / name))
        dead.close()
    with sender() as alive, sender() as job:
        alive.bind(str(folder / "steps.88"))
        with StepSocket(folder / STEP_SOCKET) as receiver:
            assert sorted(path.name for path in folder.iterdir()) == ["steps.88", STEP_SOCKET]
            job.sendto(datagram(), str(receiver.path))
            assert len(receiver.receive(NOW)) == 1


def test_a_place_where_nobody_may_listen_is_said_in_one_line(folder: Path) -> None:
    with pytest.raises(CannotCreateError, match=r"none/steps\.1: cannot bind a socket there: No such file"):
        StepSocket(folder / "none" / "steps.1").open()
    (said,) = Steps([Path("/proc/none/steps.1")]).open()
    assert "\n" not in said


def test_a_program_without_a_directory_of_its_own_listens_where_jobs_look(tmp_path: Path) -> None:
    assert beside_the_daemon({}, 5) == Path("/run/gpuwatch/steps.5")
    assert beside_the_daemon({"XDG_RUNTIME_DIR": "/run/user/7"}, 5) == Path("/run/user/7/gpuwatch/steps.5")
    assert beside_the_daemon({"GPUWATCH_ENDPOINT": "ipc:///srv/gw"}, 5) == Path("/srv/gw/steps.5")
    assert beside_the_daemon({"GPUWATCH_ENDPOINT": "ssh://node"}, 5) is None
    assert daemons_paths(tmp_path, {}, 5, private=False) == [tmp_path / STEP_SOCKET]
    assert daemons_paths(tmp_path, {}, 5, private=True)[1:] == [Path("/run/gpuwatch/steps.5")]


# ------------------------------------------------------------------ what becomes of them


def test_everybody_who_watches_is_told_of_a_job_and_of_no_other_process() -> None:
    source = ScriptedSource(inventory(1))
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client, sender() as job:
        source.emit(sample(0, source.now_ns(), pids=(17,)), processes(source.now_ns(), info(17)))
        until(client, lambda s: 17 in s.infos)
        job.sendto(datagram(), str(path / STEP_SOCKET))
        seen = client.state.seq
        until(client, lambda s: s.seq > seen + 3)
        assert client.state.steps == {}, "this test is no GPU job"
        source.emit(processes(source.now_ns(), info(17), info(os.getpid())))
        until(client, lambda s: os.getpid() in s.infos)
        job.sendto(datagram(end_ns=source.now_ns()), str(path / STEP_SOCKET))
        (report,) = until(client, lambda s: bool(s.steps)).steps[os.getpid()]
        assert (report.steps, report.wait_ns) == (3, 100)
        source.emit(processes(source.now_ns(), info(17), gone=(os.getpid(),)))
        assert until(client, lambda s: not s.steps).steps == {}


def test_garbage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuwatch")
    source = ScriptedSource(inventory(1))
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client, sender() as job:
        source.emit(sample(0, source.now_ns()))
        for _ in range(3):
            job.sendto(b"garbage", str(path / STEP_SOCKET))
            until(client, lambda s: s.seq > 0)
            seen = client.state.seq
            until(client, lambda s, seen=seen: s.seq > seen + 2)  # type: ignore[misc]
    lines = [r.getMessage() for r in caplog.records if "malformed" in r.getMessage()]
    assert lines == ["a process sends malformed step reports"]


def test_a_look_in_the_foreground_collects_them_and_a_recording_carries_them(folder: Path) -> None:
    source = ScriptedSource(inventory(1))
    written: list[Observation] = []
    listener = Steps([folder / "steps.5"])
    with Watch(source, steps=listener) as watch, sender() as job:
        source.emit(sample(0, source.now_ns(), pids=(os.getpid(),)), processes(source.now_ns(), info(os.getpid())))
        watch.open()
        job.sendto(datagram(end_ns=source.now_ns()), str(folder / "steps.5"))
        found = watch.collect(watch.subject(os.getpid()), 0.2, sink=written.append)
    reports = [o for o in found if isinstance(o, StepReport)]
    assert [report.steps for report in reports] == [3]
    assert [o for o in written if isinstance(o, StepReport)] == reports
    assert list(folder.iterdir()) == []
