"""The daemon's diagnoses: those that are due, those that were asked for, those that are finished.

Owns: which inquiry begins, its evidence, what is told about it. Refuses: judging, and sockets (``publish`` is given).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gpuwatch import units, wire
from gpuwatch.collect.source import ObservationSource
from gpuwatch.config import DiagnosisConfig
from gpuwatch.daemon.findings import Findings
from gpuwatch.daemon.inquiries import (
    INQUIRY_S,
    MAX_REQUEST_S,
    MIN_REQUEST_S,
    Decider,
    Inquiries,
    Judge,
    Progress,
    evidence,
    resolve,
)
from gpuwatch.daemon.jobs import Subject
from gpuwatch.daemon.journal import LOGGER, OnChange
from gpuwatch.daemon.looks import Looks
from gpuwatch.daemon.publisher import Publish
from gpuwatch.daemon.ring import ObservationRing, Picture
from gpuwatch.model import Diagnosis, Inventory, Observation, StackSample

KEEP_DIAGNOSES = 16


class Diagnosing:
    """Called by the service's loop only."""

    def __init__(
        self,
        source: ObservationSource,
        judge: Judge,
        settings: DiagnosisConfig,
        picture: Picture,
        ring: ObservationRing,
        *,
        publish: Publish,
        wake: Callable[[], None],
        wall: Callable[[], int],
        ceilings: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.finished: tuple[Diagnosis, ...] = ()
        """The newest of each subject, newest first."""
        self._source = source
        self._picture = picture
        self._ring = ring
        self._publish = publish
        self._wall = wall
        self._decider = Decider(settings)
        self._inquiries = Inquiries(_with_ceilings(judge, ceilings), source.focus, wake)
        self._findings = Findings()
        self._looks = Looks()
        self._accounts: dict[Subject, tuple[wire.AccountPoint, ...]] = {}
        self._tick_ns: int | None = None
        self._log = logging.getLogger(LOGGER)
        self._said = OnChange(self._log)

    @property
    def settings(self) -> DiagnosisConfig:
        """When diagnoses start by themselves."""
        return self._decider.settings

    @settings.setter
    def settings(self, settings: DiagnosisConfig) -> None:
        self._decider.settings = settings

    def observe(self, tick: wire.Tick, occupied: Collection[int] = ()) -> None:
        """One tick. ``occupied``: devices on which a probe of ours runs; nothing starts there by itself."""
        self._decider.occupied = occupied
        self._tick_ns = tick.mono_ns
        self._decider.observe(tick.devices, self._picture.infos, tick.mono_ns)
        for pid in self._findings.pids() - self._decider.pids():
            if self._findings.ended(pid, self._wall()):
                self._tell_findings()

    def tell_all(self) -> None:
        """For one who has just joined: publish the findings in time and each job's accounts, if there are any."""
        self._tell_findings()
        for subject, points in self._accounts.items():
            self._publish(
                partial(wire.AccountsMessage, pid=subject.pid, device_indices=subject.device_indices, points=points)
            )

    def _tell_findings(self) -> None:
        spans = self._findings.spans()
        if spans:
            self._publish(lambda epoch, seq: wire.FindingsMessage(epoch, seq, spans))

    def forget_devices(self, inventory: Inventory) -> None:
        """The inventory changed."""
        self._decider.jobs.forget_devices([device.index for device in inventory.devices])

    def step(self, now_ns: int) -> None:
        """Begin what is due, tell what there is to tell. ``now_ns`` is the loop's clock."""
        if self._inquiries.running is None:
            subject = self._due()
            if subject is not None:
                self._begin(subject, INQUIRY_S, now_ns)
            return
        match self._inquiries.step(now_ns, self._evidence):
            case Progress() as progress:
                self._tell(progress)
            case Diagnosis() as diagnosis:
                self._conclude(diagnosis)
            case None:
                pass

    def answer(self, request: wire.StartDiagnosis, now_ns: int) -> wire.Reply:
        """Begin one that somebody asks for, or say in one line why not."""
        seconds = request.seconds or INQUIRY_S
        if not MIN_REQUEST_S <= seconds <= MAX_REQUEST_S:
            limits = f"{MIN_REQUEST_S:g} to {MAX_REQUEST_S:g} s"
            return wire.Refused(request.request_id, f"a diagnosis takes {limits}, not {seconds:g}")
        running = self._inquiries.running
        if running is not None:
            left = units.seconds_text(self._inquiries.left_s(now_ns))
            return wire.Refused(request.request_id, f"a diagnosis of {_name(running)} is running, {left} to go")
        picture = self._picture
        subject = resolve(
            request.pid, request.device_index, self._decider.jobs, picture.inventory, picture.infos, self._exists
        )
        if isinstance(subject, str):
            return wire.Refused(request.request_id, subject)
        self._begin(subject, seconds, now_ns)
        return wire.Accepted(request.request_id, f"diagnosing {_name(subject)}")

    def _due(self) -> Subject | None:
        picture = self._picture
        if picture.recorded:
            return self._decider.due_recorded(self._ring.span_ns, picture.ended, picture.infos)
        return self._decider.due(self._tick_ns) if self._tick_ns is not None else None

    def _begin(self, subject: Subject, seconds: float, now_ns: int) -> None:
        """A recording cannot be watched more closely: all that has been played is judged at once. A job that uses its
        GPU well is not held for a better account of it."""
        mono_ns = self._source.now_ns()
        self._decider.started(subject, mono_ns)
        seconds = 0.0 if self._picture.recorded else seconds
        native = self.settings.native_stacks == "auto" and not self._decider.well_used(subject)
        ask = partial(_undecided, self._earlier_looks(subject)) if native else None
        self._tell(self._inquiries.begin(subject, seconds, self.settings.stacks, now_ns, mono_ns, ask))

    def _evidence(self, since_mono_ns: int) -> list[Observation]:
        picture = self._picture
        assert picture.inventory is not None, "a subject comes out of an inventory"
        running = self._inquiries.running
        assert running is not None, "only an inquiry asks for evidence"
        observed = self._ring.since(since_mono_ns)
        first, *rest = evidence(picture.inventory, picture.infos, picture.lines.values(), observed)
        known = self._earlier_looks(running)
        if not picture.recorded:
            self._looks.learn(observed, picture.infos)
        return [first, *known, *rest]

    def _earlier_looks(self, subject: Subject) -> tuple[StackSample, ...]:
        """Nothing of a recording: it is judged whole each time."""
        return self._looks.of(subject.pid, self._picture.infos, self._source.now_ns())

    def _exists(self, pid: int) -> bool:
        return not self._picture.recorded and Path(f"/proc/{pid}").exists()

    def _tell(self, progress: Progress) -> None:
        if progress.done_s < 0:
            self._log.error("%s: %s", _name(progress.subject), progress.message)
        self._publish(
            lambda epoch, seq: wire.DiagnosisProgress(
                epoch,
                seq,
                progress.subject.pid,
                progress.subject.device_indices,
                progress.done_s,
                progress.total_s,
                progress.message,
            )
        )

    def _conclude(self, diagnosis: Diagnosis) -> None:
        info = self._picture.infos.get(diagnosis.pid)
        diagnosis = msgspec.structs.replace(
            diagnosis,
            command=diagnosis.command or (info.command if info else ""),
            end_wall_ns=diagnosis.end_wall_ns or self._wall(),
        )
        self._decider.concluded(diagnosis)
        subject = Subject(diagnosis.pid, diagnosis.device_indices)
        others = [d for d in self.finished if (d.pid, d.device_indices) != (subject.pid, subject.device_indices)]
        self.finished = (diagnosis, *others)[:KEEP_DIAGNOSES]
        kept = {(d.pid, d.device_indices) for d in self.finished}
        self._accounts[subject] = wire.with_account(self._accounts.get(subject, ()), diagnosis)
        self._accounts = {
            s: points for s, points in self._accounts.items() if points and (s.pid, s.device_indices) in kept
        }
        self._publish(lambda epoch, seq: wire.DiagnosisMessage(epoch, seq, diagnosis))
        if self._findings.update(diagnosis, diagnosis.end_wall_ns):
            self._tell_findings()
        verdict = diagnosis.verdict
        where = ",".join(map(str, diagnosis.device_indices))
        lost = units.pct_text(100 * verdict.lost_share)
        facts = {"gpu": where, "lost": lost, "command": diagnosis.command[:80]}
        self._said.log(logging.INFO, _name(subject), f"{_name(subject)}: {verdict.cause}", **facts)


def _undecided(
    known: Sequence[StackSample], stacks: Sequence[StackSample], text_of: Mapping[tuple[str, int], str]
) -> bool:
    """Asked at the end of a burst, in its thread: the rules are loaded by then and not before (1.6 MiB)."""
    from gpuwatch.diagnose.undecided import undecided

    return undecided((*known, *stacks), text_of)


def _with_ceilings(judge: Judge, ceilings: Callable[[], Mapping[str, float]]) -> Judge:
    """A judge that is told what this machine's own probes have reached, once there are any."""

    def judged(observed: Sequence[Observation], pid: int, device_indices: tuple[int, ...]) -> Diagnosis:
        known = ceilings()
        if not known:
            return judge(observed, pid, device_indices)
        return judge(observed, pid, device_indices, ceilings=known)

    return judged


def _name(subject: Subject) -> str:
    return f"pid {subject.pid}" if subject.pid else "GPU " + ",".join(map(str, subject.device_indices))
