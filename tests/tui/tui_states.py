"""Node states that the screen tests draw, built from model objects with numbers of real cards.

The clock is ``NOW_NS``; histories are deterministic.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from msgspec.structs import replace

from gpuwatch.client.events import Event, EventKind
from gpuwatch.client.rates import IoRate
from gpuwatch.client.state import DeviceHistory, Link, NodeState, TimedBurst, connecting
from gpuwatch.model import (
    NOT_SUPPORTED,
    Absent,
    AccountShare,
    BurstSummary,
    CgroupSample,
    ClocksEvent,
    CodeLocation,
    Confidence,
    CoreGroup,
    Device,
    DeviceHealth,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    DriverState,
    EventOrigin,
    EventRecord,
    EvidenceRow,
    Finding,
    FindingSpan,
    HostSample,
    Inventory,
    NodeInfo,
    Pressure,
    ProbeResult,
    ProbeStatus,
    ProbeValue,
    ProcessInfo,
    ProcessSample,
    ProcessUtil,
    RankPlace,
    Reason,
    Role,
    Severity,
    Source,
    SourceKind,
    Standing,
    StepReport,
    StepTimes,
)
from gpuwatch.model import EventKind as DriverEvent
from gpuwatch.wire import AccountPoint, DiagnosisProgress, History, HistorySeries, ReplayPosition

GIB = 1 << 30
SECOND = 1_000_000_000
NOW_NS = 50_000 * SECOND
WALL_NS = int(datetime(2026, 11, 30, 17, 20, 31, tzinfo=UTC).timestamp()) * SECOND
MAIN = 4242
LIVE = Source(SourceKind.LIVE)


def device(index: int, *, gpm: bool = True) -> Device:
    name, total, limit = ("NVIDIA H200", 141, 700.0) if gpm else ("NVIDIA A100-SXM4-80GB", 80, 400.0)
    return Device(
        index,
        f"GPU-{index:08d}",
        name,
        f"0000:{0x1A + index:02x}:00.0",
        mem_total_bytes=total * GIB,
        power_limit_w=limit,
        sm_clock_max_mhz=1980,
        gpm=gpm,
    )


def sample(index: int, mono_ns: int = NOW_NS, phase: float = 0.0, *, starved: bool = False) -> DeviceSample:
    """A plausible reading: GPU 0 starves in bursts, the others compute more or less."""
    beat = 0.5 + 0.5 * math.sin(phase / 7 + index)
    place = index % 8
    busy = 11 + 9 * beat if starved else 97 - 3 * place - 12 * beat
    sm = busy * (0.55 if starved else 0.9 - 0.07 * place)
    return DeviceSample(
        index,
        mono_ns,
        gpu_util_pct=100 if not starved else 38,
        mem_util_pct=20,
        mem_used_bytes=int((13.4 + 16 * place) * GIB),
        power_w=round(138 + 40 * beat if starved else 600 - 20 * place + 30 * beat),
        temp_c=41 if starved else 61 + place,
        sm_clock_mhz=1980 - 15 * place,
        mem_clock_mhz=3201,
        clocks_event_reasons=int(ClocksEvent.SW_POWER_CAP) if index == 1 else 0,
        gpm_window_ns=SECOND,
        busy_pct=busy,
        sm_active_pct=sm,
        sm_occupancy_pct=sm / 2.5,
        tensor_active_pct=sm * (0.1 if starved else 0.6 - 0.06 * place),
        fp32_active_pct=3.0,
        dram_active_pct=busy * 0.4,
        pcie_rx_bytes_per_s=1.2 * GIB,
        pcie_tx_bytes_per_s=0.02 * GIB,
        processes=(DeviceProcess(MAIN + 1000 * index, int((12.9 + 16 * place) * GIB), "C"),),
        processes_absent=None,
        nvml_ns=900_000,
    )


def history(index: int, seconds: int = 100, *, starved: bool = False) -> DeviceHistory:
    start = NOW_NS - (seconds - 1) * SECOND
    return DeviceHistory(tuple(sample(index, start + t * SECOND, float(t), starved=starved) for t in range(seconds)))


def host() -> HostSample:
    return HostSample(
        NOW_NS,
        cpu_busy_pct=13.0,
        core_groups=(CoreGroup("node0", 8, 14.0, 0.2), CoreGroup("node1", 8, 12.0, 0.0)),
        psi_cpu=Pressure(0.4),
        psi_io=Pressure(0.0),
        psi_memory=Pressure(0.0),
        mem_total_bytes=512 * GIB,
        mem_available_bytes=471 * GIB,
        swap_used_bytes=0,
        load_1m=2.1,
        shm_total_bytes=64 * GIB,
        shm_used_bytes=GIB,
        cpus_online=16,
    )


def infos(index: int = 0, workers: int = 1) -> dict[int, ProcessInfo]:
    pid = MAIN + 1000 * index
    main = ProcessInfo(
        pid,
        100,
        1,
        pid,
        Role.MAIN,
        "python",
        "python train.py --data /data/imagenet --workers 1 --batch-size 256",
        "ada",
        1000,
        cgroup="/user.slice/user-1000.slice/session-7.scope",
        container="slurm job 42",
        device_indices=(index,),
        python=True,
    )
    out = {pid: main}
    for number in range(workers):
        child = pid + 1 + number
        out[child] = replace(main, pid=child, ppid=pid, role=Role.LOADER_WORKER, comm="pt_data_worker")
    return out


def processes(index: int = 0, workers: int = 1) -> dict[int, ProcessSample]:
    pid = MAIN + 1000 * index
    out = {
        pid: ProcessSample(
            pid, 100, NOW_NS, "S", 9.0, num_threads=71, running_threads=1, rss_bytes=4 * GIB, read_bytes=0,
            wchan="futex_wait_queue",
        )
    }  # fmt: skip
    for number in range(workers):
        child = pid + 1 + number
        out[child] = ProcessSample(
            child, 100, NOW_NS, "R", 99.6, num_threads=1, running_threads=1, rss_bytes=GIB, read_bytes=900 * GIB
        )
    return out


def finding() -> Finding:
    return Finding(
        cause="loader_too_few_workers",
        summary="The GPU waits for data: the only loader worker is busy all the time while 14 cores are idle.",
        severity=Severity.CRITICAL,
        lost_share=0.88,
        gain_max=8.3,
        gain_basis="1 / (1 - 0.88): if the whole wait for data went away and nothing else took its place.",
        confidence=Confidence.HIGH,
        evidence=(
            EvidenceRow("main thread waits in the loader", 88.0, "%", "stack samples (n=48)", 5.0),
            EvidenceRow("workers busy", 99.6, "%", "/proc", 20.0),
            EvidenceRow("cores that are free", 14.0, "", "/proc/stat", 20.0, "of 16 allowed"),
            EvidenceRow("GPU busy", 11.9, "%", "GPM", 20.0),
            EvidenceRow("read from storage", 3.1 * (1 << 20), "bytes/s", "/proc/PID/io", 20.0),
        ),
        remedy="Raise num_workers from 1 to 8 in the DataLoader and set persistent_workers=True; "
        "then measure again, because the next limit may be the transform itself.",
        location=CodeLocation("/home/ada/project/train.py", 88, "main", 0.94),
        alternatives=("loader_slow_transform",),
        experiment="run with num_workers=8 for a minute: if the wait halves, it was the number of workers",
    )


def diagnosis(pid: int = MAIN, index: int = 0) -> Diagnosis:
    second = Finding(
        "pageable_copies",
        "Batches are copied from pageable memory, so each copy blocks the Python thread.",
        Severity.WARNING,
        0.11,
        1.12,
        "share of samples in the copy",
        Confidence.MEDIUM,
        remedy="pin_memory=True and .to(device, non_blocking=True)",
        standing=Standing.CONTRIBUTING,
    )
    return Diagnosis(
        pid,
        (index,),
        20.0,
        (finding(), second),
        account=(
            AccountShare("waiting_for_data", 0.762),
            AccountShare("computing", 0.119),
            AccountShare("copying", 0.079),
            AccountShare("other_host_work", 0.037),
            AccountShare("unattributed", 0.003),
        ),
        command="python train.py",
        end_mono_ns=NOW_NS - 42 * SECOND,
        end_wall_ns=WALL_NS - 42 * SECOND,
        missing=("stacks of pid 4243: permission denied; set kernel.yama.ptrace_scope=0 or run as its user",),
    )


def node(count: int = 1, *, gpm: bool = True, source: Source = LIVE) -> Inventory:
    return Inventory(
        NodeInfo("h200-07.cluster", "6.8.0", "boot", 16, 512 * GIB, "580.95.05", "13.0", "13.580.95", "0.1.0"),
        tuple(device(i, gpm=gpm) for i in range(count)),
        source=source,
    )


def live(count: int = 1, *, seconds: int = 100, diagnosed: bool = True) -> NodeState:
    state = NodeState(
        "ipc:///run/gpuwatch/stream",
        Link.LIVE,
        inventory=node(count),
        devices={i: sample(i, phase=99.0, starved=i == 0) for i in range(count)},
        history={i: history(i, seconds, starved=i == 0) for i in range(count)},
        host=host(),
        tick_mono_ns=NOW_NS,
        tick_wall_ns=WALL_NS,
        heard_ns=NOW_NS,
        ticked_ns=NOW_NS,
        diagnoses=(diagnosis(),) if diagnosed else (),
        cgroups={MAIN: CgroupSample(MAIN, NOW_NS, 8.0, 1000, 120, 5_000_000)},
    )
    for i in range(count):
        state = replace(
            state,
            infos=state.infos | infos(i, 1 if i == 0 else 4),
            processes=state.processes | processes(i, 1 if i == 0 else 4),
        )
    return state


def ranks() -> NodeState:
    """A job of two ranks under torchrun: rank 0 starves, rank 1 waits for it with a GPU that reads busy."""
    state = live(2)
    second = MAIN + 1000
    places = {MAIN: RankPlace(0, 2, "tcp h200-07:29500"), second: RankPlace(1, 2, "tcp h200-07:29500")}
    mains = {pid: replace(state.infos[pid], place=place, ppid=4000) for pid, place in places.items()}
    launcher = replace(
        state.infos[MAIN], pid=4000, role=Role.PARENT, comm="torchrun", command="torchrun --nproc-per-node 2 train.py",
        device_indices=(),
    )  # fmt: skip
    wait = Finding(
        "nvlink_or_collective_wait",
        "This rank waits for the others in collective operations 86 % of the time: its GPU is busy without working. "
        f"The one it waits for is pid {MAIN} on GPU 0, rank 0, whose GPU idles.",
        Severity.CRITICAL,
        0.86,
        7.1,
        "this rank never waits; the slowest rank sets the pace of all",
        Confidence.MEDIUM,
        (EvidenceRow("gpu busy", 99.2, "%", "GPM", 20.0), EvidenceRow("SM active", 21.0, "%", "GPM", 20.0)),
        f"Diagnose pid {MAIN}: gpuwatch diagnose --pid {MAIN}. Nothing is wrong with this rank.",
    )
    waiting = Diagnosis(second, (1,), 20.0, (wait,), command="python train.py", end_mono_ns=NOW_NS - 20 * SECOND)
    spinning = replace(state.devices[1], gpu_util_pct=100, busy_pct=99.2, sm_active_pct=21.0, tensor_active_pct=1.5)
    return replace(
        state,
        infos=state.infos | mains | {4000: launcher},
        devices=state.devices | {1: spinning},
        diagnoses=(*state.diagnoses, waiting),
    )


def stale() -> NodeState:
    return replace(live(2), link=Link.STALE, detail="last sample 7 s ago", ticked_ns=NOW_NS - 7 * SECOND)


def lost() -> NodeState:
    return replace(live(2), link=Link.LOST, detail="nothing heard for 42 s", ticked_ns=NOW_NS - 43 * SECOND)


def hung() -> NodeState:
    """GPU 3 of eight has not answered for twelve seconds."""
    state = live(8)
    late = replace(state.devices[3], mono_ns=NOW_NS - 12 * SECOND)
    return replace(state, devices=state.devices | {3: late})


def absent() -> NodeState:
    """GPU 0 has no tensor counter and no permission for power; GPU 1 was lost."""
    state = live(2)
    first = replace(
        state.devices[0],
        tensor_active_pct=NOT_SUPPORTED,
        power_w=Absent(Reason.NO_PERMISSION),
        processes=(),
        processes_absent=Absent(Reason.NO_PERMISSION, "container without --pid=host"),
    )
    away = Absent(Reason.LOST)
    gone = DeviceSample(
        1, NOW_NS, gpu_util_pct=away, mem_used_bytes=away, power_w=away, temp_c=away, sm_clock_mhz=away,
        busy_pct=away, sm_active_pct=away, tensor_active_pct=away, dram_active_pct=away, processes_absent=away,
    )  # fmt: skip
    return replace(state, devices={0: first, 1: gone})


def without_gpm() -> NodeState:
    """An A100: NVML's utilization is the only proxy."""
    state = live(1, diagnosed=False)

    def proxy(s: DeviceSample) -> DeviceSample:
        return replace(
            s, busy_pct=NOT_SUPPORTED, sm_active_pct=NOT_SUPPORTED, tensor_active_pct=NOT_SUPPORTED,
            dram_active_pct=NOT_SUPPORTED, sm_occupancy_pct=NOT_SUPPORTED,
        )  # fmt: skip

    return replace(
        state,
        inventory=node(1, gpm=False),
        devices={0: proxy(state.devices[0])},
        history={0: DeviceHistory(tuple(proxy(s) for s in state.history[0].samples))},
    )


def recorded(*, ended: bool = False) -> NodeState:
    source = Source(SourceKind.RECORDED, "starved-loader.gwrec", WALL_NS - 86_400 * SECOND, 1.0, ended)
    return replace(live(1), inventory=node(1, source=source))


def no_driver() -> NodeState:
    inventory = replace(
        node(0),
        driver=DriverState.NO_DRIVER,
        driver_hint="libnvidia-ml is installed, the kernel module is not loaded: try modprobe nvidia, then nvidia-smi.",
    )
    return replace(live(0, diagnosed=False), inventory=inventory)


def no_gpus() -> NodeState:
    return live(0, diagnosed=False)


def no_processes() -> NodeState:
    state = live(1, diagnosed=False)
    return replace(
        state,
        infos={},
        processes={},
        devices={0: replace(state.devices[0], processes=(), busy_pct=0.0, sm_active_pct=0.0)},
    )


def diagnosing() -> NodeState:
    progress = DiagnosisProgress(1, 2, MAIN, (0,), 8.0, 20.0, "sampling stacks")
    return replace(live(1, diagnosed=False), progress=progress)


def waiting() -> NodeState:
    return NodeState("ipc:///run/gpuwatch/stream", Link.LIVE, inventory=node(2), ticked_ns=NOW_NS)


def incompatible() -> NodeState:
    detail = "the daemon speaks protocol 2.0, this client 1.0: update gpuwatch on this machine"
    return replace(connecting("ipc:///run/gpuwatch/stream", detail), link=Link.INCOMPATIBLE)


def strange_names() -> NodeState:
    """Wide characters and control characters in names that users choose."""
    state = live(1)
    info = replace(state.infos[MAIN], command="python 学習.py \x1b[31m --name=Привет\u202e", user="李雷")
    return replace(state, infos=state.infos | {MAIN: info})


def eventful() -> NodeState:
    """A morning: a finding, heat, a probe that was refused, a daemon that was away."""
    wall = WALL_NS - 3600 * SECOND
    told = (
        (EventKind.LINK, Severity.CRITICAL, "lost the daemon: nothing heard for 11 s", -1),
        (EventKind.LINK, Severity.INFO, "readings come", -1),
        (EventKind.JOB, Severity.INFO, "4242 python train.py of ada began on GPU 0", 0),
        (EventKind.FINDING, Severity.CRITICAL, f"4242: loader_too_few_workers: {finding().summary}", 0),
        (EventKind.THROTTLE, Severity.WARNING, "clocks held down: too hot (driver)", 1),
        (EventKind.THROTTLE, Severity.INFO, "clocks free again: too hot (driver) over", 1),
        (EventKind.PROBE, Severity.WARNING, "probe matmul on NVIDIA H200: busy, pid 4242 is on the GPU", -1),
        (EventKind.GPU, Severity.CRITICAL, "its driver call does not return", 1),
    )
    events = tuple(
        Event(wall + place * 61 * SECOND, kind, severity, text, index)
        for place, (kind, severity, text, index) in enumerate(told)
    )
    return replace(live(2), events=tuple(reversed(events)))


def bursty(seconds: int = 60) -> NodeState:
    """Sub-second samples of a minute, and what each process uses, are there. For five seconds the GPU was idle and its
    ring dark."""
    patterns = ((0, 0, 100, 100, 40), (0, 0, 0, 90, 100, 10), (60, 100, 100, 0, 0))

    def burst(ago: int) -> TimedBurst:
        if 20 <= ago < 25:
            quiet = BurstSummary(0, (), 96, 97, 98)
            return TimedBurst(NOW_NS - ago * SECOND, quiet)
        told = BurstSummary(0, patterns[ago % 3], 120 + ago % 7, 188, 411 - 9 * (ago % 5))
        return TimedBurst(NOW_NS - ago * SECOND, told)

    history = tuple(burst(ago) for ago in range(seconds - 1, -1, -1))
    newest = BurstSummary(0, (0, 0, 100, 100, 40, 0, 0, 10), 120, 188, 411)
    history = (*history[:-1], TimedBurst(NOW_NS, newest))
    health = DeviceHealth(0, NOW_NS, process_utils=(ProcessUtil(MAIN, 17),), process_utils_absent=None)
    return replace(live(1), bursts={0: newest}, burst_history={0: history}, health={0: health})


def faulty() -> NodeState:
    """Held down by power and heat, and the driver told of the job's fault, the card's memory and the card."""
    state = live(1)

    def held(sample: DeviceSample, ago: int) -> DeviceSample:
        bits = ClocksEvent.SW_POWER_CAP if 30 <= ago < 80 else ClocksEvent(0)
        bits |= ClocksEvent.SW_THERMAL if 40 <= ago < 50 else ClocksEvent(0)
        bits |= ClocksEvent.HW_SLOWDOWN if 44 <= ago < 47 else ClocksEvent(0)
        return replace(sample, clocks_event_reasons=int(bits))

    samples = state.history[0].samples
    kept = tuple(held(s, len(samples) - 1 - place) for place, s in enumerate(samples))

    def told(ago: int, kind: DriverEvent, origin: EventOrigin, xid: int = 0) -> EventRecord:
        return EventRecord(0, NOW_NS - ago * SECOND, WALL_NS - ago * SECOND, kind, origin, xid)

    events = (
        told(6, DriverEvent.XID, EventOrigin.APPLICATION, 31),
        told(45, DriverEvent.XID, EventOrigin.HARDWARE, 79),
        told(46, DriverEvent.ECC_UNCORRECTED, EventOrigin.HARDWARE),
        told(70, DriverEvent.ECC_UNCORRECTED, EventOrigin.HARDWARE),
        told(95, DriverEvent.RECOVERY_ACTION, EventOrigin.DRIVER),
        told(4000, DriverEvent.XID, EventOrigin.HARDWARE, 48),
    )
    return replace(state, history={0: DeviceHistory(kept)}, device_events=events)


def probed() -> NodeState:
    """Copies and matmul have been measured on GPU 0."""
    copies = ProbeResult(
        "copies",
        ProbeStatus.OK,
        "cuda:0",
        (
            ProbeValue("h2d_pinned_256MiB", "GB/s", 54.9, 54.7, 55.0, 30),
            ProbeValue("d2h_pinned_256MiB", "GB/s", 53.1, 52.9, 53.3, 30),
            ProbeValue("h2d_pageable_256MiB", "GB/s", 9.4, 9.1, 9.8, 30),
        ),
        "GPU-00000000",
        "NVIDIA H200",
        WALL_NS - 7200 * SECOND,
        12.5,
    )
    matmul = replace(
        copies,
        probe="matmul",
        values=(ProbeValue("bf16", "TFLOP/s", 712.0, 705.0, 716.0, 20),),
        notes=("clocks were not locked",),
        started_wall_ns=WALL_NS - 60 * SECOND,
    )
    refused = replace(
        copies, probe="conv", status=ProbeStatus.BUSY, values=(), message="pid 4242 (python) is on the GPU: wait for it"
    )
    return replace(live(1), probes=(matmul, copies, refused))


def past(window_s: int = 3600) -> NodeState:
    """The daemon has told the last hour: ramps, a gap of ten minutes, five minutes too hot."""
    points = 300
    step = window_s * SECOND // points
    busy = tuple(None if 100 <= k < 150 else 300 + 2 * k for k in range(points))
    high = tuple(None if v is None else min(1000, v + 150) for v in busy)
    low = tuple(None if v is None else v - 150 for v in busy)
    sm = tuple(None if v is None else v // 2 for v in busy)
    series = (
        HistorySeries("busy_pct", 0.1, busy, low, high),
        HistorySeries("sm_active_pct", 0.1, sm, sm, sm),
        HistorySeries("power_w", 1.0, tuple(None if v is None else 100 + v // 2 for v in busy)),
    )
    reasons = tuple(int(ClocksEvent.SW_THERMAL) if 200 <= k < 225 else 0 for k in range(points))
    start = (NOW_NS // step - points + 1) * step
    xid = EventRecord(0, NOW_NS - 600 * SECOND, WALL_NS - 600 * SECOND, DriverEvent.XID, EventOrigin.APPLICATION, 31)
    return replace(live(1), device_events=(xid,), past=History(1, 0, float(window_s), start, step, series, reasons))


def replayed() -> NodeState:
    position = ReplayPosition(1, 2, NOW_NS - 23 * SECOND, 23.0, 40.0, 2.0, paused=True)
    return replace(recorded(), replay=position)


def ten_findings() -> NodeState:
    found = diagnosis()
    more = tuple(replace(found.findings[1], cause=f"cause_{k}", lost_share=0.1 - k / 100) for k in range(8))
    return replace(live(1), diagnoses=(replace(found, findings=(*found.findings, *more)),))


def course() -> NodeState:
    """Forty diagnoses: a start, a loader that starves the GPU, a remedy that half works, copies, then worse again."""
    phases = (
        (2, "warming_up", {"other_host_work": 700, "compiling": 200, "idle": 100}),
        (12, "loader_too_few_workers", {"waiting_for_data": 762, "computing": 120, "copying": 79, "unattributed": 39}),
        (14, "loader_slow_transform", {"waiting_for_data": 310, "computing": 600, "copying": 60, "launching": 30}),
        (5, "pageable_copies", {"computing": 450, "copying": 400, "synchronising": 150}),
        (6, "loader_too_few_workers", {"waiting_for_data": 750, "computing": 130, "copying": 80, "communicating": 40}),
        (
            1,
            "loader_too_few_workers",
            {"waiting_for_data": 762, "computing": 119, "copying": 79, "other_host_work": 40},
        ),
    )
    told = [(cause, shares) for count, cause, shares in phases for _ in range(count)]
    points = tuple(
        AccountPoint(WALL_NS - (42 + 95 * (len(told) - 1 - place)) * SECOND, cause, shares)
        for place, (cause, shares) in enumerate(told)
    )
    return replace(live(1), accounts={(MAIN, (0,)): points})


def hooked() -> NodeState:
    """The job tells its step time and data wait."""
    state = live(1)
    measured = StepTimes(62, 0.3226, 0.412, 0.2459, 0.3331, 0.762, in_account=True)
    told = StepReport(
        *(MAIN, NOW_NS - SECOND // 3, SECOND // 2, 2, 480_000_000, 260_000_000, 361_000_000, 190_000_000, 1, MAIN)
    )
    return replace(state, diagnoses=(replace(state.diagnoses[0], steps=measured),), steps={MAIN: (told,)})


def remembered() -> NodeState:
    """The screen was opened at 17:00; the daemon knows of findings and an XID of before."""

    def span(cause: str, since_min: int, over_min: int, why: str, pid: int = MAIN) -> FindingSpan:
        over = WALL_NS - over_min * 60 * SECOND if over_min else 0
        since = WALL_NS - since_min * 60 * SECOND
        return FindingSpan(
            pid, (0,), cause, Severity.CRITICAL, since, over or WALL_NS, 0.88, over, "python train.py", why
        )

    xid = EventRecord(
        1, 0, WALL_NS - 26 * 3600 * SECOND, DriverEvent.XID, EventOrigin.HARDWARE, 48, text="uncorrectable memory error"
    )
    opened = WALL_NS - 1231 * SECOND
    found = diagnosis().verdict
    own = (
        Event(WALL_NS - 300 * SECOND, EventKind.THROTTLE, Severity.WARNING, "clocks held down: too hot (driver)", 1),
        Event(
            WALL_NS - 42 * SECOND, EventKind.FINDING, Severity.CRITICAL, f"4242: {found.cause}: {found.summary}", 0,
            MAIN, found.cause,
        ),
        Event(opened, EventKind.LINK, Severity.INFO, "readings come"),
    )  # fmt: skip
    spans = (
        span("loader_hung", 700, 611, "the job ended", 3111),
        span("pageable_copies", 95, 70, "not found any more"),
        span("loader_too_few_workers", 64, 0, ""),
    )
    return replace(live(2), events=own, spans=spans, device_events=(xid,))


def writing() -> NodeState:
    """A job that writes a checkpoint while its worker reads; nothing is known of the SMs of the others."""
    rates = {MAIN: IoRate(0.0, 1.4e9), MAIN + 1: IoRate(3.1 * (1 << 20), Absent(Reason.NO_PERMISSION))}
    return replace(bursty(), io_rates=rates)


def mig() -> NodeState:
    """Two instances of one card: NVML's utilization does not exist there, memory is the instance's."""
    state = live(2, diagnosed=False)
    assert state.inventory is not None
    parts = tuple(
        replace(d, name=f"NVIDIA H200 MIG {profile}", mem_total_bytes=size * GIB, power_limit_w=NOT_SUPPORTED)
        for d, (profile, size) in zip(state.inventory.devices, (("3g.71gb", 70), ("1g.18gb", 17)), strict=True)
    )
    samples = {
        index: replace(s, gpu_util_pct=NOT_SUPPORTED, power_w=NOT_SUPPORTED, mem_used_bytes=(index + 1) * 5 * GIB)
        for index, s in state.devices.items()
    }
    return replace(state, inventory=replace(state.inventory, devices=parts), devices=samples)


def mig_tree() -> NodeState:
    """GPU 0 is divided and its instances have the processes; GPU 1 is whole."""
    state = live(2, diagnosed=False)
    assert state.inventory is not None
    gpu, whole = state.inventory.devices
    shares = {100: ("3g.71gb", 70, 4), 101: ("1g.18gb", 17, 5), 104: ("1g.18gb", 17, 2)}
    parts = tuple(
        replace(
            gpu, index=index, uuid=f"MIG-{index:08d}", name=f"NVIDIA H200 MIG {profile}", mem_total_bytes=size * GIB,
            power_limit_w=NOT_SUPPORTED, parent_uuid=gpu.uuid, mig_profile=profile,
        )
        for index, (profile, size, _) in shares.items()
    )  # fmt: skip
    samples = {
        index: replace(
            sample(place, phase=99.0), device_index=index, gpu_util_pct=NOT_SUPPORTED, power_w=NOT_SUPPORTED,
            mem_used_bytes=(place + 1) * GIB, processes=(DeviceProcess(MAIN, GIB, "C"),) if index == 100 else (),
        )
        for index, (_, _, place) in shares.items()
    }  # fmt: skip
    divided = replace(state.devices[0], gpu_util_pct=NOT_SUPPORTED, processes=())
    infos_of_part = {pid: replace(info, device_indices=(100,)) for pid, info in infos(0, 1).items()}
    return replace(
        state,
        # A driver may list the instances after all GPUs.
        inventory=replace(state.inventory, devices=(gpu, whole, *parts)),
        devices=state.devices | {0: divided} | samples,
        history=state.history | {index: history(place) for index, (_, _, place) in shares.items()},
        infos=state.infos | infos_of_part,
    )


def fleet() -> tuple[NodeState, ...]:
    """Hosts in every condition."""

    def named(name: str, state: NodeState) -> NodeState:
        assert state.inventory is not None
        host = replace(state.inventory, node=replace(state.inventory.node, hostname=name))
        return replace(state, endpoint=f"ssh://{name}", inventory=host)

    well = replace(finding(), cause="healthy", severity=Severity.INFO, lost_share=0.02)
    healthy = replace(live(8), diagnoses=(replace(diagnosis(), findings=(well,)),))
    return (
        named("gpu-ok", healthy),
        named("gpu-starved", live(8)),
        named("gpu-lost", lost()),
        named("gpu-stale", stale()),
        replace(incompatible(), endpoint="ssh://gpu-old"),
        connecting("ssh://gpu-far", "gpu-far: Permission denied (publickey)."),
        named("gpu-a100", without_gpm()),
        named("gpu-nodriver", no_driver()),
    )


STATES = {
    "connecting": connecting("ipc:///run/gpuwatch/stream", "no answer yet"),
    "waiting": waiting(),
    "live1": live(1),
    "live8": live(8),
    "live16": live(16),
    "undiagnosed": live(2, diagnosed=False),
    "diagnosing": diagnosing(),
    "stale": stale(),
    "lost": lost(),
    "incompatible": incompatible(),
    "hung": hung(),
    "absent": absent(),
    "without_gpm": without_gpm(),
    "recorded": recorded(),
    "recorded_ended": recorded(ended=True),
    "no_driver": no_driver(),
    "no_gpus": no_gpus(),
    "no_processes": no_processes(),
    "strange_names": strange_names(),
    "eventful": eventful(),
    "probed": probed(),
    "bursty": bursty(),
    "past": past(),
    "replayed": replayed(),
    "ten_findings": ten_findings(),
    "mig": mig(),
    "mig_tree": mig_tree(),
    "ranks": ranks(),
    "faulty": faulty(),
    "course": course(),
    "hooked": hooked(),
    "remembered": remembered(),
    "writing": writing(),
}
