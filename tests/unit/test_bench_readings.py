"""What a benchmark's daemon is started with: the daemon's cost is measured, not the settings of whoever measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.readings import Readings


def test_a_daemon_under_measurement_keeps_its_bytecode_and_no_settings_of_this_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python without bytecode compiles each module that is loaded later, while the daemon is being measured."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("GPUWATCH_PERIOD_S", "5")
    readings = Readings("here", variables=(("FAKE_NVML_SCENARIO", "/tmp/s"),))
    env = readings.environment()
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert "GPUWATCH_PERIOD_S" not in env
    assert env["FAKE_NVML_SCENARIO"] == "/tmp/s"
    assert Path(env["PYTHONPYCACHEPREFIX"]).is_dir()
    assert readings.environment()["PYTHONPYCACHEPREFIX"] == env["PYTHONPYCACHEPREFIX"], "one for all daemons of a run"


def test_a_folder_for_bytecode_that_was_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/tmp/mine")
    assert Readings("here").environment()["PYTHONPYCACHEPREFIX"] == "/tmp/mine"
