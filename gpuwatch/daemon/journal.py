"""Log lines: to stderr, in the shape that whoever reads stderr wants.

Owns: the three formats and saying a thing once. Refuses: files, rotation, sockets.

journald: ``<6>`` priority prefix and key=value. A terminal or a file: time, level, text. ``--json``: one object a line.
Facts travel in ``extra={"facts": {...}}`` so that each format can write them its own way.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping

LOGGER = "gpuwatch"
_PRIORITY = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


def under_journal(env: Mapping[str, str], fd: int) -> bool:
    """$JOURNAL_STREAM names the device and inode of the stream to journald; an inherited variable with a
    redirected stderr does not match."""
    device, separator, inode = env.get("JOURNAL_STREAM", "").partition(":")
    if not separator:
        return False
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(stat.st_dev), str(stat.st_ino))


def setup(level: str, as_json: bool = False, env: Mapping[str, str] | None = None) -> logging.Logger:
    """The daemon's logger, writing to stderr. May be called again when the level changes."""
    env = os.environ if env is None else env
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    elif under_journal(env, 2):
        handler.setFormatter(JournalFormatter())
    else:
        handler.setFormatter(HumanFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    return logger


def facts_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The facts of a record, possibly none."""
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, Mapping) else {}


class JournalFormatter(logging.Formatter):
    """``<4>message key=value``, one line: journald reads the prefix as the priority."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in facts_of(record).items())
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        # Every line needs its own prefix, a traceback's too.
        return "\n".join(prefix + line for line in (super().format(record) + pairs).splitlines())


class HumanFormatter(logging.Formatter):
    """Time, level, message, facts in brackets."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        pairs = ", ".join(f"{key} {value}" for key, value in facts_of(record).items())
        return super().format(record) + (f" ({pairs})" if pairs else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class OnChange:
    """Logs a subject's message when it differs from the last one about the same subject."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last: dict[str, str] = {}

    def log(self, level: int, subject: str, message: str, **facts: object) -> bool:
        """Log unless it was the last thing said about ``subject``."""
        if self._last.get(subject) == message:
            return False
        self._last[subject] = message
        self._logger.log(level, message, extra={"facts": facts})
        return True

    def knows(self, subject: str) -> bool:
        """Something was said about it before."""
        return subject in self._last


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' ="') or not text.isprintable() else text
