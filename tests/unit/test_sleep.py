"""When a laptop's GPU is left alone: it must not be kept awake, nor its driver opened and closed for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpuwatch.collect.sleep import PAUSE_S, Sleep

S = 1_000_000_000


class Machine:
    """A sysfs with some PCI devices, and a clock that waiting moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ns = 10**12
        self.then: list[Callable[[], None]] = []
        self.sleep = Sleep(folder, lambda: self.ns, idle_s=60, settle_s=30, look_s=2)

    def device(
        self, address: str, status: str, control: str = "auto", vendor: str = "0x10de", kind: str = "0x030200"
    ) -> None:
        power = self.folder / address / "power"
        power.mkdir(parents=True, exist_ok=True)
        for path, text in (("vendor", vendor), ("class", kind), ("power/control", control)):
            (self.folder / address / path).write_text(text + "\n")
        (power / "runtime_status").write_text(status + "\n")

    def wait(self, wanted: bool = False) -> float:
        """Seconds until NVML may be opened; ``then`` holds what happens at each look."""
        began_ns, machine = self.ns, self

        class Stop(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                machine.ns += int((timeout or 0) * S)
                if machine.then:
                    machine.then.pop(0)()
                return self.is_set()

        self.sleep.wait(Stop(), lambda: wanted)
        return (self.ns - began_ns) / S


def test_only_when_all_nvidia_gpus_are_suspended_are_they_asleep(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    assert not m.sleep.asleep(), "no GPU"
    m.device("0000:00:02.0", "suspended", vendor="0x8086")
    m.device("0000:01:00.1", "suspended", kind="0x040300")
    assert not m.sleep.asleep(), "another maker's, and the card's sound"
    m.device("0000:01:00.0", "suspended")
    assert m.sleep.asleep()
    m.device("0000:41:00.0", "active")
    assert not m.sleep.asleep()
    assert not Sleep(tmp_path / "nowhere").asleep()


def test_a_minute_without_a_user_and_a_watcher_gives_the_driver_back(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.device("0000:01:00.0", "active")
    asked = []
    for idle in (True, False, True, True, True):
        asked.append(m.sleep.due(idle=idle))
        m.ns += 30 * S
    assert asked == [False, False, False, False, True]


def test_a_gpu_that_may_not_suspend_is_watched_on(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.device("0000:01:00.0", "active", control="on")
    m.sleep.due(idle=True)
    m.ns += 3600 * S
    assert not m.sleep.due(idle=True)


def test_it_may_be_opened_when_a_gpu_has_woken(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.device("0000:01:00.0", "active")
    m.then = [lambda: None, lambda: m.device("0000:01:00.0", "suspended"), *[lambda: None] * 100]
    m.then.append(lambda: m.device("0000:01:00.0", "active"))
    assert m.wait() == 206


def test_a_gpu_that_somebody_else_keeps_awake_is_not_given_back_again_for_ten_minutes(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.device("0000:01:00.0", "active")
    assert m.wait() == 30
    m.sleep.due(idle=True)
    m.ns += 300 * S
    assert not m.sleep.due(idle=True)
    m.ns += int(PAUSE_S) * S
    assert m.sleep.due(idle=True)


def test_one_who_wants_to_look_before_it_sleeps_is_not_kept_waiting(tmp_path: Path) -> None:
    m = Machine(tmp_path)
    m.device("0000:01:00.0", "active")
    assert m.wait(wanted=True) == 0
    m.device("0000:01:00.0", "suspended")
    m.then = [lambda: None, lambda: m.device("0000:01:00.0", "active")]
    assert m.wait(wanted=True) == 4, "one that sleeps is not woken for it"
