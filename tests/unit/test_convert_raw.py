"""Raw readings of a job to a recording: nothing that the files say may get lost, nothing of the result may get in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tools import convert_raw

from gpuwatch.model import (
    CgroupSample,
    DeviceHealth,
    DeviceSample,
    Frame,
    HostSample,
    Observation,
    ProcessTick,
    Role,
    StackSample,
)
from gpuwatch.replay.player import load

STAT = (
    "{pid} ({comm}) {state} {ppid} 7 7 0 -1 4194560 10 0 3 0 {utime} 20 0 0 20 0 6 0 11290 26753515520 100 " + "0 " * 28
)


def stat(pid: int, comm: str = "python3", state: str = "R", ppid: int = 1, utime: int = 100) -> str:
    return STAT.format(pid=pid, comm=comm, state=state, ppid=ppid, utime=utime).strip()


def raw(path: Path, *lines: dict[str, object]) -> Path:
    path.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in lines).encode()))
    return path


JOB: tuple[dict[str, object], ...] = (
    {"t": 100.0, "k": "meta", "pid": 40, "case": "secret_cause"},
    {
        "t": 100.1,
        "k": "nvml",
        "gpm": {"graphics_util": 0.0, "pcie_rx_per_sec": 1.0},
        "util": [3, 1],
        "clk": [1980, 3201],
        "thr": 0,
        "pw": 150000,
        "mem": [1000, 10, 600, 390],
        "procs": [[40, 500]],
        "temp": 41,
    },
    {
        "t": 100.2,
        "k": "nvml",
        "gpm": {"graphics_util": 25.0, "dram_bw_util": float("nan"), "pcie_rx_per_sec": 2.0},
        "util": [30, 2],
        "clk": [1980, 3201],
        "thr": 4,
        "pw": 160000,
    },
    {
        "t": 100.3,
        "k": "proc",
        "pid": 40,
        "stat": stat(40),
        "schedstat": "5 7 9",
        "wchan": "futex_do_wait",
        "cmd": "python3\0fit.py",
        "io": "rchar: 5\nwchar: 1\nsyscr: 2\nsyscw: 1\nread_bytes: 4\nwrite_bytes: 3\ncancelled_write_bytes: 0\n",
    },
    {"t": 100.31, "k": "proc", "pid": 41, "stat": stat(41, "pt_data_worker", "S", 40), "wchan": "0"},
    {"t": 100.8, "k": "proc", "pid": 40, "stat": stat(40, utime=150)},
    {
        "t": 100.9,
        "k": "sys",
        "stat": "cpu  10 0 0 90 0 0 0 0 0 0\ncpu0 10 0 0 90 0 0 0 0 0 0\n",
        "load": "1.5 1 1 1/2 3",
        "psi": {"cpu": "some avg10=0 avg60=0 avg300=0 total=1000\n"},
        "meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
        "cgmax": "150000 100000\n",
        "cgcpu": "nr_periods 10\nnr_throttled 4\nthrottled_usec 900\n",
    },
    {
        "t": 101.0,
        "k": "stack",
        "pid": 40,
        "th": [{"n": "MainThread", "os": 40, "a": True, "g": True, "f": [["f", "/h/fit.py", 3]]}],
    },
    {"t": 102.0, "k": "native", "raw": "thread (40): MainThread;fit (fit.py:9);cuLaunchKernel (libcuda.so.580.1) 2\n"},
    {"t": 102.5, "k": "proc", "pid": 40, "stat": stat(40, utime=160)},
    {"t": 103.0, "k": "result", "out": "loader_too_few_workers"},
)


@pytest.fixture
def observations(tmp_path: Path) -> tuple[Observation, ...]:
    convert_raw.convert(raw(tmp_path / "in.jsonl.gz", *JOB), tmp_path / "out.gwrec")
    return load(tmp_path / "out.gwrec")


def test_gpm_windows_span_the_time_between_two_readings(observations: tuple[Observation, ...]) -> None:
    first, second = (o for o in observations if isinstance(o, DeviceSample))
    assert (first.gpm_window_ns, second.gpm_window_ns) == (0, 100_000_000)
    assert second.busy_pct == 25.0
    assert second.pcie_rx_bytes_per_s == 2 * 2**20
    assert not isinstance(second.dram_active_pct, float), "NaN is no reading"
    assert (second.mem_used_bytes, second.temp_c, second.processes[0].pid) == (600, 41, 40)


def test_processes_are_told_by_what_they_are(observations: tuple[Observation, ...]) -> None:
    ticks = [o for o in observations if isinstance(o, ProcessTick)]
    assert [len(t.samples) for t in ticks] == [2, 1, 1]
    main, worker = ticks[0].infos
    assert (main.role, main.command, main.device_indices) == (Role.MAIN, "python3 fit.py", (0,))
    assert (worker.role, worker.root_pid) == (Role.LOADER_WORKER, 40)
    assert ticks[1].samples[0].cpu_pct == pytest.approx(100.0)


def test_what_each_process_used_of_the_gpu_is_kept_but_not_of_an_unknown_past(tmp_path: Path) -> None:
    def reading(seconds: float, *used: list[int]) -> dict[str, object]:
        return {"t": seconds, "k": "nvml", "procs": [[40, 500], [77, 9]], "putil": list(used)}

    lines = (
        JOB[0],
        reading(100.0, [40, 1_000_000, 93, 5]),
        reading(100.5, [40, 1_500_000, 60, 20], [77, 1_400_000, 35, 9]),
        reading(101.0, [40, 1_500_000, 60, 20], [40, 2_000_000, 99, 30]),
        reading(101.5),
        {"t": 102.0, "k": "nvml", "putil": [["cut"]]},
        {"t": 102.1, "k": "nvml", "util": [1, 1]},
    )
    convert_raw.convert(raw(tmp_path / "in.jsonl.gz", *lines), tmp_path / "out.gwrec")
    seen = load(tmp_path / "out.gwrec")
    used = [[(u.pid, u.sm_pct) for u in o.process_utils] for o in seen if isinstance(o, DeviceHealth)]
    assert used == [[(40, 60), (77, 35)], [(40, 99), (77, 0)], [(40, 0), (77, 0)]]
    assert len([o for o in seen if isinstance(o, DeviceSample)]) == 6


def test_the_quota_and_the_host_are_kept(observations: tuple[Observation, ...]) -> None:
    host = next(o for o in observations if isinstance(o, HostSample))
    assert host.mem_available_bytes == 400 * 1024
    last = [o for o in observations if isinstance(o, ProcessTick)][-1]
    assert last.cgroups == (CgroupSample(40, host.mono_ns, 1.5, 10, 4, 900),)


def test_native_stacks_are_marked_and_run_from_the_inside_out(observations: tuple[Observation, ...]) -> None:
    plain, *native = (o for o in observations if isinstance(o, StackSample))
    assert not plain.native
    assert [s.native for s in native] == [True, True]
    assert native[0].threads[0].frames == (Frame("cuLaunchKernel", "libcuda.so.580.1"), Frame("fit", "fit.py", 9))


def test_neither_the_result_nor_the_name_of_the_case_gets_into_the_recording(tmp_path: Path) -> None:
    out = tmp_path / "out.gwrec"
    convert_raw.convert(raw(tmp_path / "in.jsonl.gz", *JOB), out)
    text = gzip.decompress(out.read_bytes())
    assert b"too_few" not in text
    assert b"secret_cause" not in text


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [(None, 66, "no such file"), (b"hello", 65, "not gzipped"), (gzip.compress(b"{}\n"), 65, "no meta line")],
)
def test_bad_input_is_one_line(
    tmp_path: Path, content: bytes | None, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gz"
    if content is not None:
        path.write_bytes(content)
    assert convert_raw.main([str(path), str(tmp_path / "out.gwrec")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_cut_line_is_left_out_and_told_and_takes_no_other_with_it(
    tmp_path: Path, observations: tuple[Observation, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    cut: tuple[dict[str, object], ...] = (
        {"t": 100.9, "k": "sys", "load": "1.0 1.0 1.0"},
        {"t": 100.9, "k": "proc", "pid": 40},
        {"t": 101.0, "k": "stack", "th": []},
        {"t": 101.0, "k": "nvml", "util": [5]},
        {"k": "nvml", "util": [5, 6]},
        {"t": 101.0, "k": "a kind of next year"},
    )
    source = raw(tmp_path / "cut.jsonl.gz", *JOB, *cut)
    out = tmp_path / "cut.gwrec"
    assert convert_raw.main([str(source), str(out)]) == 0
    assert "5 lines left out" in capsys.readouterr().err
    assert load(out)[1:] == observations[1:], "the first tells the name of the file"
