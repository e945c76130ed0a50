"""The JSON file of a view: what is on the screen must be in it."""

from __future__ import annotations

import json

from msgspec.structs import replace
from test_probes_view import judged, running
from tui_states import MAIN, course, diagnosing, hooked, live

from gpuwatch.tui.exports import as_json


def test_the_file_of_the_probes_holds_the_verdicts_and_what_they_rest_on() -> None:
    """Whoever gets the file by mail must see that a GPU is slower, and why."""
    probes = json.loads(as_json(running(), "probes"))
    assert probes["baseline"] == {"file": "/etc/gpuwatch/base.json", "note": ""}
    copies = next(found for found in probes["verdicts"] if found["probe"] == "copies")
    assert copies["level"] == "critical"
    worst = copies["values"][0]
    told = {name: worst[name] for name in ("value", "verdict", "before", "after", "low", "high")}
    assert told == {
        "value": "h2d_pageable_256MiB",
        "verdict": "SLOWER",
        "before": 12.1,
        "after": 9.4,
        "low": -0.241,
        "high": -0.2049,
    }
    assert worst["reason"].endswith("power or heat, not the code")
    assert [one["message"] for one in probes["probing"]] == ["bf16_8192: measuring", "triad: measuring"]


def test_a_baseline_that_is_of_no_use_is_told_and_none_is_none() -> None:
    broken = json.loads(as_json(replace(judged(), verdicts=(), baseline_note="base.json: no such file"), "probes"))
    assert (broken["baseline"]["note"], broken["verdicts"]) == ("base.json: no such file", [])
    assert json.loads(as_json(live(1), "probes"))["baseline"] is None


def test_the_file_of_a_diagnosis_holds_the_account_over_time() -> None:
    (account,) = json.loads(as_json(course(), "diagnosis"))["accounts"]
    assert (account["pid"], account["device_indices"], len(account["points"])) == (MAIN, [0], 40)
    newest = account["points"][-1]
    assert (newest["cause"], newest["permille"]["waiting_for_data"]) == ("loader_too_few_workers", 762)


def test_the_file_of_a_diagnosis_holds_what_the_job_told_and_what_is_under_way() -> None:
    (steps,) = json.loads(as_json(hooked(), "diagnosis"))["steps"]
    assert (steps["pid"], steps["steps"]) == (MAIN, 2)
    under_way = json.loads(as_json(diagnosing(), "diagnosis"))["diagnosing"]
    assert (under_way["pid"], under_way["message"]) == (MAIN, "sampling stacks")
