"""Our timing beside do_bench's: the same work, in turns, and a table that says no more than the interval does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import beside_do_bench
from bench.beside_do_bench import Work, in_turns, table

BEGIN, END = "<!-- do_bench: begin -->", "<!-- do_bench: end -->"


def test_every_work_can_be_called_by_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "beside.json"
    assert beside_do_bench.main(["--device", "cpu", "--tiny", "--turns", "3", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert {row["work"].split()[0] for row in rows} == {"matmul", "memory", "copies", "launch"}
    assert all(len(row["turns"]) == 3 and min(min(pair) for pair in row["turns"]) > 0 for row in rows)
    printed = capsys.readouterr().out
    assert all(f"| `{row['work']}` |" in printed for row in rows)


def test_who_begins_changes_and_the_first_turn_is_not_counted() -> None:
    order: list[str] = []

    def timed(who: str) -> float:
        order.append(who)
        return float(len(order))

    found = in_turns(Work("x", "GB/s", lambda: timed("ours"), lambda: timed("theirs")), 3)
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    assert found == [(4.0, 3.0), (5.0, 6.0), (8.0, 7.0)]


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([(101.0, 100.0), (100.0, 100.0), (101.0, 100.0), (100.0, 100.0)], "yes"),
        ([(106.0, 100.0), (105.0, 100.0), (106.0, 100.0), (105.0, 100.0)], "no"),
        ([(106.0, 100.0), (95.0, 100.0), (106.0, 100.0), (94.0, 100.0)], "not sure"),
    ],
)
def test_what_lies_on_both_sides_of_the_limit_is_not_called_alike(turns: list[tuple[float, float]], says: str) -> None:
    rows = [{"work": "memory copy", "unit": "GB/s", "turns": turns}]
    text = table({"device": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0", "rows": rows})
    assert text.splitlines()[0] == "NVIDIA H200, torch 2.11.0, triton 3.6.0."
    assert text.splitlines()[-1].endswith(f"| 4 | {says} |")


def test_the_table_replaces_what_stands_between_its_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page = tmp_path / "beside.json", tmp_path / "page.md"
    row = {"work": "memory copy", "unit": "GB/s", "turns": [(100.0, 100.0)] * 4}
    found.write_text(json.dumps({"device": "GPU", "torch": "2", "triton": "3", "rows": [row]}))
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert beside_do_bench.main([str(found), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nGPU, torch 2")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    page.write_text("nothing marked")
    assert beside_do_bench.main([str(found), "--page", str(page)]) == 1
    assert "lacks the lines" in capsys.readouterr().err
    assert page.read_text() == "nothing marked"


def test_do_bench_is_asked_for_one_kernel_without_its_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flushed cache is another quantity: 4.35 instead of 3.7 µs on an H200."""
    done: list[object] = []

    class Active:
        def clear_cache(self, cache: object) -> None:
            done.append("flushed")

    class Cuda:
        @staticmethod
        def _sleep(cycles: int) -> None:
            done.append(cycles)

    class Torch:
        cuda = Cuda

    class Module:
        class driver:  # noqa: N801 - the name that triton has
            active = Active()

    monkeypatch.setitem(sys.modules, "triton", Module)
    monkeypatch.setitem(sys.modules, "triton.runtime", Module)
    with beside_do_bench.held_instead_of_flushed(Torch):
        Module.driver.active.clear_cache(None)
    Module.driver.active.clear_cache(None)
    assert done == [beside_do_bench.HOLD_CYCLES, "flushed"]


def test_lost_launches_are_said_beneath_the_table() -> None:
    """A time of launches of which some never ran is no time."""
    document = {"device": "GPU", "torch": "2", "triton": "3", "rows": [], "lost_samples": 2}
    assert "NOT VALID: launches were lost in 2 sample(s)" in table(document)
    assert "NOT VALID" not in table(document | {"lost_samples": 0})


def test_single_works_are_measured_anew_in_their_place(tmp_path: Path) -> None:
    out, have = tmp_path / "out.json", tmp_path / "have.json"
    rows = [
        {"work": work, "unit": "µs", "turns": [(1.0, 1.0)] * 3} for work in ("memory copy", "launch enqueue", "gone")
    ]
    have.write_text(json.dumps({"rows": rows}))
    tiny = ["--device", "cpu", "--tiny", "--turns", "3", "--out", str(out)]
    assert beside_do_bench.main([*tiny, "--only", "enqueue", "--have", str(have)]) == 0
    found = json.loads(out.read_text())["rows"]
    assert [row["work"] for row in found] == ["memory copy", "launch enqueue", "gone"]
    assert found[0]["turns"] == [[1.0, 1.0]] * 3
    assert found[1]["turns"] != [[1.0, 1.0]] * 3
