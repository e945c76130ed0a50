"""A look in the foreground: whom it may hold for native frames."""

from __future__ import annotations

import os

import pytest
from daemon_parts import ScriptedSource, info, inventory, processes, sample

from gpuwatch.daemon.watch import Watch
from gpuwatch.model import DeviceSample, Observation


@pytest.mark.parametrize(("busy_pct", "may_look"), [(97.0, False), (40.0, True)])
def test_a_job_that_uses_its_gpu_well_is_not_held_for_native_frames(busy_pct: float, may_look: bool) -> None:
    source, answers = ScriptedSource(inventory(1)), list[bool]()

    def asked(observation: Observation) -> None:
        """The burst asks while it runs, from what has been seen by then."""
        focus = next((f for f in reversed(source.focused) if f is not None), None)
        if isinstance(observation, DeviceSample) and focus is not None and focus.undecided is not None:
            answers.append(focus.undecided((), {}))

    with Watch(source) as watch:
        source.emit(sample(0, source.now_ns(), pids=(os.getpid(),)), processes(source.now_ns(), info(os.getpid())))
        watch.open()
        subject = watch.subject(os.getpid())
        source.emit(sample(0, source.now_ns(), busy_pct=busy_pct, pids=(os.getpid(),)))
        watch.collect(subject, 0.1, undecided=lambda _stacks, _texts: True, sink=asked)
    assert answers == [may_look]
