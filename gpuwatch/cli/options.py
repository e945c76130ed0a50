"""Option types that several sub-commands share.

Owns: turning what a person types or has configured into a value, with one clear error. Refuses: what the value is for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuwatch.collect.source import Undecided

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """ "20", "20s", "1.5m", "1h" to seconds, within limits."""

    name = "duration"

    def __init__(self, minimum: float, maximum: float) -> None:
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds. Fails with the accepted forms."""
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            self.fail(f"{value!r} is not a duration; write it as 20s, 1.5m or 1h", param, ctx)
        seconds = float(match[1]) * _UNITS[match[2]]
        if not self.minimum <= seconds <= self.maximum:
            self.fail(f"{value} is outside {self.minimum:g}s to {self.maximum:g}s", param, ctx)
        return seconds


def undecided_or_none() -> Undecided | None:
    """What asks for native frames, or None where ``diagnosis.native_stacks`` is never. Raises ConfigError."""
    from gpuwatch.config import load
    from gpuwatch.diagnose.undecided import undecided

    return undecided if load().config.diagnosis.native_stacks == "auto" else None
