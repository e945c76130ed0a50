"""Small jobs built from model values: the case that no recording shows."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.diagnose.thresholds import GPM_LAG_NS
from gpuwatch.model import (
    NOT_SUPPORTED,
    Absent,
    CgroupSample,
    Device,
    DeviceProcess,
    DeviceSample,
    Frame,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Reason,
    Role,
    SourceLine,
    StackSample,
    ThreadStack,
)

PID = 4242
SECONDS = 10.0
STEP_NS = 100_000_000
LIB = "/opt/env/lib/python3.12/site-packages/"

WAITING = (
    Frame("Condition.wait", "/usr/lib/python3.12/threading.py", 359),
    Frame("Queue.get", "/usr/lib/python3.12/queue.py", 180),
    Frame("_MultiProcessingDataLoaderIter._try_get_data", LIB + "torch/utils/data/dataloader.py", 1310),
    Frame("_MultiProcessingDataLoaderIter._get_data", LIB + "torch/utils/data/dataloader.py", 1473),
    Frame("_BaseDataLoaderIter.__next__", LIB + "torch/utils/data/dataloader.py", 741),
    Frame("fit", "/home/ann/fit.py", 30),
)
FETCHING = (
    Frame("ImageFile.load", LIB + "PIL/ImageFile.py", 412),
    Frame("Photos.__getitem__", "/home/ann/photos.py", 12),
    Frame("_MapDatasetFetcher.fetch", LIB + "torch/utils/data/_utils/fetch.py", 54),
    Frame("_SingleProcessDataLoaderIter._next_data", LIB + "torch/utils/data/dataloader.py", 789),
    Frame("fit", "/home/ann/fit.py", 30),
)
LAUNCHING = (
    Frame("Linear.forward", LIB + "torch/nn/modules/linear.py", 134),
    Frame("Module._call_impl", LIB + "torch/nn/modules/module.py", 1790),
    Frame("fit", "/home/ann/fit.py", 33),
)
USER_LINE = (Frame("fit", "/home/ann/fit.py", 35), Frame("<module>", "/home/ann/fit.py", 90))
WORKER_QUEUE = (
    Frame("_PollLikeSelector.select", "/usr/lib/python3.12/selectors.py", 415),
    Frame("Queue.get", "/usr/lib/python3.12/multiprocessing/queues.py", 113),
    Frame("_worker_loop", LIB + "torch/utils/data/_utils/worker.py", 330),
)
WORKER_FETCH = (
    Frame("Photos.__getitem__", "/home/ann/photos.py", 12),
    Frame("_MapDatasetFetcher.fetch", LIB + "torch/utils/data/_utils/fetch.py", 54),
    Frame("_worker_loop", LIB + "torch/utils/data/_utils/worker.py", 358),
)


def inventory(cpus: int = 16, *, gpm: bool = True) -> Inventory:
    """One H200 in a machine with ``cpus`` CPUs."""
    node = NodeInfo("node", "6.1", "boot", cpus, 2**37)
    device = Device(0, "GPU-1", "NVIDIA H200", "0000:05:00.0", "Hopper", "9.0", 141 * 2**30, 0, 700.0, 1980, gpm)
    return Inventory(node, (device,))


def times(seconds: float = SECONDS) -> list[int]:
    """Instants 100 ms apart."""
    return [10**12 + i * STEP_NS for i in range(1, int(seconds * 10) + 1)]


def gpu(
    busy_pct: Sequence[float],
    *,
    sm_of_busy: float = 0.9,
    rx: float = 1e7,
    util_only: bool = False,
    pids: Sequence[int] = (PID,),
) -> list[Observation]:
    """GPM windows of 100 ms with this busy percentage, repeated to fill ten seconds, as late as real ones."""
    samples: list[Observation] = []
    lag = 0 if util_only else GPM_LAG_NS
    for i, t in enumerate(at + lag for at in times()):
        busy = busy_pct[i % len(busy_pct)]
        listed = tuple(DeviceProcess(pid, 20 * 2**30, "C") for pid in pids)
        common = {"processes": listed, "processes_absent": None, "mem_used_bytes": 20 * 2**30, "sm_clock_mhz": 1980}
        if util_only:
            samples.append(DeviceSample(0, t, gpu_util_pct=int(busy), busy_pct=NOT_SUPPORTED, **common))  # type: ignore[arg-type]
        else:
            samples.append(
                DeviceSample(
                    0, t, gpu_util_pct=int(busy), gpm_window_ns=STEP_NS, busy_pct=busy, sm_active_pct=busy * sm_of_busy,
                    tensor_active_pct=busy / 8, dram_active_pct=busy / 3, fp32_active_pct=3.0,
                    pcie_rx_bytes_per_s=rx, pcie_tx_bytes_per_s=1e6, **common,  # type: ignore[arg-type]
                )
            )  # fmt: skip
    return samples


def process(
    pid: int,
    cores: float,
    *,
    threads: int = 3,
    state: str = "R",
    reads_per_s: float = 0.0,
    main_cores: float | None = None,
) -> list[ProcessSample]:
    """One process at a steady rate."""
    start = times()[0]
    found = []
    for t in times()[::3]:
        ns = int(cores * (t - start))
        main = int((cores if main_cores is None else main_cores) * (t - start))
        found.append(
            ProcessSample(
                pid, 7, t, state, 100 * cores, ns, 0, main, state, threads, 1, 2**30, 0, 0, 0,
                int(reads_per_s * (t - start) / 1e9 * 65536), int(reads_per_s * (t - start) / 1e9), 0,
                "futex_do_wait" if state == "S" else Absent(Reason.NOT_FOUND),
            )
        )  # fmt: skip
    return found


def ticks(
    main: list[ProcessSample], workers: Sequence[list[ProcessSample]] = (), quota: tuple[float, float] | None = None
) -> list[Observation]:
    """ProcessTicks of a job; ``quota`` is (cores, throttled share of the periods)."""
    infos = [
        ProcessInfo(PID, 7, 1, PID, Role.MAIN, "python", "python fit.py", "ann", 1000, device_indices=(0,), python=True)
    ]
    for series in workers:
        infos.append(
            ProcessInfo(
                series[0].pid,
                7,
                PID,
                PID,
                Role.LOADER_WORKER,
                "pt_data_worker",
                "python fit.py",
                "ann",
                1000,
                python=True,
            )
        )
    out: list[Observation] = []
    for i, sample in enumerate(main):
        cgroups = ()
        if quota is not None:
            periods = i * 3
            cgroups = (CgroupSample(PID, sample.mono_ns, quota[0], periods, int(periods * quota[1]), periods * 1000),)  # type: ignore[assignment]
        samples = (sample, *(series[i] for series in workers))
        out.append(ProcessTick(sample.mono_ns, samples, cgroups, tuple(infos) if i == 0 else ()))
    return out


def stacks(kinds: Sequence[tuple[tuple[Frame, ...], bool]], pid: int = PID, *, every: int = 1) -> list[Observation]:
    """Main-thread samples in the middle of each window, cycling through ``kinds`` of (frames, active)."""
    found: list[Observation] = []
    for i, t in enumerate(times()[::every]):
        frames, active = kinds[i % len(kinds)]
        thread = ThreadStack(pid, "MainThread", active, False, frames)
        found.append(StackSample(pid, PID, t - STEP_NS // 2, (thread,)))
    return found


def host(busy_pct: float = 10.0) -> list[Observation]:
    """The host at a steady CPU load."""
    return [HostSample(t, busy_pct, cpus_online=16) for t in times()[::10]]


def source(text: str, line: int = 35) -> Observation:
    """The text of a line of fit.py."""
    return SourceLine(PID, times()[0], "/home/ann/fit.py", line, text)
