"""The units: what keeps the daemon useful, and what keeps it harmless."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.daemon import probe_locks
from gpuwatch.daemon.endpoint import DIRECTORY_MODE, UMASK

SYSTEMD = Path(__file__).parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")
MAX_EXPOSURE = 1.5


def parsed(name: str) -> dict[str, list[str]]:
    """``Section.Key`` to its values, in order: a key may be given more than once."""
    section, values = "", dict[str, list[str]]()
    for raw in (SYSTEMD / name).read_text().splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, separator, value = line.partition("=")
        assert separator, f"{name}: {raw}"
        values.setdefault(f"{section}.{key}", []).append(value)
    return values


def test_the_service_is_ready_when_it_serves_and_restarted_when_it_hangs() -> None:
    unit = parsed("gpuwatchd.service")
    assert unit["Service.Type"] == ["notify"]
    assert unit["Service.WatchdogSec"] == ["30"]
    assert unit["Service.Restart"] == ["on-failure"]
    assert unit["Service.ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert "nvidia-persistenced.service" in unit["Unit.After"][0]


@pytest.mark.parametrize("name", ["gpuwatchd.service", "gpuwatchd-user.service"])
def test_a_py_spy_that_needs_too_much_memory_does_not_end_the_service(name: str) -> None:
    unit = parsed(name)
    assert unit["Service.OOMPolicy"] == ["continue"]


def test_the_service_sees_the_gpus_and_the_processes_of_all_users() -> None:
    unit = parsed("gpuwatchd.service")
    assert unit["Service.DevicePolicy"] == ["closed"]
    assert unit["Service.DeviceAllow"] == ["char-nvidia* rw"]
    for hiding in ("PrivateDevices", "ProtectProc", "ProcSubset", "PrivatePIDs", "DynamicUser"):
        assert f"Service.{hiding}" not in unit, f"{hiding}= would blind the diagnosis or shut the clients out"


def test_the_service_holds_no_privilege_and_reaches_no_network() -> None:
    unit = parsed("gpuwatchd.service")
    assert unit["Service.CapabilityBoundingSet"] == [""]
    assert unit["Service.AmbientCapabilities"] == [""]
    assert unit["Service.NoNewPrivileges"] == ["yes"]
    assert unit["Service.RestrictAddressFamilies"] == ["AF_UNIX"]
    assert unit["Service.PrivateNetwork"] == ["yes"]
    assert unit["Service.ProtectSystem"] == ["strict"]


def test_modes_in_the_unit_are_those_of_the_program() -> None:
    unit = parsed("gpuwatchd.service")
    assert int(unit["Service.UMask"][0], 8) == UMASK
    assert int(unit["Service.RuntimeDirectoryMode"][0], 8) == DIRECTORY_MODE
    assert unit["Service.RuntimeDirectory"] == ["gpuwatch"]


@pytest.mark.parametrize("name", ["gpuwatchd.service", "gpuwatchd-user.service"])
def test_a_probe_of_the_daemon_and_one_of_a_user_keep_out_of_each_others_way(name: str, tmp_path: Path) -> None:
    unit = parsed(name)
    if "Service.ProtectSystem" in unit or "Service.ReadOnlyPaths" in unit:
        # "-": a machine without the folder has a daemon all the same.
        assert unit["Service.ReadWritePaths"] == ["-/run/lock"]
    else:
        assert "Service.PrivateTmp" not in unit
    before = os.umask(int(unit["Service.UMask"][0], 8))
    try:
        held = probe_locks.lock_gpu("GPU-11", tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "gpuwatch-probe-GPU-11.lock").stat().st_mode) == 0o644, "others cannot lock it"
    assert probe_locks.lock_gpu("GPU-11", tmp_path) == -1
    os.close(held)


def test_the_user_of_the_service_is_the_one_that_sysusers_makes() -> None:
    unit = parsed("gpuwatchd.service")
    lines = [line for line in (SYSTEMD / "gpuwatch.sysusers.conf").read_text().splitlines() if line[:1] == "u"]
    assert [line.split()[1] for line in lines] == unit["Service.User"] == unit["Service.Group"] == ["gpuwatch"]


def test_reading_other_users_memory_is_an_opt_in() -> None:
    assert "CAP_SYS_PTRACE" not in str(parsed("gpuwatchd.service"))
    drop_in = parsed("ptrace.conf")
    assert drop_in["Service.AmbientCapabilities"] == ["CAP_SYS_PTRACE"]
    assert drop_in["Service.CapabilityBoundingSet"] == ["CAP_SYS_PTRACE"]
    assert "process_vm_readv" in drop_in["Service.SystemCallFilter"][0]


def test_the_user_unit_serves_where_that_users_clients_look() -> None:
    unit = parsed("gpuwatchd-user.service")
    assert unit["Service.Type"] == ["notify"]
    assert unit["Service.ExecStart"][0].endswith("daemon --runtime-dir %t/gpuwatch")
    assert unit["Install.WantedBy"] == ["default.target"]
    for system_only in ("User", "DevicePolicy", "DeviceAllow", "ProtectProc", "PrivateNetwork"):
        assert f"Service.{system_only}" not in unit


def analysable(name: str, folder: Path, drop_in: str = "") -> Path:
    """A copy whose program exists here: verify wants it."""
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", (SYSTEMD / name).read_text(), flags=re.MULTILINE)
    copy = folder / name
    copy.write_text(text)
    if drop_in:
        (folder / f"{name}.d").mkdir()
        shutil.copy(SYSTEMD / drop_in, folder / f"{name}.d")
    return copy


def analyze(folder: Path, *args: str) -> str:
    assert ANALYZE is not None
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "XDG_RUNTIME_DIR": str(folder), "LC_ALL": "C"}
    done = subprocess.run([ANALYZE, *args], capture_output=True, text=True, env=env, check=False, timeout=30)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return text


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed; the keys are asserted above")
@pytest.mark.parametrize(("name", "manager"), [("gpuwatchd.service", "--system"), ("gpuwatchd-user.service", "--user")])
def test_systemd_itself_finds_nothing_to_complain_about(tmp_path: Path, name: str, manager: str) -> None:
    unit = analysable(name, tmp_path)
    said = analyze(tmp_path, manager, "verify", "--man=no", str(unit))
    assert name not in said, said


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed; the keys are asserted above")
@pytest.mark.parametrize("drop_in", ["", "ptrace.conf"])
def test_the_exposure_score_stays_below_what_the_readme_promises(tmp_path: Path, drop_in: str) -> None:
    unit = analysable("gpuwatchd.service", tmp_path, drop_in)
    said = analyze(tmp_path, "--system", "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    assert float(found[1]) <= MAX_EXPOSURE
