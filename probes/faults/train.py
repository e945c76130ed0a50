"""A training job whose plan comes over a file descriptor: ``python -m probes.faults.train FD FOLDER``.

Owns: the loop, and what a job may do beside its steps (saving, reviewing, logging, Python). Refuses: knowing what is
slow about a plan. The process that is started loads torch without touching the GPU and forks one job per request, so
that a job starts in the time that its CUDA context takes. A job reads plans, one JSON line each, from its channel,
and writes how many samples it has trained on, four times a second.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from . import data, nets, store
from .plan import Plan, plan_of

REPORT_S = 0.25
WARM_STEPS = 3
STORE = b"S"
"""Asks for an object store instead of a job."""


class Channel:
    """JSON lines in both directions over a socket."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._rest = link, b""

    def say(self, **message: Any) -> None:
        """Send one object; a reader that is gone ends the job."""
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(0)

    def hear(self, *, wait: bool) -> dict[str, Any] | None:
        """The next object, or None when there is none (or the other side has closed: then the job ends)."""
        while b"\n" not in self._rest:
            if not wait and not select.select([self._link], [], [], 0)[0]:
                return None
            chunk = self._link.recv(65536)
            if not chunk:
                os._exit(0)
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class Job:
    """One job: phases, each with a plan, until the channel says stop."""

    def __init__(self, channel: Channel, folder: Path, files: list[bytes]) -> None:
        self.channel, self.folder, self.files = channel, folder, files
        self.heap: list[Any] = []
        self.held: list[Any] = []

    def run(self) -> None:
        """Work off the channel."""
        message = self.channel.hear(wait=True)
        while message is not None and "stop" not in message:
            if "measure" in message:
                self.channel.say(measured=measure(Plan(**message["measure"]), self.files))
                message = self.channel.hear(wait=True)
            else:
                message = self.phase(plan_of(message["plan"]))

    def phase(self, plan: Plan) -> dict[str, Any]:
        """Train by ``plan`` until another message comes; returns it."""
        self._settle(plan)
        if plan.net == "none":
            self.channel.say(ready=True)
            return self.channel.hear(wait=True) or {"stop": 1}
        loop, over = Loop(self, plan), threading.Event()
        helpers = [threading.Thread(target=_helper, args=(over, plan.side_duty)) for _ in range(plan.side_threads)]
        try:
            return loop.go(helpers)
        finally:
            over.set()
            for helper in helpers:
                if helper.ident is not None:
                    helper.join()

    def _settle(self, plan: Plan) -> None:
        """What exists before the loop: memory held on the device, objects on the heap, a lock."""
        if plan.hold_gib and not self.held:
            where = "cuda" if torch.cuda.is_available() else "cpu"
            self.held.append(torch.empty(int(plan.hold_gib * 2**30), dtype=torch.uint8, device=where))
        if plan.heap_k and not self.heap:
            gc.disable()
            self.heap = [{"n": n, "v": [n, n]} for n in range(plan.heap_k * 500)]
            gc.enable()
        if plan.freeze:
            gc.freeze()
        if plan.device == "cpu" and not plan.tiny:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        if plan.guard:
            data.lock()
        else:
            data.unlock()


class Loop:
    """Steps of one phase."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job, self.plan = job, plan
        self.net = nets.build(plan)
        self.optimizer = nets.optimizer(plan, self.net)
        self.call = self.net
        self.batches = data.batches(plan, job.folder, job.files)
        self.samples, self.steps, self.told = 0, 0, 0.0
        if plan.compiled:
            import torch._dynamo.config as limits

            limits.cache_size_limit = 100_000
            self.call = torch.compile(self.net, dynamic=False, backend="aot_eager")
        if plan.graphs:
            x, _ = next(data.batches(Plan(**{**vars(plan), "source": "resident"}), job.folder, job.files))
            self.call = torch.cuda.make_graphed_callables(self.net, (x.clone(),))

    def go(self, helpers: Sequence[threading.Thread] = ()) -> dict[str, Any]:
        """Train until a message comes. ``helpers`` start after the first step: beside a thread that never gives the
        interpreter up, each of the thousands of file reads of torch's late imports would wait 5 ms for it."""
        channel, plan = self.job.channel, self.plan
        # A job that cannot make a single step is ready as well: its context is there.
        if plan.device != "cpu":
            torch.zeros(1, device=plan.device)
        channel.say(ready=True)
        try:
            while True:
                message = channel.hear(wait=False)
                if message is not None and "discard" not in message:
                    return message
                if message is not None:
                    channel.say(discarded=self.discard(message["discard"], message["for_s"]))
                self.turn()
                if self.steps == 1:
                    for helper in helpers:
                        helper.start()
                now = time.monotonic()
                if now - self.told >= REPORT_S or self.steps <= WARM_STEPS:
                    self.told = now
                    channel.say(t=now, samples=self.samples, steps=self.steps)
        finally:
            self.batches.close()

    def discard(self, count: int, for_s: float) -> int:
        """Take so many batches and train on none, or as many as come in the time. Returns how many."""
        taken, deadline = 0, time.monotonic() + for_s
        while taken < count and time.monotonic() < deadline:
            next(self.batches)
            taken += 1
        return taken

    def turn(self) -> None:
        """One step and what is due after it."""
        plan = self.plan
        x, y = next(self.batches)
        if plan.tokens:
            words(plan.tokens, plan.vectorised)
        for number in range(plan.host_filters):
            data.picture(self.job.files[number % len(self.job.files)], 1)
        loss = self.learn(x, y)
        self.steps += 1
        self.samples += len(y)
        if plan.read_loss and not float(loss) >= 0.0:
            raise FloatingPointError("the loss diverged")
        if self._due(plan.save_every):
            self.keep()
        if self._due(plan.review_every):
            self.review()
        if self._due(plan.log_every):
            self.write_down(loss)
        if self._due(plan.collect_every):
            gc.collect()
        if self._due(plan.release_every):
            torch.cuda.empty_cache()

    def _due(self, every: int) -> bool:
        return every > 0 and self.steps % every == 0

    def learn(self, x: Any, y: Any) -> Any:
        """Forward, backward, update."""
        with nets.autocast(self.plan):
            out = self.call(x)
            loss = F.cross_entropy(out.flatten(0, -2).float(), y.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def keep(self) -> None:
        """Write network and optimizer to the disk."""
        with (self.job.folder / "state.pt").open("wb") as file:
            torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    def review(self) -> None:
        """Score single samples with a metric in plain Python, as evaluation scripts do."""
        x, _ = next(self.batches)
        with torch.no_grad(), nets.autocast(self.plan):
            for number in range(self.plan.review_items):
                out = self.net(x[number % len(x)][None])
                boxes = [float(v) for v in out.flatten()[:120].float().cpu()]
                overlap(boxes)

    def write_down(self, loss: Any) -> None:
        """A line of JSON and some pictures."""
        from PIL import Image

        with (self.job.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": self.steps, "at": time.time()}) + "\n")
            for number in range(self.plan.log_images):
                raw = self.job.files[number % len(self.job.files)]
                out = io.BytesIO()
                Image.open(io.BytesIO(raw)).save(out, "PNG")
                (self.job.folder / f"p{number}.png").write_bytes(out.getvalue())
            if self.plan.log_images:
                file.write(json.dumps({"loss": float(loss)}) + "\n")
                file.flush()
                os.fsync(file.fileno())


def words(count: int, vectorised: bool) -> int:
    """Pad and mask rows of token ids: with tensors, or row by row in Python."""
    if vectorised:
        ids = torch.arange(count) * 2654435761 % 8191
        return int((ids * (ids > 100)).sum())
    total, row = 0, []
    for number in range(count):
        value = number * 2654435761 % 8191
        row.append(value if value > 100 else 0)
        if len(row) == 512:
            total += sum(row)
            row = []
    return total


def overlap(values: list[float]) -> float:
    """Mean intersection over union of all pairs of intervals."""
    pairs = list(zip(values[::2], values[1::2]))
    total, count = 0.0, 0
    for a0, a1 in pairs:
        for b0, b1 in pairs:
            low, high = max(min(a0, a1), min(b0, b1)), min(max(a0, a1), max(b0, b1))
            union = max(a0, a1, b0, b1) - min(a0, a1, b0, b1)
            total += max(0.0, high - low) / union if union else 1.0
            count += 1
    return total / max(1, count)


def _helper(over: threading.Event, duty: float) -> None:
    """A thread that parses what another part of the program wrote."""
    text = json.dumps({str(n): [n] * 8 for n in range(200)})
    while not over.is_set():
        begin = time.monotonic()
        seen = 0
        while time.monotonic() - begin < 0.05:
            seen += sum(ord(c) for c in text[:4000]) + len(json.loads(text))
        if duty < 1.0:
            over.wait(0.05 * (1.0 / max(duty, 0.01) - 1.0))


def measure(plan: Plan, files: list[bytes]) -> dict[str, Any]:
    """Milliseconds of a step at two depths and of decoding one sample, to choose sizes with."""
    found: dict[str, Any] = {}
    for depth in (4, 8):
        trial = Plan(**{**vars(plan), "depth": depth})
        net = nets.build(trial)
        update = nets.optimizer(trial, net)
        batches = data.batches(trial, Path(), files)
        for step in range(23):
            if step == 3:
                _wait(plan)
                begin = time.perf_counter()
            x, y = next(batches)
            with nets.autocast(trial):
                loss = F.cross_entropy(net(x).flatten(0, -2).float(), y.flatten())
            update.zero_grad(set_to_none=True)
            loss.backward()
            update.step()
        _wait(plan)
        found[f"step_ms_{depth}"] = (time.perf_counter() - begin) * 1e3 / 20
    begin = time.perf_counter()
    for number in range(40):
        data.picture(files[number % len(files)], 0)
    found["torch"] = torch.__version__
    found["device"] = torch.cuda.get_device_name() if plan.device != "cpu" else "cpu"
    found["decode_ms"] = (time.perf_counter() - begin) * 1e3 / 40
    return found


def _wait(plan: Plan) -> None:
    if plan.device != "cpu":
        torch.cuda.synchronize()


def work(link: socket.socket, folder: Path, files: list[bytes]) -> None:
    """The life of a forked job; every end is an exit."""
    channel = Channel(link)
    code = 0
    try:
        Job(channel, folder, files).run()
    except Exception as exc:
        code = 1
        with contextlib.suppress(SystemExit):
            channel.say(error=f"{type(exc).__name__}: {str(exc).splitlines()[0] if str(exc) else ''}"[:300])
    os._exit(code)


def serve(control: socket.socket, folder: Path) -> None:
    """Fork a job or an object store for each channel that comes over ``control``; answer with its pid."""
    # A pool of OpenMP threads does not survive a fork: none may be made here, nor in a job that forks workers.
    torch.set_num_threads(1)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 16384:
        torch.multiprocessing.set_sharing_strategy("file_system")
    files = [data.jpeg(seed) for seed in range(data.FILES)]
    data.load_libraries()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.sendall(b"ready\n")
    while True:
        message, handles = _take(control)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            os.setpgid(0, 0)
            data.die_with_parent()
            link = socket.socket(fileno=handles[0])
            if message == STORE:
                store.serve(link, files)
                os._exit(0)
            work(link, folder, files)
        os.close(handles[0])
        control.sendall(f"{pid}\n".encode())


def _take(control: socket.socket) -> tuple[bytes, list[int]]:
    message, ancillary, _flags, _ = control.recvmsg(64, socket.CMSG_SPACE(4))
    handles = [int.from_bytes(raw[:4], sys.byteorder) for _, _, raw in ancillary]
    return message, handles


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
