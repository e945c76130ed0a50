"""The page of figures: what was measured stands in it, what was not is named, and the rest of the page stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import probes_table

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def value(name: str, median: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "unit": unit, "median": median, "p20": median * 0.99, "p80": median * 1.01, "n": 30, **more}


def result(probe: str, *values: dict[str, Any], status: str = "ok", message: str = "", **more: Any) -> dict[str, Any]:
    settings = {"torch": "2.11.0", "cuda": "13.0", "cudnn": "91400", "python": "3.12.3", "cpus": "16", "seconds": "0.5"}
    return {
        "probe": probe,
        "status": status,
        "device": "cuda:0",
        "device_name": "NVIDIA H200",
        "values": list(values),
        "settings": settings,
        "message": message,
        "contaminated": False,
        **more,
    }


def written(tmp_path: Path, *results: dict[str, Any], **more: object) -> str:
    path = tmp_path / "probes.json"
    path.write_text(json.dumps({"results": list(results), **more}))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert probes_table.main([str(path), str(page)]) == 0
    return page.read_text()


def test_only_the_marked_part_of_the_page_changes(tmp_path: Path) -> None:
    text = written(tmp_path, result("memory", value("copy", 4000.0, "GB/s")))
    assert text.startswith(f"before\n{BEGIN}\nNVIDIA H200, torch 2.11.0, CUDA 13.0")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| memory | `copy` | 4000 | 3960 to 4040 | GB/s | 1 |" in text


def test_the_spread_is_that_of_all_fresh_processes(tmp_path: Path) -> None:
    text = written(tmp_path, *(result("memory", value("copy", figure, "GB/s")) for figure in (100.0, 110.0, 120.0)))
    assert "| memory | `copy` | 110 | 99.0 to 121 | GB/s | 3, ±9.1 % |" in text


def test_the_runs_of_selftest_are_fresh_processes_of_the_same_measurement_if_they_took_as_long(tmp_path: Path) -> None:
    def again(figure: float, seconds: str = "0.5", contaminated: bool = False) -> dict[str, Any]:
        run = result("launch", value("enqueue", figure, "µs"), contaminated=contaminated)
        return {**run, "settings": {**run["settings"], "seconds": seconds}}

    runs = [again(6.1), again(5.9), again(9.0, seconds="3"), again(9.0, contaminated=True)]
    rows = [
        {"probe": "launch", "value": "enqueue", "verdict": "SAME", "n_after": 3, "noise": 0.0142, "detectable": 0.05}
    ]
    rows.append({**rows[0], "value": "graph", "verdict": "AMBIGUOUS", "detectable": 86.2})
    text = written(tmp_path, result("launch", value("enqueue", 6.0, "µs")), selftest={"rows": rows, "results": runs})
    assert "| launch | `enqueue` | 6.00 | 5.84 to 6.16 | µs | 3, ±1.7 % |" in text
    assert "| `launch.enqueue` | 1.42 % | 5.0 % | SAME |" in text
    assert "| `launch.graph` | 1.42 % | more than twofold | AMBIGUOUS |" in text


def test_an_environment_against_itself_stands_with_its_interval(tmp_path: Path) -> None:
    row = {"probe": "memory", "value": "copy", "verdict": "SAME", "n_after": 3}
    compare = {"rows": [{**row, "improvement": -0.0012, "low": -0.004, "high": 0.0017}], "results": []}
    text = written(tmp_path, result("memory", value("copy", 4000.0, "GB/s")), compare=compare)
    assert "| `memory.copy` | -0.12 % | -0.40 % … +0.17 % | SAME |" in text


def test_a_slow_result_can_be_told_from_a_slow_clock(tmp_path: Path) -> None:
    seen = {"power_w": 612.4, "sm_clock_mhz": 1512.0}
    text = written(tmp_path, result("matmul", value("bf16_8192_sustained", 676.0, "TFLOP/s"), observed=seen))
    assert "| `matmul` | 612 | 1512 |  |  |  |  |" in text


def test_what_was_not_run_is_named_until_another_file_has_it(tmp_path: Path) -> None:
    copy = result("memory", value("copy", 1.0, "GB/s"))
    left = [{"step": "probe train resnet50:128x32", "why": "no time was left"}]
    text = written(tmp_path, copy, left_out=left, done=["probe memory"])
    assert "* not run: `probe train resnet50:128x32`: no time was left" in text
    more = written(tmp_path, copy, left_out=left, done=["probe memory", "probe train resnet50:128x32"])
    assert "not run" not in more


def test_a_figure_of_a_bad_result_is_not_in_the_table_but_its_reason_is(tmp_path: Path) -> None:
    bad = result("matmul", value("bf16_8192_burst", 5000.0, "TFLOP/s"), status="invalid", message="too fast")
    text = written(tmp_path, result("memory", value("copy", 1.0, "GB/s")), bad)
    assert "5000" not in text
    assert "* `matmul`: invalid, too fast" in text


def test_the_speed_ups_begin_with_the_cpu(tmp_path: Path) -> None:
    train = result(
        "train",
        value("resnet50_b256_224_fp32", 400.0, "images/s"),
        value("resnet50_b256_224_fp32_speedup", 1.0, "x"),
        value("resnet50_b256_224_amp_compile", 2000.0, "images/s"),
        value("resnet50_b256_224_amp_compile_speedup", 5.0, "x"),
        value("resnet50_b256_224_amp_compile_peak", 12.3, "GiB"),
        value("resnet50_b256_224_amp_compile_compile_s", 40.0, "s"),
        value("resnet50_b4_224_cpu", 8.0, "images/s"),
        value("resnet50_b4_224_cpu_speedup", 0.02, "x"),
    )
    lines = [line for line in written(tmp_path, train).splitlines() if line.startswith("| `")]
    assert lines == [
        "| `resnet50_b4_224_cpu` | 8.00 images | 0.0200 |  |  |",
        "| `resnet50_b256_224_fp32` | 400 images | 1.00 |  |  |",
        "| `resnet50_b256_224_amp_compile` | 2000 images | 5.00 | 12.3 | 40.0 |",
    ]


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "probes.json", tmp_path / "page.md"
    path.write_text('{"results": []}')
    page.write_text("nothing here\n")
    assert probes_table.main([str(path), str(page)]) == 1
    assert "lacks the lines" in capsys.readouterr().err
    assert page.read_text() == "nothing here\n"


def test_a_small_product_is_not_held_against_the_best_shape_anybody_found(tmp_path: Path) -> None:
    small, large = value("bf16_256_sustained", 9.18, "TFLOP/s"), value("bf16_8192_sustained", 676.0, "TFLOP/s")
    text = written(tmp_path, result("matmul", small, large))
    assert "| `bf16_256_sustained` | 9.18 | 9.09 to 9.27 | TFLOP/s | 1 |  |" in text
    assert "published: 794.5 TFLOP/s" in text


def test_the_page_says_published_where_the_table_of_published_figures_does() -> None:
    from gpuwatch.verdict.expectations import published

    page = (Path(__file__).parents[2] / "docs" / "probes.md").read_text(encoding="utf-8")
    assert page.count("| matmul | `") > 20
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[1].startswith("`"):
            expected = published(cells[0], cells[1].strip("`"), "NVIDIA H200", 1.0).partition(", here")[0]
            assert cells[7].partition(", here")[0] == expected, line
