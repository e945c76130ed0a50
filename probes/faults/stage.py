"""One job and what is arranged around it: begin, change, watch, end.

Owns: the order of these, and speeds from the job's own step log. Refuses: choosing what to run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from . import cases as table
from .host import Crowd, Forker, NotHereError, Peer, Quota
from .plan import Plan, Values, encode, plan_of

READY_S = 60.0
"""For a CUDA context, a network and a heap of objects, on a crowded machine."""
BATCH_S = 15.0
"""A batch that takes longer is not waited for."""
LEAST_STEPS, LEAST_PERIODS = 10, 3
"""A speed is measured over so many: two seconds at two steps a second told a gain of 1.17 where there was none."""
LONGEST = 4.0
"""Times as long as asked for, at most, until there are so many."""

Mark = tuple[float, int, int]
"""When (monotonic seconds), and how many samples and steps had been trained by then."""


class Stage:
    """A job and what is arranged around it."""

    def __init__(self, forker: Forker, sizes: Mapping[str, float], plan: Plan) -> None:
        self._forker, self._sizes, self.plan, self._present = forker, sizes, plan, plan
        self.job: Peer = forker.job()
        self.error = ""
        self._marks: list[Mark] = []
        self._steps = 0
        self._around: list[Any] = []
        self._neighbours: list[Peer] = []
        self._quota: Quota | None = None
        self._store: tuple[Peer, int] | None = None

    def begin(self) -> None:
        """Arrange the surroundings, then give the job its plan."""
        self._arrange(self.plan)
        self._start(self.plan)
        self._await_neighbours()

    def change(self, change: Values, *, fresh: bool) -> None:
        """Go on with a changed plan, in a new process where this one cannot."""
        plan = plan_of(asdict(self.plan), change)
        if fresh or self.job.ended or self.error:
            self.job.end()
            self.job = self._forker.job()
        # What the present phase still uses goes when the next one has begun.
        before, self._around, self._store = self._around, [], None
        self._arrange(plan)
        try:
            self._start(plan)
            self._await_neighbours()
        finally:
            _end_all(before)

    def until_steps(self, count: int, timeout_s: float) -> None:
        """Wait for so many steps of the present phase, or the time."""
        deadline = time.monotonic() + timeout_s
        while self._steps < count and not self.error and (left := deadline - time.monotonic()) > 0:
            if self._present.net == "none" or (self._present.guard and left < timeout_s - 1.0):
                return
            self._take(min(left, 0.25))

    def discard(self, batches: int, timeout_s: float) -> None:
        """Have the job take so many batches without training on them, or as many as come in the time."""
        self.job.say(discard=batches, for_s=timeout_s)
        deadline = time.monotonic() + timeout_s + BATCH_S
        while not self.error and not self.job.ended and time.monotonic() < deadline:
            message = self.job.hear(0.25)
            if message is not None and "discarded" in message:
                return
            self._note(message)

    def pause(self, seconds: float) -> None:
        """Let the job go on for so long."""
        deadline = time.monotonic() + seconds
        while not self.error and not self.job.ended and (left := deadline - time.monotonic()) > 0:
            self._take(min(left, 0.1))

    def rate(self, seconds: float, period: int = 0) -> float:
        """Samples per second over the next so many seconds; up to ``LONGEST`` times as long, until there are
        ``LEAST_STEPS`` steps and, of what comes every ``period`` steps, ``LEAST_PERIODS``. 0.0 with no two marks."""
        begin = time.monotonic()
        wanted = max(LEAST_STEPS, (LEAST_PERIODS + 1) * period)  # whole ones are cut out of it
        while not self.error and not self.job.ended:
            passed = time.monotonic() - begin
            inside = [mark for mark in self._marks if mark[0] >= begin]
            enough = len(inside) > 1 and inside[-1][2] - inside[0][2] >= wanted
            if passed >= seconds and (enough or passed >= LONGEST * seconds):
                break
            self._take(0.1)
        return self.rate_between(begin, time.monotonic(), period)

    def rate_between(self, begin: float, end: float, period: int = 0) -> float:
        """Samples per second between two instants, over whole periods if there are any; 0.0 with one mark or none."""
        while self._take(0.0):
            pass
        inside = whole_periods([mark for mark in self._marks if begin <= mark[0] <= end], period)
        if len(inside) < 2:
            return 0.0
        (t0, n0, _), (t1, n1, _) = inside[0], inside[-1]
        return round((n1 - n0) / (t1 - t0), 2) if t1 > t0 else 0.0

    def end(self) -> None:
        """End everything."""
        self.job.end()
        _end_all(self._around)
        if self._quota:
            self._quota.close()

    def _start(self, plan: Plan) -> None:
        self._marks, self._steps, self.error, self._present = [], 0, "", plan
        values = json.loads(encode(plan))
        if self._store is not None:
            values["port"] = self._store[1]
        self.job.say(plan=values)
        deadline = time.monotonic() + READY_S
        while not self.error and not self.job.ended and time.monotonic() < deadline:
            message = self.job.hear(1.0)
            if message is not None and "ready" in message:
                return
            self._note(message)
        raise NotHereError(self.error or "the job did not become ready")

    def _arrange(self, plan: Plan) -> None:
        if plan.quota_cores and self._quota is None:
            self._quota = Quota(self.job.pid, plan.quota_cores)
        elif self._quota is not None:
            self._quota.set(plan.quota_cores)
        if plan.store == "http":
            self._store = self._forker.store(plan.delay_ms)
            self._around.append(self._store[0])
        if plan.crowd:
            self._around.append(Crowd(plan.crowd))
        self._neighbours = []
        for _ in range(plan.neighbour):
            other = self._forker.job()
            values = {**table.CONV, "depth": self._sizes["conv"], "device": plan.device, "tiny": plan.tiny}
            other.say(plan=json.loads(encode(plan_of(values))))
            self._around.append(other)
            self._neighbours.append(other)

    def _await_neighbours(self) -> None:
        """Until each trains. A repair was measured before the new neighbour had its CUDA context, and seemed to help as
        much as having none. Raises NotHereError."""
        deadline = time.monotonic() + READY_S
        for other in self._neighbours:
            while "samples" not in (other.hear(0.25) or {}):
                if other.ended or time.monotonic() >= deadline:
                    raise NotHereError("the other tenant of the GPU did not begin to train")

    def _take(self, timeout_s: float) -> bool:
        message = self.job.hear(timeout_s)
        self._note(message)
        return message is not None

    def _note(self, message: Values | None) -> None:
        if message is None:
            return
        if "error" in message:
            self.error = message["error"]
        elif "samples" in message:
            self._marks.append((message["t"], message["samples"], message["steps"]))
            self._steps = message["steps"]


def whole_periods(marks: list[Mark], period: int) -> list[Mark]:
    """The marks between those two whose distance is nearest to a number of whole periods, the farther apart the better:
    what is due once in each is in it as often as it should be. All marks when there is not one whole period."""
    best: tuple[float, int, int, int] | None = None
    for begin, first in enumerate(marks if period > 0 else ()):
        for end in range(begin + 1, len(marks)):
            steps = marks[end][2] - first[2]
            periods = round(steps / period)
            if periods:
                best = min(best or (2.0, 0, 0, 0), (abs(steps - periods * period) / steps, -steps, begin, end))
    return marks if best is None else marks[best[2] : best[3] + 1]


def _end_all(around: list[Any]) -> None:
    for thing in around:
        if isinstance(thing, Crowd):
            thing.close()
        else:
            thing.end()
