"""A generated part of a page: what stands between its two marker lines.

Owns: the markers and the replacing. Refuses: what is written there.
"""

from __future__ import annotations

from pathlib import Path


def markers(name: str) -> tuple[str, str]:
    """The lines around the part of this name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_part(page: Path, name: str, text: str) -> None:
    """Replace the part. Raises ValueError, with one line, when the page lacks its markers: it is left as it is."""
    begin, end = markers(name)
    old = page.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        raise ValueError(f"{page} lacks the lines {begin} and {end}")
    head, _, rest = old.partition(begin)
    page.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
