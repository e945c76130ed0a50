"""Every probe runs for real on the CPU, as its users start it, and its answer is a ProbeResult."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuwatch.cli.main import run as gpuwatch
from gpuwatch.daemon import probing
from gpuwatch.model import ProbeResult, ProbeStatus

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "probes"
SMALL = {
    "matmul": ["--size", "64,96", "--seconds", "0.02"],
    "conv": ["--size", "2x8x16x16", "--seconds", "0.02"],
    "dataloader": ["--size", "32", "--seconds", "0.05"],
    "memory": ["--size", "1", "--seconds", "0.02"],
    "copies": ["--size", "4,256", "--seconds", "0.02"],
    "launch": ["--seconds", "0.02"],
    "inference": ["--size", "1,2x32", "--seconds", "0.02"],
    "attention": ["--size", "1x2x32", "--seconds", "0.02"],
    "train": ["--size", "resnet50:2x32,tiny:4x16", "--seconds", "0.02"],
    "storage": ["--size", "4", "--seconds", "0.05"],
    "shm": ["--size", "64,1024", "--seconds", "0.05"],
    "allreduce": ["--size", "4,256", "--seconds", "0.02"],
}
EXPECTED = {
    "matmul": {"fp32_64_burst", "fp32_96_sustained", "fp32_64_first_call_ms"},
    "conv": {"fp32_nchw_forward", "fp32_channels_last_train_ms", "fp32_nchw_train_first_call_ms"},
    "dataloader": {"workers_0", "workers_1", "knee", "knee_first_batch", "knee_ready", "knee_ready_rate"},
    "memory": {"copy", "clone", "broadcast_add", "triad"},
    "copies": {"host_pageable_4KiB", "host_pageable_256KiB"},
    "launch": {"enqueue", "first_call_ms"},
    "inference": {"fp32_grad_b1", "fp32_no_grad_b1_p95_ms", "fp32_inference_mode_b2"},
    "attention": {"flash_fp32_forward", "math_fp32_train", "default_fp32_train_ms"},
    "train": {"resnet50_b2_32_fp32", "resnet50_b2_32_channels_last_speedup", "tiny_b4_16_fp32_first_call_s"},
    "storage": {"write", "sequential", "random_4KiB_1", "random_4KiB_16", "sequential_cached", "small_files"},
    "shm": {"copy_64KiB", "transfer_64KiB", "transfer_1MiB", "shm_total"},
    "allreduce": {"all_reduce_4KiB", "all_reduce_256KiB_busbw", "all_gather_256KiB_skew", "send_recv_256KiB_busbw"},
}
BY_PATH = ("matmul", "dataloader")
"""One that starts no process, and one that does; ranks are always started by path."""


def start(
    arguments: list[str], cwd: Path, python: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [python, *arguments], cwd=cwd, env={**os.environ, **env}, capture_output=True, timeout=55, check=False
    )


def result_of(done: subprocess.CompletedProcess[bytes]) -> ProbeResult:
    """Exactly one JSON object with no field that the model does not know."""
    result = msgspec.json.decode(done.stdout, type=ProbeResult)
    said = msgspec.json.decode(done.stdout)
    # What the GPU did meanwhile is added by whoever started the probe.
    assert {**said, "observed": {}} == msgspec.json.decode(msgspec.json.encode(result))
    return result


def named_for_its_cache(value: str, settings: dict[str, str]) -> str:
    """Whether a few MiB fit in the last cache is the machine's business; that the figure says so is not."""
    return value + "_in_cache" * (settings.get(f"{value}_l2") == "warm")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A working directory in which every name that a probe imports lies in wait."""
    (tmp_path / "probes").mkdir()
    (tmp_path / "gpuwatch_probes").mkdir()
    names = [
        "probes/__init__",
        "gpuwatch_probes/__init__",
        "torch",
        "json",
        "command",
        "matmul",
        "conv",
        "stats",
        "PIL",
    ]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the decoy {name} was imported')\n")
    return tmp_path


@pytest.mark.parametrize("name", list(SMALL))
def test_a_probe_runs_in_the_checkout(name: str, tmp_path: Path) -> None:
    place = ["--path", str(tmp_path)] if name == "storage" else []
    done = start(["-m", "probes", name, "--json", "--device", "cpu", *SMALL[name], *place], ROOT)
    result = result_of(done)
    if "is in memory" in result.message:
        pytest.skip("the temporary folder is in memory: there is no disk to measure")
    assert (done.returncode, result.status, result.message) == (0, ProbeStatus.OK, "")
    assert b"Traceback" not in done.stderr
    assert (result.probe, result.device) == (name, "cpu")
    values = {value.name: value for value in result.values}
    assert set(values) >= {named_for_its_cache(value, result.settings) for value in EXPECTED[name]}
    assert all(value.p20 <= value.median <= value.p80 for value in result.values)
    assert all(value.n >= 1 and (value.median > 0 or value.name == "knee") for value in result.values)
    assert result.settings["torch"].startswith("2.")
    assert result.settings["timer"] == "perf_counter"
    assert result.device_name
    assert result.duration_s > 0


@pytest.mark.parametrize("name", BY_PATH)
def test_a_probe_started_by_path_ignores_the_working_directory(name: str, trap: Path) -> None:
    # An empty PYTHONPATH entry means the working directory: the shape of `export PYTHONPATH=$PYTHONPATH:/opt/x`.
    done = start([str(FOLDER), name, "--json", "--device", "cpu", *SMALL[name]], trap, PYTHONPATH=":/nowhere")
    assert b"decoy" not in done.stderr + done.stdout
    assert (done.returncode, result_of(done).status) == (0, ProbeStatus.OK)


def test_a_rank_that_dies_is_a_failure_with_its_reason_and_leaves_nobody_behind(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__")))
    text = (folder / "allreduce.py").read_text()
    marker = '    name = f"{operation}_'
    assert text.count(marker) == 1
    (folder / "allreduce.py").write_text(text.replace(marker, f"    if me.rank == 1:\n        os._exit(7)\n{marker}"))
    done = start([str(folder), "allreduce", "--json", "--device", "cpu", *SMALL["allreduce"]], tmp_path)
    result = result_of(done)
    assert (done.returncode, result.status, result.values) == (3, ProbeStatus.FAILED, ())
    assert "rank" in result.message
    assert b"Traceback" not in done.stderr
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _read(path)]
    assert left == []


def test_torchruns_ranks_measure_together_and_agree(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(FOLDER), "allreduce"]
    done = start([*command, "--json", "--every-rank", "--device", "cpu", *SMALL["allreduce"]], tmp_path)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-500:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    assert [answer["status"] for answer in answers] == ["ok", "ok"]
    assert answers[0]["settings"]["ranks"] == "2"
    assert answers[0]["values"] == answers[1]["values"], "each sample is the slowest rank's"
    done = start([*command, "--json", "--device", "cpu", *SMALL["allreduce"]], tmp_path)
    assert json.loads(done.stdout)["status"] == "ok", "one object, which is that of rank 0"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_out_of_memory_is_a_failure_with_the_way_out_and_not_a_pass(tmp_path: Path) -> None:
    raise_it = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n"
    folder = changed_probes(tmp_path, raise_it)
    done = start([str(folder), "matmul", "--json", "--device", "cpu", "--size", "32", "--seconds", "0.02"], tmp_path)
    result = result_of(done)
    assert (done.returncode, result.status) == (3, ProbeStatus.FAILED)
    assert result.message.startswith("out of memory")
    assert "use a smaller --size" in result.message


def test_libraries_may_print_without_breaking_the_answer(tmp_path: Path) -> None:
    folder = changed_probes(tmp_path, "import os\nos.write(1, b'cuBLAS says hello\\n')\nprint('so do I')\n")
    done = start([str(folder), "matmul", "--json", "--device", "cpu", "--size", "32", "--seconds", "0.02"], tmp_path)
    assert result_of(done).status is ProbeStatus.OK
    assert b"cuBLAS says hello" in done.stderr
    assert b"so do I" in done.stderr


def test_a_wrong_kernel_ends_with_invalid_and_exit_code_1(tmp_path: Path) -> None:
    folder = changed_probes(tmp_path, "", "\n\ndef multiply(torch, left, right, out):\n    return out.copy_(left)\n")
    done = start([str(folder), "matmul", "--json", "--device", "cpu", "--size", "64", "--seconds", "0.02"], tmp_path)
    result = result_of(done)
    assert (done.returncode, result.status) == (1, ProbeStatus.INVALID)
    assert "fp32_64: wrong result" in result.message


def changed_probes(tmp_path: Path, on_run: str, in_module: str = "") -> Path:
    """A copy of the probes whose matmul is changed."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__")))
    text = (folder / "matmul.py").read_text()
    marker = "    todo = cases("
    assert text.count(marker) == 1
    indented = "".join(f"    {line}\n" for line in on_run.splitlines())
    (folder / "matmul.py").write_text(text.replace(marker, indented + marker) + in_module)
    return folder


def test_the_table_for_people_needs_no_json(tmp_path: Path) -> None:
    done = start([str(FOLDER), "matmul", "--device", "cpu", *SMALL["matmul"]], tmp_path)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("matmul on ")
    assert lines[0].endswith(": ok")
    assert any(line.startswith("  fp32_64_sustained ") and line.endswith("TFLOP/s") for line in lines)


def test_without_torch_there_is_one_clear_line_and_exit_code_3(tmp_path: Path) -> None:
    # -S: no site-packages, so no torch, in any Python.
    done = start(["-S", str(FOLDER), "conv", "--json"], tmp_path, PYTHONPATH="")
    result = result_of(done)
    assert (done.returncode, result.status) == (3, ProbeStatus.UNAVAILABLE)
    assert result.message.startswith("no torch in ")
    assert "install it there" in result.message
    assert b"Traceback" not in done.stderr


def test_a_torch_that_does_not_load_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    done = start([str(FOLDER), "conv", "--json"], Path("/"), PYTHONPATH=str(tmp_path))
    assert (done.returncode, result_of(done).status) == (3, ProbeStatus.UNAVAILABLE)
    assert "libcudart.so.13" in result_of(done).message


def test_without_cuda_the_gpu_is_unavailable_and_the_cpu_is_not_taken_instead(tmp_path: Path) -> None:
    done = start([str(FOLDER), "matmul", "--json"], tmp_path, CUDA_VISIBLE_DEVICES="")
    result = result_of(done)
    assert (done.returncode, result.status, result.values) == (3, ProbeStatus.UNAVAILABLE, ())
    assert "CUDA" in result.message


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["matmul", "--size", "x"],
        ["conv", "--size", "4"],
        ["matmul", "--device", "gpu"],
        ["conv", "--seconds", "0"],
        ["memory", "--size", "0"],
        ["copies", "--size", "4,x"],
        ["launch", "--size", "4000"],
        ["inference", "--size", "1x8"],
        ["attention", "--size", "1x2"],
        ["train", "--size", "vgg:8x32"],
        ["storage", "--size", "x"],
        ["storage", "--path", "/nowhere/at/all"],
        ["matmul", "--path", "/"],
        ["shm", "--size", "1"],
        ["allreduce", "--size", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_argument_is_one_line_and_exit_code_64(arguments: list[str], tmp_path: Path) -> None:
    done = start(["-S", str(FOLDER), *arguments], tmp_path)
    assert (done.returncode, done.stdout) == (64, b"")
    assert len(done.stderr.splitlines()) == 1
    assert b"--help" in done.stderr


def test_gpuwatch_runs_a_probe_in_the_foreground(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Else somebody's probe on this machine would be in the way.
    monkeypatch.setattr(probing, "lock_folder", lambda env: tmp_path)
    monkeypatch.delenv("GPUWATCH_PROBES_PYTHON", raising=False)
    assert gpuwatch(["probe", "run", "matmul", "--device", "cpu", "--seconds", "0.02", "--json"]) == 0
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert (answer["schema"], answer["exit_code"]) == ("gpuwatch.probe/1", 0)
    result = msgspec.convert(answer["results"][0], ProbeResult)
    assert (result.status, result.device) == (ProbeStatus.OK, "cpu")
