"""Daemon and client over real sockets: nobody misses anything without seeing it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq
from daemon_parts import (
    QUIET,
    S,
    ScriptedSource,
    info,
    inventory,
    processes,
    runtime_dir,
    sample,
    serving,
    until,
)

from gpuwatch import wire
from gpuwatch.client.connection import Connection
from gpuwatch.client.endpoints import find
from gpuwatch.client.state import Link
from gpuwatch.collect.source import Emit
from gpuwatch.daemon.endpoint import RuntimeDirectory
from gpuwatch.daemon.probe_service import Done
from gpuwatch.daemon.publisher import SEND_QUEUE, Publisher
from gpuwatch.errors import EndpointInUseError, UsageError
from gpuwatch.model import Device, DeviceSample, DriverState, Inventory, ProbeResult, ProbeStatus


def test_a_late_subscriber_gets_everything_and_no_gap() -> None:
    source = ScriptedSource(inventory(2))
    with runtime_dir() as path, serving(source, path):
        now = source.now_ns()
        source.emit(processes(now, info(17)), sample(0, now), sample(1, now))
        with Connection(str(path)) as early:
            until(early, lambda s: 1 in s.devices)
            source.emit(sample(0, source.now_ns(), busy_pct=55.0))
            until(early, lambda s: len(s.history[0].samples) == 2)
            with Connection(str(path)) as late:
                state = until(late, lambda s: s.link is Link.LIVE)
                assert set(state.devices) == {0, 1}
                assert [s.busy_pct for s in state.history[0].samples] == [20.0, 55.0], "its chart starts full"
                assert state.infos[17].command == "python train_17.py"
                source.emit(processes(source.now_ns(), info(18), gone=(17,)))
                state = until(late, lambda s: 18 in s.infos)
                assert 17 not in state.infos
                assert state.dropped == 0


def test_a_gpu_that_hangs_does_not_hide_the_other_one() -> None:
    source = ScriptedSource(inventory(2))
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client:
        start = source.now_ns()
        source.emit(sample(0, start), sample(1, start))
        until(client, lambda s: len(s.devices) == 2)
        for _ in range(3):
            newest = source.now_ns()
            source.emit(sample(0, newest))
            state = until(client, lambda s, newest=newest: s.devices[0].mono_ns == newest)  # type: ignore[misc]
        assert state.devices[1].mono_ns == start
        assert state.age_ns(state.devices[1]) > state.age_ns(state.devices[0])


def test_an_inventory_that_changes_reaches_the_screen() -> None:
    source = ScriptedSource(Inventory(inventory().node, (), DriverState.NO_DRIVER, "load the module"))
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client:
        state = until(client, lambda s: s.inventory is not None)
        assert state.inventory is not None
        assert state.inventory.driver_hint == "load the module"
        source.emit(inventory(1))
        until(client, lambda s: s.device(0) is not None)


def test_a_subscriber_that_does_not_read_loses_messages_sees_it_and_harms_nobody() -> None:
    with runtime_dir() as path, RuntimeDirectory(path) as directory:
        publisher = Publisher(directory)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sleeper, reader = context.socket(zmq.SUB), context.socket(zmq.SUB)
        try:
            sleeper.set(zmq.RCVHWM, 1)
            reader.set(zmq.RCVHWM, 1000)
            for socket in (sleeper, reader):
                socket.subscribe(wire.TOPIC_STREAM)
                socket.connect(directory.stream)
            while publisher.subscribers < 2:
                assert publisher.stream.poll(5000)
                publisher.poll_subscriptions()
            big = tuple(info(pid) for pid in range(2000))  # 300 kB: the kernel's socket buffer holds none of it
            seen = []
            total = 4 * SEND_QUEUE
            for _ in range(total):
                publisher.publish(lambda epoch, seq: wire.ProcessesMessage(epoch, seq, big))
                assert reader.poll(5000)
                seen.append(wire.decode_stream(reader.recv_multipart()[1]).seq)
            assert seen == list(range(1, total + 1)), "the one who reads gets everything"
            late = []
            while sleeper.poll(500):
                late.append(wire.decode_stream(sleeper.recv_multipart()[1]).seq)
            assert 0 < len(late) < total
            publisher.publish(wire.Goodbye)
            assert sleeper.poll(5000)
            late.append(wire.decode_stream(sleeper.recv_multipart()[1]).seq)
            assert any(b > a + 1 for a, b in itertools.pairwise(late)), "the gap shows in seq"
        finally:
            context.destroy(linger=0)
            publisher.close()


def test_a_client_that_slept_counts_what_it_missed_and_is_whole_again() -> None:
    source = ScriptedSource()
    config = msgspec.structs.replace(QUIET, period_s=5.0)
    with runtime_dir() as path, serving(source, path, config) as service, Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)
        before = client.state.seq
        # Every change of the inventory is published at once: far more than all queues hold, each 100 kB.
        for round_ in range(1200):
            hint = f"{round_} " + "x" * 100_000
            source.emit(Inventory(inventory().node, inventory().devices, DriverState.OK, hint))
        wait_for_seq(service._out, before + 1200)
        state = until(client, lambda s: s.inventory is not None and s.inventory.driver_hint.startswith("1199 "))
        assert state.link is Link.LIVE
        # The next message shows what was dropped before it; from then on nothing is missing any more.
        source.emit(inventory(1))
        state = until(client, lambda s: s.inventory is not None and s.inventory.driver_hint == "")
        assert 0 < state.dropped < 1200
        source.emit(inventory(2))
        again = until(client, lambda s: s.device(1) is not None)
        assert again.dropped == state.dropped


def wait_for_seq(publisher: Publisher, seq: int) -> None:
    """Until the service's thread has published so many."""
    deadline = time.monotonic() + 30
    while publisher.seq < seq:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_restarted_daemon_is_a_new_epoch_and_the_client_starts_again() -> None:
    source = ScriptedSource()
    with runtime_dir() as path, Connection(str(path)) as client:
        assert client.step(0).link is Link.CONNECTING
        with serving(source, path):
            source.emit(processes(source.now_ns(), info(17)))
            first = until(client, lambda s: 17 in s.infos)
        stopped = until(client, lambda s: s.link is Link.LOST)
        assert stopped.detail == "the daemon stopped"
        assert 17 in stopped.infos, "the last picture stays on the screen"
        again = ScriptedSource(inventory(2))
        with serving(again, path):
            second = until(client, lambda s: s.link is Link.LIVE)
            assert second.epoch != first.epoch
            assert second.infos == {}
            assert second.device(1) is not None
            assert second.dropped == 0


def test_a_second_daemon_is_refused_and_told_who_serves() -> None:
    with runtime_dir() as path, serving(ScriptedSource(), path):
        with pytest.raises(EndpointInUseError, match=rf"served by another daemon, pid {os.getpid()};"):
            RuntimeDirectory(path).open()
        with Connection(str(path)) as client:
            until(client, lambda s: s.link is Link.LIVE)


def test_find_sees_a_daemon_only_while_it_runs() -> None:
    with runtime_dir() as path:
        env = {"XDG_RUNTIME_DIR": str(path.parent / "none"), "GPUWATCH_ENDPOINT": str(path)}
        assert find(env=env) is None
        with serving(ScriptedSource(), path):
            assert find(env=env) == f"ipc://{path}"
            assert find(f"ipc://{path}", env={}) == f"ipc://{path}"
        assert find(env=env) is None
        assert sorted(p.name for p in path.iterdir()) == ["lock"], "no stale socket stays"


def raw_request(path: Path, *frames: bytes) -> wire.Reply:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(f"ipc://{path}/requests.sock")
        socket.send_multipart(frames)
        assert socket.poll(5000)
        return wire.decode_reply(socket.recv_multipart()[-1])
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize(
    "frames",
    [(b"",), (b"\xff\x00garbage",), (b"\x81\xa4type\xa5nukes",), (b"a", b"b"), (wire.encode(wire.Goodbye(1, 2)),)],
)
def test_garbage_is_refused_in_one_line_and_the_daemon_goes_on(frames: tuple[bytes, ...]) -> None:
    with runtime_dir() as path, serving(ScriptedSource(), path), Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)
        reply = raw_request(path, *frames)
        assert isinstance(reply, wire.Refused)
        assert reply.request_id == 0
        assert "\n" not in reply.message
        assert isinstance(raw_request(path, wire.encode(wire.GetSnapshot(4))), wire.Snapshot)


def test_a_request_that_is_too_large_cuts_off_its_sender_only() -> None:
    with runtime_dir() as path, serving(ScriptedSource(), path), Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket = context.socket(zmq.DEALER)
            socket.connect(f"ipc://{path}/requests.sock")
            socket.send(b"x" * (wire.MAX_REQUEST_BYTES + 1))
            assert not socket.poll(300)
        finally:
            context.destroy(linger=0)
        before = client.state.seq
        until(client, lambda s: s.seq > before)


class _NewerDaemon:
    """Only what a client of today can see of a daemon of tomorrow."""

    def __init__(self, path: Path, protocol: tuple[int, int]) -> None:
        self.directory = RuntimeDirectory(path)
        self.directory.open()
        self.publisher = Publisher(self.directory)
        self.protocol = protocol

    def answer_one(self) -> None:
        identity, payload = self.publisher.requests.recv_multipart()
        request = wire.decode_request(payload)
        snapshot = {
            "type": "snapshot",
            "request_id": request.request_id,
            "protocol": self.protocol,
            "inventory": "of another shape",
        }
        self.publisher.requests.send_multipart([identity, msgspec.msgpack.encode(snapshot)])

    def close(self) -> None:
        self.publisher.close()
        self.directory.close()


@pytest.mark.parametrize(("protocol", "which"), [((2, 0), "client"), ((0, 9), "daemon")])
def test_another_major_protocol_is_said_with_both_versions(protocol: tuple[int, int], which: str) -> None:
    with runtime_dir() as path:
        daemon = _NewerDaemon(path, protocol)
        try:
            with Connection(str(path)) as client:
                while not daemon.publisher.requests.poll(20):
                    daemon.publisher.poll_subscriptions()
                    client.step(0.02)
                daemon.answer_one()
                state = until(client, lambda s: s.link is not Link.CONNECTING)
                assert state.link is Link.INCOMPATIBLE
                assert state.detail == (
                    f"the daemon speaks protocol {protocol[0]}.{protocol[1]}, this client 1.0: update the {which}"
                )
        finally:
            daemon.close()


def test_a_message_of_a_newer_minor_protocol_is_skipped_without_a_gap() -> None:
    source = ScriptedSource()
    with runtime_dir() as path, serving(source, path) as service, Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)

        class Alert(msgspec.Struct, tag="alert"):
            epoch: int
            seq: int
            text: str

        # Published by the loop's own thread: sockets belong to it.
        step = service._diagnosing.step
        sent: list[int] = []

        def step_and_alert(now_ns: int) -> None:
            if not sent:
                sent.append(1)
                service._out.publish(lambda epoch, seq: Alert(epoch, seq, "new"))  # type: ignore[type-var]
            step(now_ns)

        service._diagnosing.step = step_and_alert  # type: ignore[method-assign]
        until(client, lambda s: client.unknown_messages == 1)
        before = client.state.tick_mono_ns
        state = until(client, lambda s: s.tick_mono_ns > before)
        assert (state.link, state.dropped) == (Link.LIVE, 0)


def test_without_a_daemon_the_state_says_where_none_was_found() -> None:
    with runtime_dir() as path, Connection(str(path)) as client:
        state = client.step(0.01)
        assert state.link is Link.CONNECTING
        assert state.detail == f"no daemon at {path}; start one with: gpuwatch daemon"
        client.request(wire.StartDiagnosis(0, pid=5))
        state = client.step(0.01)
        assert state.notice == f"no daemon at {path}; start one with: gpuwatch daemon"
        assert isinstance(client.last_reply, wire.Refused)


class _SlowDriver(ScriptedSource):
    """The inventory comes when the test says so."""

    def start(self, emit: Emit) -> None:
        self._emit = emit


def test_while_the_driver_is_still_silent_the_client_is_told_and_then_served() -> None:
    source = _SlowDriver()
    with runtime_dir() as path, serving(source, path), Connection(str(path)) as client:
        state = until(client, lambda s: "driver has not answered" in s.detail)
        assert state.link is Link.CONNECTING
        source.emit(inventory(1))
        assert until(client, lambda s: s.link is Link.LIVE).device(0) is not None


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5 * S

    def __call__(self) -> int:
        return self.now_ns


def test_a_daemon_that_ticks_no_more_is_stale_then_lost_by_the_clients_own_clock() -> None:
    clock = Clock()
    with runtime_dir() as path:
        daemon = _NewerDaemon(path, (1, 0))
        try:
            with Connection(str(path), clock=clock) as client:
                while not daemon.publisher.requests.poll(20):
                    daemon.publisher.poll_subscriptions()
                    client.step(0.02)
                daemon.publisher.answer_requests(
                    lambda request: wire.Snapshot(
                        request.request_id, daemon.publisher.epoch, 0, wire.PROTOCOL, inventory(), None, (), (), ()
                    )
                )
                until(client, lambda s: s.link is Link.LIVE)
                clock.now_ns += 4 * S
                assert client.step(0).link is Link.STALE
                daemon.publisher.publish(lambda epoch, seq: wire.Heartbeat(epoch, seq, 0))
                until(client, lambda s: s.seq == 1)
                assert client.state.link is Link.STALE, "a heartbeat is a sign of life, not a sample"
                clock.now_ns += 11 * S
                assert client.step(0).link is Link.LOST
        finally:
            daemon.close()


def test_a_killed_daemon_is_seen_by_its_lock_before_ten_silent_seconds() -> None:
    clock = Clock()
    with runtime_dir() as path:
        daemon = _NewerDaemon(path, (1, 0))
        with Connection(str(path), clock=clock) as client:
            while not daemon.publisher.requests.poll(20):
                daemon.publisher.poll_subscriptions()
                client.step(0.02)
            daemon.publisher.answer_requests(
                lambda request: wire.Snapshot(
                    request.request_id, daemon.publisher.epoch, 0, wire.PROTOCOL, inventory(), None, (), (), ()
                )
            )
            until(client, lambda s: s.link is Link.LIVE)
            daemon.close()
            clock.now_ns += 3 * S
            state = client.step(0)
            assert state.link is Link.LOST
            assert state.detail == f"the daemon at ipc://{path} has gone; waiting for it"


class _Probes:
    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.asked: list[tuple[str, int, int]] = []
        self.checked: list[int] = []

    def start(
        self,
        probe: str,
        device: Device | None,
        sample: DeviceSample | None,
        done: Done,
        *,
        seconds: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> str:
        if probe == "nonsense":
            raise UsageError("no probe nonsense")
        assert device is not None
        self.asked.append((probe, device.index, sample.mono_ns if sample else 0))
        if not self.refusal:
            done(ProbeResult(probe, ProbeStatus.OK, "cuda:0", device_uuid=device.uuid))
        return self.refusal

    def use(self, python: str) -> None:
        pass

    def check(self, sample: DeviceSample) -> None:
        self.checked.append(sample.device_index)

    def stop(self) -> None:
        self.asked.append(("stop", 0, 0))


def test_a_probe_that_was_asked_for_runs_and_its_result_reaches_everyone() -> None:
    source, probes = ScriptedSource(), _Probes()
    with runtime_dir() as path, serving(source, path, probes=probes), Connection(str(path)) as client:
        now = source.now_ns()
        source.emit(sample(0, now))
        until(client, lambda s: 0 in s.devices)
        client.request(wire.StartProbe(0, "copy", 0))
        state = until(client, lambda s: bool(s.probes) and bool(s.notice))
        assert probes.asked == [("copy", 0, now)]
        assert 0 in probes.checked, "every reading is shown to the runner: somebody else may have come"
        assert state.notice == "probe copy started on GPU 0"
        with Connection(str(path)) as late:
            assert until(late, lambda s: s.link is Link.LIVE).probes[0].probe == "copy"
        client.request(wire.StartProbe(0, "copy", 5))
        until(client, lambda s: s.notice == "no GPU 5")
        client.request(wire.StartProbe(0, "nonsense", 0))
        until(client, lambda s: s.notice == "no probe nonsense")
    assert probes.asked[-1][0] == "stop", "no child outlives the daemon"


def test_a_probe_that_may_not_run_is_refused_with_the_reason() -> None:
    busy = _Probes("GPU 0 is busy: pid 17")
    with runtime_dir() as path, serving(ScriptedSource(), path, probes=busy), Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)
        client.request(wire.StartProbe(0, "copy", 0))
        until(client, lambda s: s.notice == "GPU 0 is busy: pid 17")
    with runtime_dir() as path, serving(ScriptedSource(), path), Connection(str(path)) as client:
        until(client, lambda s: s.link is Link.LIVE)
        client.request(wire.StartProbe(0, "copy", 0))
        until(client, lambda s: "gpuwatch probe run" in s.notice)


def test_without_subscribers_nothing_is_encoded_and_seq_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not(message: object) -> bytes:
        raise AssertionError(f"encoded {message}")

    monkeypatch.setattr(wire, "encode", must_not)
    with runtime_dir() as path, RuntimeDirectory(path) as directory:
        publisher = Publisher(directory)
        for _ in range(3):
            publisher.publish(lambda epoch, seq: wire.Heartbeat(epoch, seq, 0))
        publisher.close()
    assert publisher.seq == 3


def test_a_flood_of_requests_is_answered_in_bounded_rounds() -> None:
    with runtime_dir() as path, RuntimeDirectory(path) as directory:
        publisher = Publisher(directory)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket = context.socket(zmq.DEALER)
            socket.connect(directory.requests)
            for number in range(100):
                socket.send(wire.encode(wire.GetSnapshot(number)))
            answered: list[int] = []
            while sum(answered) < 100:
                assert publisher.requests.poll(5000)
                answered.append(publisher.answer_requests(lambda request: wire.Refused(request.request_id, "no")))
                assert answered[-1] <= 32
                for number in range(sum(answered[:-1]), sum(answered)):
                    assert socket.poll(5000)
                    assert wire.decode_reply(socket.recv()).request_id == number
        finally:
            context.destroy(linger=0)
            publisher.close()


def test_the_sockets_are_closed_to_others() -> None:
    with runtime_dir() as path, serving(ScriptedSource(), path):
        assert path.stat().st_mode & 0o777 == 0o750
        for name in ("stream.sock", "requests.sock"):
            assert (path / name).stat().st_mode & 0o007 == 0
