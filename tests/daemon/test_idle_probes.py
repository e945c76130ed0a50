"""Probes that run by themselves: a whole service, a fake probe folder, a clock under the test's control."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_parts import NODE, S, ScriptedSource, device, newest, runtime_dir, sample
from diagnose import builders as b
from msgspec.structs import replace

from gpuwatch import wire
from gpuwatch.client.connection import Connection
from gpuwatch.client.state import NodeState
from gpuwatch.config import Config, DiagnosisConfig, ProbesConfig
from gpuwatch.daemon.probing import Runner
from gpuwatch.daemon.service import Service
from gpuwatch.diagnose.judge import diagnose
from gpuwatch.errors import ConfigError
from gpuwatch.model import DeviceSample, Inventory, ProbeStatus, StackSample
from gpuwatch.verdict.probe_run import QUICK

IDLE_S, EVERY_S = 60, 1000
AUTOMATIC = Config(
    diagnosis=DiagnosisConfig(automatic=False),
    probes=ProbesConfig(automatic=True, idle_after_s=IDLE_S, every_s=EVERY_S),
)
ANSWER = """
import json, os, sys
name = sys.argv[1]
with open(os.environ["RAN"], "a") as file:
    file.write(name + "\\n")
value = {"name": "h2d_pinned_256MiB", "unit": "GB/s", "median": 55.5, "p20": 55.4, "p80": 55.6, "n": 30}
answer = {"probe": name, "status": "ok", "device": "cuda:0", "values": [{**value, "higher_is_better": True}]}
print(json.dumps(answer))
"""
WAIT = "import sys, time\nprint('copies: warming up', file=sys.stderr, flush=True)\ntime.sleep(60)\n"


class Node:
    """A service that is stepped by hand, and somebody who watches it. Time passes only in ``second``."""

    def __init__(self, path: Path, tmp_path: Path, script: str, inventory: Inventory) -> None:
        folder = tmp_path / "gpuwatch_probes"
        folder.mkdir()
        (folder / "__main__.py").write_text("import os\nexec(os.environ['FAKE_PROBE'])\n")
        (folder / "command.py").write_text("")
        self.ran_file = tmp_path / "ran"
        env = {**os.environ, "FAKE_PROBE": script, "RAN": str(self.ran_file)}
        self.now_ns = 10**12 - 500 * S
        self.reloaded: Config | ConfigError = AUTOMATIC
        self.source = ScriptedSource(inventory)
        self.runner = Runner(folder=folder, locks=tmp_path, env=env, clock=lambda: self.now_ns)
        self.service = Service(
            self.source,
            AUTOMATIC,
            diagnose,
            self.runner,
            directory=path,
            fold=newest,
            reload=self._reload,
            clock=lambda: self.now_ns,
        )
        self.source.recorded_ns = self.now_ns
        self.service.start()
        self.path = str(path)
        self.client = Connection(self.path)
        self.until(lambda state: state.inventory is not None)

    def _reload(self) -> Config:
        if isinstance(self.reloaded, ConfigError):
            raise self.reloaded
        return self.reloaded

    def second(self, count: int = 1, pids: Sequence[int] = ()) -> None:
        """So many seconds pass, each with a reading of the GPU with these processes."""
        for _ in range(count):
            self.now_ns += S
            self.source.recorded_ns = self.now_ns
            self.source.emit(sample(0, self.now_ns, 0.0, pids))
            self.service.step(0)

    def until(self, wanted: Callable[[NodeState], bool]) -> NodeState:
        """Let service and watcher exchange what there is until the watcher's picture is as wanted."""
        deadline = time.monotonic() + 20
        while True:
            self.service.step(0)
            state = self.client.step(0.01)
            if wanted(state):
                return state
            assert time.monotonic() < deadline, f"never came: {state.link} {state.probes} {state.notice}"

    def finish(self) -> None:
        """Wait until no probe runs and its result is published."""
        assert self.runner.wait(20)
        self.service.step(0)

    @property
    def ran(self) -> list[str]:
        """Names of the probes that were started, in order."""
        return self.ran_file.read_text().split() if self.ran_file.exists() else []

    def reload(self, config: Config | ConfigError) -> None:
        """What SIGHUP does."""
        self.reloaded = config
        self.service.request_reload()
        self.service.step(0)


@contextmanager
def node(tmp_path: Path, script: str = ANSWER, inventory: Inventory | None = None) -> Iterator[Node]:
    with runtime_dir() as path:
        made = Node(path, tmp_path, script, inventory or Inventory(NODE, (device(0),)))
        try:
            yield made
        finally:
            made.client.close()
            made.service.stop()


def round_of_all(made: Node) -> None:
    """A GPU at rest for as long as all probes of the set need."""
    for _probe in QUICK:
        made.second(IDLE_S + 1)
        made.finish()


def test_an_idle_gpu_is_measured_by_itself_after_the_set_time_and_once_per_period(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.second(IDLE_S)
        assert made.runner.running() == []
        assert made.ran == [], "it has been idle for 59 seconds, not 60"
        made.second()
        made.finish()
        assert made.ran == [QUICK[0]]
        for number in range(2, len(QUICK) + 1):
            made.second(IDLE_S + 1)
            made.finish()
            assert made.ran == list(QUICK[:number])
        state = made.until(lambda state: len(state.probes) == len(QUICK))
        assert {(r.status, r.device_uuid) for r in state.probes} == {(ProbeStatus.OK, "GPU-0")}
        passed = (len(QUICK) - 1) * (IDLE_S + 1)
        made.second(EVERY_S - passed - 1)
        made.finish()
        assert made.ran == list(QUICK), "once per period"
        made.second(IDLE_S)
        made.finish()
        assert made.ran[len(QUICK) :] == [QUICK[0]], "and again in the next one"


def test_reading_the_configuration_again_does_not_start_all_probes_again(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        round_of_all(made)
        assert made.ran == list(QUICK)
        made.reload(replace(AUTOMATIC, probes=replace(AUTOMATIC.probes, idle_after_s=10.0)))
        made.second(100)
        made.finish()
        assert made.ran == list(QUICK)
        made.reload(replace(AUTOMATIC, probes=replace(AUTOMATIC.probes, automatic=False)))
        made.second(EVERY_S)
        made.finish()
        assert made.ran == list(QUICK), "nothing runs by itself any more"
        made.reload(AUTOMATIC)
        made.second(IDLE_S)
        made.finish()
        assert made.ran == list(QUICK), "the idle time counts from when somebody looked again"
        made.second()
        made.finish()
        assert made.ran == [*QUICK, QUICK[0]]


def test_another_python_in_the_configuration_is_used_from_the_next_probe_on(tmp_path: Path) -> None:
    """Else whoever moves to another torch measures the old one until somebody thinks of a restart."""
    other = tmp_path / "python-of-another-torch"
    other.write_text(f'#!/bin/sh\necho another >>"$RAN"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with node(tmp_path) as made:
        made.second(IDLE_S + 1)
        made.finish()
        assert made.ran == [QUICK[0]]
        made.reload(replace(AUTOMATIC, probes=replace(AUTOMATIC.probes, python=str(other))))
        made.second(IDLE_S + 1)
        made.finish()
        assert made.ran == [QUICK[0], "another", QUICK[1]]
        wrong = replace(AUTOMATIC.probes, python=str(tmp_path / "nowhere"), set=("convv",))
        made.reload(replace(AUTOMATIC, probes=wrong))
        made.second(IDLE_S + 1)
        made.finish()
        assert made.ran[3:] == ["another", QUICK[2]], "a configuration that is refused changes nothing"


def test_a_wrong_name_in_the_configuration_leaves_the_schedule_as_it_was(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.reload(replace(AUTOMATIC, probes=replace(AUTOMATIC.probes, set=("convv",))))
        made.second(IDLE_S + 1)
        made.finish()
        assert made.ran == [QUICK[0]]


def test_somebodys_job_ends_the_probe_and_keeps_the_next_one_away(tmp_path: Path) -> None:
    with node(tmp_path, WAIT) as made:
        made.second(IDLE_S + 1)
        assert [process.probe for process in made.runner.running()] == [QUICK[0]]
        child = made.runner.running()[0].pid
        made.second(pids=(child,))
        assert made.runner.running(), "its own process is nobody else's"
        made.second(pids=(child, os.getpid()))
        made.finish()
        state = made.until(lambda state: bool(state.probes))
        assert (state.probes[0].status, state.probes[0].contaminated) == (ProbeStatus.BUSY, True)
        assert f"pid {os.getpid()} (" in state.probes[0].message
        assert state.probing == {}
        made.second(10 * IDLE_S, pids=(os.getpid(),))
        assert made.runner.running() == []


def test_somebodys_job_need_not_wait_for_the_daemons_next_tick(tmp_path: Path) -> None:
    """With a reading every five seconds the job would have shared its GPU for so long."""
    with node(tmp_path, WAIT) as made:
        made.second(IDLE_S + 1)
        assert made.source.hastened == [(frozenset({0}), 0.25)]
        child = made.runner.running()[0].pid
        ticks = made.service._last_tick
        made.source.emit(sample(0, made.now_ns, 0.0, (child, os.getpid())))
        made.service.step(0)
        made.finish()
        assert made.service._last_tick is ticks, "no tick was needed"
        state = made.until(lambda state: bool(state.probes))
        assert (state.probes[0].status, state.probes[0].contaminated) == (ProbeStatus.BUSY, True)
        assert made.source.hastened == [(frozenset({0}), 0.25), (frozenset(), 0.25)]


def test_a_probe_under_way_is_told_with_what_it_says(tmp_path: Path) -> None:
    with node(tmp_path, WAIT) as made:
        made.second(IDLE_S + 1)
        state = made.until(lambda state: bool(state.probing))
        assert (state.probing[0].probe, state.probing[0].done_s) == (QUICK[0], 0.0)
        deadline = time.monotonic() + 20
        while made.until(lambda state: True).probing[0].message == "starting":
            assert time.monotonic() < deadline
            made.now_ns += S // 10
        said = made.until(lambda state: True).probing[0]
        assert said.message == ("warming up" if QUICK[0] == "copies" else "copies: warming up")
        assert said.total_s > 0
        with Connection(made.path) as late:
            until = time.monotonic() + 20
            while not late.step(0.01).probing:
                made.now_ns += S // 10
                made.service.step(0)
                assert time.monotonic() < until, "who comes later learns of it too"


def test_what_a_probe_measured_is_what_copies_are_judged_by(tmp_path: Path) -> None:
    with node(tmp_path, inventory=b.inventory()) as made:
        made.reload(replace(AUTOMATIC, probes=replace(AUTOMATIC.probes, set=("copies",))))
        made.second(IDLE_S + 1)
        made.finish()
        assert made.ran == ["copies"]
        seen = [
            *b.gpu([4], rx=11e9),
            *b.ticks(b.process(b.PID, 1.0)),
            *b.host(),
            *b.stacks([(b.USER_LINE, True)]),
        ]
        seen.sort(key=lambda observation: observation.mono_ns)  # type: ignore[union-attr]
        assert any(isinstance(o, DeviceSample) for o in seen)
        assert any(isinstance(o, StackSample) for o in seen)
        first_ns = b.times()[0]
        made.now_ns = made.source.recorded_ns = first_ns - S
        made.second(pids=(b.PID,))
        made.source.emit(*seen[: len(seen) // 20])
        made.service.step(0)
        made.client.request(wire.StartDiagnosis(0, b.PID, 0, 9.0))
        made.until(lambda state: state.notice.startswith("diagnosing"))
        made.source.emit(*seen[len(seen) // 20 :])
        made.now_ns = made.source.recorded_ns = first_ns + 10 * S
        state = made.until(lambda state: bool(state.diagnoses))
        verdict = state.diagnoses[0].verdict
        assert verdict.cause == "pageable_copies"
        row = next(row for row in verdict.evidence if row.name == "pinned copies reach")
        assert row.value == pytest.approx(55.5e9 / 2**30, abs=0.1)
        assert row.source == "measured here: gpuwatch probe copies"
