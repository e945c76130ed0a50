"""A judgement as JUnit XML, which CI servers show as tests.

Owns: suite = device, case = quantity; failure for critical, error for unknown, skipped for busy. JUnit has no warning:
it goes to system-out. Refuses: deciding.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gpuwatch.verdict.report_text import cells
from gpuwatch.verdict.verdicts import Judgement, Level, Row

_TAGS = {Level.CRITICAL: "failure", Level.UNKNOWN: "error", Level.SKIP: "skipped"}


def report(judgement: Judgement) -> str:
    """One document. A judgement without rows is one case with an error: an empty suite would count as passed."""
    root = Element("testsuites", name=judgement.title or "gpuwatch probe")
    suites: dict[str, list[Row]] = {}
    for row in judgement.rows:
        suites.setdefault(row.device_uuid or row.device or "probes", []).append(row)
    for name, rows in suites.items():
        suite = SubElement(root, "testsuite", name=_xml(name), tests=str(len(rows)))
        for level, attribute in ((Level.CRITICAL, "failures"), (Level.UNKNOWN, "errors"), (Level.SKIP, "skipped")):
            suite.set(attribute, str(sum(row.level is level for row in rows)))
        for row in rows:
            _case(suite, row)
    if judgement.level is Level.UNKNOWN and not any(row.level is Level.UNKNOWN for row in judgement.rows):
        suite = SubElement(root, "testsuite", name="gpuwatch", tests="1", failures="0", errors="1", skipped="0")
        case = SubElement(suite, "testcase", classname="gpuwatch", name="something was measured")
        SubElement(case, "error", message=judgement.exit_reason)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode")


def _case(suite: Element, row: Row) -> None:
    case = SubElement(suite, "testcase", classname=_xml(row.probe), name=_xml(row.name))
    shown = _xml(" ".join(filter(None, (row.verdict.value, row.reason))))
    tag = _TAGS.get(row.level)
    if tag:
        SubElement(case, tag, message=shown)
    SubElement(case, "system-out").text = _xml(" ".join(filter(None, (row.level.value, *cells(row), row.reason))))


def _xml(text: str) -> str:
    """Control characters are forbidden in XML even when escaped."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", text)
