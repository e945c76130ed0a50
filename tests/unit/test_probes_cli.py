"""``gpuwatch probe``: what the user sees and which exit code a script gets. Probe and GPU are scripted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.cli import probe as cli
from gpuwatch.cli.main import run
from gpuwatch.daemon import probing
from gpuwatch.model import Device, DeviceProcess, DeviceSample, ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict import probe_run

GPU = Device(index=0, uuid="GPU-11", name="NVIDIA H200", pci_bus_id="0000:61:00.0")
ANSWER = 'print(\'{"probe":"\' + sys.argv[1] + \'","status":"ok","device":"cuda:0","device_uuid":"GPU-11"}\')'


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DeviceSample]:
    """A GPU whose readings are the list's, the last one for ever; probes are scripts."""
    readings = [reading()]
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    (folder / "__main__.py").write_text("import os, sys\nexec(os.environ['FAKE_PROBE'])\n")

    def read() -> DeviceSample:
        return readings.pop(0) if len(readings) > 1 else readings[0]

    monkeypatch.setattr(cli, "find_gpu", lambda index: cli.Gpu(GPU, read))
    monkeypatch.setattr(cli, "SETTLE_S", 0.0)
    monkeypatch.setattr(probing, "probes_folder", lambda: folder)
    monkeypatch.setattr(probing, "lock_folder", lambda env: tmp_path)
    monkeypatch.setenv("FAKE_PROBE", ANSWER)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return readings


def reading(*pids: int) -> DeviceSample:
    processes = tuple(DeviceProcess(pid, 1 << 30, "C") for pid in pids)
    return DeviceSample(0, 1, gpu_util_pct=0, mem_used_bytes=0, processes=processes, processes_absent=None)


def test_the_list_names_every_probe_and_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "list"]) == 0
    out = capsys.readouterr().out
    assert all(spec.name in out and spec.question in out for spec in probe_run.PROBES)
    assert run(["probe", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "gpuwatch.probe-list/1"
    assert [probe["name"] for probe in listed["probes"]] == ["matmul", "conv", "dataloader"]


def test_a_mistyped_probe_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "dataloder"]) == 64
    assert capsys.readouterr().err == "gpuwatch: no probe 'dataloder'; did you mean dataloader?\n"


@pytest.mark.parametrize("device", ["gpu0", "cuda:", "cuda:x", "1", ""])
def test_a_wrong_device_is_a_usage_error(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "--device", device]) == 64
    assert "expected cpu or cuda:N" in capsys.readouterr().err


def test_probes_run_one_after_another(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "conv"]) == 0
    assert capsys.readouterr().out == "matmul on NVIDIA H200: ok\n\nconv on NVIDIA H200: ok\n"


def test_a_gpu_in_use_is_refused_with_75(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    gpu[:] = [reading(os.getpid())]
    assert run(["probe", "run", "matmul"]) == 75
    out = capsys.readouterr().out
    assert out.startswith("matmul on NVIDIA H200: busy\n")
    assert f"GPU 0 is in use by pid {os.getpid()} (" in out


def test_force_measures_anyway_and_says_so(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    gpu[:] = [reading(os.getpid())]
    assert run(["probe", "run", "matmul", "--force"]) == 0
    assert capsys.readouterr().out == "matmul on NVIDIA H200: ok, contaminated\n"


def test_a_job_that_starts_meanwhile_gets_the_gpu(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_PROBE", "import time; time.sleep(60)")
    gpu[:] = [reading(), reading(), reading(os.getpid())]
    assert run(["probe", "run", "matmul"]) == 75
    assert "stopped: pid" in capsys.readouterr().out


def test_progress_stays_off_stdout(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_PROBE", f"print('matmul: warming up', file=sys.stderr)\n{ANSWER}")
    assert run(["probe", "run", "matmul", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["results"][0]["status"] == "ok"
    assert captured.err == "matmul: warming up\n"


def test_the_configured_python_is_used(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUWATCH_PROBES_PYTHON", "/nowhere/python")
    assert run(["probe", "run", "matmul"]) == 3
    assert "no Python at '/nowhere/python'" in capsys.readouterr().out
    assert run(["probe", "run", "matmul", "--python", sys.executable]) == 0


def test_without_a_driver_the_cpu_is_named_as_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_gpu", lambda index: "no driver; without a GPU use --device cpu")
    assert run(["probe", "run", "matmul", "--json"]) == 3
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert (result["status"], result["device"]) == ("unavailable", "cuda:0")
    assert "--device cpu" in result["message"]


def test_a_closed_terminal_does_not_leave_a_probe_on_the_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    script = "import os,sys,time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    (folder / "__main__.py").write_text(script)
    code = (
        "import sys; from pathlib import Path; from gpuwatch.daemon import probing; from gpuwatch.cli.main import run\n"
        f"probing.probes_folder = lambda: Path({str(folder)!r})\n"
        f"probing.lock_folder = lambda env: Path({str(tmp_path)!r})\n"
        "sys.exit(run(['probe', 'run', 'matmul', '--device', 'cpu']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        probe_pid = int(process.stderr.readline())
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=20) == 128 + signal.SIGHUP
    assert not Path(f"/proc/{probe_pid}").exists()


def test_values_are_aligned_in_columns() -> None:
    values = (
        ProbeValue("bf16", "TFLOP/s", 1.0, 0.5, 2.0, 30),
        ProbeValue("first_call_ms", "ms", 1234.5, 1234.5, 1234.5, 1),
    )
    result = ProbeResult(
        "matmul", ProbeStatus.INVALID, "cuda:0", values, message="bf16: wrong", notes=("still drifting",)
    )
    assert cli.result_lines(result) == [
        "matmul on cuda:0: invalid",
        "  bf16: wrong",
        "                 median     p20    p80   n",
        "  bf16            1.000  0.5000  2.000  30  TFLOP/s",
        "  first_call_ms    1234    1234   1234   1  ms",
        "  note: still drifting",
    ]
