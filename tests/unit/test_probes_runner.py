"""The child process of a probe: who keeps it out, what ends it, what its answer is worth. The probe is a script."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch import wire
from gpuwatch.config import ProbesConfig
from gpuwatch.daemon import probe_locks, probing
from gpuwatch.daemon.probe_process import Launch, ProbeProcess
from gpuwatch.daemon.probe_service import ProbeService
from gpuwatch.daemon.probing import Runner, Seat
from gpuwatch.daemon.ring import Picture
from gpuwatch.errors import UsageError
from gpuwatch.model import (
    Absent,
    Device,
    DeviceProcess,
    DeviceSample,
    Inventory,
    NodeInfo,
    ProbeResult,
    ProbeStatus,
    Reason,
)
from gpuwatch.verdict import probe_run

GPU = Device(index=1, uuid="GPU-11", name="NVIDIA H200", pci_bus_id="0000:61:00.0")
ANSWER = (
    '{"probe":"matmul","status":"ok","device":"cuda:0","device_uuid":"GPU-11","values":[{"name":"bf16_8192_sustained",'
    '"unit":"TFLOP/s","median":1.0,"p20":0.9,"p80":1.1,"n":30,"higher_is_better":true}],"settings":{"torch":"2.0"}}'
)
SAY_ANSWER = f"print({ANSWER!r})"
WAIT = "import sys,time; print('ready', file=sys.stderr, flush=True); time.sleep(60)"


class Bench:
    """A runner whose probe is the script in ``FAKE_PROBE``."""

    def __init__(self, tmp_path: Path, runner_of: Callable[[dict[str, str]], Runner]) -> None:
        self.tmp_path = tmp_path
        self._runner_of = runner_of
        self.results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.runner: Runner | None = None

    def start(
        self, script: str, sample: DeviceSample | None = None, force: bool = False, device: Device | None = GPU
    ) -> str:
        self.runner = self._runner_of({**os.environ, "FAKE_PROBE": script})
        reading = reading_of() if sample is None else sample
        return self.again(reading, force, device)

    def again(self, sample: DeviceSample | None, force: bool = False, device: Device | None = GPU) -> str:
        assert self.runner is not None
        refusal = self.runner.begin(
            "matmul", device, sample, self.results.put, force=force, progress=self.lines.put, seconds=0.5
        )
        return refusal.message if refusal else ""

    def result(self) -> ProbeResult:
        return self.results.get(timeout=20)

    def child_pid(self) -> int:
        assert self.runner is not None
        return self.runner.running()[0].pid

    def stop(self) -> None:
        if self.runner is not None:
            self.runner.stop()


def reading_of(*pids: int, index: int = 1) -> DeviceSample:
    """A GPU at rest but for these processes."""
    processes = tuple(DeviceProcess(pid, 1024, "C") for pid in pids)
    return DeviceSample(index, 1, gpu_util_pct=0, mem_used_bytes=0, processes=processes, processes_absent=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "gpuwatch_probes"
    folder.mkdir()
    (folder / "__main__.py").write_text("import os\nexec(os.environ['FAKE_PROBE'])\n")
    (folder / "command.py").write_text("")
    return folder


@pytest.fixture
def bench(tmp_path: Path, folder: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, lambda env: Runner(folder=folder, locks=tmp_path, env=env))
    yield bench
    bench.stop()


@pytest.fixture
def stranger() -> Iterator[int]:
    script = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def gone(pid: int) -> bool:
    """Wait until the process is not there any more, or only as a zombie that nobody has collected."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        os.sched_yield()
    return False


# --------------------------------------------------------------------------- a good run


def test_the_result_carries_our_index_and_name_of_the_gpu(bench: Bench) -> None:
    assert bench.start(SAY_ANSWER) == ""
    result = bench.result()
    assert (result.status, result.device, result.device_uuid) == (ProbeStatus.OK, "cuda:1", "GPU-11")
    assert result.device_name == "NVIDIA H200"
    assert result.values[0].median == 1.0
    assert not result.contaminated
    assert result.started_wall_ns > 0
    assert result.duration_s > 0


def test_the_child_sees_one_gpu_by_uuid_and_no_working_directory_of_ours(bench: Bench) -> None:
    script = "import os,sys; print(os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd(), sys.argv[1:], file=sys.stderr)"
    assert bench.start(script) == ""
    assert bench.lines.get(timeout=20) == "GPU-11 / ['matmul', '--json', '--device', 'cuda', '--seconds', '0.5']"
    bench.result()


def test_a_cpu_run_hides_the_gpus_and_needs_no_reading(bench: Bench) -> None:
    script = "import os,sys; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), sys.argv[4], file=sys.stderr)"
    bench.runner = Runner(folder=bench.tmp_path / "gpuwatch_probes", locks=bench.tmp_path, env={"FAKE_PROBE": script})
    assert bench.again(None, device=None) == ""
    assert bench.lines.get(timeout=20) == "'' cpu"
    assert bench.result().device == "cpu"


def test_done_is_called_once_and_the_gpu_is_free_again(bench: Bench) -> None:
    assert bench.start(SAY_ANSWER) == ""
    bench.result()
    assert bench.runner is not None
    assert bench.runner.wait(20)
    assert bench.again(reading_of()) == ""
    bench.result()
    assert bench.results.empty()


# --------------------------------------------------------------------------- refusals


def test_a_gpu_with_somebodys_job_is_refused_by_name(bench: Bench, stranger: int) -> None:
    message = bench.start(SAY_ANSWER, reading_of(stranger))
    assert message.startswith(f"GPU 1 is in use by pid {stranger} (")
    assert "(python" in message
    assert " -c import time; " in message
    assert bench.results.empty()


def test_a_refusal_says_busy_so_that_scripts_try_later(bench: Bench, stranger: int) -> None:
    bench.start(SAY_ANSWER)
    bench.result()
    assert bench.runner is not None
    assert bench.runner.wait(20)
    refusal = bench.runner.begin("matmul", GPU, reading_of(stranger), bench.results.put)
    assert refusal is not None
    assert (refusal.status, refusal.device) == (ProbeStatus.BUSY, "cuda:1")


def test_force_runs_beside_others_and_marks_the_result(bench: Bench, stranger: int) -> None:
    assert bench.start(SAY_ANSWER, reading_of(stranger), force=True) == ""
    result = bench.result()
    assert (result.status, result.contaminated) == (ProbeStatus.OK, True)


@pytest.mark.parametrize("reason", [Reason.LOST, Reason.TIMEOUT, Reason.DRIVER])
def test_a_gpu_that_does_not_answer_is_a_fault_and_not_busy(bench: Bench, reason: Reason) -> None:
    bench.start(SAY_ANSWER)
    bench.result()
    assert bench.runner is not None
    assert bench.runner.wait(20)
    silent = DeviceSample(1, 1, processes_absent=Absent(reason))
    refusal = bench.runner.begin("matmul", GPU, silent, bench.results.put)
    assert refusal is not None
    assert refusal.status is ProbeStatus.UNAVAILABLE, "a script that tries again later would never drain the node"
    assert "cannot be read" in refusal.message


def test_no_reading_is_not_taken_for_a_free_gpu(bench: Bench) -> None:
    bench.runner = Runner(folder=bench.tmp_path / "gpuwatch_probes", locks=bench.tmp_path)
    assert "no reading of GPU 1 yet" in bench.again(None)


def test_one_probe_at_a_time_on_a_gpu(bench: Bench) -> None:
    assert bench.start(WAIT) == ""
    assert bench.again(reading_of()) == "probe matmul is running on GPU 1: wait until it ends"


def test_a_probe_of_another_program_holds_the_gpu(bench: Bench, tmp_path: Path, folder: Path) -> None:
    held = probe_locks.lock_gpu(GPU.uuid, tmp_path)
    assert bench.start(SAY_ANSWER) == "another probe is running on GPU 1: wait until it ends"
    os.close(held)
    assert bench.again(reading_of()) == ""
    bench.result()


def test_the_child_keeps_the_lock_when_its_parent_dies(bench: Bench, tmp_path: Path) -> None:
    assert bench.start(WAIT) == ""
    assert bench.lines.get(timeout=20) == "ready"
    pid = bench.child_pid()
    inherited = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    assert str(tmp_path / "gpuwatch-probe-GPU-11.lock") in inherited
    assert probe_locks.lock_gpu(GPU.uuid, tmp_path) == -1


def test_a_lock_that_cannot_be_made_is_named(bench: Bench, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "gpuwatch-probe-GPU-11.lock").symlink_to("/etc/hostname")
    message = bench.start(SAY_ANSWER)
    assert message.startswith("cannot lock GPU 1: ")
    assert "gpuwatch-probe-GPU-11.lock" in message


def test_a_missing_python_is_named_with_the_setting(tmp_path: Path, folder: Path) -> None:
    runner = Runner("/nowhere/python", folder=folder, locks=tmp_path)
    message = runner.start("matmul", GPU, reading_of(), lambda _result: None)
    assert message == "no Python at '/nowhere/python': set probes.python to one that has torch"


def test_an_unknown_probe_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no probe 'matmull'; did you mean matmul"):
        Runner(locks=tmp_path).start("matmull", GPU, reading_of(), lambda _result: None)
    with pytest.raises(UsageError, match="there are: matmul, conv"):
        probe_run.find_probe("zzz")


# --------------------------------------------------------------------------- endings


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('hello')", "exit code 0 and no result"),
        (
            "import sys; print('x: no kernel image\\n', file=sys.stderr); sys.exit(1)",
            "exit code 1 and no result: x: no kernel",
        ),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        (f"print({ANSWER!r} * 2)", "no result"),
        (SAY_ANSWER + "; import sys; sys.exit(1)", "says ok and ended with exit code 1"),
        (SAY_ANSWER.replace('"matmul"', '"conv"'), "another probe: 'conv'"),
        (SAY_ANSWER.replace('"ok"', '"fine"'), "no result"),
        (SAY_ANSWER.replace("GPU-11", "GPU-22"), "measured GPU-22 instead of GPU-11"),
        ("print('x' * 2_000_000)", "more than 1048576 bytes"),
    ],
)
def test_an_answer_that_is_none_is_a_failure_with_a_reason(bench: Bench, script: str, says: str) -> None:
    assert bench.start(script) == ""
    result = bench.result()
    assert result.status is ProbeStatus.FAILED
    assert says in result.message
    assert "\n" not in result.message
    assert result.values == ()


def test_an_invalid_result_keeps_its_status(bench: Bench) -> None:
    assert bench.start(SAY_ANSWER.replace('"ok"', '"invalid"') + "; import sys; sys.exit(1)") == ""
    assert bench.result().status is ProbeStatus.INVALID


def test_a_hung_probe_is_killed_with_its_workers(tmp_path: Path) -> None:
    results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    script = (
        "import os,signal,sys,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "if pid: print(pid, file=sys.stderr, flush=True)\n"
        "time.sleep(60)"
    )
    launch = Launch("matmul", (sys.executable, "-c", script), dict(os.environ), timeout_s=0.5)
    process = ProbeProcess(launch, results.put, lines.put)
    process.start()
    result = results.get(timeout=20)
    worker = int(lines.get(timeout=20))
    assert result.message == f"no result within 0.5 s, killed; it last said: {worker}"
    assert result.status is ProbeStatus.FAILED
    assert gone(worker)
    assert gone(process.pid)


def test_workers_that_outlive_the_probe_are_ended(bench: Bench) -> None:
    script = (
        "import os,sys,time\npid = os.fork()\n"
        "if not pid:\n    time.sleep(60)\n"
        f"print(pid, file=sys.stderr, flush=True)\n{SAY_ANSWER}"
    )
    assert bench.start(script) == ""
    assert bench.result().status is ProbeStatus.OK
    assert gone(int(bench.lines.get(timeout=20)))


def test_somebodys_job_ends_the_probe(bench: Bench, stranger: int) -> None:
    assert bench.start(WAIT) == ""
    assert bench.lines.get(timeout=20) == "ready"
    pid = bench.child_pid()
    assert bench.runner is not None
    bench.runner.check(reading_of(pid, stranger, index=0))
    bench.runner.check(reading_of(pid))
    assert bench.results.empty()
    bench.runner.check(reading_of(pid, stranger))
    result = bench.result()
    assert (result.status, result.contaminated) == (ProbeStatus.BUSY, True)
    assert result.message.startswith(f"stopped: pid {stranger} (")
    assert gone(pid)


def test_a_probe_that_ignores_the_request_to_end_is_killed(bench: Bench, stranger: int) -> None:
    assert bench.start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT) == ""
    assert bench.lines.get(timeout=20) == "ready"
    pid = bench.child_pid()
    assert bench.runner is not None
    bench.runner.check(reading_of(stranger))
    assert bench.result().status is ProbeStatus.BUSY
    assert gone(pid)


def test_our_own_workers_on_the_gpu_are_not_strangers(bench: Bench) -> None:
    script = "import os,sys,time\npid = os.fork()\nif pid: print(pid, file=sys.stderr, flush=True)\ntime.sleep(60)"
    assert bench.start(script) == ""
    worker = int(bench.lines.get(timeout=20))
    assert bench.runner is not None
    bench.runner.check(reading_of(bench.child_pid(), worker))
    assert bench.runner.running()
    bench.runner.stop()
    assert bench.result().message == "stopped on request"
    assert gone(worker)


def test_stop_leaves_nothing_behind(bench: Bench) -> None:
    assert bench.start(WAIT) == ""
    pid = bench.child_pid()
    bench.stop()
    assert bench.result().status is ProbeStatus.FAILED
    assert gone(pid)
    assert bench.runner is not None
    assert bench.runner.running() == []


def test_the_load_of_our_own_probe_does_not_keep_the_next_one_out(tmp_path: Path, folder: Path) -> None:
    now_ns = [0]
    env = {**os.environ, "FAKE_PROBE": SAY_ANSWER}
    runner = Runner(folder=folder, locks=tmp_path, env=env, clock=lambda: now_ns[0])
    results: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
    after = DeviceSample(1, 1, gpu_util_pct=87, mem_used_bytes=0, processes_absent=None)
    assert "87 % busy with a process that cannot be seen" in runner.start("matmul", GPU, after, results.put)
    assert runner.start("matmul", GPU, reading_of(), results.put) == ""
    results.get(timeout=20)
    assert runner.wait(20)
    now_ns[0] += probing.OWN_LOAD_NS - 1
    assert runner.start("matmul", GPU, after, results.put) == "", "NVML's figure is an average that is still ours"
    results.get(timeout=20)
    assert runner.wait(20)
    now_ns[0] += probing.OWN_LOAD_NS
    assert "87 % busy" in runner.start("matmul", GPU, after, results.put), "by then it is somebody else's"


# --------------------------------------------------------------------------- several GPUs at once

PAIR = (GPU, Device(index=3, uuid="GPU-33", name="NVIDIA H200", pci_bus_id="0000:c1:00.0"))


def seats(*samples: DeviceSample) -> list[Seat]:
    return [Seat(device, sample) for device, sample in zip(PAIR, samples, strict=True)]


def on_both(bench: Bench, script: str, *samples: DeviceSample) -> ProbeResult | None:
    """A probe on both GPUs; the refusal, or None when it runs."""
    bench.runner = Runner(
        folder=bench.tmp_path / "gpuwatch_probes", locks=bench.tmp_path, env={**os.environ, "FAKE_PROBE": script}
    )
    at_rest = samples or (reading_of(), reading_of(index=3))
    return bench.runner.begin_on("allreduce", seats(*at_rest), bench.results.put, progress=bench.lines.put)


def test_one_probe_over_several_gpus_sees_them_all_and_its_place_is_all_of_them(bench: Bench) -> None:
    answer = ANSWER.replace('"matmul"', '"allreduce"').replace('"torch":"2.0"', '"seen":"%s"')
    assert on_both(bench, f"import os; print({answer!r} % os.environ['CUDA_VISIBLE_DEVICES'])") is None
    result = bench.result()
    assert (result.status, result.settings["seen"]) == (ProbeStatus.OK, "GPU-11,GPU-33")
    assert (result.device, result.device_uuid) == ("cuda:1,cuda:3", "GPU-11,GPU-33")
    assert result.device_name == "2 × NVIDIA H200", "two cards and eight are no peers"


def test_somebody_on_the_second_gpu_keeps_the_probe_out_of_both(bench: Bench, stranger: int) -> None:
    refusal = on_both(bench, SAY_ANSWER, reading_of(), reading_of(stranger, index=3))
    assert refusal is not None
    assert (refusal.status, refusal.device_uuid) == (ProbeStatus.BUSY, "GPU-11,GPU-33")
    assert refusal.message.startswith(f"GPU 3 is in use by pid {stranger} (")
    other = probe_locks.lock_gpu("GPU-33", bench.tmp_path)
    refusal = on_both(bench, SAY_ANSWER)
    assert refusal is not None
    assert refusal.message == "another probe is running on GPUs 1, 3: wait until it ends"
    first = probe_locks.lock_gpu("GPU-11", bench.tmp_path)
    assert first >= 0, "the lock of the first was given back"
    os.close(first)
    os.close(other)


def test_somebody_who_comes_to_the_second_gpu_gets_both(bench: Bench, stranger: int) -> None:
    assert on_both(bench, WAIT) is None
    assert bench.lines.get(timeout=20) == "ready"
    assert bench.runner is not None
    assert len(bench.runner.running()) == 1
    assert bench.runner.begin("matmul", GPU, reading_of(), bench.results.put) is not None, "both are taken"
    bench.runner.check(reading_of(bench.child_pid()))
    bench.runner.check(reading_of(stranger, index=3))
    result = bench.result()
    assert (result.status, result.contaminated) == (ProbeStatus.BUSY, True)
    assert "started to use GPU 3" in result.message
    assert bench.runner.running() == []
    for uuid in ("GPU-11", "GPU-33"):
        lock = probe_locks.lock_gpu(uuid, bench.tmp_path)
        assert lock >= 0, "free again"
        os.close(lock)


def test_ranks_that_a_container_lists_under_the_hosts_pids_are_not_strangers() -> None:
    hosts = (4_000_001, 4_000_002)
    assert probe_run.intruder(hosts, own=(), invisible=hosts, allowed=2) is None
    assert probe_run.intruder((*hosts, 4_000_003), own=(), invisible=(*hosts, 4_000_003), allowed=2) == 4_000_003
    assert probe_run.intruder(hosts, own=(), invisible=hosts) == 4_000_002


def test_what_several_gpus_did_is_a_mean_of_one_and_the_energy_of_all(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    answer = ANSWER.replace('"matmul"', '"allreduce"')
    assert (
        on_both(bench, f"import os,time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint({answer!r})")
        is None
    )
    assert bench.runner is not None
    for second in (0, 1):
        for index, watts in ((1, 300.0), (3, 500.0)):
            at = second * 1_000_000_000
            bench.runner.check(DeviceSample(index, at, gpu_util_pct=100, power_w=watts, processes_absent=None))
    go.touch()
    observed = bench.result().observed
    assert (observed["power_w"], observed["energy_j"]) == (400.0, 800.0)
    assert observed["energy_per_tflop_j"] == 800.0


def test_a_long_probe_is_not_taken_for_a_hung_one() -> None:
    for spec in probe_run.PROBES:
        assert probe_run.timeout_s(spec, on_gpu=True, seconds=None) >= 2 * spec.gpu_s + 60
        assert probe_run.timeout_s(spec, on_gpu=False, seconds=30.0) >= 2 * spec.cpu_s + 1200


# --------------------------------------------------------------------------- what was seen meanwhile


def test_the_result_says_what_the_gpu_did_meanwhile(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"import os,time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    assert bench.start(wait + SAY_ANSWER) == ""
    assert bench.runner is not None
    for second, watts in enumerate((600.0, 700.0)):
        seen = DeviceSample(1, second * 1_000_000_000, gpu_util_pct=100, power_w=watts, sm_clock_mhz=1755)
        bench.runner.check(seen)
    bench.runner.check(DeviceSample(0, 0, power_w=5000.0))
    go.touch()
    observed = bench.result().observed
    assert (observed["power_w"], observed["energy_j"], observed["sm_clock_mhz"]) == (650.0, 650.0, 1755.0)
    assert observed["energy_per_tflop_j"] == 650.0
    assert "tensor_active_pct" not in observed, "what was not read is not zero"


def test_a_long_run_does_not_keep_all_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "MOST_SAMPLES", 4)
    samples = [DeviceSample(1, number) for number in range(5)]
    assert [sample.mono_ns for sample in probing.thinned(samples)] == [0, 2, 4]


# --------------------------------------------------------------------------- the daemon survives its probes

BAD_ENDINGS = {
    "crash": ("import os; os.abort()", "signal 6"),
    "out of memory": (
        "import sys; print('matmul: CUDA out of memory', file=sys.stderr); sys.exit(1)",
        "CUDA out of memory",
    ),
    "killed": ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    "nan": (SAY_ANSWER.replace('"median":1.0', '"median":NaN'), "its output is no result"),
    "silent": ("pass", "exit code 0 and no result"),
    "hung": (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT,
        "no result within 1 s, killed; it last said: ready",
    ),
}


@pytest.mark.parametrize("name", BAD_ENDINGS)
def test_the_daemon_publishes_why_a_probe_ended_and_the_gpu_is_free_again(
    name: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, says = BAD_ENDINGS[name]
    if name == "hung":
        monkeypatch.setattr(probe_run, "timeout_s", lambda *_spec: 1.0)
    published: list[wire.StreamMessage] = []
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    runner = Runner(folder=folder, locks=tmp_path, env={**os.environ, "FAKE_PROBE": script})
    picture = Picture(lambda samples: samples[-1])
    picture.inventory = Inventory(NodeInfo("node1", "6.1", "boot", 64, 1 << 40), (GPU,))
    picture.devices[1] = reading_of()
    service = ProbeService(
        runner,
        ProbesConfig(),
        picture,
        publish=lambda make: published.append(make(1, len(published))),
        wake=lambda: woken.put(None),
    )
    assert isinstance(service.answer(wire.StartProbe(7, "matmul", 1)), wire.Accepted)
    woken.get(timeout=20)
    assert runner.wait(20)
    service.step()
    (message,) = published
    assert isinstance(message, wire.ProbeMessage)
    assert message.result.status is ProbeStatus.FAILED
    assert says in message.result.message
    assert service.occupied == set()
    lock = probe_locks.lock_gpu(GPU.uuid, tmp_path)
    assert lock >= 0, "the lock is free"
    os.close(lock)
    service.observe((reading_of(),), 1)
    again = service.answer(wire.StartProbe(8, "conv", 1))
    assert isinstance(again, wire.Accepted), again
    service.stop()
