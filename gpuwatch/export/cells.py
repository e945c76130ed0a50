"""Text as a terminal shows it: what it may be given, and how many cells that takes.

Owns: cleaning, width, cutting and wrapping by cells. Refuses: colours, what is said.

Commands, paths and lines of code are other people's: they may hold escape sequences, characters two cells wide, and
words longer than a line. Width is by the standard library's tables, so that no terminal toolkit is loaded to print.
"""

from __future__ import annotations

import re
import unicodedata

_SPACE = re.compile(r"[ \t\n\r\v\f]+")
"""Not the no-break space, which keeps words together."""
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""C0, C1, halves of characters, and what is invisible or changes the direction: with these a line can move the cursor,
change colours or show something else than it says."""
_WIDE_SINCE = re.compile("[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff\U0001d300-\U0001d376\U0001fa00-\U0001faff]")
"""Two cells since Unicode 16, which newer terminals know and older Pythons do not."""
_PATH = re.compile(r"[^()\[\]{}'\"=;]*/[^()\[\]{}'\"=;]*\.\w+(:\d+)?[:,.]?")
"""A file, perhaps with a line: what can be left out of it, a line of code would miss."""
_EMOJI_STYLE = "\ufe0f"
"""Makes the character before it an emoji, two cells wide in some terminals and one in others."""


def clean(text: str) -> str:
    """The text in one line, with everything replaced that would move the cursor, change colours or hide characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _SPACE.sub(" ", text))


def width_of(text: str) -> int:
    """Terminal cells, rather too many than too few."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if char == _EMOJI_STYLE:
        return 1
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if _wide(char) else 1


def fits(text: str, cells: int) -> int:
    """How many characters of the text these cells hold; a mark stays with the character that it stands on."""
    used, last = 0, 0
    for place, char in enumerate(text):
        if _cells(char) and char != _EMOJI_STYLE:
            last = place
        used += _cells(char)
        if used > cells:
            return last
    return len(text)


def cut(text: str, cells: int) -> str:
    """The beginning of the text in these cells, with an ellipsis where something is left out."""
    if width_of(text) <= cells:
        return text
    return text[: fits(text, cells - 1)] + "…" if cells > 0 else ""


def cut_left(text: str, cells: int) -> str:
    """The end of the text. Of a path: as many of its last parts as fit, since the file's name says most."""
    if width_of(text) <= cells:
        return text
    if cells <= 0:
        return ""
    place, used = len(text), 0
    while place and used + _cells(text[place - 1]) <= cells - 1:
        place -= 1
        used += _cells(text[place])
    while place < len(text) and not _cells(text[place]):
        place += 1
    slash = text.find("/", place)
    return "…" + text[slash if 0 <= slash < len(text) - 1 else place :]


def pad(text: str, cells: int) -> str:
    """The text, and spaces up to these cells."""
    return text + " " * max(0, cells - width_of(text))


def shorten(text: str, cells: int) -> str:
    """Whole words of the text in these cells, " ..." where some are left out; of a first word too long, its end."""
    text = clean(text).strip()
    if width_of(text) <= cells:
        return text
    words = text.split(" ")
    taken = ""
    for word in words:
        longer = f"{taken} {word}" if taken else word
        if width_of(longer) + 4 > cells:
            break
        taken = longer
    return f"{taken or cut_left(words[0], cells - 4)} ..."


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most ``width`` cells, the first behind ``first``, the others behind ``rest``.

    Lines break between words, and between characters two cells wide. A path too long for a line loses its beginning;
    any other word is broken.
    """
    rest = first if rest is None else rest
    room = max(2, width - max(width_of(first), width_of(rest)))
    lines: list[str] = []
    line = ""
    for word in clean(text).strip().split(" "):
        if width_of(word) > room and _PATH.fullmatch(word):
            word = cut_left(word, room)  # noqa: PLW2901 - the word as it is shown
        joined = f"{line} {word}" if line else word
        if width_of(joined) <= room:
            line = joined
            continue
        if line and not (any(map(_wide, word)) or width_of(word) > room):
            lines.append(line)
            line = word
            continue
        *full, line = _broken(line, word, room)
        lines.extend(full)
    if line or not lines:
        lines.append(line)
    return [f"{rest if place else first}{text}".rstrip(" ") for place, text in enumerate(lines) if text or not place]


def _broken(line: str, word: str, room: int) -> list[str]:
    """The line with as much of the word as fits, and what is left of it."""
    lines = []
    joined = f"{line} {word}" if line else word
    while width_of(joined) > room:
        place = _break(joined, fits(joined, room))
        lines.append(joined[:place].rstrip(" "))
        joined = joined[place:].lstrip(" ")
    return [*lines, joined]


def _break(text: str, last: int) -> int:
    """Where to break, at ``last`` or before: at a space or beside a character two cells wide, else within a word."""
    for place in range(last, 0, -1):
        alone = _cells(text[place]) and text[place] != _EMOJI_STYLE
        if text[place] == " " or (alone and (_wide(text[place]) or _wide(text[place - 1]))):
            return place
    return max(1, last)


def _wide(char: str) -> bool:
    if char.isascii():
        return False
    return unicodedata.east_asian_width(char) in "WF" or bool(_WIDE_SINCE.match(char))
