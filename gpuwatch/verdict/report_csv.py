"""A judgement as CSV: one line per quantity and device.

Owns: the columns, which only grow at the end. Refuses: rounding.
"""

from __future__ import annotations

import csv
import io

from gpuwatch.verdict.verdicts import Judgement, Row

COLUMNS = (
    *("probe", "value", "device", "device_uuid", "verdict", "level", "unit", "higher_is_better", "before", "after"),
    *("improvement", "low", "high", "tolerance", "detectable", "n_before", "n_after", "reason"),
    "noise",
)


def report(judgement: Judgement) -> str:
    """Header and lines; an empty cell is a value that does not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row, name) for name in COLUMNS] for row in judgement.rows)
    return text.getvalue().rstrip("\n")


def _cell(row: Row, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    # A spreadsheet takes a cell that begins so for a formula.
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@")) else text
