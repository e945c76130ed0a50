"""A few screens with their colours and weights, as SVG: what the text goldens cannot show.

``GPUWATCH_UPDATE_GOLDEN=1 pytest tests/tui`` writes the files anew; look at them in a browser.
"""

from __future__ import annotations

import asyncio
import os

import pytest
from render_svg import render
from test_screens_as_text import GOLDEN

SCREENS = {
    "overview-live8": ("live8", "overview", (80, 24), "256"),
    "overview-live8-16-colours": ("live8", "overview", (80, 24), "standard"),
    "diagnosis-live1": ("live1", "diagnosis", (80, 24), "256"),
    "gpu-bursty": ("bursty", "gpu", (120, 35), "256"),
}


def drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    state, view, size, colours = SCREENS[name]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setenv("TEXTUAL_COLOR_SYSTEM", colours)
    return asyncio.run(render(state, view, size))


@pytest.mark.parametrize("name", SCREENS)
def test_screen_looks_as_reviewed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GOLDEN / f"{name}.svg"
    text = drawn(name, monkeypatch)
    if os.environ.get("GPUWATCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path.name} differs; see this module's docstring"
