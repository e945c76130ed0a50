"""One connection to one daemon: subscribe, snapshot, resync.

Owns: both sockets, the order of the handshake, retries. Refuses: what a message does to the picture (state.py),
threads, widgets.

The subscription comes first, then the snapshot: what is published in between is held and applied after it. A gap in
``seq``, a new ``epoch`` or a new welcome (the daemon, or only the socket, came back) ask for a snapshot again.
ZeroMQ itself reconnects for ever, with growing pauses.
"""

from __future__ import annotations

import enum
import os
import queue
import time
from collections.abc import Callable

import msgspec
import zmq
from msgspec import Struct

from gpuwatch import wire
from gpuwatch.client import state as reducer
from gpuwatch.client.endpoints import abandoned, absence, normal
from gpuwatch.client.feed import Asked
from gpuwatch.client.state import Link, NodeState
from gpuwatch.config import REQUEST_SOCKET, STREAM_SOCKET
from gpuwatch.errors import ProtocolError

RECEIVE_QUEUE = 256
HELD_MESSAGES = 1024
"""Held while a snapshot is under way; beyond it a new snapshot is cheaper than the wait."""
SNAPSHOT_TIMEOUT_NS = 2_000_000_000
ANSWER_TIMEOUT_NS = 5_000_000_000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2000


class _Phase(enum.Enum):
    UNHEARD = "nothing heard yet"
    ASKING = "snapshot asked for"
    FOLLOWING = "in step with the stream"


class _VersionOf(Struct, frozen=True, tag="snapshot"):
    """The one field of a snapshot that every version of the protocol has."""

    protocol: tuple[int, int]


class Connection:
    """Synchronous: whoever calls ``step`` owns it. Only ``request`` may be called from other threads."""

    def __init__(
        self,
        endpoint: str,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        keep_ticks: int = reducer.HISTORY_TICKS,
    ) -> None:
        """Connects in the background; a missing daemon is a state, not an error. Raises UsageError for an endpoint
        that cannot be one. ``keep_ticks``: samples of each device that are kept for charts."""
        self.endpoint = normal(endpoint)
        connecting = reducer.connecting(self.endpoint, absence(self.endpoint))
        self.state = msgspec.structs.replace(connecting, keep_ticks=keep_ticks)
        self.last_reply: wire.Accepted | wire.Refused | None = None
        """Answer to the latest request of ours, for a caller that must tell a yes from a no."""
        self.unknown_messages = 0
        """Messages of a newer minor protocol that this client skipped."""
        self._clock = clock
        self._phase = _Phase.UNHEARD
        self._held: list[wire.StreamMessage] = []
        self._position: tuple[int, int] | None = None
        """Epoch and seq of the last message that came off the stream, whatever became of it."""
        self._last_id = 0
        self._snapshot_id = 0
        self._asked_ns = 0
        self._refusal = ""
        """Why the daemon gave no snapshot when it was last asked."""
        self._waiting: dict[int, tuple[int, Asked]] = {}
        """When each unanswered request was sent, and what it was."""
        self._outbox: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stream = self._socket(zmq.SUB)
        self._requests = self._socket(zmq.DEALER)
        self._stream.subscribe(wire.TOPIC_STREAM)
        self._stream.subscribe(wire.TOPIC_WELCOME)
        self._stream.connect(f"{self.endpoint}/{STREAM_SOCKET}")
        self._requests.connect(f"{self.endpoint}/{REQUEST_SOCKET}")
        self._poller = zmq.Poller()
        for readable in (self._stream, self._requests, self._wake_fd):
            self._poller.register(readable, zmq.POLLIN)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, RECEIVE_QUEUE)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        return socket

    # ------------------------------------------------------------------ what a caller uses

    def step(self, timeout_s: float) -> NodeState:
        """Wait for at most ``timeout_s`` for news, take in all there is, give the picture as of now."""
        self._poller.poll(max(0, round(timeout_s * 1000)))
        self._drain_wakes()
        self._send_requests()
        # Replies first: after the snapshot, the held messages and the waiting ones follow in order.
        self._drain_replies()
        self._drain_stream()
        now = self._clock()
        self._give_up_waiting(now)
        self.state = reducer.aged(self.state, now)
        self._look_for_daemon(now)
        return self.state

    def request(self, message: Asked) -> None:
        """Ask for something. The answer becomes ``state.notice`` and ``last_reply``. Thread-safe; numbers requests
        itself."""
        self._outbox.put(message)
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close everything; the state stays readable."""
        self._stream.close(0)
        self._requests.close(0)
        self._context.term()
        os.close(self._wake_fd)

    def __enter__(self) -> Connection:
        """Itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self.close()

    def _look_for_daemon(self, now_ns: int) -> None:
        """A killed daemon says no goodbye: after two silent seconds its lock tells."""
        silent = now_ns - max(self.state.heard_ns, self._asked_ns) > SNAPSHOT_TIMEOUT_NS
        if self._phase is not _Phase.UNHEARD and silent:
            if abandoned(self.endpoint):
                self._phase, self._refusal = _Phase.UNHEARD, ""
                if self.state.inventory is not None:
                    self._show(Link.LOST, f"the daemon at {self.endpoint} has gone; waiting for it")
            elif self._phase is _Phase.ASKING:
                self._ask_snapshot()
        if self._phase is _Phase.UNHEARD and self.state.link is Link.CONNECTING:
            self._show(Link.CONNECTING, self._refusal or absence(self.endpoint))

    # ------------------------------------------------------------------ the stream

    def _drain_stream(self) -> None:
        while True:
            try:
                frames = self._stream.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frames[0] == wire.TOPIC_WELCOME:
                self._ask_snapshot()
                continue
            try:
                message = wire.decode_stream(frames[-1])
            except ProtocolError:
                self.unknown_messages += 1
                self._skip_unknown(frames[-1])
                continue
            self._take(message)

    def _skip_unknown(self, payload: bytes) -> None:
        """A tag of a newer minor version: not understood, but it has its place in the sequence."""
        try:
            heard = msgspec.msgpack.decode(payload, type=_Place)
        except msgspec.DecodeError:
            return
        self._take(wire.Heartbeat(heard.epoch, heard.seq, 0))

    def _take(self, message: wire.StreamMessage) -> None:
        self._count_missing(message)
        if self._phase is _Phase.FOLLOWING and self.state.link is Link.INCOMPATIBLE:
            return
        if self._phase is _Phase.ASKING:
            self._held.append(message)
            if len(self._held) > HELD_MESSAGES:
                self._held.clear()
                self._ask_snapshot()
            return
        if self._phase is _Phase.UNHEARD:
            self._ask_snapshot()
            self._held.append(message)
            return
        self._apply(message)

    def _apply(self, message: wire.StreamMessage) -> None:
        """One message while following: old ones are in the snapshot already, the next one is folded in."""
        if message.epoch == self.state.epoch and message.seq <= self.state.seq:
            return
        lost = self.state.link is Link.LOST
        if message.epoch != self.state.epoch or message.seq != self.state.seq + 1 or lost:
            self._ask_snapshot()
            self._held.append(message)
            return
        self.state = reducer.fold(self.state, message, self._clock())
        if isinstance(message, wire.Goodbye):
            self._phase = _Phase.UNHEARD

    def _count_missing(self, message: wire.StreamMessage) -> None:
        """What is missing between two messages that came was dropped for us. Before the first one nothing was."""
        before = self._position
        self._position = (message.epoch, message.seq)
        if before is None or before[0] != message.epoch or message.seq <= before[1] + 1:
            return
        self.state = reducer.missed(self.state, message.seq - before[1] - 1)

    # ------------------------------------------------------------------ requests and replies

    def _ask_snapshot(self) -> None:
        self._phase = _Phase.ASKING
        self._held.clear()
        self._last_id += 1
        self._snapshot_id = self._last_id
        self._asked_ns = self._clock()
        self._send(wire.GetSnapshot(self._snapshot_id))

    def _send_requests(self) -> None:
        while True:
            try:
                message = self._outbox.get_nowait()
            except queue.Empty:
                return
            self._last_id += 1
            # What waits in the socket's queue would start when a daemon does: nobody expects that an hour later.
            heard = self._phase is not _Phase.UNHEARD
            if heard and self._send(msgspec.structs.replace(message, request_id=self._last_id)):
                self._waiting[self._last_id] = (self._clock(), message)
            else:
                self._waiting[self._last_id] = (0, message)
                self._answered(wire.Refused(self._last_id, absence(self.endpoint)))

    def _send(self, message: wire.Request) -> bool:
        try:
            self._requests.send(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _drain_replies(self) -> None:
        while True:
            try:
                payload = self._requests.recv_multipart(zmq.NOBLOCK)[-1]
            except zmq.Again:
                return
            try:
                reply = wire.decode_reply(payload)
            except ProtocolError as exc:
                self._take_undecodable(payload, str(exc))
                continue
            if isinstance(reply, wire.Snapshot):
                self._take_snapshot(reply)
            elif isinstance(reply, wire.History):
                self._waiting.pop(reply.request_id, None)
                self.state = msgspec.structs.replace(self.state, past=reply, past_refusal="")
            elif reply.request_id == self._snapshot_id:
                # It has nothing to show yet; the next thing that it publishes makes us ask again.
                self._phase = _Phase.UNHEARD
                self._refusal = reply.message
            else:
                self._answered(reply)

    def _take_snapshot(self, snapshot: wire.Snapshot) -> None:
        if snapshot.request_id != self._snapshot_id or self._phase is not _Phase.ASKING:
            return  # An answer to a question that we have asked again since.
        if snapshot.protocol[0] != wire.PROTOCOL[0]:
            self._incompatible(snapshot.protocol)
            return
        notice = self.state.notice
        self.state = reducer.from_snapshot(self.state, snapshot, self._clock())
        self.state = msgspec.structs.replace(self.state, notice=notice)
        self._phase, self._refusal = _Phase.FOLLOWING, ""
        held, self._held = self._held, []
        for message in held:
            # An apply may find a gap and ask again; the rest is then held for the next snapshot.
            if self._phase is _Phase.FOLLOWING:
                self._apply(message)
            else:
                self._held.append(message)

    def _take_undecodable(self, payload: bytes, why: str) -> None:
        """A snapshot of another major version may have any shape, but it says its version."""
        try:
            protocol = msgspec.msgpack.decode(payload, type=_VersionOf).protocol
        except msgspec.DecodeError:
            self._show(self.state.link, why)
            return
        if protocol[0] == wire.PROTOCOL[0]:
            self._show(self.state.link, why)
        else:
            self._incompatible(protocol)

    def _incompatible(self, theirs: tuple[int, int]) -> None:
        ours = wire.PROTOCOL
        self._phase = _Phase.FOLLOWING
        self._show(
            Link.INCOMPATIBLE,
            f"the daemon speaks protocol {theirs[0]}.{theirs[1]}, this client {ours[0]}.{ours[1]}:"
            f" update the {'client' if theirs[0] > ours[0] else 'daemon'}",
        )

    def _answered(self, reply: wire.Accepted | wire.Refused) -> None:
        asked = self._waiting.pop(reply.request_id, (0, None))[1]
        if reply.request_id == 0:
            asked = self._not_understood()
        if isinstance(asked, wire.GetHistory):
            self.state = msgspec.structs.replace(self.state, past=None, past_refusal=reply.message)
            return
        if isinstance(asked, wire.ReplayControl) and not reply.message:
            return  # It was only asked how it is being played: that comes in the stream.
        self.last_reply = reply
        text = reply.message or ("accepted" if isinstance(reply, wire.Accepted) else "refused")
        self.state = msgspec.structs.replace(self.state, notice=text)

    def _not_understood(self) -> Asked | None:
        """A daemon that does not know a request cannot read its number either: it means our oldest newer one."""
        for request_id, (_, asked) in self._waiting.items():
            if isinstance(asked, (wire.GetHistory, wire.ReplayControl)):
                del self._waiting[request_id]
                return asked
        return None

    def _give_up_waiting(self, now_ns: int) -> None:
        for request_id, (asked_ns, _) in list(self._waiting.items()):
            if now_ns - asked_ns > ANSWER_TIMEOUT_NS:
                self._answered(wire.Refused(request_id, f"no answer from the daemon at {self.endpoint}"))

    def _drain_wakes(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return

    def _show(self, link: Link, detail: str) -> None:
        if (self.state.link, self.state.detail) != (link, detail):
            self.state = msgspec.structs.replace(self.state, link=link, detail=detail)


class _Place(Struct, frozen=True):
    """Where a message stands in the stream, whatever it is."""

    epoch: int
    seq: int
