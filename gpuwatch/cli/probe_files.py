"""Files of ``gpuwatch probe``: results, baselines, policies.

Owns: reading and writing them, one clear error for what cannot be read. Refuses: what they mean.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from gpuwatch.model import ProbeResult
    from gpuwatch.verdict.baseline import Document
    from gpuwatch.verdict.policy import Policy

MOST_BYTES = 64 * 1024 * 1024
"""A baseline of a fleet has a few megabytes; more is not one."""


def read_document(path: Path) -> Document:
    """Results in a file. Raises InputNotFoundError and RecordingError."""
    from gpuwatch.verdict.baseline import decode

    return decode(_bytes(path), str(path))


def read_policy(path: Path | None, max_regression: str | None) -> Policy:
    """The policy in a file, and the option over its default. Raises InputNotFoundError and ConfigError."""
    import msgspec

    from gpuwatch.errors import ConfigError
    from gpuwatch.verdict.policy import Policy, Rule, parse

    policy = Policy()
    if path is not None:
        try:
            policy = parse(_bytes(path).decode("utf-8"), str(path))
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{path}: not UTF-8: {exc.reason} at byte {exc.start}") from None
    if max_regression is None:
        return policy
    share = regression(max_regression)
    default = msgspec.structs.replace(policy.rules.get("", Rule()), max_regression=share)
    return Policy({**policy.rules, "": default})


@overload
def regression(text: str) -> float: ...
@overload
def regression(text: None) -> None: ...
def regression(text: str | None) -> float | None:
    """What ``--max-regression`` says, as a share. Raises UsageError: it is no file that is wrong."""
    from gpuwatch.errors import ConfigError, UsageError
    from gpuwatch.verdict.policy import percentage

    try:
        return None if text is None else percentage(text, "--max-regression")
    except ConfigError as exc:
        raise UsageError(str(exc)) from None


def write_results(path: Path, results: Sequence[ProbeResult], host: str) -> None:
    """A baseline, whole or not at all. Raises CannotCreateError."""
    from gpuwatch.errors import CannotCreateError
    from gpuwatch.export.jsonable import document, dumps

    text = dumps(document("probe-baseline", {"host": host, "results": results})) + "\n"
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as exc:
        raise CannotCreateError(f"{path}: {exc.strerror}") from None
    temporary = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o644)  # a check runs as another user than the one who made the baseline
        temporary.replace(path)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise CannotCreateError(f"{path}: {exc.strerror}") from None


def _bytes(path: Path) -> bytes:
    from gpuwatch.errors import InputNotFoundError, RecordingError

    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise InputNotFoundError(f"{path}: {exc.strerror}") from None
    if len(data) > MOST_BYTES:
        raise RecordingError(f"{path}: more than {MOST_BYTES} bytes: not a result of gpuwatch probe")
    return data
