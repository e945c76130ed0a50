"""The JSON file of a view: what is on the screen must be in it."""

from __future__ import annotations

import json
import re

from msgspec.structs import replace
from test_probes_view import judged, running
from tui_states import MAIN, course, diagnosing, hooked, live

from gpuwatch.tui.exports import as_json, as_svg


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


def test_each_word_of_a_picture_stands_in_its_cell_whatever_fonts_the_viewer_has() -> None:
    """librsvg drops spaces at the beginning of a run; a browser stretches them when braille comes from another font."""
    clip = 'clip-path="url(#line)"'
    text = "   SM 5 % ⣀⣤  温度 &lt;1".replace(" ", "&#160;")
    run = f'<text class="r1" x="12.2" y="20" textLength="170.8" {clip}>{text}</text>'
    words = re.findall(r'x="([\d.]+)" y="20" textLength="([\d.]+)"[^>]*>([^<]*)<', as_svg(run))
    cells = [(round(float(x) / 12.2, 3), round(float(length) / 12.2, 3), text) for x, length, text in words]
    assert cells == [(4, 6, "SM&#160;5&#160;%"), (11, 2, "⣀⣤"), (15, 7, "温度&#160;&lt;1")]


def test_a_picture_fetches_nothing_from_the_net() -> None:
    fonts = '    @font-face {\n        src: url("https://fonts.example/a.woff2");\n    }\n'
    assert "https" not in as_svg(f"<style>\n{fonts}</style>")
