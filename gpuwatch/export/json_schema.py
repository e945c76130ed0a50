"""JSON Schema (2020-12) of what ``--json`` prints, derived from the model's types.

Owns: the schema's shape, which follows jsonable.py's rules. Refuses: values.

Additional properties are allowed: new fields may appear under one schema number.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import fields

from gpuwatch.export.jsonable import BITS, Json
from gpuwatch.model import Absent, Device, Diagnosis, Reason

_ABSENT = "absent"
Schema = dict[str, Json]


def diagnose_schema() -> Schema:
    """Of ``gpuwatch diagnose --json``."""
    definitions: dict[str, Json] = {}
    body: dict[str, Json] = {
        "schema": {"const": "gpuwatch.diagnose/1"},
        "gpuwatch_version": {"type": "string"},
        "diagnoses": {"type": "array", "items": _of(Diagnosis, definitions)},
        "devices": {"type": "array", "items": _of(Device, definitions)},
        "exit_code": {"enum": [0, 1, 2, 3]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuwatch.diagnose/1",
        "type": "object",
        "properties": body,
        "required": ["schema", "gpuwatch_version", "diagnoses"],
        "$defs": dict(sorted(definitions.items())),
    }


def _of(kind: object, definitions: dict[str, Json]) -> Schema:
    """The schema of one type; Structs and enums go to ``definitions``."""
    plain: dict[object, Schema] = {
        int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"}, bool: {"type": "boolean"},
        type(None): {"type": "null"},
    }  # fmt: skip
    if kind in plain:
        # A float that is not finite is told as absent: JSON has no number for it.
        return {"anyOf": [plain[kind], _of(Absent, definitions)]} if kind is float else plain[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin in (tuple, list):
        return {"type": "array", "items": _items(arguments, definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    if isinstance(kind, type) and kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # A type that holds itself ends here.
        definitions[kind.__name__] = _definition(kind, definitions)
    return {"$ref": f"#/$defs/{getattr(kind, '__name__', kind)}"}


def _items(arguments: tuple[object, ...], definitions: dict[str, Json]) -> Schema:
    """Of a tuple's elements, whether of one type or of several in their places."""
    distinct = [_of(argument, definitions) for argument in dict.fromkeys(arguments) if argument is not Ellipsis]
    return distinct[0] if len(distinct) == 1 else {"anyOf": list[Json](distinct)}


def _definition(kind: type, definitions: dict[str, Json]) -> Schema:
    if kind is Absent:
        names: list[Json] = [reason.name.lower() for reason in Reason]
        return {
            "type": "object",
            "description": "A reading without a value, and why.",
            "properties": {_ABSENT: {"enum": names}, "detail": {"type": "string"}},
            "required": [_ABSENT],
        }
    if issubclass(kind, enum.StrEnum):
        return {"enum": [member.value for member in kind]}
    if issubclass(kind, enum.Enum):
        return {"type": ["string", "integer"]} if issubclass(kind, enum.Flag) else {"enum": _names(kind)}
    if not issubclass(kind, Struct):
        raise TypeError(f"no JSON Schema for {kind.__name__}")
    properties: dict[str, Json] = {field.name: _of(field.type, definitions) for field in fields(kind)}
    required: list[Json] = list(properties)
    if BITS in properties:
        properties["clocks_event_names"] = {"type": "array", "items": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": required}


def _names(kind: type[enum.Enum]) -> list[Json]:
    return [member.name.lower() for member in kind]
