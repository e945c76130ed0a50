"""The baseline of the configuration: read, kept up to date, each finished probe judged against it.

Owns: the file, what is said when it is of no use, the verdict as it is published. Refuses: statistics (``verdict``).

A file that is missing or damaged is one line in the journal and a note on the screen; probes run on without verdicts.
The statistics are imported with the first baseline: most daemons have none and need not hold them.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from gpuwatch import wire
from gpuwatch.daemon.journal import LOGGER, OnChange
from gpuwatch.errors import GpuwatchError
from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict import fingerprint
from gpuwatch.verdict.verdicts import Judgement, Level, Row, Verdict

MOST_BYTES = 64 * 1024 * 1024
"""A baseline has a few megabytes; more is not one."""
_NONE = (0, 0, 0)


class Baseline:
    """May be asked from the service's loop and from the threads that read the probes."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._path: Path | None = None
        self._seen = _NONE
        """Time, size and inode of the file as it was read."""
        self._known: tuple[ProbeResult, ...] = ()
        self._note = ""
        self._log = logging.getLogger(LOGGER)
        self._said = OnChange(self._log)

    def configure(self, file: str) -> None:
        """Another file, or "" for none; it is read at once, so that a mistake is in the journal from the start."""
        with self._guard:
            path = Path(file).expanduser() if file else None
            if path != self._path:
                self._path, self._seen, self._known, self._note = path, _NONE, (), ""
            self._refresh()

    @property
    def name(self) -> str:
        """The file, or ""."""
        with self._guard:
            return str(self._path) if self._path else ""

    @property
    def note(self) -> str:
        """Why the file is of no use and what to do, one line; "" when it is of use, or when there is none."""
        with self._guard:
            return self._note

    def results(self, probe: str) -> list[ProbeResult]:
        """The baseline's runs of one probe, as the file has them now."""
        with self._guard:
            self._refresh()
            return [result for result in self._known if result.probe == probe]

    def seconds(self, probe: str) -> float | None:
        """The measuring time that the baseline had: with another one nothing could be compared. None: not told."""
        told = [run.settings["seconds"] for run in self.results(probe) if "seconds" in run.settings]
        try:
            return float(told[-1]) if told else None
        except ValueError:
            return None

    def usual_s(self, probe: str) -> float:
        """How long a run of the baseline took; 0.0 when that is not known."""
        took = [run.duration_s for run in self.results(probe) if run.duration_s > 0]
        return median(took) if took else 0.0

    def judge(self, result: ProbeResult) -> wire.ProbeVerdict | None:
        """The verdict about one result; None without a baseline and for a result that has no figures."""
        known = self.results(result.probe)
        if not self.name or self.note or result.status is not ProbeStatus.OK:
            return None
        from gpuwatch.verdict import check

        try:
            return _published(result, check.check(known, [result], check.Settings()))
        except Exception as exc:
            # The file is somebody's: a figure that the statistics cannot take must not cost the result itself.
            self._log.exception("probe %s could not be judged", result.probe)
            reason = f"could not be judged: {type(exc).__name__}: {exc}".replace("\n", " ")
            row = wire.ValueVerdict("", Verdict.ERROR.value, Level.UNKNOWN.value, reason=reason)
            return wire.ProbeVerdict(
                result.probe, result.device_uuid, result.started_wall_ns, Level.UNKNOWN.value, (row,)
            )

    def _refresh(self) -> None:
        """Read the file if it is another than before. The guard is held."""
        if self._path is None:
            return
        from gpuwatch.verdict import baseline

        try:
            seen, data = _changed(self._path, self._seen)
            if data is not None:
                self._known = baseline.decode(data, str(self._path)).results
                empty = f"{self._path}: no result in it; fill it with: gpuwatch probe baseline --append"
                self._note = "" if self._known else empty
                self._seen = seen
        except FileNotFoundError:
            self._refuse(f"no such file; make it with: gpuwatch probe baseline --out {self._path}")
        except OSError as exc:
            self._refuse(f"cannot be read: {exc.strerror or exc}")
        except GpuwatchError as exc:
            said = " ".join(str(exc).split()).removeprefix(f"{self._path}: ")
            self._refuse(f"{said}; make another one with gpuwatch probe baseline")
        if self._note:
            self._said.log(logging.WARNING, "baseline", f"probes.baseline: {self._note}")
        else:
            count = f"{len(self._known)} results"
            self._said.log(logging.INFO, "baseline", f"probes are judged against {self._path}: {count}")

    def _refuse(self, why: str) -> None:
        self._known, self._seen, self._note = (), _NONE, f"{self._path}: {why}"


def _changed(path: Path, seen: tuple[int, int, int]) -> tuple[tuple[int, int, int], bytes | None]:
    """The file's time, size and inode, and its bytes unless these are as before. Raises OSError."""
    about = path.stat()
    now = (about.st_mtime_ns, about.st_size, about.st_ino)
    if now == seen:
        return now, None
    # A pipe or a device would be waited for.
    if not stat.S_ISREG(about.st_mode):
        raise OSError(0, "not a regular file")
    if about.st_size > MOST_BYTES:
        raise OSError(0, f"more than {MOST_BYTES} bytes: not a result of gpuwatch probe")
    return now, path.read_bytes()


def _published(result: ProbeResult, judgement: Judgement) -> wire.ProbeVerdict:
    values = tuple(_value(row, judgement) for row in judgement.rows)
    return wire.ProbeVerdict(
        result.probe, result.device_uuid, result.started_wall_ns, judgement.level.value, _worst_first(values)
    )


def _worst_first(values: Iterable[wire.ValueVerdict]) -> tuple[wire.ValueVerdict, ...]:
    order = [level.value for level in (Level.CRITICAL, Level.WARN, Level.UNKNOWN)]
    return tuple(sorted(values, key=lambda v: order.index(v.level) if v.level in order else len(order)))


def _value(row: Row, judgement: Judgement) -> wire.ValueVerdict:
    reason = row.reason
    differing = fingerprint.obstacles(judgement.changes, ())
    if row.verdict is Verdict.NOT_COMPARABLE and differing:
        # The row's own words name an option of the command line, which nobody gives to a daemon.
        reason = "measured under other conditions: " + ", ".join(fingerprint.told(change) for change in differing)
    return wire.ValueVerdict(
        row.value,
        row.verdict.value,
        row.level.value,
        row.unit,
        row.before,
        row.after,
        row.improvement,
        row.low,
        row.high,
        reason,
    )
