"""The application on a real pseudo-terminal: bytes per tick, colours, exit codes, the terminal given back."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "tui_child.py"
BUDGET_BYTES = 4096
LEAVES_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOWS_CURSOR = b"\x1b[?25h"
COLOR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;[0-9;]*)?m")


class Terminal:
    """The parent's end of the pseudo-terminal and of the control pipe."""

    def __init__(self, program: tuple[str, ...], size: tuple[int, int], environ: dict[str, str]) -> None:
        """``program``: arguments of Python, before the number of the control pipe."""
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        control, self.control = os.pipe()
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "TEXTUAL_COLOR_SYSTEM")}
        self.child = subprocess.Popen(
            [sys.executable, *program, str(control)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=(control,),
            env=clean | {"TERM": "xterm-256color"} | environ,
            start_new_session=True,
        )
        os.close(slave)
        os.close(control)
        self.output = b""

    def read_until(self, wanted: bytes, quiet_s: float = 0.25) -> bytes:
        """What comes until ``wanted`` has been seen and then nothing more follows; at most 20 s.

        Only changed cells are sent: of a word that was there before only some letters may come."""
        seen = b""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = wanted in seen
            if select.select([self.master], [], [], quiet_s if found else 0.5)[0]:
                seen += self._read()
            elif found:
                break
        self.output += seen
        assert wanted in seen, f"{wanted!r} not in {seen[-400:]!r}"
        return seen

    def tick(self) -> None:
        os.write(self.control, b"t")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait(self) -> int:
        """The exit code; everything that was still to come is in ``output``."""
        deadline = time.monotonic() + 20
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += self._read()
        while select.select([self.master], [], [], 0)[0]:
            more = self._read()
            if not more:
                break
            self.output += more
        return self.child.wait(timeout=1)

    def _read(self) -> bytes:
        try:
            return os.read(self.master, 1 << 16)
        except OSError:  # EIO: the child has closed its end.
            return b""


@contextmanager
def terminal(mode: str, size: tuple[int, int] = (80, 24), environ: dict[str, str] | None = None) -> Iterator[Terminal]:
    with terminal_of(str(CHILD), mode, size=size, environ=environ) as opened:
        yield opened


@contextmanager
def terminal_of(
    *program: str, size: tuple[int, int] = (80, 24), environ: dict[str, str] | None = None
) -> Iterator[Terminal]:
    opened = Terminal(program, size, environ or {})
    try:
        yield opened
    finally:
        if opened.child.poll() is None:
            opened.child.kill()
            opened.child.wait()
        os.close(opened.master)
        os.close(opened.control)


@pytest.mark.parametrize(("mode", "size"), [("ticks", (80, 24)), ("ticks", (160, 50)), ("bursts", (160, 50))])
def test_a_slow_ssh_link_gets_at_most_four_kilobytes_a_tick(mode: str, size: tuple[int, int]) -> None:
    with terminal(mode, size) as tty:
        tty.read_until(b"17:20:31")
        sizes = []
        for second in range(32, 38):
            tty.tick()
            # Of the clock only the last digit is sent, at its place.
            seen = tty.read_until(f"\x1b[1;{size[0] - 1}H".encode())
            assert f"{second}"[-1].encode() in seen
            sizes.append(len(seen))
        tty.press("q")
        assert tty.wait() == 0
    budget = BUDGET_BYTES if size == (80, 24) else 2 * BUDGET_BYTES
    # The first tick may redraw the chart; from then on it moves once in many ticks.
    assert sum(sizes) / len(sizes) <= budget * 3 / 4, sizes
    assert max(sizes) <= budget, sizes
    print(f"bytes per tick at {size[0]}x{size[1]}: {sizes}")


def test_a_tick_in_which_nothing_changes_sends_nothing() -> None:
    with terminal("ticks") as tty:
        tty.read_until(b"17:20:31")
        # Four paint periods: a repaint without a change would show.
        assert select.select([tty.master], [], [], 2.0)[0] == []


def test_no_color_sends_no_colour_code() -> None:
    with terminal("ticks", environ={"NO_COLOR": "1"}) as tty:
        tty.read_until(b"17:20:31")
        tty.press("4")
        tty.read_until(b"Where")
        tty.press("q")
        assert tty.wait() == 0
        assert COLOR.findall(tty.output) == []


@pytest.mark.parametrize("environ", [{"TERM": "xterm-16color"}, {"TEXTUAL_COLOR_SYSTEM": "standard"}])
def test_sixteen_colours_are_the_terminals_own(environ: dict[str, str]) -> None:
    with terminal("ticks", environ=environ) as tty:
        seen = tty.read_until(b"17:20:31")
        assert COLOR.findall(seen)
        assert b";38;" not in seen
        assert b"[38;" not in seen


def test_quitting_gives_the_terminal_back_with_exit_code_zero() -> None:
    with terminal("ticks") as tty:
        tty.read_until(b"17:20:31")
        tty.press("q")
        assert tty.wait() == 0
        assert LEAVES_ALTERNATE_SCREEN in tty.output
        assert SHOWS_CURSOR in tty.output


def test_a_bug_in_the_feed_is_not_exit_code_zero_and_the_terminal_is_given_back() -> None:
    with terminal("crash") as tty:
        assert tty.wait() == 1
        assert LEAVES_ALTERNATE_SCREEN in tty.output
        assert b"a bug in the feed" in tty.output.partition(LEAVES_ALTERNATE_SCREEN)[2]


def test_a_daemon_that_ends_is_one_line_and_its_exit_code() -> None:
    with terminal("gone") as tty:
        assert tty.wait() == 69
        after = tty.output.partition(LEAVES_ALTERNATE_SCREEN)[2]
        assert b"gpuwatch: the embedded daemon ended with code 70" in after
        assert b"Traceback" not in after


def test_sigterm_gives_the_terminal_back() -> None:
    with terminal("ticks") as tty:
        tty.read_until(b"17:20:31")
        tty.child.send_signal(signal.SIGTERM)
        assert tty.wait() == 128 + signal.SIGTERM
        assert LEAVES_ALTERNATE_SCREEN in tty.output


def test_sigint_is_not_success() -> None:
    with terminal("ticks") as tty:
        tty.read_until(b"17:20:31")
        tty.child.send_signal(signal.SIGINT)
        assert tty.wait() == 128 + signal.SIGINT
        assert LEAVES_ALTERNATE_SCREEN in tty.output


def test_a_terminal_that_goes_away_without_a_signal_leaves_nobody_behind() -> None:
    """It is not the child's controlling terminal, so there is no SIGHUP: Textual then took a whole core, for ever."""
    tty = Terminal((str(CHILD), "ticks"), (80, 24), {})
    try:
        tty.read_until(b"17:20:31")
        os.close(tty.master)
        assert tty.child.wait(timeout=20) == 128 + signal.SIGHUP
    finally:
        tty.child.kill()
        tty.child.wait()
        os.close(tty.control)


def test_an_encoding_without_braille_does_not_end_the_screen() -> None:
    with terminal("ticks", environ={"PYTHONIOENCODING": "latin-1"}) as tty:
        tty.read_until(b"17:20:31")
        tty.tick()
        tty.read_until(b"\x1b[1;79H")
        tty.press("q")
        assert tty.wait() == 0
