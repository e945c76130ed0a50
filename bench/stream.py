"""A subscriber that only counts: bytes, messages and driver time of what a daemon publishes.

Owns: one SUB socket. Refuses: snapshots, state.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import NamedTuple

import zmq

from gpuwatch import wire
from gpuwatch.config import STREAM_SOCKET


class StreamUse(NamedTuple):
    """What came in a while."""

    seconds: float
    ticks: int
    tick_bytes: float
    """Median payload of a tick."""
    bytes_per_s: float
    """All messages, topics included."""
    nvml_ms: float
    """Median over ticks of the time spent inside NVML, all GPUs together."""
    nvml_ms_max: float
    gpus: int
    nvml_ms_total: float
    """In all of it, all GPUs together; slow readings are part of the sample after them."""


class Listener(threading.Thread):
    """A client that reads the stream and keeps nothing of it: a daemon works more for one that listens."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(name="client", daemon=True)
        self._endpoint = endpoint
        self._done = threading.Event()
        self.messages = 0

    def run(self) -> None:
        """Thread body."""
        with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.SUB) as socket:
            socket.set(zmq.LINGER, 0)
            socket.subscribe(wire.TOPIC_STREAM)
            socket.connect(f"{self._endpoint}/{STREAM_SOCKET}")
            while not self._done.is_set():
                if socket.poll(200):
                    socket.recv_multipart()
                    self.messages += 1

    def end(self) -> int:
        """Stop listening. How many messages came."""
        self._done.set()
        self.join(2.0)
        return self.messages


def watch(endpoint: str, seconds: float) -> StreamUse:
    """Listen for so long. Raises RuntimeError when no tick came."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.set(zmq.LINGER, 0)
    socket.subscribe(wire.TOPIC_STREAM)
    socket.connect(f"{endpoint}/{STREAM_SOCKET}")
    total = 0
    sizes: list[int] = []
    nvml_ms: list[float] = []
    gpus = 0
    start = time.monotonic()
    try:
        while (left := start + seconds - time.monotonic()) > 0:
            if not socket.poll(round(left * 1000)):
                break
            frames = socket.recv_multipart()
            total += sum(map(len, frames))
            message = wire.decode_stream(frames[-1])
            if isinstance(message, wire.Tick):
                sizes.append(len(frames[-1]))
                nvml_ms.append(sum(sample.nvml_ns for sample in message.devices) / 1e6)
                gpus = len(message.devices)
    finally:
        socket.close()
        context.term()
    took = time.monotonic() - start
    if not sizes:
        raise RuntimeError(f"{endpoint}: no tick within {seconds:.0f} s")
    return StreamUse(
        seconds=took,
        ticks=len(sizes),
        tick_bytes=statistics.median(sizes),
        bytes_per_s=total / took,
        nvml_ms=statistics.median(nvml_ms),
        nvml_ms_max=max(nvml_ms),
        gpus=gpus,
        nvml_ms_total=sum(nvml_ms),
    )
