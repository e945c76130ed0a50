"""From the command to the first readings: what is imported, in which order, and what is sent to the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from test_on_a_terminal import terminal, terminal_of

ROOT = Path(__file__).parents[2]
NOT_BEFORE_THE_FIRST_FRAME = {
    "gpuwatch.collect", "gpuwatch.daemon", "gpuwatch.diagnose", "gpuwatch.doctor", "gpuwatch.replay",
    "textual.widgets._data_table", "textual.widgets._markdown", "textual.widgets._text_area", "markdown_it", "pygments",
    "rich.markdown", "rich.syntax", "rich.traceback", "pynvml", "torch", "numpy", "sqlite3", "tomllib", "http", "email",
    "multiprocessing", "xml",
}  # fmt: skip
"""Each of these takes 5 to 500 ms to import, and no view needs it: bytecode of a daemon is no part of a screen."""


MODULES = """
import sys
from gpuwatch.cli import main

code = main.run(["tui", "--connect", "ipc:///run/nobody"])
print("modules:", *sorted(sys.modules))
sys.exit(code)
"""


def test_the_screen_is_there_without_importing_what_no_view_needs() -> None:
    with terminal_of("-c", MODULES) as tty:
        tty.read_until(b"connecting")
        tty.press("q")
        assert tty.wait() == 0
    imported = set(tty.output.rpartition(b"modules:")[2].decode().split())
    assert {"gpuwatch.tui.view", "textual.app", "zmq"} <= imported
    assert imported & NOT_BEFORE_THE_FIRST_FRAME == set()


def test_the_first_frame_has_something_in_it() -> None:
    """On a slow link each blank screen before it would be two kilobytes of nothing."""
    with terminal("ticks") as tty:
        seen = tty.read_until(b"17:20:31")
        tty.press("q")
        assert tty.wait() == 0
    before = seen.partition(b"gpuwatch")[0]
    assert len(before) < 300, before[-300:]


OWN_DAEMON = """
import sys
from gpuwatch.cli import main, tui
from gpuwatch.client.embedded import EmbeddedDaemon
from gpuwatch.errors import UnavailableError

def start(self):
    print("textual" in sys.modules)
    raise UnavailableError("seen enough")

EmbeddedDaemon.start = start
sys.stdin.isatty = sys.stdout.isatty = lambda: True
sys.exit(main.run(["tui", "--replay", sys.argv[1]]))
"""


def test_a_daemon_of_our_own_gets_ready_while_textual_is_imported() -> None:
    recording = ROOT / "gpuwatch" / "data" / "starved-loader.gwrec"
    child = subprocess.run(
        [sys.executable, "-c", OWN_DAEMON, str(recording)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (child.returncode, child.stdout) == (69, "False\n")
    assert child.stderr == "gpuwatch: seen enough\n"


ERRORS_ELSEWHERE = """
import os, sys
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
from gpuwatch.cli import main
sys.exit(main.run(["tui", "--connect", "ipc:///run/nobody"]))
"""


def test_a_log_of_errors_does_not_take_the_screen_with_it() -> None:
    """``gpuwatch tui 2>log``."""
    with terminal_of("-c", ERRORS_ELSEWHERE) as tty:
        tty.read_until(b"no daemon at /run/nobody")
        tty.press("q")
        assert tty.wait() == 0
