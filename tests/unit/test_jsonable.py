"""The shape of every ``--json``: named fields, reasons instead of numbers that are not there."""

from __future__ import annotations

import enum
import inspect
import json
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Struct

from gpuwatch import __version__, model, wire
from gpuwatch.export.jsonable import clocks_event_names, document, dumps, jsonable
from gpuwatch.model import Absent, ClocksEvent, DeviceSample, Frame, Reason, Severity


def structs_of(*modules: types.ModuleType) -> list[type[Struct]]:
    found = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Struct) and cls.__module__.startswith(module.__name__)
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))


def example_of(hint: Any) -> Any:
    """Some value of this annotation, with Structs filled and collections not empty."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return example_of(next(arg for arg in args if arg not in (types.NoneType, msgspec.UnsetType)))
    if origin is tuple:
        return tuple(example_of(arg) for arg in args if arg is not Ellipsis)
    if origin is dict:
        return {example_of(args[0]): example_of(args[1])}
    if inspect.isclass(hint) and issubclass(hint, Struct):
        return filled(hint)
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    return hint(1)


def filled(cls: type[Struct]) -> Struct:
    hints = get_type_hints(cls)
    return cls(**{name: example_of(hints[name]) for name in cls.__struct_fields__})


@pytest.mark.parametrize("cls", structs_of(model, wire), ids=lambda cls: cls.__name__)
def test_every_type_shows_all_its_fields_by_name(cls: type[Struct]) -> None:
    value = filled(cls)
    shown = jsonable(value)
    assert isinstance(shown, dict)
    if cls is Absent:
        assert set(shown) == {"absent", "detail"}
        return
    added = {"type"} if cls.__struct_config__.tag is not None else set()
    if "clocks_event_reasons" in cls.__struct_fields__:
        added.add("clocks_event_names")
    assert set(shown) == set(cls.__struct_fields__) | added
    assert json.loads(dumps(value)) == shown


def test_an_absent_reading_is_never_taken_for_zero_or_null() -> None:
    sample = DeviceSample(0, 5, gpu_util_pct=0, sm_active_pct=Absent(Reason.NOT_SUPPORTED, "GPM needs Hopper"))
    shown = jsonable(sample)
    assert isinstance(shown, dict)
    assert shown["gpu_util_pct"] == 0
    assert shown["sm_active_pct"] == {"absent": "not_supported", "detail": "GPM needs Hopper"}
    assert shown["busy_pct"] == {"absent": "not_read"}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_shown_by_its_name_not_by_its_wire_number(reason: Reason) -> None:
    assert jsonable(Absent(reason)) == {"absent": reason.name.lower()}


def test_infinity_does_not_make_the_document_unreadable_for_other_json_parsers() -> None:
    shown = json.loads(dumps({"gain_max": float("inf"), "share": float("nan")}), parse_constant=pytest.fail)
    assert shown["gain_max"] == {"absent": "out_of_range", "detail": "inf"}
    assert shown["share"]["absent"] == "out_of_range"


def test_clock_event_bits_can_be_read_without_knowing_the_bits() -> None:
    bits = ClocksEvent.SW_POWER_CAP | ClocksEvent.HW_THERMAL
    shown = jsonable(DeviceSample(0, 1, clocks_event_reasons=int(bits)))
    assert isinstance(shown, dict)
    assert shown["clocks_event_reasons"] == 0x44
    assert shown["clocks_event_names"] == ["sw_power_cap", "hw_thermal"]


def test_a_clock_event_bit_of_a_newer_driver_is_not_lost() -> None:
    assert clocks_event_names(0x1 | 0x4000) == ["gpu_idle", "0x4000"]
    assert clocks_event_names(0x600) == ["board_limit", "reliability"]


def test_positional_structs_and_enums_and_int_keys_are_named() -> None:
    assert jsonable({7: (Frame("step", "train.py", 12), Severity.WARNING)}) == {
        "7": [{"function": "step", "file": "train.py", "line": 12}, "warning"]
    }


def test_a_script_can_tell_which_document_it_reads() -> None:
    assert document("status", {"ended": False}) == {
        "schema": "gpuwatch.status/1",
        "gpuwatch_version": __version__,
        "ended": False,
    }


def test_an_object_that_json_cannot_show_is_an_error_and_not_its_repr() -> None:
    with pytest.raises(TypeError, match="bytes"):
        jsonable({"payload": b"x"})
