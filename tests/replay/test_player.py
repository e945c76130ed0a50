"""A recording in place of the hardware: everything above must not notice, except where it says so."""

from __future__ import annotations

import queue
from pathlib import Path

import msgspec
import pytest
from diagnose import builders as b

from gpuwatch.diagnose.thresholds import GPM_LAG_NS
from gpuwatch.errors import RecordingError
from gpuwatch.model import DeviceSample, Inventory, Observation, SourceKind
from gpuwatch.replay.format import Writer
from gpuwatch.replay.player import ReplaySource, load


def write(path: Path, observations: list[Observation]) -> Path:
    with Writer(path, 1_700_000_000 * 10**9) as writer:
        for observation in observations:
            writer.write(observation)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # Devices first, then the host: two threads do not write in the order of their clocks.
    return write(tmp_path / "job.gwrec", [b.inventory(), *b.gpu([50.0]), *b.host()])


def played(source: ReplaySource) -> list[Observation]:
    seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
    source.start(seen.put)
    out: list[Observation] = []
    while not (out and isinstance(out[-1], Inventory) and out[-1].source.ended):
        out.append(seen.get(timeout=10))
    source.stop()
    return out


def test_as_fast_as_possible_gives_every_observation_in_the_order_of_time(path: Path) -> None:
    out = played(ReplaySource(path, speed=0))
    instants = [o.mono_ns for o in out if not isinstance(o, Inventory)]
    assert instants == sorted(instants)
    assert len(instants) == len(b.gpu([50.0])) + len(b.host())


def test_the_inventory_says_that_it_is_recorded_and_when_it_has_ended(path: Path) -> None:
    out = played(ReplaySource(path, speed=0))
    first, last = out[0], out[-1]
    assert isinstance(first, Inventory)
    assert isinstance(last, Inventory)
    assert first.source.kind is SourceKind.RECORDED
    assert first.source.name == "job.gwrec"
    assert first.source.recorded_wall_ns == 1_700_000_000 * 10**9
    assert (first.source.ended, last.source.ended) == (False, True)


def test_ages_are_in_the_time_of_the_recording(path: Path) -> None:
    now = [0]
    source = ReplaySource(path, speed=4.0, clock=lambda: now[0])
    source._started_ns = 0
    start = source.now_ns()
    now[0] = 10**9
    assert source.now_ns() - start == 4 * 10**9
    now[0] = 10**12
    assert source.now_ns() == max(b.times()) + GPM_LAG_NS, "it stands at the end: the last GPU reading"


def test_nobody_waits_for_the_second_that_the_recorder_took_to_its_first_gpu(tmp_path: Path) -> None:
    host, gpu = b.host(), b.gpu([50.0])
    late = [msgspec.structs.replace(s, mono_ns=s.mono_ns + 3600 * 10**9) for s in gpu if isinstance(s, DeviceSample)]
    source = ReplaySource(write(tmp_path / "late.gwrec", [b.inventory(), *host, *late]), clock=lambda: 0)
    seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
    source.start(seen.put)
    while not isinstance(seen.get(timeout=10), DeviceSample):
        pass
    source.stop()
    assert source.now_ns() == late[0].mono_ns, "the clock of our machine stood still"


def test_stopping_in_the_middle_does_not_wait_for_the_rest(path: Path) -> None:
    seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
    source = ReplaySource(path, speed=0.001)
    source.start(seen.put)
    assert isinstance(seen.get(timeout=10), Inventory)
    source.stop()
    assert source._thread is not None
    assert not source._thread.is_alive()


def test_a_damaged_recording_is_refused_before_anything_is_shown(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RecordingError):
        ReplaySource(path)
    assert played(ReplaySource(path, speed=0, partial=True))


def test_a_recording_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no inventory"):
        load(write(tmp_path / "x.gwrec", list(b.host())))
