"""The same judgement for people, spreadsheets, pull requests, CI servers and monitors."""

from __future__ import annotations

import csv
import io
from xml.etree.ElementTree import fromstring

import pytest

from gpuwatch.model import ProbeStatus
from gpuwatch.verdict import report_csv, report_junit, report_markdown, report_nagios, report_text
from gpuwatch.verdict.check import Settings, check
from gpuwatch.verdict.measured import measured
from gpuwatch.verdict.verdicts import Judgement, Level, Verdict, overall, row
from verdict.parts import SETTINGS, result, runs, value

BASE = runs([700.0, 700.7, 699.3, 700.1, 699.9])
SLOW = runs([600.0], start=100, settings={**SETTINGS, "torch": "3"})  # type: ignore[arg-type]
SLOWER = check(BASE, SLOW, Settings(vary=frozenset({"torch"})), "probe check against base.json")
BUSY = check(BASE, [result(status=ProbeStatus.BUSY, message="GPU 0 is in use by pid 4 (a|b)")], Settings())


def test_text_has_the_settings_first_and_the_outcome_last() -> None:
    lines = report_text.report(SLOWER).splitlines()
    assert lines[:3] == ["settings that differ:", "  torch 2.9.0 → 3  (declared)", ""]
    assert lines[3].split() == ["quantity", "baseline", "now", "unit", "change", "95", "%", "interval", "verdict"]
    assert lines[4].startswith("matmul.bf16_8192_sustained     700.0  600.0  TFLOP/s  -14.3 %")
    assert lines[4].endswith("SLOWER")
    assert lines[-1] == "CRITICAL: matmul.bf16_8192_sustained on cuda:0 SLOWER"
    assert report_text.report(measured([])) == "UNKNOWN: nothing was measured and judged"


def test_equal_reasons_are_told_once() -> None:
    rows = [row("conv", name, Verdict.AMBIGUOUS, "too noisy") for name in "abc"]
    assert report_text.reasons(rows) == ["conv.a, conv.b and 1 more: too noisy"]


def test_csv_is_read_back_and_starts_no_formula() -> None:
    lines = list(csv.DictReader(io.StringIO(report_csv.report(SLOWER))))
    assert float(lines[0]["improvement"]) == pytest.approx(-1 / 7, abs=1e-3)
    assert (lines[0]["verdict"], lines[0]["higher_is_better"]) == ("SLOWER", "true")
    evil = Judgement("", (row("matmul", "", Verdict.ERROR, "=HYPERLINK(1)"),))
    assert next(csv.DictReader(io.StringIO(report_csv.report(evil))))["reason"] == "'=HYPERLINK(1)"


def test_markdown_is_one_table_and_what_a_probe_says_is_no_markup() -> None:
    text = report_markdown.report(SLOWER)
    assert text.startswith("### probe check against base.json: CRITICAL\n")
    assert "| matmul.bf16\\_8192\\_sustained (cuda:0) | 700.0 | 600.0 | TFLOP/s |" in text
    assert text.rstrip().endswith("| **SLOWER** |")
    assert "a\\|b" in report_markdown.report(BUSY)


def test_junit_has_failure_error_and_skipped() -> None:
    root = fromstring(report_junit.report(SLOWER))
    suite = root[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("GPU-11", "1", "1")
    failure = suite[0].find("failure")
    assert failure is not None
    assert failure.get("message") == "SLOWER"
    skipped = fromstring(report_junit.report(BUSY))
    assert skipped[0].get("skipped") == "1"
    empty = fromstring(report_junit.report(measured([])))
    assert empty[0].get("errors") == "1", "an empty suite would count as passed"
    odd = Judgement("", (row("matmul", "", Verdict.ERROR, "bell \x07 <tag>"),))
    assert fromstring(report_junit.report(odd))[0].get("errors") == "1"


def test_nagios_is_one_line_with_limits_of_the_right_side() -> None:
    line = report_nagios.report(SLOWER)
    assert line.startswith("GPUWATCH PROBE CRITICAL - matmul.bf16_8192_sustained cuda:0 SLOWER -14.3 % (95 % ")
    assert line.endswith("| 'matmul.bf16_8192_sustained_cuda:0'=600.0;686.3:;672.8:")
    latency = [result(value("enqueue", 5.0 + i / 1000, "µs", higher=False), probe="launch", at=i) for i in range(5)]
    assert "'launch.enqueue_cuda:0'=5.000us;5.2" in report_nagios.report(check(latency, latency[:1], Settings()))
    assert report_nagios.report(BUSY).startswith(
        "GPUWATCH PROBE UNKNOWN - matmul cuda:0 BUSY: GPU 0 is in use by pid 4 (a/b)"
    )
    assert [report_nagios.exit_code(code) for code in (0, 1, 2, 3, 75, 124)] == [0, 1, 2, 3, 3, 3]
    assert report_nagios.report(measured(BASE)).startswith("GPUWATCH PROBE OK - 5 quantities measured | ")


@pytest.mark.parametrize(
    ("levels", "strict", "worst"),
    [
        ([Level.OK, Level.CRITICAL, Level.UNKNOWN], False, Level.CRITICAL),
        ([Level.UNKNOWN, Level.WARN], False, Level.WARN),
        ([Level.UNKNOWN, Level.OK], False, Level.UNKNOWN),
        ([Level.SKIP, Level.OK], False, Level.OK),
        ([Level.SKIP, Level.OK], True, Level.SKIP),
        ([Level.SKIP], False, Level.SKIP),
        ([Level.NOTE], False, Level.UNKNOWN),
        ([], False, Level.UNKNOWN),
    ],
)
def test_levels_add_up_and_nothing_is_never_ok(levels: list[Level], strict: bool, worst: Level) -> None:
    assert overall(levels, strict) is worst


def test_warnings_that_are_let_pass_do_not_hide_what_could_not_run() -> None:
    warned, crashed = row("matmul", "bf16", Verdict.SLOWER), row("conv", "", Verdict.ERROR, "signal 11")
    assert Judgement("", (warned, crashed)).outcome() == (Level.WARN, "matmul.bf16 SLOWER")
    assert Judgement("", (warned, crashed)).outcome(lenient=True) == (Level.UNKNOWN, "conv ERROR: signal 11")
    assert Judgement("", (warned,)).outcome(lenient=True) == (Level.OK, "matmul.bf16 SLOWER: a warning, let pass")
    busy = row("conv", "", Verdict.BUSY)
    assert Judgement("", (warned, busy), strict=True).outcome(lenient=True)[0] is Level.SKIP
    good = row("conv", "", Verdict.SAME)
    assert Judgement("", (good,)).outcome(lenient=True) == (Level.OK, "one quantity, as it should be")


@pytest.mark.parametrize("level", [Level.OK, Level.WARN])
def test_what_is_allowed_to_be_missing_is_no_pass(level: Level) -> None:
    gone = Judgement("", (row("conv", "", Verdict.MISSING, level=level),))
    assert gone.outcome(lenient=True)[0] is Level.UNKNOWN
    assert gone.level is (Level.UNKNOWN if level is Level.OK else Level.WARN)


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        (0, "GPUWATCH PROBE OK - nothing to see"),
        (1, "GPUWATCH PROBE WARNING - matmul.bf16 SLOWER"),
        (3, "GPUWATCH PROBE UNKNOWN - conv ERROR: signal 11"),
        (124, "GPUWATCH PROBE UNKNOWN - conv ERROR: signal 11"),
        (None, "GPUWATCH PROBE WARNING - matmul.bf16 SLOWER"),
    ],
)
def test_the_word_of_a_monitors_line_is_that_of_the_exit_code(code: int | None, begins: str) -> None:
    rows = (row("matmul", "bf16", Verdict.SLOWER), row("conv", "", Verdict.ERROR, "signal 11"))
    assert report_nagios.report(Judgement("", rows), code, "nothing to see") == begins


def test_figures_keep_four_digits() -> None:
    assert [report_text.figure(x) for x in (None, 0.0, 1234.5, 0.00123456, 52.004)] == [
        "",
        "0",
        "1234",
        "0.001235",
        "52.00",
    ]
    assert [report_text.percent(x) for x in (0.05, -0.143, 19.0)] == ["+5.0 %", "-14.3 %", "×20"]
