"""``gpuwatch probe``: what the user sees and which exit code a script gets. Probe and GPU are scripted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.cli import probe_measuring as measuring
from gpuwatch.cli import probe_places
from gpuwatch.cli import probe_run as run_command
from gpuwatch.cli.main import run
from gpuwatch.daemon import probe_locks, probing
from gpuwatch.model import Device, DeviceProcess, DeviceSample, ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.verdict import probe_run

GPU = Device(index=0, uuid="GPU-11", name="NVIDIA H200", pci_bus_id="0000:61:00.0")
ANSWER = (
    'print(\'{"probe":"\' + sys.argv[1] + \'","status":"ok","device":"cuda:0","device_uuid":"GPU-11",'
    '"values":[{"name":"rate","unit":"GB/s","median":50.0,"p20":49.0,"p80":51.0,"n":30}]}\')'
)
TABLE = "        median    p20    p80   n\n  rate   50.00  49.00  51.00  30  GB/s"


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DeviceSample]:
    """A GPU whose readings are the list's, the last one for ever; probes are scripts."""
    readings = [reading()]
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    (folder / "__main__.py").write_text("import os, sys\nexec(os.environ['FAKE_PROBE'])\n")

    def read() -> DeviceSample:
        return readings.pop(0) if len(readings) > 1 else readings[0]

    monkeypatch.setattr(probe_places, "find_gpus", lambda index: [probe_places.Gpu(GPU, read)])
    monkeypatch.setattr(measuring, "SETTLE_S", 0.0)
    monkeypatch.setattr(probing, "probes_folder", lambda: folder)
    monkeypatch.setattr(probing, "lock_folder", lambda env: tmp_path)
    monkeypatch.setenv("FAKE_PROBE", ANSWER)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return readings


def reading(*pids: int, index: int = 0) -> DeviceSample:
    processes = tuple(DeviceProcess(pid, 1 << 30, "C") for pid in pids)
    return DeviceSample(index, 1, gpu_util_pct=0, mem_used_bytes=0, processes=processes, processes_absent=None)


def test_the_list_names_every_probe_and_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "list"]) == 0
    out = capsys.readouterr().out
    assert all(spec.name in out and spec.question in out for spec in probe_run.PROBES)
    assert run(["probe", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "gpuwatch.probe-list/1"
    assert [probe["name"] for probe in listed["probes"]] == [spec.name for spec in probe_run.PROBES]
    matmul = listed["probes"][0]
    assert (matmul["kind"], matmul["sets"]) == ("intensive", ["quick", "ci", "full"])
    assert "--set quick: matmul, memory, copies, launch" in out


def test_a_mistyped_probe_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "dataloder"]) == 64
    assert capsys.readouterr().err == "gpuwatch: no probe 'dataloder'; did you mean dataloader?\n"


def test_no_probe_named_is_a_usage_error_and_not_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run"]) == 64
    assert "no probe named: give names" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["gpu0", "cuda:", "cuda:x", "1", ""])
def test_a_wrong_device_is_a_usage_error(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "--device", device]) == 64
    assert "expected cpu, all or cuda:N" in capsys.readouterr().err


def test_probes_run_one_after_another(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "run", "matmul", "conv"]) == 0
    out = capsys.readouterr().out
    assert out == f"matmul on NVIDIA H200: ok\n{TABLE}\n\nconv on NVIDIA H200: ok\n{TABLE}\n"


def test_a_gpu_in_use_is_refused_with_75(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    gpu[:] = [reading(os.getpid())]
    assert run(["probe", "run", "matmul"]) == 75
    out = capsys.readouterr().out
    assert out.startswith("matmul on NVIDIA H200: busy\n")
    assert f"GPU 0 is in use by pid {os.getpid()} (" in out


def test_force_measures_anyway_and_says_so(gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str]) -> None:
    gpu[:] = [reading(os.getpid())]
    assert run(["probe", "run", "matmul", "--force"]) == 0
    assert capsys.readouterr().out.startswith("matmul on NVIDIA H200: ok, contaminated\n")


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
    missing = probe_places.Missing("cuda:0", "no driver; without a GPU use --device cpu")
    monkeypatch.setattr(probe_places, "find_gpus", lambda index: [missing])
    assert run(["probe", "run", "matmul", "--json"]) == 3
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert (result["status"], result["device"]) == ("unavailable", "cuda:0")
    assert "--device cpu" in result["message"]


@pytest.mark.parametrize(("hangup", "ended_by"), [("SIG_DFL", signal.SIGHUP), ("SIG_IGN", signal.SIGTERM)])
def test_a_closed_terminal_ends_a_run_with_its_probe_unless_nohup_keeps_it(
    tmp_path: Path, hangup: str, ended_by: signal.Signals
) -> None:
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    script = "import os,sys,time\nprint(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    (folder / "__main__.py").write_text(script)
    code = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{hangup})\n"
        "import sys; from pathlib import Path; from gpuwatch.daemon import probing; from gpuwatch.cli.main import run\n"
        f"probing.probes_folder = lambda: Path({str(folder)!r})\n"
        f"probing.lock_folder = lambda env: Path({str(tmp_path)!r})\n"
        "sys.exit(run(['probe', 'run', 'matmul', '--device', 'cpu']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        probe_pid = int(process.stderr.readline())
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + ended_by
    assert not Path(f"/proc/{probe_pid}").exists()


def test_every_gpu_is_measured_and_the_bad_one_is_named_by_uuid(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # NVML's order is not CUDA's: the child sees one GPU, by UUID, and says which one it measured.
    devices = [Device(number, f"GPU-{name}", "NVIDIA H200", "") for number, name in enumerate(("bb", "aa"))]
    places = [probe_places.Gpu(device, lambda i=device.index: reading(index=i)) for device in devices]  # type: ignore[misc]
    monkeypatch.setattr(probe_places, "find_gpus", lambda index: places)
    script = (
        "uuid = os.environ['CUDA_VISIBLE_DEVICES']\nbad = uuid == 'GPU-aa'\n"
        'print(\'{"probe":"matmul","status":"%s","device":"cuda:0","device_uuid":"%s","message":"%s","values":'
        '[{"name":"rate","unit":"GB/s","median":1,"p20":1,"p80":1,"n":9}]}\''
        " % (('invalid', uuid, 'rate: wrong result: error 1') if bad else ('ok', uuid, '')))\nsys.exit(bad)"
    )
    monkeypatch.setenv("FAKE_PROBE", script)
    assert run(["probe", "run", "matmul", "--device", "all", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert [(r["device_uuid"], r["device"], r["status"]) for r in answer["results"]] == [
        ("GPU-bb", "cuda:0", "ok"),
        ("GPU-aa", "cuda:1", "invalid"),
    ]
    assert answer["exit_reason"] == "matmul on cuda:1 WRONG_RESULT: rate: wrong result: error 1"


def test_the_slower_of_two_cards_is_named_by_uuid(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = [Device(number, f"GPU-{name}", "NVIDIA H200", "") for number, name in enumerate(("bb", "aa"))]
    places = [probe_places.Gpu(device, lambda i=device.index: reading(index=i)) for device in devices]  # type: ignore[misc]
    monkeypatch.setattr(probe_places, "find_gpus", lambda index: places)
    answer = ANSWER.replace('"GPU-11"', "\"' + os.environ['CUDA_VISIBLE_DEVICES'] + '\"")
    slow = answer.replace(
        '"median":50.0', "\"median\":' + str(40 + 10 * ('bb' in os.environ['CUDA_VISIBLE_DEVICES'])) + '"
    )
    monkeypatch.setenv("FAKE_PROBE", slow)
    assert run(["probe", "run", "matmul", "copies", "--device", "all"]) == 1
    printed = capsys.readouterr()
    assert "skew over 2 GPUs:\n" in printed.out
    assert "  copies.rate  20.0%  cuda:1 GPU-aa" in printed.out
    assert run(["probe", "run", "matmul", "--device", "all", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(row["device_uuid"], row["reason"]) for row in answer["rows"] if row["verdict"] == "SLOWER"] == [
        ("GPU-aa", "GPU-aa is 20.0% slower than GPU-bb (cuda:0), in this machine")
    ]


def test_gradients_are_exchanged_once_between_all_gpus_and_the_rest_is_measured_on_each(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    devices = [Device(number, f"GPU-{name}", "NVIDIA H200", "") for number, name in enumerate(("aa", "bb"))]
    places = [probe_places.Gpu(device, lambda i=device.index: reading(index=i)) for device in devices]  # type: ignore[misc]
    monkeypatch.setattr(probe_places, "find_gpus", lambda index: places if index is None else [places[index]])
    answer = ANSWER.replace('"GPU-11"', "\"' + os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0] + '\"")
    monkeypatch.setenv("FAKE_PROBE", answer)
    for device in ("all", "cuda:1,cuda:0,cuda:1"):
        assert run(["probe", "run", "allreduce", "copies", "--device", device, "--json"]) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        assert sorted((result["probe"], *sorted(result["device_uuid"].split(","))) for result in results) == [
            ("allreduce", "GPU-aa", "GPU-bb"),
            ("copies", "GPU-aa"),
            ("copies", "GPU-bb"),
        ]
    base = str(tmp_path / "base.json")
    assert run(["probe", "baseline", "allreduce", "--device", "all", "--runs", "2", "--out", base]) == 0
    assert run(["probe", "check", "--baseline", base, "--device", "all"]) == 0
    assert run(["probe", "baseline", "copies", "--device", "all", "--runs", "2", "--out", base, "--append"]) == 0
    capsys.readouterr()
    assert run(["probe", "check", "--baseline", base, "--device", "cuda:1", "--json"]) == 0, "one card of the node"
    assert [result["probe"] for result in json.loads(capsys.readouterr().out)["results"]] == ["copies"]
    slow = answer.replace("50.0", "20.0")
    monkeypatch.setenv("FAKE_PROBE", slow)
    capsys.readouterr()
    assert run(["probe", "check", "allreduce", "--baseline", base, "--device", "all", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["verdict"], row["device"], row["device_uuid"]) == ("SLOWER", "cuda:0,cuda:1", "GPU-aa,GPU-bb")
    assert run(["probe", "run", "copies", "--device", "cpu,cuda:0"]) == 64


def test_a_gpu_that_is_lost_fails_the_check_of_the_whole_host(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    devices = [Device(number, f"GPU-{name}", "NVIDIA H200", "") for number, name in enumerate(("aa", "bb"))]
    places = [probe_places.Gpu(device, lambda i=device.index: reading(index=i)) for device in devices]  # type: ignore[misc]
    monkeypatch.setattr(probe_places, "find_gpus", lambda index: places)
    answer = ANSWER.replace('"GPU-11"', "\"' + os.environ['CUDA_VISIBLE_DEVICES'] + '\"")
    monkeypatch.setenv("FAKE_PROBE", answer)
    base = str(tmp_path / "base.json")
    assert run(["probe", "baseline", "matmul", "--device", "all", "--runs", "2", "--out", base]) == 0
    assert run(["probe", "check", "--baseline", base, "--device", "all"]) == 0
    del places[1]
    assert run(["probe", "check", "--baseline", base, "--device", "cuda:0"]) == 0
    capsys.readouterr()
    assert run(["probe", "check", "--baseline", base, "--device", "all", "--json"]) == 2
    lost = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["verdict"] == "MISSING"]
    assert [row["device_uuid"] for row in lost] == ["GPU-bb"]


def test_a_busy_gpu_is_waited_for_when_that_is_wanted(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "LOOK_S", 0.01)
    gpu[:] = [reading(os.getpid()), reading(os.getpid()), reading()]
    assert run(["probe", "run", "matmul", "--wait", "60"]) == 0
    assert capsys.readouterr().out.startswith("matmul on NVIDIA H200: ok\n")


def test_a_hung_probe_ends_with_the_time_limit_of_the_whole_command(
    gpu: list[DeviceSample], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_PROBE", "import time; time.sleep(60)")
    assert run(["probe", "run", "matmul", "conv", "--timeout", "1"]) == 124
    out = capsys.readouterr().out
    assert out.count("not finished within --timeout 1 s") == 2
    lock = probe_locks.lock_gpu(GPU.uuid, Path(os.environ["XDG_CONFIG_HOME"]))
    assert lock >= 0, "the GPU is free again"
    os.close(lock)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--csv"], 0, "matmul,rate,cuda:0,GPU-11,MEASURED,ok,GB/s,true,,50.0"),
        (["--markdown"], 0, "| matmul.rate (cuda:0) |  | 50.00 | GB/s |"),
        (["--junit"], 0, '<testsuite name="GPU-11" tests="1" failures="0" errors="0" skipped="0">'),
        (["--nagios"], 0, "GPUWATCH PROBE OK - one quantity measured | 'matmul.rate_cuda:0'=50.00;;"),
    ],
)
def test_the_same_run_in_every_form(
    gpu: list[DeviceSample], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run(["probe", "run", "matmul", *arguments]) == code
    assert says in capsys.readouterr().out


def test_a_busy_gpu_is_unknown_to_a_monitor_and_zero_only_when_asked(gpu: list[DeviceSample]) -> None:
    gpu[:] = [reading(os.getpid())]
    assert run(["probe", "run", "matmul", "--nagios"]) == 3
    assert run(["probe", "run", "matmul", "--exit-zero"]) == 0


def test_what_the_gpu_did_meanwhile_is_told() -> None:
    seen = {"power_w": 655.0, "sm_clock_mhz": 1755.0, "throttled_share": 0.25, "energy_per_images_j": 0.471}
    result = ProbeResult("train", ProbeStatus.OK, "cuda:0", observed=seen)
    assert run_command.result_lines(result)[1] == (
        "  meanwhile: 655 W, SM clock 1755 MHz, slowed down for heat or hardware reasons in 25% of the samples,"
        " 0.471 J per images"
    )


def test_values_are_aligned_in_columns() -> None:
    values = (
        ProbeValue("bf16", "TFLOP/s", 1.0, 0.5, 2.0, 30),
        ProbeValue("first_call_ms", "ms", 1234.5, 1234.5, 1234.5, 1),
    )
    result = ProbeResult(
        "matmul", ProbeStatus.INVALID, "cuda:0", values, message="bf16: wrong", notes=("still drifting",)
    )
    assert run_command.result_lines(result) == [
        "matmul on cuda:0: invalid",
        "  bf16: wrong",
        "                 median     p20    p80   n",
        "  bf16            1.000  0.5000  2.000  30  TFLOP/s",
        "  first_call_ms    1234    1234   1234   1  ms",
        "  note: still drifting",
    ]
