"""A real application in a child process on a pseudo-terminal, fed by its parent.

    python tui_child.py MODE CONTROL_FD

Modes: ``ticks`` gives the next second of eight GPUs for every byte on CONTROL_FD, ``bursts`` the same in the GPU view
with sub-second samples, ``crash`` raises in the feed,
``gone`` raises an expected error in the feed.
"""

from __future__ import annotations

import os
import select
import sys
from datetime import UTC
from pathlib import Path

os.environ |= {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_FPS": "30", "TEXTUAL_SMOOTH_SCROLL": "0"}
sys.path.insert(0, str(Path(__file__).parent))

from msgspec.structs import replace
from tui_feed import ScriptedFeed
from tui_states import NOW_NS, SECOND, live, sample

from gpuwatch.client.state import NodeState, TimedBurst
from gpuwatch.errors import UnavailableError
from gpuwatch.model import BurstSummary
from gpuwatch.tui.app import WatchApp
from gpuwatch.tui.selection import ViewOptions


def burst(seconds: int) -> TimedBurst:
    """Samples that differ from those of every tick near it."""
    values = tuple((37 * (seconds + place) + 11 * place * seconds) % 101 for place in range(5))
    return TimedBurst(NOW_NS + seconds * SECOND, BurstSummary(0, values, 100 + values[0], 300, 400 + values[1]))


def after(state: NodeState, seconds: int) -> NodeState:
    """The state one tick later: every value of every GPU moves."""
    now = NOW_NS + seconds * SECOND
    devices = {i: sample(i, now, 99.0 + 5 * seconds, starved=i == 0) for i in state.devices}
    return replace(
        state,
        devices=devices,
        history={i: state.history[i].append(device) for i, device in devices.items()},
        burst_history={i: (*told[1:], burst(seconds)) for i, told in state.burst_history.items()},
        tick_mono_ns=now,
        tick_wall_ns=state.tick_wall_ns + SECOND,
        ticked_ns=now,
    )


class ControlledFeed(ScriptedFeed):
    """One more second for each byte that the parent writes."""

    def __init__(self, control_fd: int, state: NodeState) -> None:
        super().__init__(state)
        self.state = state
        self.seconds = 0
        self.control_fd = control_fd

    def step(self, timeout_s: float) -> NodeState:
        if select.select([self.control_fd], [], [], timeout_s)[0] and os.read(self.control_fd, 1):
            self.seconds += 1
            self.state = after(self.state, self.seconds)
        return self.state


def main() -> int:
    """Run the application until the parent sends ``q`` on the terminal."""
    mode, control = sys.argv[1], int(sys.argv[2])
    feed: ScriptedFeed
    match mode:
        case "ticks":
            feed = ControlledFeed(control, live(8))
        case "bursts":
            history = tuple(burst(second) for second in range(-59, 1))
            feed = ControlledFeed(control, replace(live(8), burst_history={0: history}, bursts={0: history[-1].burst}))
        case "crash":
            feed = ScriptedFeed(live(1), RuntimeError("a bug in the feed"))
        case _:
            feed = ScriptedFeed(live(1), UnavailableError("the embedded daemon ended with code 70"))
    view = "gpu" if mode == "bursts" else "overview"
    app = WatchApp(lambda: feed, ViewOptions(view=view, zone=UTC), "ipc:///run/gpuwatch")
    app.run(mouse=False)
    if app.failure is not None:
        print(f"gpuwatch: {app.failure}", file=sys.stderr)
    return app.return_code or 0


if __name__ == "__main__":
    raise SystemExit(main())
