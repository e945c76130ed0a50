"""What may become a baseline, what is kept of it, and under which conditions it counts."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.errors import RecordingError
from gpuwatch.export.jsonable import document, dumps
from gpuwatch.model import ProbeStatus
from gpuwatch.verdict import baseline, catalogue, fingerprint
from gpuwatch.verdict.check import Settings, check
from gpuwatch.verdict.quantities import base_unit, converted, tolerance
from gpuwatch.verdict.verdicts import Change, Level, Verdict
from verdict.parts import SETTINGS, result, runs, value


def test_a_result_that_was_printed_can_be_read_back() -> None:
    one = result(value("bf16_8192_sustained", 700.0), observed={"power_w": 650.0})
    text = dumps(document("probe", {"host": "node1", "results": [one], "exit_code": 0}))
    assert baseline.decode(text.encode(), "r.json") == baseline.Document("gpuwatch.probe/1", (one,), "node1")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "r.json: not a result of gpuwatch probe"),
        (b"[1]", "r.json: not a result of gpuwatch probe"),
        (b'{"schema": "gpuwatch.status/1"}', "r.json: schema 'gpuwatch.status/1'; expected one of gpuwatch.probe/1"),
        (b'{"schema": "gpuwatch.probe/1", "results": [{"probe": 3}]}', "r.json: damaged gpuwatch.probe/1"),
    ],
)
def test_a_file_that_is_none_is_named(data: bytes, says: str) -> None:
    with pytest.raises(RecordingError) as caught:
        baseline.decode(data, "r.json")
    assert says in str(caught.value)


def test_bad_results_are_left_out_with_the_reason() -> None:
    bad = [
        result(status=ProbeStatus.INVALID, message="too fast"),
        result(value("bf16", 1.0), contaminated=True),
        result(value("bf16", 0.0)),
        result(value("bf16_first_call_ms", 3.0, "ms", n=1)),
        result(value("bf16", 1.0), observed={"throttled_share": 0.1}),
    ]
    good, refused = baseline.accepted([*bad, *runs([1.0])])
    assert len(good) == 1
    assert [line.partition(": left out, ")[2].split(":")[0] for line in refused] == [
        "invalid",
        "somebody else was on the GPU",
        "a figure is zero, negative or not finite",
        "it has no figure to judge",
        "the GPU slowed down for heat or hardware reasons meanwhile",
    ]


def test_a_power_cap_alone_does_not_spoil_a_result() -> None:
    assert baseline.acceptable(result(value("bf16", 1.0), observed={"power_capped_share": 1.0})) == ""


def test_the_first_runs_are_kept_for_ever_beside_the_newest() -> None:
    kept = baseline.appended(runs([float(i + 1) for i in range(50)]), runs([99.0], start=100))
    times = [run.started_wall_ns for run in kept]
    assert times[:5] == [0, 1, 2, 3, 4]
    assert times[5:] == [*range(26, 50), 100]
    assert baseline.appended(kept, kept[-1:]) == kept, "the same run twice is one run"


def test_one_mishap_is_trimmed_and_two_populations_are_not() -> None:
    steady = [0.0, 0.01, -0.01, 0.005, -0.005, 0.0, 0.002]
    assert baseline.trimmed([*steady, 1.0], 0.02) == steady
    split = [0.0, 0.001, 0.002, 0.0, 1.0, 1.001, 1.002]
    assert baseline.trimmed(split, 0.02) == split
    assert baseline.trimmed([0.0, 9.0], 0.02) == [0.0, 9.0]


# --------------------------------------------------------------------------- fingerprint


def changed(before: dict[str, str], after: dict[str, str], **rest: str) -> list[tuple[str, str]]:
    old, new = runs([1.0], settings=before, **rest), runs([1.0], settings=after, **rest)  # type: ignore[arg-type]
    return [(change.key, change.ring) for change in fingerprint.changes(old, new)]


def test_each_setting_is_in_its_ring() -> None:
    before = {"torch": "1", "matmul_fp32": "a", "mem_free_bytes": "1", "bf16_inner": "3", "cpus": "8"}
    after = {"torch": "2", "matmul_fp32": "b", "mem_free_bytes": "2", "bf16_inner": "4", "cpus": "9"}
    assert changed(before, after) == [
        ("matmul_fp32", "hard"),
        ("torch", "declared"),
        ("cpus", "soft"),
        ("mem_free_bytes", "soft"),
    ]
    assert ("cpus", "hard") in changed(before, after, device="cpu")
    assert ("cpus", "hard") in changed(before, after, probe="dataloader")


def test_what_varies_within_one_side_is_an_outcome_and_no_condition() -> None:
    old = [result(value("x", 1.0), at=i, settings={"chosen": str(i)}) for i in range(2)]
    new = [result(value("x", 1.0), at=9, settings={"chosen": "7"})]
    assert fingerprint.changes(old, new) == []
    assert fingerprint.changes(new, old) == []


def test_a_setting_that_one_side_does_not_tell_is_the_users_decision() -> None:
    assert changed({}, {"new_switch": "on"}) == [("new_switch", "declared")]


def test_the_digest_changes_with_its_ring_only() -> None:
    one = fingerprint.fingerprint(runs([1.0]))
    other = fingerprint.fingerprint(runs([2.0], settings={**SETTINGS, "torch": "3"}))  # type: ignore[arg-type]
    same = {ring for ring in one.digests if one.digests[ring] == other.digests[ring]}
    assert same == {"hard", "soft"}


def test_the_explanation_names_the_option() -> None:
    many = [Change(key, "1", "", "hard") for key in "abcd"]
    assert fingerprint.explain(many) == (
        "a 1 → not there, b 1 → not there, c 1 → not there and 1 more; if meant so: --vary a,b,c,d"
    )


# --------------------------------------------------------------------------- units and sets


def test_units_are_converted_within_their_kind_only() -> None:
    assert converted(3.6, "TB/s", "GB/s") == 3600.0
    assert converted(1.0, "GiB/s", "B/s") == 2**30
    assert converted(8.0, "us", "µs") == pytest.approx(8.0)
    assert converted(600.0, "TFLOPS", "TFLOP/s") == 600.0
    assert converted(5.0, "images/s", "images/s") == 5.0
    assert converted(5.0, "images/s", "steps/s") is None
    assert converted(1.0, "GB/s", "GFLOP/s") is None
    assert base_unit("furlongs") is None


def test_noisy_probes_have_more_room() -> None:
    assert tolerance("matmul", "bf16_8192_sustained", "cuda:0") == 0.02
    assert tolerance("launch", "enqueue", "cuda:0") == 0.05
    assert tolerance("matmul", "fp32_1024_sustained", "cpu") == 0.10
    assert tolerance("dataloader", "workers_4", "cuda:0") == 0.10


def test_the_sets_grow_and_stay_within_their_time() -> None:
    probes = catalogue.load()
    sets = {name: {spec.name for spec in catalogue.members(name, probes)} for name in catalogue.SETS}
    assert sets["quick"] <= sets["full"]
    assert sets["ci"] <= sets["full"]
    assert "allreduce" not in sets["full"], "it needs more than the one device of a check"
    seconds = {spec.name: spec.gpu_s for spec in probes}
    assert sum(seconds[name] for name in sets["ci"]) <= 240


def test_a_folder_without_probes_has_an_empty_catalogue(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    assert catalogue.load(tmp_path) == ()


def test_the_catalogue_is_what_the_probes_say_of_themselves() -> None:
    from probes.catalogue import PROBES

    assert [msgspec.structs.astuple(spec) for spec in catalogue.load()] == [
        (*info[:4], float(info.gpu_s), float(info.cpu_s), info.disturbs) for info in PROBES
    ]


def test_a_baseline_of_five_with_one_outlier_can_still_be_critical() -> None:
    base = runs([700.0, 702.0, 698.0, 701.0, 560.0])
    judged = check(base, runs([420.0], start=100), Settings())
    assert (judged.rows[0].verdict, judged.rows[0].level, judged.exit_code) == (Verdict.SLOWER, Level.CRITICAL, 2)
    assert judged.rows[0].n_before == 4, "the outlier is not part of what is compared with"
    few = check(runs([700.0, 702.0, 698.0, 701.0]), runs([420.0], start=100), Settings())
    assert (few.exit_code, few.rows[0].reason) == (1, "the baseline is provisional, with 4 run(s)")
