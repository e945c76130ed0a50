"""``gpuwatch status``: where a reading comes from, when it is complete, and how it looks at 80 columns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from gpuwatch.cli import status
from gpuwatch.cli.main import run
from gpuwatch.client.state import Link, NodeState, connecting
from gpuwatch.collect.source import Emit, Focus
from gpuwatch.errors import ProtocolError, RecordingError, UnavailableError
from gpuwatch.export.reading import Gathering, NodeView
from gpuwatch.export.text import reason_text, status_lines
from gpuwatch.model import (
    NOT_READ,
    Absent,
    ClocksEvent,
    Confidence,
    CounterGrowth,
    Device,
    DeviceHealth,
    DeviceProcess,
    DeviceSample,
    Diagnosis,
    DriverState,
    Finding,
    HostSample,
    Inventory,
    NodeInfo,
    Observation,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    Reason,
    Role,
    Severity,
    Source,
    SourceKind,
    Unwatched,
)

GIB = 2**30
NODE = NodeInfo("gpu-7", "6.8.0", "boot", 192, 2048 * GIB, "580.82.07", "13.0")
H200 = Device(0, "GPU-a", "NVIDIA H200", "0000:18:00.0", mem_total_bytes=140 * GIB, power_limit_w=700.0, gpm=True)
A100 = Device(1, "GPU-b", "NVIDIA A100-SXM4-80GB", "0000:2a:00.0", mem_total_bytes=80 * GIB, power_limit_w=400.0)
NO_GPM = Absent(Reason.NOT_SUPPORTED, "needs Hopper")
HOST = HostSample(
    9_000_000_000, cpu_busy_pct=12.4, mem_total_bytes=2048 * GIB, mem_available_bytes=1900 * GIB, load_1m=8.25,
    cpus_online=192,
)  # fmt: skip
STARVED = DeviceSample(
    0,
    9_000_000_000,
    gpu_util_pct=97,
    mem_used_bytes=12 * GIB,
    power_w=141.2,
    temp_c=38,
    sm_clock_mhz=1980,
    clocks_event_reasons=int(ClocksEvent.GPU_IDLE),
    gpm_window_ns=1_000_000_000,
    busy_pct=31.0,
    sm_active_pct=22.0,
    tensor_active_pct=3.1,
    dram_active_pct=0.2,
    processes=(DeviceProcess(4242, 11 * GIB, "C"),),
    processes_absent=None,
)
OLD_CARD = DeviceSample(
    1,
    9_000_000_000,
    gpu_util_pct=100,
    mem_used_bytes=79 * GIB,
    power_w=399.0,
    temp_c=84,
    sm_clock_mhz=1095,
    clocks_event_reasons=int(ClocksEvent.SW_POWER_CAP | ClocksEvent.HW_THERMAL),
    busy_pct=NO_GPM,
    sm_active_pct=NO_GPM,
    tensor_active_pct=NO_GPM,
    dram_active_pct=NO_GPM,
    processes=(DeviceProcess(77, Absent(Reason.NO_PERMISSION), "C"),),
    processes_absent=None,
)
MAIN = ProcessInfo(4242, 1, 1, 4242, Role.MAIN, "python", "python train.py --data /data/imagenet", "alice", 1001)
WORKERS = tuple(msgspec.structs.replace(MAIN, pid=pid, ppid=4242, role=Role.LOADER_WORKER) for pid in (4301, 4302))


def process(pid: int, cpu_pct: float, mono_ns: int = 9_000_000_000) -> ProcessSample:
    return ProcessSample(pid, 1, mono_ns, "R", cpu_pct)


def view_of(*devices: Device, samples: Iterable[DeviceSample], now_ns: int = 9_000_000_000) -> NodeView:
    return NodeView(
        inventory=Inventory(NODE, devices),
        devices={sample.device_index: sample for sample in samples},
        host=HOST,
        infos={info.pid: info for info in (MAIN, *WORKERS)},
        processes={4242: process(4242, 99.0), 4301: process(4301, 98.0), 4302: process(4302, 97.0)},
        now_ns=now_ns,
        origin="read directly",
    )


def test_the_screen_of_a_starved_gpu_beside_one_without_counters() -> None:
    assert status_lines(view_of(H200, A100, samples=(STARVED, OLD_CARD))) == [
        "gpu-7  driver 580.82.07, CUDA 13.0  read directly",
        "host  CPU 12 % of 192 cores  memory 1.9 TiB of 2.0 TiB free  load 8.2",
        "",
        "GPU NAME             BUSY     SM TENSOR  DRAM           MEMORY     POWER   TEMP",
        "  0 H200             31 %   22 %    3 %  <1 % 12.0 GiB/140 GiB 141/700 W  38 °C",
        "  1 A100-SXM4-80GB  100 %*   n/a    n/a   n/a 79.0 GiB/80.0 GiB 399/400 W  84 °C",
        "",
        "* NVML's utilization: something was resident, not that the SMs were busy",
        "GPU 1: SM, tensor, DRAM n/a: not supported (needs Hopper)",
        "GPU 1: clocks held at 1095 MHz by power cap, temperature (hardware)",
        "",
        "  GPU      PID USER          MEMORY     CPU  COMMAND",
        "    0     4242 alice       11.0 GiB    99 %  python train.py --data /data/image…",
        "                                      195 %  └ 2 loader workers",
        "    1       77 n/a              n/a     n/a  n/a (other PID namespace, or ended)",
    ]


def test_a_hung_gpu_shows_its_age_and_the_others_their_readings() -> None:
    hung = msgspec.structs.replace(STARVED, device_index=1, mono_ns=1_000_000_000)
    second = msgspec.structs.replace(H200, index=1)
    lines = status_lines(view_of(H200, second, samples=(STARVED, hung), now_ns=9_500_000_000))
    assert "GPU 1: last reading 8.5 s old, the driver may hang" in lines
    assert not any(line.startswith("GPU 0:") for line in lines)


def test_a_gpu_that_never_answered_is_listed_and_not_zero() -> None:
    lines = status_lines(view_of(H200, A100, samples=(STARVED,)))
    row = next(line for line in lines if "A100" in line)
    assert "0" not in row.replace("A100-SXM4-80GB", "")
    assert "GPU 1: no reading yet" in lines


def test_the_same_note_for_eight_gpus_takes_one_line() -> None:
    devices = [msgspec.structs.replace(A100, index=index) for index in range(8)]
    samples = [
        msgspec.structs.replace(OLD_CARD, device_index=index, clocks_event_reasons=0)
        for index in range(8)
        if index != 5
    ]
    lines = status_lines(view_of(*devices, samples=samples))
    assert "GPU 0-4,6-7: SM, tensor, DRAM n/a: not supported (needs Hopper)" in lines
    assert "GPU 5: no reading yet" in lines


def test_processes_that_may_not_be_listed_are_not_reported_as_none() -> None:
    hidden = msgspec.structs.replace(STARVED, processes=(), processes_absent=Absent(Reason.NO_PERMISSION))
    lines = status_lines(view_of(H200, samples=(hidden,)))
    assert "GPU 0: processes n/a: no permission" in lines
    assert "no processes on any GPU" not in lines


def test_what_is_not_watched_any_more_is_said_with_the_reason() -> None:
    view = view_of(H200, samples=(STARVED,))
    part = Unwatched("XIDs and other events", Absent(Reason.DRIVER, "the driver was unloaded"))
    view = msgspec.structs.replace(view, inventory=msgspec.structs.replace(view.inventory, unwatched=(part,)))
    assert "not watched: XIDs and other events: driver (the driver was unloaded)" in status_lines(view)
    shown = json.loads(json.dumps(status.status_document(view)))
    assert shown["unwatched"] == [
        {"part": "XIDs and other events", "absent": {"absent": "driver", "detail": "the driver was unloaded"}}
    ]
    assert json.loads(json.dumps(status.status_document(view_of(H200, samples=()))))["unwatched"] == []


def test_pids_of_the_host_in_a_container_are_explained_and_only_there() -> None:
    view = view_of(H200, A100, samples=(STARVED, OLD_CARD))
    assert not [line for line in status_lines(view) if "this container" in line]
    node = msgspec.structs.replace(NODE, containerised=True)
    view = msgspec.structs.replace(view, inventory=msgspec.structs.replace(view.inventory, node=node))
    lines = status_lines(view)
    assert "1 of 2 listed processes are not in this container: such a pid may be the host's;" in lines
    assert any("--pid=host" in line for line in lines)


def test_processes_that_proc_hides_are_told_with_what_shows_them() -> None:
    view = view_of(H200, A100, samples=(STARVED, OLD_CARD))
    for options, remedy in (
        (("hidepid=2",), "run gpuwatch as root, or remount /proc with gid= of a group that its user is in"),
        (("hidepid=invisible", "gid=20"), "run gpuwatch as root, or with the group 20"),
        (("hidepid=ptraceable", "gid=20"), "run gpuwatch as root"),
    ):
        node = msgspec.structs.replace(NODE, proc_hides=options)
        hidden = msgspec.structs.replace(view, inventory=msgspec.structs.replace(view.inventory, node=node))
        lines = status_lines(hidden, 100)
        assert f"1 of 2 listed processes are hidden: /proc is mounted with {','.join(options)};" in lines
        assert f"  {remedy}" in lines
        assert any(line.endswith("n/a (hidden by /proc (hidepid), or ended)") for line in lines)
        assert json.loads(json.dumps(status.status_document(hidden)))["node"]["proc_hides"] == list(options)


def test_a_process_in_a_container_is_shown_with_the_pid_that_its_owner_sees() -> None:
    view = view_of(H200, samples=(STARVED,))
    info = msgspec.structs.replace(view.infos[4242], container="docker 3f2a1b4c5d6e", container_pid=7)
    view = msgspec.structs.replace(view, infos={**view.infos, 4242: info})
    lines = status_lines(view)
    assert lines[1 + next(n for n, line in enumerate(lines) if " 4242 " in line)].strip() == (
        "└ PID 7 in docker 3f2a1b4c5d6e"
    )


def test_what_the_card_itself_says_is_in_words_and_growth_not_totals() -> None:
    health = DeviceHealth(
        *(0, 1),
        temp_margin_c=47,
        throttle_power_cap_share=0.62,
        throttle_thermal_share=0.03,
        throttle_hw_thermal_share=0.03,
        throttle_sw_thermal_share=0.001,
        pcie_replays=655,
        grown=(CounterGrowth("pcie_replays", 12), CounterGrowth("of_a_newer_daemon", 1)),
        grown_window_ns=600_000_000_000,
        persistence_mode=0,
        compute_mode=3,
        confidential_compute=1,
        virtualization=2,
        recovery_action=1,
    )
    view = msgspec.structs.replace(view_of(H200, samples=(STARVED,)), health={0: health})
    assert [line for line in status_lines(view, 120) if line.startswith("GPU 0:")] == [
        "GPU 0: clocks held down for a share of the time by: power cap 62 %, temperature (hardware) 3 %",
        "GPU 0: +12 PCIe replays, +1 of a newer daemon in 10 min",
        "GPU 0: the driver asks for a reset",
        "GPU 0: persistence mode off: each first start of CUDA takes seconds",
        "GPU 0: compute mode exclusive: one process at a time",
        "GPU 0: confidential computing: performance counters are off",
        "GPU 0: a vGPU of this virtual machine",
        "GPU 0: 47 °C left to the slowdown temperature",
    ]
    well = DeviceHealth(0, 1, pcie_replays=655, persistence_mode=1, compute_mode=0, virtualization=0)
    view = msgspec.structs.replace(view, health={0: well})
    assert not [line for line in status_lines(view, 120) if line.startswith("GPU 0:")]
    older = DeviceHealth(0, 1, throttle_thermal_share=0.25)
    view = msgspec.structs.replace(view, health={0: older})
    assert "GPU 0: clocks held down for a share of the time by: temperature 25 %" in status_lines(view)


def test_an_idle_machine_says_that_nobody_is_there() -> None:
    free = msgspec.structs.replace(STARVED, processes=())
    assert status_lines(view_of(H200, samples=(free,)))[-1] == "no processes on any GPU"


def test_a_job_on_several_gpus_is_one_process_with_all_its_memory() -> None:
    devices = [msgspec.structs.replace(H200, index=index) for index in range(3)]
    samples = [msgspec.structs.replace(STARVED, device_index=index) for index in (0, 1, 2)]
    jobs = [line for line in status_lines(view_of(*devices, samples=samples)) if " 4242 " in line]
    assert jobs == ["  0-2     4242 alice       33.0 GiB    99 %  python train.py --data /data/image…"]
    hidden = DeviceProcess(4242, Absent(Reason.NO_PERMISSION), "C")
    samples[1] = msgspec.structs.replace(samples[1], processes=(hidden,))
    jobs = [line for line in status_lines(view_of(*devices, samples=samples)) if " 4242 " in line]
    assert jobs == ["  0-2     4242 alice            n/a    99 %  python train.py --data /data/image…"]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = msgspec.structs.replace(MAIN, command="python " + "x" * 300, user="a-very-long-user-name")
    device = msgspec.structs.replace(H200, name="NVIDIA RTX 6000 Ada Generation Server Edition")
    view = msgspec.structs.replace(view_of(device, samples=(STARVED,)), infos={4242: long}, origin="o" * 200)
    lines = status_lines(view, width)
    assert max(map(len, lines)) == width
    assert any("x…" in line for line in lines)


def test_what_the_daemon_has_found_out_is_on_the_screen() -> None:
    finding = Finding(
        "loader_too_few_workers", "2 workers cannot feed this GPU", Severity.WARNING, 0.6, 2.4, "", Confidence.HIGH
    )
    view = msgspec.structs.replace(
        view_of(H200, samples=(STARVED,)), diagnoses=(Diagnosis(4242, (0,), 10.0, (finding,)),)
    )
    assert status_lines(view)[-1] == "why PID 4242: loader_too_few_workers: 2 workers cannot feed this GPU"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason: Reason) -> None:
    assert reason_text(Absent(reason, "why")).removesuffix(" (why)") == reason_text(Absent(reason)) != ""


class ScriptedSource:
    """A source that emits what it was given at once, then stays silent like a hung driver."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.observations = tuple(observations)
        self.stopped = 0

    def start(self, emit: Emit) -> None:
        for observation in self.observations:
            emit(observation)

    def stop(self) -> None:
        self.stopped += 1

    def focus(self, focus: Focus | None) -> None:
        raise AssertionError("a status must not look closely at anybody's job")

    def now_ns(self) -> int:
        return 9_000_000_000

    def progress_ns(self) -> int:
        return 0


def two_rounds(*samples: DeviceSample) -> list[Observation]:
    """What a machine says until the second reading, which has all the rates."""
    first = [msgspec.structs.replace(s, busy_pct=Absent(Reason.NOT_READ), gpm_window_ns=0) for s in samples]
    idle = msgspec.structs.replace(HOST, mono_ns=8_000_000_000, cpu_busy_pct=Absent(Reason.NOT_READ))
    tick = ProcessTick(8_000_000_000, (process(4242, 1.0),), infos=(MAIN,))
    return [*first, idle, tick, *samples, HOST, ProcessTick(9_000_000_000, (process(4242, 99.0),))]


def clock(*seconds: float) -> Callable[[], float]:
    """Gives these times in turn, then the last one for ever."""
    times = itertools.chain(seconds, itertools.repeat(seconds[-1]))
    return lambda: next(times)


def test_a_reading_ends_as_soon_as_everything_has_answered() -> None:
    source = ScriptedSource([Inventory(NODE, (H200,)), *two_rounds(STARVED)])
    view = status.direct_view(source, clock(0.0))  # This clock never reaches the deadline.
    assert view.devices == {0: STARVED}
    assert view.processes[4242].cpu_pct == 99.0
    assert view.infos == {4242: MAIN}
    assert source.stopped == 1


def test_the_first_round_is_not_taken_for_a_reading_because_it_has_no_rates() -> None:
    gathering = Gathering(3.0)
    rounds = [Inventory(NODE, (H200,)), *two_rounds(STARVED)]
    complete = []
    for observation in rounds:
        gathering.add(observation)
        complete.append(gathering.complete())
    assert complete == [False] * (len(rounds) - 1) + [True]


def test_one_hung_gpu_does_not_take_the_other_off_the_screen() -> None:
    source = ScriptedSource([Inventory(NODE, (H200, A100)), *two_rounds(STARVED)])
    view = status.direct_view(source, clock(27.0, 27.0, 27.0, 29.999))
    assert view.devices == {0: STARVED}
    assert source.stopped == 1


def test_a_driver_that_takes_long_to_start_is_waited_for_and_a_broken_one_is_not() -> None:
    starting = Inventory(msgspec.structs.replace(NODE, driver_version=NOT_READ), (), DriverState.UNKNOWN, "starting")
    source = ScriptedSource([starting, Inventory(NODE, (H200,)), *two_rounds(STARVED)])
    assert status.direct_view(source, clock(0.0)).devices == {0: STARVED}
    broken = msgspec.structs.replace(starting, node=msgspec.structs.replace(NODE, driver_version=Absent(Reason.DRIVER)))
    source = ScriptedSource([broken, Inventory(NODE, (H200,))])
    assert status.direct_view(source, clock(0.0)).inventory.driver is DriverState.UNKNOWN


def test_a_driver_that_never_answers_is_one_clear_line() -> None:
    source = ScriptedSource([])
    with pytest.raises(UnavailableError, match="did not answer within 30 s"):
        status.direct_view(source, clock(0.0, 29.999))
    assert source.stopped == 1


def test_without_a_driver_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "the NVIDIA kernel module is not loaded; run: modprobe nvidia"
    source = ScriptedSource([Inventory(NODE, (), DriverState.NO_DRIVER, hint)])
    monkeypatch.setattr("gpuwatch.collect.node.live_source", lambda period_s: source)
    monkeypatch.setattr("gpuwatch.client.endpoints.find", lambda connect: None)
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    assert run(["status"]) == 69
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"gpuwatch: {hint}\n")


def live(endpoint: str = "ipc:///run/gpuwatch") -> NodeState:
    return NodeState(
        endpoint, Link.LIVE, inventory=Inventory(NODE, (H200,)), devices={0: STARVED}, tick_mono_ns=10_000_000_000
    )


def test_the_daemon_is_asked_until_its_first_tick_has_come() -> None:
    waiting = connecting("ipc:///run/gpuwatch")
    untold = msgspec.structs.replace(live(), devices={})
    states = iter([waiting, untold, live()])
    view = status.daemon_view(lambda timeout_s: next(states), clock(0.0))
    assert view.devices == {0: STARVED}
    assert view.age_s(STARVED) == 1.0
    assert view.origin == "daemon at /run/gpuwatch"


def test_a_replaying_daemon_is_not_taken_for_the_machine() -> None:
    source = Source(SourceKind.RECORDED, "night.gwrec")
    state = msgspec.structs.replace(live(), inventory=Inventory(NODE, (H200,), source=source))
    view = status.daemon_view(lambda timeout_s: state, clock(0.0))
    assert view.origin == "daemon at /run/gpuwatch, recorded, night.gwrec"


def test_a_daemon_of_another_version_is_named_as_such() -> None:
    other = NodeState("ipc:///x", Link.INCOMPATIBLE, "the daemon speaks protocol 2.0")
    with pytest.raises(ProtocolError, match="protocol 2"):
        status.daemon_view(lambda timeout_s: other, clock(0.0))


def test_a_silent_daemon_does_not_hang_the_command() -> None:
    with pytest.raises(UnavailableError, match="/x gave no reading within 3 s: nobody answers"):
        status.daemon_view(lambda timeout_s: connecting("ipc:///x", "nobody answers"), clock(0.0, 1.0, 3.0))


def test_naming_a_daemon_that_is_not_there_does_not_show_another_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", "--connect", str(tmp_path)]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert str(tmp_path) in err
    assert err.count("\n") == 1


def test_a_daemon_and_a_recording_at_once_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--connect", "/x", "--replay", "y.gwrec"]) == 64
    assert "exclude each other" in capsys.readouterr().err


def test_a_recording_shows_the_mean_of_its_last_seconds_and_not_one_lucky_window() -> None:
    times = [1, 80, 85, 89]
    shares = [100.0, 30.0, 40.0, 50.0]  # The first is older than ten seconds at the end.
    samples = [
        msgspec.structs.replace(STARVED, mono_ns=t * 1_000_000_000, sm_active_pct=share)
        for t, share in zip(times, shares, strict=True)
    ]
    view = status.recorded_view([Inventory(NODE, (H200,)), HOST, *samples], "night.gwrec")
    assert view.devices[0].sm_active_pct == pytest.approx(40.0)
    assert view.origin == "recorded, night.gwrec"
    assert view.age_s(view.devices[0]) == 0.0


def test_a_process_that_ended_during_the_recording_is_not_listed() -> None:
    ticks = [ProcessTick(1, (process(4242, 1.0),), infos=(MAIN,)), ProcessTick(2, (), gone=(4242,))]
    view = status.recorded_view([Inventory(NODE, (H200,)), *ticks], "x.gwrec")
    assert view.infos == {}
    assert view.processes == {}


def test_a_recording_without_an_inventory_is_refused() -> None:
    with pytest.raises(RecordingError, match=r"x\.gwrec: holds no inventory"):
        status.recorded_view([HOST], "x.gwrec")


def test_a_script_gets_every_device_with_its_age_and_every_process_with_its_identity() -> None:
    shown = json.loads(
        json.dumps(status.status_document(view_of(H200, A100, samples=(STARVED,), now_ns=9_250_000_000)))
    )
    assert shown["schema"] == "gpuwatch.status/1"
    first, second = shown["devices"]
    assert (first["device"]["uuid"], first["age_s"], first["sample"]["sm_active_pct"]) == ("GPU-a", 0.25, 22.0)
    assert (second["sample"], second["age_s"]) == (None, None)
    assert [p["info"]["user"] for p in shown["processes"]] == ["alice"] * 3
    assert shown["processes"][0]["sample"]["cpu_pct"] == 99.0


def test_a_found_daemon_that_does_not_answer_does_not_hide_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ScriptedSource([Inventory(NODE, (H200,)), *two_rounds(STARVED)])
    monkeypatch.setattr("gpuwatch.collect.node.live_source", lambda period_s: source)
    monkeypatch.setattr("gpuwatch.client.endpoints.find", lambda connect: "ipc:///tmp/nobody-answers-here")
    monkeypatch.setattr(status, "DAEMON_WAIT_S", 0.0)
    monkeypatch.delenv("GPUWATCH_ENDPOINT", raising=False)
    assert status.read(None, None).origin == "read directly"
    with pytest.raises(UnavailableError, match="gave no reading"):
        status.read(None, "/tmp/nobody-answers-here")
