"""The keys, once: bindings, footer and help screen are all made from this list.

Owns: which key does what and how it is explained. Refuses: doing it.
"""

from __future__ import annotations

from msgspec import Struct

from gpuwatch.tui.text import Glyphs, Row, wrap


class Key(Struct, frozen=True):
    """One binding."""

    keys: str
    """Textual's names, separated by commas."""
    action: str
    shown: str
    """What the help writes for it."""
    help: str
    footer: str = ""
    """A word for the footer; empty keeps it out."""


KEYS = (
    Key("d", "diagnose", "d", "start a diagnosis of the selected job, or of the GPU if it has none", "diagnose"),
    Key("enter", "open", "enter", "show the diagnosis of the selection; start one if there is none"),
    Key("1", "view('overview')", "1", "Overview: GPUs, chart, verdicts"),
    Key("2", "view('processes')", "2", "Processes: each job with its loader workers"),
    Key("3", "view('diagnosis')", "3", "Diagnosis: cause, cost, evidence, remedy of the selected job"),
    Key("4,question_mark", "view('help')", "4 ?", "Help"),
    Key("tab", "next_view(1)", "tab", "next view"),
    Key("shift+tab", "next_view(-1)", "shift+tab", "previous view"),
    Key("down,j", "move(1)", "down j", "next GPU or process; scroll a text down"),
    Key("up,k", "move(-1)", "up k", "previous GPU or process; scroll a text up"),
    Key("pagedown", "move(10)", "pagedown", "ten lines down"),
    Key("pageup", "move(-10)", "pageup", "ten lines up"),
    Key("right,l", "job(1)", "right l", "next job"),
    Key("left,h", "job(-1)", "left h", "previous job"),
    Key("q,ctrl+c", "leave", "q", "quit", "quit"),
    Key("space", "pause", "space", "hold the screen still; again: go on", "pause"),
    Key("escape", "view('overview')", "esc", "back to the overview"),
)

_READING = (
    ("BUSY", "a kernel was running somewhere on the GPU. It can be 100 % while next to nothing is computed."),
    ("SM", "share of the multiprocessors that had work. This is what you paid for."),
    ("TENSOR", "share of the time in which the tensor cores were fed. Near 0 in 32-bit training without TF32."),
    ("DRAM", "share of the memory bandwidth in use. High with low TENSOR: bound by memory."),
    ("*", "NVML utilization, where the GPU has no GPM counters: a kernel was resident; says little."),
    ("n/a", "this value was not read; the line under the table says why. It never means 0."),
    ("old", "this GPU's driver call has not returned for so long; its values stand still."),
)


def help_rows(width: int, glyphs: Glyphs) -> list[Row]:
    """The help as lines."""
    rows: list[Row] = [(("  What the columns mean", "title"),)]
    for name, text in _READING:
        rows.extend(_entry(name, text, width))
    rows += [(), (("  Keys", "title"),)]
    for key in KEYS:
        rows.extend(_entry(key.shown, key.help, width))
    rows += [
        (),
        (("  Signs of severity", "title"),),
        *_entry(glyphs.critical, "critical: most of the time is lost, or a fault", width),
        *_entry(glyphs.warning, "warning: worth fixing", width),
        *_entry(glyphs.info, "info: nothing to fix, or not worth it", width),
    ]
    return rows


def _entry(name: str, text: str, width: int) -> list[Row]:
    lines = wrap(text, max(20, width - 16))
    return [((f"    {name if number == 0 else '':<10}", "key"), (line, "text")) for number, line in enumerate(lines)]
