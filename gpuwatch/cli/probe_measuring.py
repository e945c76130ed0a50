"""Measuring in the foreground: which probes, one after another, and leaving in time.

Owns: the options that every measuring sub-command has, the wait for a probe, the time limit. Refuses: judging, and what
``--device`` means (``probe_places``).
"""

from __future__ import annotations

import functools
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from gpuwatch.cli.probe_places import Gpu, Missing, Place, Together, places, turns
from gpuwatch.cli.stderr import say

if TYPE_CHECKING:
    from gpuwatch.daemon.probing import Runner
    from gpuwatch.model import ProbeResult

R = TypeVar("R")

LOOK_S = 0.25
"""How often the GPU's processes are read while a probe runs: somebody's job must not wait a second for us."""
SETTLE_S = 2.0
"""After one of our own probes, its process and utilization may still be listed for a moment."""

PYTHON = click.option(
    "--python", metavar="PATH", help="Interpreter that has torch; default: probes.python, else our own."
)


class Asked(NamedTuple):
    """What every measuring sub-command is asked for: which probes, where, how long."""

    names: tuple[str, ...]
    chosen: str | None
    device: str
    seconds: float | None
    force: bool
    wait_s: float
    timeout_s: float | None

    def probes(self, otherwise: Sequence[str] = ()) -> list[str]:
        """As ``chosen_probes``."""
        return chosen_probes(self.names, self.chosen, otherwise)

    def case_seconds(self) -> float | None:
        """Measuring time of each case: as given, else that of the set, None for the probes' own."""
        return self.seconds or default_seconds(self.chosen)

    def places(self) -> list[Place]:
        """As ``places``."""
        return places(self.device)

    def turns(self, probes: Sequence[str]) -> list[tuple[str, Place]]:
        """As ``turns``, on the devices that were asked for."""
        return turns(probes, self.places(), self.names)

    def session(self, python: str | None) -> AbstractContextManager[Session]:
        """As ``session``, within the limits that were asked for."""
        return session(python, force=self.force, wait_s=self.wait_s, timeout_s=self.timeout_s)


def options(command: Callable[..., R]) -> Callable[..., R]:
    """The names of probes and the options about where and how long to measure; the command gets an ``asked``."""

    @functools.wraps(command)
    def with_asked(
        names: tuple[str, ...],
        chosen: str | None,
        device: str,
        seconds: float | None,
        force: bool,
        wait_s: float,
        timeout_s: float | None,
        **others: object,
    ) -> R:
        return command(asked=Asked(names, chosen, device, seconds, force, wait_s, timeout_s), **others)

    wrapped: Callable[..., R] = with_asked
    for option in reversed(
        (
            click.argument("names", nargs=-1, metavar="[NAME]..."),
            click.option("--set", "chosen", type=click.Choice(["quick", "ci", "full"]), help="Probes of this set."),
            click.option(
                "--device",
                default="cuda:0",
                show_default=True,
                help="cuda:N as numbered by `gpuwatch status`, several (cuda:0,cuda:1), all (each in turn), or cpu.",
            ),
            click.option("--seconds", type=click.FloatRange(0.01, 600), help="Measuring time of each case."),
            click.option("--force", is_flag=True, help="Run beside other jobs. The result is marked as contaminated."),
            click.option(
                "--wait", "wait_s", type=click.FloatRange(0, 86400), default=0.0, help="Seconds to wait for a busy GPU."
            ),
            click.option(
                "--timeout",
                "timeout_s",
                type=click.FloatRange(1, 86400),
                help="Stop after so many seconds: exit code 124.",
            ),
        )
    ):
        wrapped = option(wrapped)
    return wrapped


def chosen_probes(names: Sequence[str], chosen: str | None, otherwise: Sequence[str] = ()) -> list[str]:
    """Names of the probes to run, each once. Raises UsageError for an unknown one, and when none is named."""
    from gpuwatch.errors import UsageError
    from gpuwatch.verdict import catalogue, probe_run

    wanted = [spec.name for spec in catalogue.members(chosen, probe_run.PROBES)] if chosen else []
    wanted += [probe_run.find_probe(name).name for name in names]
    wanted = wanted or [probe_run.find_probe(name).name for name in otherwise]
    if not wanted:
        raise UsageError("no probe named: give names (see: gpuwatch probe list) or --set quick, ci or full")
    return list(dict.fromkeys(wanted))


def default_seconds(chosen: str | None) -> float | None:
    """Measuring time of a set, None for the probes' own."""
    from gpuwatch.verdict.catalogue import QUICK_SECONDS

    return QUICK_SECONDS if chosen == "quick" else None


class Session:
    """Runs probes one at a time within the time limit of the whole command."""

    def __init__(
        self, runner: Runner, *, force: bool = False, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> None:
        self._runner = runner
        self._force = force
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s
        self.timed_out = False

    def run(self, probe: str, place: Place, seconds: float | None, python: str = "") -> ProbeResult:
        """One probe from start to end, watching for others on its GPU; its progress goes to stderr."""
        from gpuwatch.model import ProbeResult, ProbeStatus

        if isinstance(place, Missing):
            return ProbeResult(probe, ProbeStatus.UNAVAILABLE, place.device, message=place.message)
        gpus = place.gpus if isinstance(place, Together) else (place,) if place else ()
        if self._late():
            return self._out_of_time(probe, gpus)
        results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
        refusal = self._begin(probe, gpus, seconds, python, results.put)
        if refusal is not None:
            return refusal
        while True:
            try:
                result = results.get(timeout=LOOK_S)
            except queue.Empty:
                for gpu in gpus:
                    self._runner.check(gpu.read())
                if self._late():
                    # It waits for the child's end; the limit holds even if nothing comes back from it.
                    self._runner.stop()
                    return self._out_of_time(probe, gpus)
                continue
            return self._out_of_time(probe, gpus) if self.timed_out else result

    def _begin(
        self,
        probe: str,
        gpus: Sequence[Gpu],
        seconds: float | None,
        python: str,
        done: Callable[[ProbeResult], None],
    ) -> ProbeResult | None:
        """Start, or the refusal, after waiting for a busy GPU as long as is wanted."""
        from gpuwatch.daemon.probing import Seat
        from gpuwatch.model import ProbeStatus

        patience = max(self._wait_s, SETTLE_S if self._runner.has_run else 0.0)
        give_up = time.monotonic() + patience
        while True:
            refusal = self._runner.begin_on(
                probe,
                [Seat(gpu.device, gpu.read()) for gpu in gpus],
                done,
                seconds=seconds,
                force=self._force,
                progress=say,
                python=python,
            )
            if refusal is None or refusal.status is not ProbeStatus.BUSY:
                return refusal
            if time.monotonic() >= give_up or self._late():
                return refusal
            time.sleep(LOOK_S)

    def _late(self) -> bool:
        self.timed_out = self.timed_out or (self._end is not None and time.monotonic() >= self._end)
        return self.timed_out

    def _out_of_time(self, probe: str, gpus: Sequence[Gpu]) -> ProbeResult:
        from gpuwatch.model import ProbeStatus
        from gpuwatch.verdict import probe_run

        result = probe_run.failed(probe, f"not finished within --timeout {self._timeout_s:g} s", ProbeStatus.FAILED)
        return probe_run.placed(result, [gpu.device for gpu in gpus])


@contextmanager
def session(
    python: str | None, *, force: bool = False, wait_s: float = 0.0, timeout_s: float | None = None
) -> Iterator[Session]:
    """A session; however we end, the probe must not stay on the GPU: it has a session of its own and hears no Ctrl-C
    or hangup."""
    from gpuwatch.config import load
    from gpuwatch.daemon.probing import Runner

    runner = Runner(python or load().config.probes.python)
    leaving = False

    def leave(number: int, _frame: FrameType | None) -> None:
        nonlocal leaving
        # The kernel and the shell each say that the terminal is gone: the second must not end the clearing.
        if not leaving:
            leaving = True
            raise SystemExit(128 + number)

    # One that is ignored (nohup) stays so.
    caught = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in caught}
    try:
        yield Session(runner, force=force, wait_s=wait_s, timeout_s=timeout_s)
    finally:
        runner.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
