"""Our own structs of the driver's lists are those of the binding, which NVIDIA generates from nvml.h.

A member that has moved gives each process the memory of another, and nothing says so.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from gpuwatch.collect import process_lists


def layout(structure: Any) -> list[tuple[int, int]]:
    """Offset and size of each member in order; names are ours."""
    members = [getattr(structure, name) for name, *_ in structure._fields_]
    return [(member.offset, member.size) for member in members]


@pytest.mark.parametrize("theirs", ["c_nvmlProcessInfo_v2_t", "c_nvmlProcessInfo_v3_t"])
def test_an_entry_of_a_process_list_is_read_where_the_driver_writes_it(theirs: str) -> None:
    structure = getattr(pynvml, theirs)
    assert layout(process_lists._Entry24) == layout(structure)
    assert ctypes.sizeof(process_lists._Entry24) == ctypes.sizeof(structure)


def test_the_longer_entry_begins_as_the_other_and_ends_with_protected_memory() -> None:
    """nvmlProcessInfo_t in nvml.h of CUDA 12.2: usedGpuCcProtectedMemory after the instances."""
    assert layout(process_lists._Entry32)[:-1] == layout(process_lists._Entry24)
    assert layout(process_lists._Entry32)[-1] == (24, 8)
    assert ctypes.sizeof(process_lists._Entry32) == 32
