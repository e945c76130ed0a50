"""The two sockets of the daemon: the stream and the requests.

Owns: epoch and seq, demand, limits on what a peer may do to us. Refuses: knowing what the messages mean.

Not thread-safe, as ZeroMQ sockets are not: the service's main thread owns it. Nothing here blocks. XPUB drops for
the one peer whose queue is full and for nobody else; that peer sees a gap in ``seq``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import zmq

from gpuwatch import wire
from gpuwatch.daemon.endpoint import UMASK, RuntimeDirectory, umask
from gpuwatch.errors import CannotCreateError, ProtocolError

SEND_QUEUE = 64
"""Messages per subscriber: a minute of ticks. Older telemetry is worth less than a fresh snapshot."""
REQUESTS_PER_ROUND = 32
"""A flood of requests must not keep the loop from its next tick."""
GOODBYE_LINGER_MS = 200

Message = TypeVar("Message", bound=wire.StreamMessage)
Answer = Callable[[wire.Request], wire.Reply]
Publish = Callable[[Callable[[int, int], wire.StreamMessage]], None]
"""Gives the builder of a message its epoch and seq, and sends what it makes."""


class Publisher:
    """Open it in the thread that uses it; close it there."""

    def __init__(self, directory: RuntimeDirectory) -> None:
        # secrets would load hmac, hashlib and with them OpenSSL: 3.5 MiB for eight bytes.
        self.epoch = int.from_bytes(os.urandom(8), "big") >> 1
        self.seq = 0
        self.subscribers = 0
        """How many subscriptions to the stream there are now: demand."""
        self.refused = 0
        """Malformed requests so far."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.stream = self._context.socket(zmq.XPUB)
        self.requests = self._context.socket(zmq.ROUTER)
        self._bind(directory)

    def _bind(self, directory: RuntimeDirectory) -> None:
        for socket in (self.stream, self.requests):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.SNDHWM, SEND_QUEUE)
            # A subscription frame is a topic, a request is small: nobody may make us hold more.
            socket.set(zmq.MAXMSGSIZE, wire.MAX_REQUEST_BYTES)
            socket.set(zmq.HANDSHAKE_IVL, 5000)
        self.stream.set(zmq.XPUB_WELCOME_MSG, wire.TOPIC_WELCOME)
        # Verboser: one frame for every subscriber that comes or goes, so that they can be counted.
        self.stream.set(zmq.XPUB_VERBOSER, 1)
        self.requests.set(zmq.RCVHWM, 4 * REQUESTS_PER_ROUND)
        try:
            with umask(UMASK):
                self.stream.bind(directory.stream)
                self.requests.bind(directory.requests)
        except zmq.ZMQError as exc:
            self.close()
            raise CannotCreateError(f"{directory.path}: cannot bind a socket there: {exc.strerror}") from None

    def publish(self, build: Callable[[int, int], Message]) -> Message:
        """Send ``build(epoch, seq)`` to all subscribers, and give it. Without any subscriber nothing is encoded, but
        ``seq`` goes on."""
        self.seq += 1
        message = build(self.epoch, self.seq)
        self.poll_subscriptions()
        if self.subscribers:
            # XPUB never blocks and never says Again: it drops for the peers whose queue is full.
            self.stream.send_multipart([wire.TOPIC_STREAM, wire.encode(message)], zmq.NOBLOCK)
        return message

    def poll_subscriptions(self) -> None:
        """Read what subscribers said: frames 1 + topic and 0 + topic. Anything else is ignored."""
        while True:
            try:
                frame = self.stream.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frame[:1] not in (b"\0", b"\1") or not wire.TOPIC_STREAM.startswith(frame[1:]):
                continue
            self.subscribers = max(0, self.subscribers + (1 if frame[:1] == b"\1" else -1))

    def answer_requests(self, answer: Answer) -> int:
        """Answer at most REQUESTS_PER_ROUND waiting requests; how many there were."""
        for count in range(REQUESTS_PER_ROUND):
            try:
                frames = self.requests.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return count
            reply = self._reply(frames[1:], answer)
            try:
                self.requests.send_multipart([frames[0], wire.encode(reply)], zmq.NOBLOCK)
            except zmq.ZMQError:
                continue  # Its queue is full or it has gone: its own loss.
        return REQUESTS_PER_ROUND

    def _reply(self, frames: list[bytes], answer: Answer) -> wire.Reply:
        if len(frames) != 1:
            self.refused += 1
            return wire.Refused(0, f"a request is one frame, this had {len(frames)}")
        try:
            request = wire.decode_request(frames[0])
        except ProtocolError as exc:
            self.refused += 1
            return wire.Refused(0, str(exc).replace("\n", " "))
        return answer(request)

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets; with ``linger_ms`` the last message gets that long to leave."""
        self.stream.close(linger_ms)
        self.requests.close(linger_ms)
        self._context.term()

    def say_goodbye(self) -> None:
        """Tell the subscribers that this is on purpose, then close."""
        self.publish(wire.Goodbye)
        self.close(GOODBYE_LINGER_MS)
