"""Which probes there are, how much they disturb, how long they take, and which of them make a set.

Owns: reading the probes' own table, the sets. Refuses: torch and everything else of the probes.

The table is ``catalogue.py`` in the folder of the probes, a file of plain data that imports nothing but ``typing``; it
is loaded by path, because users have folders named ``probes`` of their own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

import gpuwatch

SETS = ("quick", "ci", "full")
_QUICK = ("matmul", "copies", "memory", "launch")
"""What a diagnosis needs as its ceilings: arithmetic, copies, memory, launches."""
_CI_MOST_S = 30.0
"""Longest probe of the set "ci"; with the matrix product it stays near three minutes on a GPU."""
_CI_ALWAYS = ("matmul",)
SEVERAL_GPUS = ("allreduce",)
"""Run once over several GPUs together, which a check of one device does not have: named, never part of a set."""
QUICK_SECONDS = 0.5
"""Measuring time of each case in the quick set."""


class ProbeSpec(Struct, frozen=True):
    """A probe that exists. Seconds are rough, for a whole run with its defaults."""

    name: str
    question: str
    on_cpu: str
    """What it does without a GPU."""
    kind: str = "intensive"
    """light or intensive."""
    gpu_s: float = 60.0
    cpu_s: float = 60.0
    disturbs: str = ""
    """What a neighbour would feel."""


def folder(package: Path | None = None) -> Path | None:
    """The folder with the probes: ``gpuwatch_probes`` beside the installed package, ``probes`` in a checkout."""
    parent = (package or Path(gpuwatch.__file__).parent).parent
    for name in ("gpuwatch_probes", "probes"):
        found = parent / name
        # Somebody's own "probes" folder in site-packages has no command.py beside its __main__.py.
        if (found / "__main__.py").is_file() and (found / "command.py").is_file():
            return found
    return None


def load(where: Path | None = None) -> tuple[ProbeSpec, ...]:
    """The table in ``where`` (default: the installed probes); empty when it is not there."""
    found = where or folder()
    path = found / "catalogue.py" if found else None
    if path is None or not path.is_file():
        return ()
    spec = importlib.util.spec_from_file_location("gpuwatch_probes_catalogue", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(msgspec.convert(info._asdict(), ProbeSpec) for info in module.PROBES)


def members(name: str, probes: Iterable[ProbeSpec]) -> tuple[ProbeSpec, ...]:
    """The probes of a set, in the catalogue's order."""
    alone = [spec for spec in probes if spec.name not in SEVERAL_GPUS]
    if name == "quick":
        return tuple(spec for spec in alone if spec.name in _QUICK)
    if name == "ci":
        light = [spec for spec in alone if spec.kind == "light" and spec.gpu_s <= _CI_MOST_S]
        return tuple(spec for spec in alone if spec in light or spec.name in _CI_ALWAYS)
    return tuple(alone)
