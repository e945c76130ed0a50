"""Bytes that were on the wire once are understood for ever.

``golden/NAME.hex`` is never edited or deleted. A new message, or a new field, gets a new file: to write those that are
missing, run this file with Python.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch import model, wire

GOLDEN = Path(__file__).parent / "golden"

NODE = model.NodeInfo(
    "node1", "6.1.0", "b00t", 64, 540_000_000_000, "580.95.05", "13.0", "13.580.95", "0.1.0", containerised=True
)
DEVICE = model.Device(
    *(0, "GPU-3f2a", "NVIDIA H200", "00000000:18:00.0", "hopper", "9.0", 150_000_000_000, 500_000_000, 700.0),
    sm_clock_max_mhz=1980,
    gpm=True,
    numa_node=model.NOT_SUPPORTED,
)
MIG = model.Device(100, "MIG-1", "NVIDIA H200 MIG 1g.18gb", "", parent_uuid="GPU-3f2a", mig_profile="1g.18gb")
UNIFIED = model.Device(1, "GPU-2", "NVIDIA GB10", "", mem_total_bytes=128_000_000_000, mem_shared_with_host=True)
INVENTORY = model.Inventory(
    NODE,
    (DEVICE,),
    model.DriverState.OK,
    "hint",
    model.Source(model.SourceKind.RECORDED, "a.gwrec", 1_700_000_000_000_000_000, 4.0, ended=True),
)
SAMPLE = model.DeviceSample(
    *(0, 123_456_789, 100, 37, 61_000_000_000, 412.5, 61, 1755, 2619, 4, 1_000_000_000),
    *(87.5, 24.25, 18.0, 3.5, 0.0, 6.5, 0.25, 41.0, 1.5e9, 2.0e6, 0.0),
    model.Absent(model.Reason.OUT_OF_RANGE, "4294967295"),
    (model.DeviceProcess(4242, 60_000_000_000, "C"), model.DeviceProcess(7, model.NOT_READ, "CG")),
    None,
    2_500_000,
)
HOST = model.HostSample(
    *(123_456_000, 31.25, (model.CoreGroup("node0", 32, 55.5, 0.5),), model.Pressure(1.5, 0.5, 10, 5)),
    psi_io=model.Pressure(0.0, 0.0, 0, 0),
    mem_total_bytes=540_000_000_000,
    mem_available_bytes=300_000_000_000,
    swap_used_bytes=0,
    load_1m=12.5,
    shm_total_bytes=64_000_000,
    shm_used_bytes=1,
    cpus_online=64,
)
PROCESS = model.ProcessSample(
    *(4242, 99, 123_456_000, "S", 102.5, 7, 8, 9, "R", 24, 3, 5_000_000_000, 11, 12, 13, 14, 15, 16, "futex_wait")
)
CGROUP = model.CgroupSample(4242, 123_456_000, 1.5, 100, 99, 123)
INFO = model.ProcessInfo(
    *(4242, 99, 1, 4242, model.Role.MAIN, "python", "python train.py", "ada", 1000, "/job", "slurm job 42", (0,), True)
)
FINDING = model.Finding(
    *("loader_too_few_workers", "one worker feeds the GPU", model.Severity.CRITICAL, 0.97, 30.0, "1/(1-0.97)"),
    model.Confidence.HIGH,
    (model.EvidenceRow("busy", 3.0, "%", "GPM", 8.0, "note"), model.EvidenceRow("state", "R")),
    "num_workers=8",
    model.CodeLocation("train.py", 17, "main", 0.93),
    ("loader_slow_transform",),
    "double num_workers",
    model.Standing.ROOT,
)
DIAGNOSIS = model.Diagnosis(
    *(4242, (0,), 8.0, (FINDING,), (model.AccountShare("waiting_for_data", 1.0),), "python train.py", 5, 6, ("stacks",))
)
DIAGNOSIS_STEPS = msgspec.structs.replace(
    DIAGNOSIS, steps=model.StepTimes(25, 0.3125, 0.5, 0.25, 0.4375, 0.8125, in_account=True)
)
STEPS = wire.StepsMessage(
    1,
    2,
    (
        model.StepReport(4242, 123_456_789, 500_000_000, 3, 490_000_000, 200_000_000, 1_000_000, 900_000, 7, 4243),
        model.StepReport(4242, 123_456_789, 500_000_000, 3, 490_000_000, 200_000_000),
    ),
)
PROBE = model.ProbeResult(
    "copy",
    model.ProbeStatus.OK,
    "cuda:0",
    (model.ProbeValue("bandwidth", "B/s", 5e10, 4.9e10, 5.1e10, 30),),
    "GPU-3f2a",
    "NVIDIA H200",
    1,
    2.5,
    "",
    contaminated=True,
    settings={"torch": "2.13"},
    notes=("n",),
)
PROBE_OBSERVED = msgspec.structs.replace(PROBE, observed={"power_w": 650.5, "sm_clock_mhz": 1755.0})
TICK = wire.Tick(2**62 + 1, 41, 123_456_789, 1_700_000_000_000_000_000, (SAMPLE,), HOST, (PROCESS,), (CGROUP,))

HEALTH = model.DeviceHealth(
    *(0, 123_456_789, 274_877_906_944, 1_048_576, 412.5, 420.25, 97.5, 123_456_789, 411.75, 5_000_000_000),
    temp_margin_c=-3,
    tlimit_shutdown_c=-8,
    throttle_power_cap_share=0.25,
    pcie_gen=5,
    pcie_under_load=True,
    fan_pct=model.NOT_SUPPORTED,
    cpu_affinity="0-31,64-95",
    peers=(model.PeerLink(1, "one PCIe switch", 1),),
    process_utils=(model.ProcessUtil(4242, 93, 12, 0, model.NOT_SUPPORTED),),
    process_utils_absent=None,
    slowed_calls=("processes",),
)
EVENT = model.EventRecord(
    *(0, 123_456_789, 1_700_000_000_000_000_000, model.EventKind.XID, model.EventOrigin.APPLICATION, 31, 31, "text"),
    repeats=2,
)
HEALTH_GROWN = msgspec.structs.replace(
    HEALTH, grown=(model.CounterGrowth("pcie_replays", 12),), grown_window_ns=600_000_000_000, c2c_links=5
)
TELEMETRY = wire.Telemetry(
    1,
    2,
    (HEALTH,),
    (model.BurstSummary(0, (0, 50, 100), 70, 300, model.NOT_READ),),
    (EVENT,),
    complete=True,
)

FINDINGS = wire.FindingsMessage(
    1,
    2,
    (
        model.FindingSpan(
            7, (0,), "launch_bound", model.Severity.CRITICAL, 10, 20, 0.75, 30, "python fit.py", "the job ended"
        ),
    ),
)

ACCOUNTS = wire.AccountsMessage(
    1,
    2,
    4242,
    (0, 1),
    (
        wire.AccountPoint(1_700_000_000_000_000_000, "healthy", {"computing": 1000}),
        wire.AccountPoint(
            1_700_000_060_000_000_000, "host_sync", {"computing": 250, "synchronising": 745, "unattributed": 5}
        ),
    ),
)

STREAM: dict[str, wire.StreamMessage] = {
    "findings": FINDINGS,
    "accounts": ACCOUNTS,
    "tick": TICK,
    "tick_empty": wire.Tick(1, 2, 3, 4, ()),
    "inventory": wire.InventoryMessage(1, 2, INVENTORY),
    "inventory_unwatched": wire.InventoryMessage(
        *(1, 2),
        model.Inventory(
            NODE, (), unwatched=(model.Unwatched("XIDs and other events", model.Absent(model.Reason.DRIVER, "gone")),)
        ),
    ),
    "inventory_mig": wire.InventoryMessage(1, 2, model.Inventory(NODE, (MIG, UNIFIED))),
    "processes": wire.ProcessesMessage(1, 2, (INFO,), (7,)),
    "processes_cpus": wire.ProcessesMessage(1, 2, (msgspec.structs.replace(INFO, cpus_allowed="0-3,8"),), (7,)),
    "processes_container": wire.ProcessesMessage(1, 2, (msgspec.structs.replace(INFO, container_pid=7),), (7,)),
    "diagnosis": wire.DiagnosisMessage(1, 2, DIAGNOSIS),
    "diagnosis_steps": wire.DiagnosisMessage(1, 2, DIAGNOSIS_STEPS),
    "steps": STEPS,
    "diagnosing": wire.DiagnosisProgress(1, 2, 4242, (0,), 3.0, 8.0, "watching"),
    "probe": wire.ProbeMessage(1, 2, PROBE),
    "probe_observed": wire.ProbeMessage(1, 2, PROBE_OBSERVED),
    "probing": wire.ProbeProgress(1, 2, "copy", 3, "h2d_pinned_256MiB: measuring", 4.5, 25.0),
    "probe_verdict": wire.ProbeVerdictMessage(
        *(1, 2, "/etc/gpuwatch/base.json", "a note"),
        (
            wire.ProbeVerdict(
                *("copy", "GPU-3f2a", 1, "warn"),
                (
                    wire.ValueVerdict("bandwidth", "SLOWER", "warn", "B/s", 5.5e10, 5e10, -0.0909, -0.12, -0.06, "why"),
                    wire.ValueVerdict("", "NOT_COMPARABLE", "unknown"),
                ),
            ),
        ),
        complete=True,
    ),
    "telemetry": TELEMETRY,
    "telemetry_grown": wire.Telemetry(1, 2, (HEALTH_GROWN,)),
    "telemetry_nvlink5": wire.Telemetry(1, 2, (msgspec.structs.replace(HEALTH_GROWN, nvlink_link_discards=4),)),
    "heartbeat": wire.Heartbeat(1, 2, 3),
    "goodbye": wire.Goodbye(1, 2),
    "replay": wire.ReplayPosition(1, 2, 500, 12.5, 40.0, 2.0, paused=True),
}
REQUESTS: dict[str, wire.Request] = {
    "get_snapshot": wire.GetSnapshot(1),
    "start_diagnosis": wire.StartDiagnosis(1, 4242, 0, 20.0),
    "start_probe": wire.StartProbe(1, "copy", 3),
    "get_history": wire.GetHistory(1, 3, 3600.0, 300),
    "replay_control": wire.ReplayControl(1, "seek", 12.5),
}
REPLIES: dict[str, wire.Reply] = {
    "snapshot": wire.Snapshot(
        *(
            1,
            1,
            41,
            wire.PROTOCOL,
            INVENTORY,
            TICK,
            (INFO,),
            (DIAGNOSIS,),
            (PROBE,),
            (wire.Tick(1, 40, 3, 4, (SAMPLE,)),),
        ),
        0.5,
    ),
    "snapshot_empty": wire.Snapshot(1, 1, 0, wire.PROTOCOL, INVENTORY, None, (), (), ()),
    "accepted": wire.Accepted(1, "diagnosing pid 4242"),
    "refused": wire.Refused(0, "no process 9"),
    "history": wire.History(
        *(1, 3, 3600.0, 10**12, 12 * 10**9),
        (wire.HistorySeries("busy_pct", 0.1, (875, None, 12), (10, None, 12), (990, None, 12)),),
        (0, 0, 4),
    ),
}
REPLIES["snapshot_observed"] = wire.Snapshot(1, 1, 0, wire.PROTOCOL, INVENTORY, None, (), (), (PROBE_OBSERVED,))
SUPERSEDED = {
    "probe": "probe_observed",
    "snapshot": "snapshot_observed",
    "diagnosis": "diagnosis_steps",
    "processes": "processes_cpus",
    "telemetry": "telemetry_grown",
    "telemetry_grown": "telemetry_nvlink5",
}
"""Bytes of before ``ProbeResult.observed``, ``Diagnosis.steps``, ``DeviceHealth.grown`` and its counters of NVLink 5:
still understood, and now sent with these fields.
Those of ``ProcessInfo`` as well: with its sixteenth field msgspec begins the map with three bytes instead of one, also
where it leaves that field out."""
ALL: dict[str, wire.StreamMessage | wire.Request | wire.Reply] = {**STREAM, **REQUESTS, **REPLIES}


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def decoded(name: str) -> wire.StreamMessage | wire.Request | wire.Reply:
    payload = golden(name)
    if name in STREAM:
        return wire.decode_stream(payload)
    return wire.decode_request(payload) if name in REQUESTS else wire.decode_reply(payload)


@pytest.mark.parametrize("name", sorted(ALL))
def test_old_bytes_are_understood(name: str) -> None:
    assert decoded(name) == ALL[name]


@pytest.mark.parametrize("name", sorted(ALL.keys() - SUPERSEDED))
def test_what_we_send_is_what_old_clients_know(name: str) -> None:
    assert wire.encode(decoded(name)) == golden(name)


def test_every_message_type_has_golden_bytes() -> None:
    def tags(union: object) -> set[str]:
        inspected = msgspec.inspect.type_info(union)
        assert isinstance(inspected, msgspec.inspect.UnionType)
        return {str(t.tag) for t in inspected.types if isinstance(t, msgspec.inspect.StructType)}

    known = tags(wire.StreamMessage) | tags(wire.Request) | tags(wire.Reply)
    variants = ("_cpus", "_container", "_empty", "_grown", "_nvlink5", "_observed", "_mig", "_steps", "_unwatched")
    assert known == {next((name.removesuffix(v) for v in variants if name.endswith(v)), name) for name in ALL}
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(ALL)


def test_a_field_that_a_newer_version_appends_is_skipped() -> None:
    newer = msgspec.msgpack.decode(golden("heartbeat"))
    newer["added_later"] = [1, 2]
    assert wire.decode_stream(msgspec.msgpack.encode(newer)) == STREAM["heartbeat"]
    tick = msgspec.msgpack.decode(golden("tick"))
    tick["devices"][0].append("added later")
    assert wire.decode_stream(msgspec.msgpack.encode(tick)) == TICK


def test_a_tick_of_eight_gpus_fits_the_budget() -> None:
    samples = tuple(msgspec.structs.replace(SAMPLE, device_index=index) for index in range(8))
    assert len(wire.encode(wire.Tick(2**62, 1, 2, 3, samples))) <= 2048


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, message in ALL.items():
        path = GOLDEN / f"{name}.hex"
        if not path.exists():
            text = wire.encode(message).hex()
            path.write_text("\n".join(text[i : i + 100] for i in range(0, len(text), 100)) + "\n")
