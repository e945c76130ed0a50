"""What a user is told when the driver does not start."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pynvml
import pytest
from fakenvml.bench import ticking
from fakenvml.build import loaded

from gpuwatch.collect.nvml import Nvml
from gpuwatch.model import Absent, DriverState, Reason


def no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_without_the_library_the_hint_says_to_install_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    nvml = Nvml()
    state, hint = nvml.open()
    assert state is DriverState.NO_LIBRARY
    assert "libnvidia-ml.so.1" in hint
    assert "install the NVIDIA driver" in hint
    assert nvml.devices() == ()
    assert nvml.driver_facts().driver_version == Absent(Reason.DRIVER)


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (9, DriverState.NO_DRIVER, "modprobe nvidia"),
        (18, DriverState.MISMATCH, "reboot"),
        (999, DriverState.UNKNOWN, "daemon-reload"),
        (17, DriverState.UNKNOWN, "daemon-reload"),
        (4, DriverState.NO_PERMISSION, "/dev/nvidia"),
        (23, DriverState.UNKNOWN, "error 23"),
    ],
)
def test_each_failure_to_start_has_its_own_state_and_remedy(
    tmp_path: Path, code: int, state: DriverState, words: str
) -> None:
    with loaded(tmp_path, f"rc.nvmlInitWithFlags={code}"):
        found, hint = Nvml().open()
    assert found is state
    assert words in hint
    assert "\n" not in hint


def test_a_container_without_gpus_is_not_taken_for_a_healthy_node(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=0"):
        nvml = Nvml()
        state, hint = nvml.open()
        assert state is DriverState.NO_DEVICES
        assert "--gpus all" in hint
        assert nvml.driver_facts().driver_version == "580.159.04"
        nvml.close()


def test_a_driver_that_is_loaded_later_is_found_by_opening_again(tmp_path: Path) -> None:
    with loaded(tmp_path, "rc.nvmlInitWithFlags=9,9,0"):
        nvml = Nvml()
        assert [nvml.open()[0] for _ in range(3)] == [DriverState.NO_DRIVER, DriverState.NO_DRIVER, DriverState.OK]
        nvml.close()


def test_gpus_that_appear_later_are_found_by_opening_again(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=0") as fake:
        nvml = Nvml()
        assert nvml.open()[0] is DriverState.NO_DEVICES
        fake.set("gpus=2")
        assert nvml.open()[0] is DriverState.OK
        assert [device.index for device in nvml.devices()] == [0, 1]
        nvml.close()
        assert fake.calls()["nvmlShutdown", None] == 2


def test_a_foreign_pynvml_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    state, hint = Nvml().open()
    assert state is DriverState.NO_LIBRARY
    assert "nvidia-ml-py" in hint


def test_a_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().open() == (
        DriverState.NO_LIBRARY,
        "the Python package nvidia-ml-py is not installed: 'pip install nvidia-ml-py'",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import a_module_that_nobody_has", "No module named 'a_module_that_nobody_has'"),
        ("raise RuntimeError('built for\\nanother Python')", "RuntimeError: built for another Python"),
        ("print 'Python 2'", "SyntaxError"),
    ],
)
def test_a_broken_binding_is_not_said_to_be_missing(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml")
    state, hint = Nvml().open()
    assert state is DriverState.NO_LIBRARY
    assert words in hint
    assert "cannot be imported" in hint
    assert "not installed" not in hint
    assert "pip install --force-reinstall nvidia-ml-py" in hint
    assert "\n" not in hint


WITHOUT = {
    "12.535": (
        *("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "c_nvmlProcessesUtilizationInfo_v1_t"),
        *("c_nvmlProcessUtilizationInfo_v1_t", "nvmlDeviceGetComputeRunningProcesses_v2"),
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
    ),
    "11.525": (
        *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons"),
        *("nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization", "nvmlSystemGetConfComputeState"),
    ),
}
"""What releases of nvidia-ml-py lack of the calls that are made; an older release lacks the newer's as well."""


@pytest.mark.parametrize("release", WITHOUT)
def test_a_binding_that_is_older_than_the_driver_costs_what_it_has_no_call_for_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    for name in (*WITHOUT["12.535"], *(WITHOUT[release])):
        monkeypatch.delattr(pynvml, name, raising=False)
    with ticking(tmp_path, "gpu 0 temp=44 reasons=8 procs=5:1:C,6:2:C putil=5:90:10") as t:
        t.tick()
        second = t.tick(2000)
    assert (second.sample.temp_c, second.sample.clocks_event_reasons) == (44, 8)
    assert [(process.pid, process.mem_used_bytes) for process in second.sample.processes] == [(5, 1), (6, 2)]
    assert second.health is not None
    assert [(util.pid, util.sm_pct) for util in second.health.process_utils] == [(5, 90), (6, 0)]
    assert second.health.temp_margin_c == Absent(Reason.NOT_SUPPORTED)
    assert second.health.slowed_calls == ()


def test_identity_of_a_gpu_comes_with_units_and_its_numa_node(tmp_path: Path) -> None:
    node = tmp_path / "0001:c1:00.0"
    node.mkdir()
    (node / "numa_node").write_text("1\n")
    with loaded(tmp_path, "gpu 0 pci=00000001:C1:00.0 limit=650000 name=H200 uuid=GPU-1 cuda=12080"):
        nvml = Nvml(sysfs_pci=tmp_path)
        nvml.open()
        (device,) = nvml.devices()
        nvml.close()
    assert (device.uuid, device.name, device.pci_bus_id) == ("GPU-1", "H200", "00000001:C1:00.0")
    assert (device.architecture, device.compute_capability, device.gpm) == ("Hopper", "9.0", True)
    assert (device.power_limit_w, device.sm_clock_max_mhz, device.numa_node) == (650.0, 1980, 1)
    assert (device.mem_total_bytes, device.mem_reserved_bytes) == (150754820096, 644939776)


def test_a_gpu_without_a_numa_node_says_so_instead_of_minus_one(tmp_path: Path) -> None:
    (tmp_path / "0000:61:00.0").mkdir()
    (tmp_path / "0000:61:00.0" / "numa_node").write_text("-1\n")
    with loaded(tmp_path, "gpus=1"):
        nvml = Nvml(sysfs_pci=tmp_path)
        nvml.open()
        (device,) = nvml.devices()
        nvml.close()
    assert device.numa_node == Absent(Reason.NOT_FOUND)


def test_a_name_that_is_not_utf8_does_not_hide_the_gpu(tmp_path: Path) -> None:
    with loaded(tmp_path, r'gpu 0 name="Tesla \xff\xfe"'):
        nvml = Nvml()
        nvml.open()
        assert nvml.devices()[0].name == "Tesla ��"
        nvml.close()


def test_a_gpu_lost_before_the_start_is_listed_beside_the_healthy_one(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=2\ngpu 1 rc.*=15"):
        nvml = Nvml()
        assert nvml.open()[0] is DriverState.OK
        healthy, lost = nvml.devices()
        assert healthy.name == "NVIDIA H200"
        assert lost.index == 1
        assert "fell off the bus" in lost.name
        assert nvml.reader(1).read(0).power_w == Absent(Reason.LOST, "the GPU fell off the bus")
        nvml.close()


def test_facts_of_an_older_driver_are_absent_one_by_one(tmp_path: Path) -> None:
    scenario = (
        "rc.nvmlSystemGetCudaDriverVersion=13\ngpu 0 rc.nvmlDeviceGetArchitecture=13 rc.nvmlGpmQueryDeviceSupport=13"
    )
    with loaded(tmp_path, scenario):
        nvml = Nvml()
        nvml.open()
        assert nvml.driver_facts().cuda_driver_version == Absent(Reason.NOT_SUPPORTED)
        assert nvml.driver_facts().nvml_version == "13.580.159.04"
        (device,) = nvml.devices()
        nvml.close()
    assert device.architecture == Absent(Reason.NOT_SUPPORTED)
    assert device.gpm is False
    assert device.compute_capability == "9.0"


def test_a_gpu_that_hides_its_uuid_is_named_by_its_slot(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpu 0 rc.nvmlDeviceGetUUID=999"):
        nvml = Nvml()
        nvml.open()
        assert nvml.devices()[0].uuid == "no-uuid-00000000:61:00.0"
        nvml.close()
