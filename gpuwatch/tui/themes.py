"""Colours: which palette a terminal gets, and the theme of ours.

Owns: the palette decision, the theme. Refuses: which text has which role (view) and which role which variable (tcss).

The theme's colours are cells of the 256-colour cube, because that is what SSH usually gives. Blue, teal, violet and
orange stay apart for colour-blind eyes, and no state is told by colour alone.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from textual.theme import Theme


class Palette(enum.Enum):
    """What may be sent to the terminal."""

    FULL = "full"
    ANSI = "ansi"
    """The terminal's own sixteen colours."""
    MONO = "mono"
    """No colour codes at all: bold, dim and reverse only."""


GPUWATCH_DARK = Theme(
    name="gpuwatch-dark",
    dark=True,
    primary="#5fafff",
    secondary="#ffaf5f",
    accent="#af87ff",
    success="#5fd7af",
    warning="#ffaf00",
    error="#ff5f5f",
    foreground="#d0d0d0",
    background="#121212",
    surface="#1c1c1c",
    panel="#262626",
    boost="#303030",
)
ANSI_THEME = "ansi-dark"
"""Draws in the terminal's own foreground and background, so it is right on light terminals too."""


def palette(environ: Mapping[str, str]) -> Palette:
    """The palette for this environment: NO_COLOR first, then TEXTUAL_COLOR_SYSTEM, then what TERM promises."""
    if environ.get("NO_COLOR"):
        return Palette.MONO
    forced = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if forced != "auto":
        return Palette.ANSI if forced == "standard" else Palette.FULL
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return Palette.FULL
    # Without a promise of 256 colours Rich falls back to sixteen, where our greys would all become one.
    term = environ.get("TERM", "")
    return Palette.FULL if term.endswith(("256color", "direct", "kitty")) else Palette.ANSI
