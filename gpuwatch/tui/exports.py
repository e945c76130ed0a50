"""The current view to a file.

Owns: names that overwrite nothing, and what the JSON of a view holds. Refuses: drawing.
"""

from __future__ import annotations

import html
import re
from datetime import datetime
from pathlib import Path

from rich.cells import cell_len

from gpuwatch.client.events import timeline
from gpuwatch.client.state import NodeState
from gpuwatch.export.jsonable import document, dumps

_FONT = re.compile(r"^\s*@font-face \{.*?^\s*\}\n", re.DOTALL | re.MULTILINE)
_RUN = re.compile(
    r'<text class="([^"]*)" x="([\d.]+)" y="([^"]*)" textLength="[^"]*" clip-path="([^"]*)">([^<]*)</text>'
)
_WORDS = re.compile("[\u2800-\u28ff]+|[^\xa0\u2800-\u28ff]+(?:\xa0[^\xa0\u2800-\u28ff]+)*")
"""Braille comes from another font than letters where the monospaced one has none, and so apart from them."""
CELL_WIDTH = 12.2
"""Of rich's drawings, in their units."""


def write(folder: Path, view: str, suffix: str, text: str, now: datetime) -> str:
    """Write ``gpuwatch-VIEW-TIME.SUFFIX`` without overwriting; one line with where it is, or why not."""
    stem = f"gpuwatch-{view}-{now:%Y%m%d-%H%M%S}"
    for number in range(1, 100):
        path = folder / f"{stem}{f'-{number}' if number > 1 else ''}.{suffix}"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text if text.endswith("\n") else text + "\n")
        except FileExistsError:
            continue
        except OSError as exc:
            return f"not written: {path}: {exc.strerror}"
        return f"written: {path}"
    return f"not written: {folder}: too many files of this second"


def as_svg(drawing: str) -> str:
    """Textual's drawing without the fonts that a viewer would fetch from the net: the machine that shows it may have
    none, and whoever is sent a screen need not tell a third party that he looks at it. Any monospaced font will do.

    Each word stands where its first cell is. A run that begins with spaces would begin wherever the viewer's font puts
    it: librsvg drops them, and a browser stretches them with what follows.
    """
    return _RUN.sub(_words_in_place, _FONT.sub("", drawing))


def _words_in_place(run: re.Match[str]) -> str:
    style, left, top, clip, escaped = run.groups()
    text = html.unescape(escaped)
    placed = []
    for word in _WORDS.finditer(text):
        x = float(left) + CELL_WIDTH * cell_len(text[: word.start()])
        width = CELL_WIDTH * cell_len(word[0])
        shown = html.escape(word[0]).replace("\xa0", "&#160;")
        placed.append(
            f'<text class="{style}" x="{x:g}" y="{top}" textLength="{width:g}" clip-path="{clip}">{shown}</text>'
        )
    return "".join(placed)


def as_json(state: NodeState, view: str) -> str:
    """What the screen knows of the node, as JSON (schema gpuwatch.view/1)."""
    body: dict[str, object] = {
        "view": view,
        "endpoint": state.endpoint,
        "link": state.link.value,
        "inventory": state.inventory,
        "wall_ns": state.tick_wall_ns,
        "devices": [state.devices[index] for index in sorted(state.devices)],
        "host": state.host,
        "processes": [{"info": info, "sample": state.processes.get(pid)} for pid, info in sorted(state.infos.items())],
        "diagnoses": state.diagnoses,
        "diagnosing": state.progress,
        "accounts": [
            {"pid": pid, "device_indices": devices, "points": points}
            for (pid, devices), points in state.accounts.items()
        ],
        "steps": [report for pid in sorted(state.steps) for report in state.steps[pid]],
        "probes": state.probes,
        "probing": [state.probing[index] for index in sorted(state.probing)],
        "baseline": {"file": state.baseline, "note": state.baseline_note} if state.baseline else None,
        "verdicts": state.verdicts,
        "events": timeline(state),
    }
    if view == "gpu":
        body["past"] = state.past
    return dumps(document("view", body))
