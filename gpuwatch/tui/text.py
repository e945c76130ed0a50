"""Spans, rows and cell widths.

Owns: how many terminal cells a text takes, cutting and wrapping by cells, replacing what a terminal must not be sent,
the two glyph sets (Unicode and ASCII). Refuses: knowing what a text means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.cells import cell_len

Span = tuple[str, str]
"""Text and role; a role may end in ``SELECTED``."""
Row = tuple[Span, ...]

SELECTED = "@selected"
"""Suffix of a role on the selected row: same foreground, highlighted background."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""C0, C1, and the invisible or direction-changing characters with which a command line can disguise itself."""


class Glyphs(Struct, frozen=True):
    """The characters that a screen is drawn with."""

    ascii_only: bool = False
    ellipsis: str = "…"
    rule: str = "─"
    separator: str = "·"
    cursor: str = "▸"
    arrow: str = "→"
    up: str = "↑"
    down: str = "↓"
    live: str = "●"
    waiting: str = "○"
    info: str = "●"
    warning: str = "▲"
    critical: str = "✖"
    branch: str = "├─"
    last_branch: str = "└─"
    trunk: str = "│ "
    degree: str = "°C"
    times: str = "×"
    bar: str = " ▏▎▍▌▋▊▉█"
    """From empty to full, in equal steps."""
    steps: str = " ▁▂▃▄▅▆▇█"
    """The same upright."""
    account: str = "█▓▒░▚▞#=+:.%&"
    """One pattern for each activity of the account: patterns differ, so that colour is never needed."""


UNICODE = Glyphs()
ASCII = Glyphs(
    ascii_only=True,
    ellipsis="~",
    rule="-",
    separator="|",
    cursor=">",
    arrow="->",
    up="^",
    down="v",
    live="*",
    waiting="o",
    info="i",
    warning="!",
    critical="X",
    branch="|-",
    last_branch="`-",
    trunk="| ",
    degree="C",
    times="x",
    bar=" -=",
    steps="_.-=^",
    account="#%+.ox*=&:-@$",
)

_TO_ASCII = str.maketrans(
    {
        "…": "~", "×": "x", "·": "|", "–": "-", "—": "-", "−": "-", "→": ">", "←": "<", "≤": "<", "≥": ">", "°": " ",
        "µ": "u", "“": '"', "”": '"', "‘": "'", "’": "'", "≈": "~", "±": "~", "\u00a0": " ", "\u202f": " ",
    }
)  # fmt: skip


def clean(text: str) -> str:
    """``text`` with everything replaced that would move the cursor, change colours or hide characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if _CONTROL.search(text) else text


def width_of(text: str) -> int:
    """Terminal cells."""
    return cell_len(text)


def cut(text: str, cells: int, ellipsis: str = "…") -> str:
    """``text`` in at most ``cells`` cells, ending in the ellipsis if something was cut."""
    if width_of(text) <= cells:
        return text
    if cells <= 0:
        return ""
    room = cells - width_of(ellipsis)
    out, used = "", 0
    for char in text:
        used += width_of(char)
        if used > room:
            break
        out += char
    return out + ellipsis if room >= 0 else ellipsis[:cells]


def cut_left(text: str, cells: int, ellipsis: str = "…") -> str:
    """Like ``cut``, keeping the end: of a path, the file name matters."""
    if width_of(text) <= cells:
        return text
    room = cells - width_of(ellipsis)
    out, used = "", 0
    for char in reversed(text):
        used += width_of(char)
        if used > room:
            break
        out = char + out
    return ellipsis + out if room >= 0 else ""


def pad(text: str, cells: int, *, right: bool = False, ellipsis: str = "…") -> str:
    """``text`` in exactly ``cells`` cells, aligned left or right."""
    text = cut(text, cells, ellipsis)
    fill = " " * (cells - width_of(text))
    return fill + text if right else text + fill


def wrap(text: str, cells: int, max_lines: int = 1000, ellipsis: str = "…") -> list[str]:
    """``text`` broken at spaces into lines of at most ``cells`` cells; a longer word is broken where it must be."""
    lines: list[str] = []
    line = ""
    for whole in text.split():
        word = whole
        candidate = f"{line} {word}" if line else word
        if width_of(candidate) <= cells:
            line = candidate
            continue
        if line:
            lines.append(line)
        while width_of(word) > cells > 0:
            head = cut(word, cells, "")
            lines.append(head)
            word = word[len(head) :]
        line = word
    if line:
        lines.append(line)
    if len(lines) > max_lines > 0:
        rest = " ".join(lines[max_lines - 1 :])
        lines = [*lines[: max_lines - 1], cut(rest, cells, ellipsis)]
    return lines[:max_lines]


def row_width(row: Iterable[Span]) -> int:
    """Cells of a row."""
    return sum(width_of(text) for text, _ in row)


def fit(row: Sequence[Span], cells: int, glyphs: Glyphs = UNICODE, fill_role: str = "text") -> Row:
    """``row`` in exactly ``cells`` cells: cut with an ellipsis or padded; neighbours of one role are merged."""
    out: list[Span] = []
    used = 0
    total = row_width(row)
    room = cells if total <= cells else max(0, cells - width_of(glyphs.ellipsis))
    for text, role in row:
        piece = cut(text, room - used, "")
        used += width_of(piece)
        _append(out, piece, role)
        if piece != text:
            break
    if total > cells > 0:
        _append(out, glyphs.ellipsis, out[-1][1] if out else fill_role)
        used += width_of(glyphs.ellipsis)
    _append(out, " " * (cells - used), fill_role)
    return tuple(out)


def between(left: Sequence[Span], right: Sequence[Span], cells: int, fill: Span = (" ", "text")) -> Row:
    """``left`` and ``right`` at the two ends of ``cells`` cells; the left one is cut when both do not fit."""
    room = cells - row_width(right)
    if room <= 1:
        return fit(right, cells)
    gap = room - row_width(left)
    if gap < 0:
        return (*fit(left, room - 1), (" ", fill[1]), *right)
    return (*left, (fill[0] * gap, fill[1]), *right)


def selected(row: Sequence[Span]) -> Row:
    """The row with the selection's background."""
    return tuple((text, role if role.endswith(SELECTED) else role + SELECTED) for text, role in row)


def dimmed(rows: Sequence[Row]) -> list[Row]:
    """The rows as something that is not true any more: only warnings keep their role."""
    return [tuple((text, role if role in ("warn", "crit") else "dim") for text, role in row) for row in rows]


def as_ascii(row: Sequence[Span]) -> Row:
    """The row in ASCII: known signs become their look-alikes, a wide character two marks, any other one mark."""
    return tuple((_ascii_text(text), role) for text, role in row)


def plain(rows: Iterable[Sequence[Span]]) -> str:
    """The rows as text, without trailing spaces: for goldens and for copying a view."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def _ascii_text(text: str) -> str:
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * width_of(c) for c in text.translate(_TO_ASCII))


def _append(out: list[Span], text: str, role: str) -> None:
    if not text:
        return
    if out and out[-1][1] == role:
        out[-1] = (out[-1][0] + text, role)
    else:
        out.append((text, role))


def rule(title: str, right: list[Span], width: int, glyphs: Glyphs) -> Row:
    """A line with a title in it, and a remark or legend at its end."""
    left: list[Span] = [(f"{glyphs.rule} ", "rule"), (cut(title, width - 6, glyphs.ellipsis), "title"), (" ", "rule")]
    tail = [(" ", "rule"), *right, (f" {glyphs.rule}", "rule")] if right else []
    return between(left, tail, width, (glyphs.rule, "rule"))


def flow(title: str, facts: list[Span], width: int, lines: int, glyphs: Glyphs) -> list[Row]:
    """Facts one after the other, in at most ``lines`` lines; what does not fit is left out, the last line cut."""
    indent = len(title)
    out: list[list[Span]] = [[(title, "key")]]
    used = indent
    for text, role in facts:
        if used > indent and used + 3 + len(text) > width:
            if len(out) == lines:
                break
            out.append([(" " * indent, "text")])
            used = indent
        if used > indent:
            out[-1].append((f" {glyphs.separator} ", "dim"))
            used += 3
        out[-1].append((text, role))
        used += len(text)
    return [fit(row, width, glyphs) for row in out]
