"""Many field values of one GPU by one driver call.

Owns: the request array, built anew only for other fields; which entries this GPU does not have. Refuses: importing
pynvml, meanings.

The wrapper of the binding builds its array anew each time: 20 µs for 27 fields against 0.2 µs for a kept one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwatch.collect.field_ids import AUTO, I32, Field, Version, known_to
from gpuwatch.collect.nvml_calls import Calls, GoneError
from gpuwatch.collect.nvml_fields import INVALID_ARGUMENT, PERMANENT_CODES, VALUE_MEMBERS, absent_for
from gpuwatch.model import NOT_SUPPORTED, Absent, Int, Reason


class FieldBatch:
    """The fields that a driver of this version knows, asked together."""

    def __init__(self, calls: Calls, handle: Any, fields: Sequence[Field], driver: Version) -> None:
        self._calls = calls
        self._handle = handle
        self._never: dict[str, Absent] = {f.name: NOT_SUPPORTED for f in fields}
        self._fields: tuple[Field, ...] = ()
        self._array: Any = None
        self._known = known_to(driver, fields)
        self._era = calls.era
        self._build(self._known)

    def read(self) -> Mapping[str, Int]:
        """Every field by name: its value or the reason. Raises GoneError when the GPU no longer answers."""
        if self._era != self._calls.era:
            self._era = self._calls.era
            if len(self._fields) < len(self._known):
                self._build(self._known)
        found: dict[str, Int] = dict(self._never)
        if not self._fields:
            return found
        fields, array = self._fields, self._array
        try:
            code = self._calls.code("nvmlDeviceGetFieldValues", self._handle, len(fields), array)
        except GoneError:
            raise
        except Exception as exc:
            failed = Absent(Reason.ERROR, f"{type(exc).__name__}: {exc}"[:200])
            return found | dict.fromkeys((f.name for f in fields), failed)
        if code != 0:
            if code in PERMANENT_CODES:
                self._drop({f.name: absent_for(code) for f in fields})
            return found | dict.fromkeys((f.name for f in fields), absent_for(code))
        values = {f.name: _value(entry, f) for f, entry in zip(fields, array, strict=True)}
        # The driver answers each entry for itself; one that it never will is left out for a while.
        gone = {f.name for f, entry in zip(fields, array, strict=True) if _permanent(entry.nvmlReturn)}
        self._drop(dict.fromkeys(gone, NOT_SUPPORTED))
        return found | values

    def _drop(self, never: Mapping[str, Absent]) -> None:
        if never:
            self._never.update(never)
            self._build(tuple(f for f in self._fields if f.name not in never))

    def _build(self, fields: tuple[Field, ...]) -> None:
        self._fields = fields
        self._never = {name: absent for name, absent in self._never.items() if name not in {f.name for f in fields}}
        self._array = (self._calls.n.c_nvmlFieldValue_t * len(fields))()
        for entry, field in zip(self._array, fields, strict=True):
            entry.fieldId, entry.scopeId = field.id, field.scope


def _permanent(code: int) -> bool:
    # An id that a driver does not know is INVALID_ARGUMENT or NOT_SUPPORTED, by driver generation.
    return code in PERMANENT_CODES or code == INVALID_ARGUMENT


def _value(entry: Any, field: Field) -> Int:
    if entry.nvmlReturn != 0:
        return NOT_SUPPORTED if _permanent(entry.nvmlReturn) else absent_for(entry.nvmlReturn)
    kind = entry.valueType if field.kind == AUTO else field.kind
    member = VALUE_MEMBERS.get(kind)
    if member is None:
        return Absent(Reason.OUT_OF_RANGE, f"value type {kind}")
    raw = getattr(entry.value, member)
    if not math.isfinite(raw):
        return Absent(Reason.OUT_OF_RANGE, str(raw))
    value = int(raw)
    if field.limit and (value > field.limit or (kind == I32 and value < -field.limit)):
        return Absent(Reason.OUT_OF_RANGE, str(value))
    return value
