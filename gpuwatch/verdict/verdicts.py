"""What a check says: one row per measured quantity, its verdict, and the exit code of all.

Owns: verdicts, levels, how they add up. Refuses: statistics, text.

Nothing measured is never a pass: a judgement without one row that was judged or measured is UNKNOWN.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from gpuwatch.model import ProbeResult


class Level(enum.StrEnum):
    """How bad. Exit codes are those of Nagios."""

    OK = "ok"
    WARN = "warn"
    CRITICAL = "critical"
    UNKNOWN = "unknown"
    SKIP = "skip"
    """Nobody's fault: the GPU was in use."""
    NOTE = "note"
    """Information; counts neither as a pass nor against it."""


class Verdict(enum.StrEnum):
    """What was found about one quantity."""

    MEASURED = "MEASURED"
    """Measured, and compared with nothing."""
    SAME = "SAME"
    """The whole interval lies within the region that counts as equal."""
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    AMBIGUOUS = "AMBIGUOUS"
    """The runs are too few or too noisy to say."""
    MET = "MET"
    """A figure that the policy demands is reached."""
    BELOW = "BELOW"
    """Below the figure that the policy demands."""
    OUTLIER = "OUTLIER"
    """Worse than the other nodes."""
    WRONG_RESULT = "WRONG_RESULT"
    """The arithmetic was wrong, whatever its speed."""
    INVALID = "INVALID"
    """A figure that cannot be true."""
    ERROR = "ERROR"
    """The probe crashed, hung or was killed."""
    NOT_AVAILABLE = "NOT_AVAILABLE"
    """This side cannot do it: no torch, no such feature, no such device."""
    NOT_COMPARABLE = "NOT_COMPARABLE"
    """Measured under other conditions than the baseline."""
    MISSING = "MISSING"
    """In the baseline, and not measured now."""
    NEW = "NEW"
    """Measured now, and not in the baseline."""
    BUSY = "BUSY"
    CONTAMINATED = "CONTAMINATED"
    """Somebody else was on the GPU."""


LEVELS = {
    Verdict.MEASURED: Level.OK,
    Verdict.SAME: Level.OK,
    Verdict.FASTER: Level.OK,
    Verdict.SLOWER: Level.WARN,
    Verdict.AMBIGUOUS: Level.WARN,
    Verdict.MET: Level.OK,
    Verdict.BELOW: Level.CRITICAL,
    Verdict.OUTLIER: Level.WARN,
    Verdict.WRONG_RESULT: Level.CRITICAL,
    Verdict.INVALID: Level.UNKNOWN,
    Verdict.ERROR: Level.UNKNOWN,
    Verdict.NOT_AVAILABLE: Level.UNKNOWN,
    Verdict.NOT_COMPARABLE: Level.UNKNOWN,
    Verdict.MISSING: Level.CRITICAL,
    Verdict.NEW: Level.NOTE,
    Verdict.BUSY: Level.SKIP,
    Verdict.CONTAMINATED: Level.SKIP,
}
"""Of each verdict unless the policy or the size of the change says otherwise."""

EXIT_CODES = {Level.OK: 0, Level.WARN: 1, Level.CRITICAL: 2, Level.UNKNOWN: 3, Level.SKIP: 75}
NAGIOS = {0: "OK", 1: "WARNING", 2: "CRITICAL"}


class Row(Struct, frozen=True):
    """One quantity of one probe on one device."""

    probe: str
    value: str
    """Empty when the whole probe has one verdict, such as BUSY."""
    verdict: Verdict
    level: Level
    device: str = ""
    """"cuda:0", "cpu", or a node's name for outliers."""
    device_uuid: str = ""
    unit: str = ""
    higher_is_better: bool = True
    before: float | None = None
    """Geometric mean over the runs of the baseline or of side A; for outliers the median of the peers."""
    after: float | None = None
    improvement: float | None = None
    """after against before as a share: 0.05 is 5 % better, whichever direction is better."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval of ``improvement``."""
    tolerance: float | None = None
    """Changes up to this share count as none."""
    detectable: float | None = None
    """The smallest change that this many runs find with 80 % power."""
    n_before: int = 0
    n_after: int = 0
    reason: str = ""
    """For a person, one line."""
    noise: float | None = None
    """Standard deviation of one run, as a share: what fresh processes of the same thing differ by."""

    @property
    def name(self) -> str:
        """ "matmul.bf16_8192_sustained", or the probe alone."""
        return f"{self.probe}.{self.value}" if self.value else self.probe


class Change(Struct, frozen=True):
    """A setting that differs between the two sides."""

    key: str
    before: str
    after: str
    ring: str
    """hard, declared or soft; see fingerprint.py."""


class Judgement(Struct, frozen=True):
    """Everything that a check has to say."""

    title: str
    """Such as "probe check against base.json"."""
    rows: tuple[Row, ...]
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    strict: bool = False
    """A skipped probe outranks OK."""

    @property
    def level(self) -> Level:
        """The worst: critical, warn, unknown, ok. All skipped is SKIP; nothing judged is UNKNOWN."""
        return self.outcome()[0]

    @property
    def exit_code(self) -> int:
        """0 ok, 1 warn, 2 critical, 3 could not tell, 75 everything skipped because somebody is on the GPU."""
        return EXIT_CODES[self.level]

    @property
    def exit_reason(self) -> str:
        """Why this exit code, one line."""
        return self.outcome()[1]

    def counted(self, row: Row, lenient: bool = False) -> Level:
        """What a row counts as. ``lenient``: a warning counts as OK. What is not there may be no fault, and is never
        a pass."""
        level = Level.OK if lenient and row.level is Level.WARN else row.level
        return Level.NOTE if level is Level.OK and row.verdict is Verdict.MISSING else level

    def outcome(self, lenient: bool = False) -> tuple[Level, str]:
        """The level of all rows together and the reason for it, one line.

        ``lenient`` adds up anew instead of changing the end: below a warning may be a probe that could not run.
        """
        level = overall((self.counted(row, lenient) for row in self.rows), self.strict)
        rows = [row for row in self.rows if self.counted(row, lenient) is level]
        if not rows:
            return level, "nothing was measured and judged"
        warned = [row for row in rows if row.level is Level.WARN]
        if level is Level.OK and not (lenient and warned):
            return level, _passed(rows)
        return level, _first(warned) + ": a warning, let pass" if level is Level.OK else _first(rows)


def _first(rows: Sequence[Row]) -> str:
    """What the first of these rows says, and how many more there are."""
    first = f"{rows[0].name}{f' on {rows[0].device}' if rows[0].device else ''}"
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    why = f": {rows[0].reason}" if rows[0].reason else ""
    return f"{first}{more} {rows[0].verdict.value}{why}"


def _passed(rows: Sequence[Row]) -> str:
    """How many are as they should be; what noise hides is no proof of anything and is not counted among them, and what
    was compared with nothing was measured."""
    if all(row.verdict is Verdict.MEASURED for row in rows):
        return f"{len(rows)} quantities measured" if len(rows) > 1 else "one quantity measured"
    # A quantity may be compared with the baseline and meet demands too: it is one quantity.
    hidden = {(row.name, row.device) for row in rows if row.verdict is Verdict.AMBIGUOUS}
    unclear, clear = len(hidden), len({(row.name, row.device) for row in rows} - hidden)
    if not clear:
        return f"nothing found, but nothing proved: {unclear} of {unclear} too noisy to tell"
    said = "one quantity, as it should be" if clear == 1 else f"{clear} quantities as they should be"
    return f"{said}, {unclear} too noisy to tell" if unclear else said


def row(probe: str, value: str, verdict: Verdict, reason: str = "", *, level: Level | None = None) -> Row:
    """A row with the usual level of its verdict."""
    return Row(probe, value, verdict, level or LEVELS[verdict], reason=reason)


def overall(levels: Iterable[Level], strict: bool = False) -> Level:
    """The level of all rows together."""
    present = set(levels) - {Level.NOTE}
    order = [Level.CRITICAL, Level.WARN, Level.UNKNOWN, *([Level.SKIP, Level.OK] if strict else [Level.OK, Level.SKIP])]
    return next((level for level in order if level in present), Level.UNKNOWN)


def placed(one: Row, run: ProbeResult) -> Row:
    """The row on the run's device."""
    return msgspec.structs.replace(one, device=run.device, device_uuid=run.device_uuid)
