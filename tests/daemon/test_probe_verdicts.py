"""What the daemon tells of probes: progress once a second, verdicts against a baseline, a baseline that is no good."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from daemon_parts import NODE, S, device, newest, sample
from msgspec.structs import replace
from verdict.parts import SETTINGS, result, runs, value

from gpuwatch import wire
from gpuwatch.client.state import NodeState, connecting, fold
from gpuwatch.config import ProbesConfig
from gpuwatch.daemon.journal import LOGGER
from gpuwatch.daemon.probe_judging import Baseline
from gpuwatch.daemon.probe_service import Done, ProbeService
from gpuwatch.daemon.ring import Picture
from gpuwatch.export.jsonable import document, dumps
from gpuwatch.model import Device, DeviceSample, Inventory, ProbeResult, ProbeStatus

UUID = "GPU-0"
USUAL = (700.0, 702.0, 698.0, 701.0, 699.0, 700.5)


class Runner:
    """Starts nothing: the test says what a probe says and when it ends."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = []
        self.say: Callable[[str], None] = lambda _line: None
        self.done: Done = lambda _result: None

    def start(
        self,
        probe: str,
        device: Device | None,
        sample: DeviceSample | None,
        done: Done,
        *,
        seconds: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> str:
        assert progress is not None
        self.seconds.append(seconds)
        self.done, self.say = done, progress
        return ""

    def use(self, python: str) -> None:
        pass

    def check(self, sample: DeviceSample) -> None:
        pass

    def stop(self) -> None:
        pass


class Daemon:
    """The probe service of a daemon with one GPU, and what a client makes of what it publishes."""

    def __init__(self, baseline: Path | str = "") -> None:
        self.now_ns = 10**12
        self.published: list[wire.StreamMessage] = []
        picture = Picture(newest)
        picture.inventory = Inventory(NODE, (device(0),))
        picture.devices[0] = sample(0, 1)
        self.runner = Runner()
        self.service = ProbeService(
            self.runner,
            ProbesConfig(baseline=str(baseline)),
            picture,
            publish=lambda make: self.published.append(make(1, len(self.published))),
            wake=lambda: None,
            clock=lambda: self.now_ns,
        )
        self._inventory = picture.inventory

    @property
    def state(self) -> NodeState:
        state = replace(connecting("x"), inventory=self._inventory)
        for message in self.published:
            state = fold(state, message, 1)
        return state

    def start(self, probe: str = "matmul") -> None:
        assert isinstance(self.service.answer(wire.StartProbe(1, probe, 0)), wire.Accepted)

    def run(self, figure: float, at: int = 99, **settings: str) -> wire.ProbeVerdict | None:
        """Matmul with this figure; what is said about it."""
        self.start()
        measured = result(value("bf16_8192_sustained", figure), at=at, uuid=UUID, settings={**SETTINGS, **settings})
        self.runner.done(measured)
        self.service.step()
        verdicts = self.state.verdicts
        return verdicts[0] if verdicts else None

    def told(self) -> list[wire.ProbeProgress]:
        return [message for message in self.published if isinstance(message, wire.ProbeProgress)]


def written(path: Path, results: Sequence[ProbeResult]) -> Path:
    path.write_text(dumps(document("probe-baseline", {"host": "node1", "results": results})))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path / "base.json", runs(USUAL, uuid=UUID))


# --------------------------------------------------------------------------- progress


def test_a_talkative_probe_costs_the_stream_one_message_a_second() -> None:
    daemon = Daemon()
    daemon.start("copies")
    daemon.service.step()
    for tenth in range(1, 51):
        daemon.now_ns += S // 10
        daemon.runner.say(f"copies: case {tenth}")
        daemon.service.step()
    told = daemon.told()
    assert [(p.done_s, p.message) for p in told] == [
        (0.0, "starting"), (1.0, "case 10"), (2.0, "case 20"), (3.0, "case 30"), (4.0, "case 40"), (5.0, "case 50")
    ]  # fmt: skip
    assert {(p.probe, p.device_index, p.total_s) for p in told} == {("copies", 0, 25.0)}


def test_a_silent_probe_is_still_seen_to_run_and_ends_on_the_screen(base: Path) -> None:
    daemon = Daemon()
    daemon.start()
    daemon.now_ns += 7 * S
    daemon.service.step()
    daemon.now_ns += S
    daemon.service.step()
    assert [p.done_s for p in daemon.told()] == [7.0, 8.0], "what was missed is not caught up with"
    assert daemon.state.probing[0].probe == "matmul"
    daemon.runner.done(result(probe="matmul", status=ProbeStatus.FAILED, message="killed", uuid=UUID))
    daemon.now_ns += S
    daemon.service.step()
    assert daemon.state.probing == {}
    assert len(daemon.told()) == 2


def test_with_a_baseline_the_measuring_time_and_the_expected_length_are_its_own(base: Path) -> None:
    daemon = Daemon(base)
    daemon.start()
    daemon.service.step()
    assert daemon.runner.seconds == [3.0], "with another one nothing could be compared"
    assert daemon.told()[0].total_s == 1.0, "as long as the baseline's runs took"
    daemon.start("copies")
    assert daemon.runner.seconds[1] is None


# --------------------------------------------------------------------------- verdicts


def test_a_slower_gpu_is_told_with_change_interval_and_level(base: Path) -> None:
    daemon = Daemon(base)
    verdict = daemon.run(600.0)
    assert verdict is not None
    assert (verdict.probe, verdict.device_uuid, verdict.started_wall_ns, verdict.level) == (
        *("matmul", UUID, 99),
        "critical",
    )
    (row,) = verdict.values
    assert (row.value, row.verdict, row.level, row.unit) == ("bf16_8192_sustained", "SLOWER", "critical", "TFLOP/s")
    assert row.before == pytest.approx(700, abs=0.5)
    assert row.improvement == pytest.approx(600 / 700.08 - 1, abs=1e-3)
    assert row.improvement is not None
    assert row.low is not None
    assert row.high is not None
    assert row.low < row.improvement < row.high < 0
    assert daemon.state.baseline == str(base)
    assert daemon.state.baseline_note == ""


def test_an_unchanged_gpu_is_the_same(base: Path) -> None:
    verdict = Daemon(base).run(700.2)
    assert verdict is not None
    assert (verdict.level, [row.verdict for row in verdict.values]) == ("ok", ["SAME"])


def test_probes_of_the_baseline_that_were_not_run_now_are_not_missed(tmp_path: Path) -> None:
    others = [replace(run, probe="conv") for run in runs(USUAL, uuid=UUID)]
    verdict = Daemon(written(tmp_path / "base.json", [*runs(USUAL, uuid=UUID), *others])).run(700.2)
    assert verdict is not None
    assert [row.verdict for row in verdict.values] == ["SAME"]


def test_another_torch_is_named_and_not_judged(base: Path) -> None:
    verdict = Daemon(base).run(600.0, torch="2.10.0")
    assert verdict is not None
    (row,) = verdict.values
    assert (row.value, row.verdict) == ("", "NOT_COMPARABLE")
    assert row.reason == "measured under other conditions: torch 2.9.0 → 2.10.0"


def test_a_newer_failure_takes_the_old_verdict_away(base: Path) -> None:
    daemon = Daemon(base)
    assert daemon.run(600.0) is not None
    daemon.start()
    daemon.runner.done(result(status=ProbeStatus.FAILED, message="killed", uuid=UUID, at=100))
    daemon.service.step()
    daemon.published.clear()
    daemon.service.tell_all()
    assert daemon.state.verdicts == ()


def test_who_comes_later_gets_all_verdicts_and_without_a_baseline_nothing_is_sent(base: Path) -> None:
    daemon = Daemon(base)
    daemon.run(600.0)
    daemon.published.clear()
    daemon.service.tell_all()
    assert [v.level for v in daemon.state.verdicts] == ["critical"]
    without = Daemon()
    without.run(600.0)
    without.service.tell_all()
    assert not [m for m in without.published if isinstance(m, wire.ProbeVerdictMessage)]


def test_a_baseline_in_the_configuration_read_again_judges_what_was_measured_before(base: Path) -> None:
    daemon = Daemon()
    assert daemon.run(600.0) is None
    daemon.service.configure(ProbesConfig(baseline=str(base)))
    assert [v.level for v in daemon.state.verdicts] == ["critical"]
    daemon.service.configure(ProbesConfig())
    assert (daemon.state.baseline, daemon.state.verdicts) == ("", ())


# --------------------------------------------------------------------------- a baseline that is no good


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such file; make it with: gpuwatch probe baseline --out"),
        (lambda path: path.mkdir(), "cannot be read: not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_text("{"), "not a result of gpuwatch probe"),
        (lambda path: path.write_bytes(b"\xff\xfe\0"), "not a result of gpuwatch probe"),
        (lambda path: path.write_text('{"schema": "else/1", "results": []}'), "schema 'else/1'"),
        (lambda path: path.write_text('{"schema": "gpuwatch.probe/1", "results": [1]}'), "damaged"),
        (lambda path: written(path, []), "no result in it"),
    ],
    ids=["missing", "folder", "pipe", "half", "binary", "other", "damaged", "empty"],
)
def test_a_baseline_that_is_no_good_is_one_line_in_the_journal_and_a_note_and_probes_go_on(
    make: Callable[[Path], object], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "base.json"
    make(path)
    with caplog.at_level(logging.INFO, LOGGER):
        daemon = Daemon(path)
        assert daemon.run(700.0) is None
        assert daemon.run(701.0, at=100) is None
    lines = [record.getMessage() for record in caplog.records if "baseline" in record.getMessage()]
    (line,) = lines
    assert line.startswith(f"probes.baseline: {path}: ")
    assert says in line
    assert "\n" not in line
    state = daemon.state
    assert state.baseline == str(path)
    assert says in state.baseline_note
    assert [r.status for r in state.probes] == [ProbeStatus.OK]


def test_a_baseline_that_is_made_later_is_used_without_a_restart(base: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.json"
    daemon = Daemon(later)
    assert daemon.run(600.0) is None
    base.rename(later)
    daemon.start()
    daemon.service.step()
    assert daemon.state.baseline_note == "", "the note goes as soon as a probe starts with it"
    verdict = daemon.run(600.0, at=100)
    assert verdict is not None
    assert (verdict.level, daemon.state.baseline_note) == ("critical", "")


def test_a_baseline_with_impossible_figures_costs_no_result(tmp_path: Path) -> None:
    text = written(tmp_path / "base.json", runs(USUAL, uuid=UUID)).read_text()
    broken = json.loads(text)
    for run in broken["results"]:
        run["values"][0]["median"] = -1.0
        run["settings"]["seconds"] = "three"
    (tmp_path / "base.json").write_text(json.dumps(broken))
    daemon = Daemon(tmp_path / "base.json")
    verdict = daemon.run(600.0)
    assert verdict is not None
    assert [row.verdict for row in verdict.values] == ["NEW"]
    assert daemon.runner.seconds == [None]
    assert [r.status for r in daemon.state.probes] == [ProbeStatus.OK]


def test_a_slip_in_the_statistics_costs_the_verdict_and_not_the_result(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slip(*_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("gpuwatch.verdict.check.check", slip)
    verdict = Daemon(base).run(600.0)
    assert verdict is not None
    assert verdict.values[0].reason == "could not be judged: ZeroDivisionError: by zero"


def test_a_baseline_in_the_home_folder_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base.parent))
    found = Baseline()
    found.configure("~/base.json")
    assert (found.name, found.note, len(found.results("matmul"))) == (str(base), "", len(USUAL))
