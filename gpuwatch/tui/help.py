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
    Key("2", "view('gpu')", "2", "GPU: charts of the selected one, from a minute to a day"),
    Key("3", "view('processes')", "3", "Processes: each job with its loader workers"),
    Key("4", "view('diagnosis')", "4", "Diagnosis: cause, cost, evidence, remedy of the selected job"),
    Key("5", "view('probes')", "5", "Probes: what this GPU can reach"),
    Key("6", "view('events')", "6", "Events: findings, throttles, probes, jobs, links"),
    Key("7", "view('hosts')", "7", "Hosts: one line each, worst first; enter opens one"),
    Key("8,question_mark", "view('help')", "8 ?", "Help"),
    Key("tab", "next_view(1)", "tab", "next view"),
    Key("shift+tab", "next_view(-1)", "shift+tab", "previous view"),
    Key("down,j", "move(1)", "down j", "next GPU or process; scroll a text down"),
    Key("up,k", "move(-1)", "up k", "previous GPU or process; scroll a text up"),
    Key("pagedown", "move(10)", "pagedown", "ten lines down"),
    Key("pageup", "move(-10)", "pageup", "ten lines up"),
    Key("right,l", "job(1)", "right l", "next job"),
    Key("left,h", "job(-1)", "left h", "previous job"),
    Key("q,ctrl+c", "leave", "q", "quit", "quit"),
    Key("space", "pause", "space", "hold the screen still, or the recording; again: go on", "pause"),
    Key("escape", "back", "esc", "end the search, else back to the overview"),
    Key("minus", "window(-1)", "-", "GPU: a shorter window"),
    Key("plus,equals_sign", "window(1)", "+", "GPU: a longer window"),
    Key("s", "sort", "s", "Processes: sort by GPU, CPU, GPU memory, RSS, read rate"),
    Key("slash", "find", "/", "find: only processes, events and hosts with these words"),
    Key("f", "follow", "f", "Processes: stay with the selected one"),
    Key("T", "signal('TERM')", "T", "Processes: end the selected one (SIGTERM), if it is yours; asks first"),
    Key("K", "signal('KILL')", "K", "Processes: kill the selected one (SIGKILL), if it is yours; asks first"),
    Key("r", "probe", "r", "Probes: run the selected one, if the GPU is idle"),
    Key("o", "kind", "o", "Events: only findings, only throttles, ..., all"),
    Key("n", "host(1)", "n", "next host"),
    Key("N", "host(-1)", "N", "previous host"),
    Key("full_stop", "replay('step', 1)", ".", "recording: on by a second, then hold"),
    Key("right_square_bracket", "replay('seek', 10)", "]", "recording: ten seconds forward"),
    Key("left_square_bracket", "replay('seek', -10)", "[", "recording: ten seconds back"),
    Key("greater_than_sign", "replay('speed', 2)", ">", "recording: twice as fast"),
    Key("less_than_sign", "replay('speed', 0.5)", "<", "recording: half as fast"),
    Key("x", "export('txt')", "x", "write this view to a text file in the current directory"),
    Key("X", "export('json')", "X", "write what this view knows to a JSON file"),
    Key("y", "copy", "y", "copy this view to the clipboard, if the terminal allows it"),
    Key("ctrl+p", "palette", "ctrl+p", "all of this by name"),
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
