"""Model and wire values as plain JSON values with named fields: the shape of every ``--json``.

Owns: how a Struct, an enum and an absent reading look in JSON, and the envelope around them.
Refuses: choosing what to print, files, terminals.

* Every Struct is an object with its field names, also those that travel as arrays.
* A reading without a value is ``{"absent": "not_supported"}``, with ``detail`` where there is one; never 0, never null.
* Enums are their names in lower case. ``clocks_event_reasons`` stays a number; ``clocks_event_names`` stands beside it.
* The top level has ``schema``, such as ``gpuwatch.status/1``. New fields may appear under one number;
  a renamed or retyped field is a new number.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping

from msgspec import Struct, UnsetType
from msgspec.structs import fields

from gpuwatch import __version__
from gpuwatch.model import Absent, ClocksEvent, Reason

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

BITS = "clocks_event_reasons"
"""The field beside which the names of its bits stand."""


def jsonable(value: object) -> Json:
    """``value`` as what ``json.dumps`` takes. Raises TypeError for a type that no model or message holds."""
    match value:
        case enum.StrEnum():
            return value.value
        case enum.Enum():
            return value.name.lower() if value.name else value.value
        case None | bool() | str() | int():
            return value
        case float():
            return _number(value)
        case Absent():
            return _absent(value)
        case UnsetType():
            # A list that is left out of a message as long as it is empty.
            return []
        case Struct():
            return _struct(value)
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case tuple() | list():
            return [jsonable(item) for item in value]
    raise TypeError(f"cannot be shown as JSON: {type(value).__name__}")


def document(name: str, body: Mapping[str, object], version: int = 1) -> dict[str, Json]:
    """The top level of one ``--json`` answer: ``schema``, our version, then ``body``."""
    head: dict[str, Json] = {"schema": f"gpuwatch.{name}/{version}", "gpuwatch_version": __version__}
    return head | {key: jsonable(value) for key, value in body.items()}


def dumps(value: object) -> str:
    """``value`` as indented JSON text, without a line end."""
    return json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)


def clocks_event_names(bits: int) -> list[str]:
    """Names of the set bits; a bit that this version does not know is given as its hexadecimal value."""
    names = [event.name.lower() for event in ClocksEvent if event.name and bits & event]
    unknown = bits & ~sum(ClocksEvent)
    return names + ([hex(unknown)] if unknown else [])


def _number(value: float) -> Json:
    # JSON has no infinity; a reader must not take it for a number or for "nothing".
    return value if math.isfinite(value) else _absent(Absent(Reason.OUT_OF_RANGE, str(value)))


def _absent(reading: Absent) -> Json:
    shown: dict[str, Json] = {"absent": reading.reason.name.lower()}
    return shown | {"detail": reading.detail} if reading.detail else shown


def _struct(value: Struct) -> Json:
    shown: dict[str, Json] = {}
    tag = value.__struct_config__.tag
    if tag is not None:
        shown["type"] = str(tag)
    for field in fields(value):
        reading = getattr(value, field.name)
        shown[field.name] = jsonable(reading)
        if field.name == BITS and isinstance(reading, int):
            shown["clocks_event_names"] = list[Json](clocks_event_names(reading))
    return shown
