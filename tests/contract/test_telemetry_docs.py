"""docs/telemetry.md names every reading, with the field ids and tiers that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from gpuwatch.collect.field_ids import COUNTERS, LIMITS, MOVING, Field
from gpuwatch.collect.nvml_fields import GPM_METRICS, READING_FIELDS
from gpuwatch.collect.tiers import _LOW_PERIOD_NS, _PERIOD_NS, Tier
from gpuwatch.model import DeviceHealth

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
SLOWER = PAGE[PAGE.index("## Slower") : PAGE.index("How to read them")]
EVERY_TICK = PAGE[PAGE.index("## Every tick") : PAGE.index("## Slower")]
NOT_LISTED = {
    "device_index",
    "mono_ns",
    "process_utils_absent",
    "energy_window_ns",
    "throttle_window_ns",
    "grown_window_ns",
}


def rows(section: str) -> dict[str, list[str]]:
    """Name of a reading to the cells of its row: unit, source, tier, absence."""
    found = re.findall(r"^\| `([a-z0-9_]+)` \| (.*) \|$", section, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def shown_as(field: Field) -> str:
    """The reading that a field becomes."""
    if field.name.startswith("throttle_"):
        return f"{field.name}_share"
    name = field.name.replace("_mw", "_w")
    return re.sub(r"_(bytes|kib)$", "_bytes_per_s", name)


def test_every_slow_reading_is_documented_and_every_documented_one_exists() -> None:
    assert set(rows(SLOWER)) == set(DeviceHealth.__struct_fields__) - NOT_LISTED


def test_every_reading_of_a_tick_is_documented() -> None:
    documented = rows(EVERY_TICK)
    assert set(documented) == {*READING_FIELDS, *GPM_METRICS, "processes"}
    for name, (number, _) in GPM_METRICS.items():
        assert documented[name][1] == f"GPM {number}", name


def test_field_ids_and_tiers_are_those_of_the_code() -> None:
    documented = rows(SLOWER)
    for tier, fields in (("2 s", MOVING), ("30 s", COUNTERS), ("once", LIMITS)):
        for field in fields:
            _, source, told, *_ = documented[shown_as(field)]
            assert re.search(rf"\b{field.id}\b", source), field.name
            assert told == tier, field.name


def test_the_periods_are_those_of_the_code() -> None:
    for tier in (Tier.MEDIUM, Tier.SLOW, Tier.RARE):
        period, low = (table[tier] // 10**9 for table in (_PERIOD_NS, _LOW_PERIOD_NS))
        assert f"| {period} s | {period} s | {low} s |" in PAGE
