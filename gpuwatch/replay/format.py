"""The ``.gwrec`` file: gzip of JSON lines, readable with ``zcat`` and twenty lines of any language.

Owns: the layout, its version, reading and writing. Refuses: timing (player.py) and collecting.

Line 1 is the header: format version, who wrote it, where, and the field names of every positional type, so that
the file explains itself. Every other line is ``{"k": KIND, "v": VALUE}`` with KIND of ``_KINDS``; the last line has
kind ``end`` and counts the observations, so a truncated file is known for one.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import msgspec
from msgspec import Struct

from gpuwatch import __version__, model
from gpuwatch.errors import CannotCreateError, InputNotFoundError, RecordingError
from gpuwatch.model import (
    Burst,
    DeviceHealth,
    DeviceSample,
    EventRecord,
    HostSample,
    Inventory,
    Observation,
    ProcessTick,
    SourceLine,
    StackSample,
    StepReport,
)

FORMAT_VERSION = 1
SUFFIX = ".gwrec"

_KINDS: dict[str, type] = {
    "inventory": Inventory,
    "device": DeviceSample,
    "host": HostSample,
    "processes": ProcessTick,
    "stack": StackSample,
    "source_line": SourceLine,
    "health": DeviceHealth,
    "burst": Burst,
    "event": EventRecord,
    "steps": StepReport,
}
_KIND_OF = {kind_type: kind for kind, kind_type in _KINDS.items()}
_POSITIONAL = (
    "Absent", "Burst", "CgroupSample", "CoreGroup", "DeviceHealth", "DeviceProcess", "DeviceSample", "Frame",
    "HostSample", "PeerLink", "Pressure", "ProcessSample", "ProcessUtil", "SampleSeries", "StepReport", "ThreadStack",
)  # fmt: skip


class Header(Struct, frozen=True):
    """First line of a recording."""

    gpuwatch_recording: int
    """Format version."""
    created_wall_ns: int
    gpuwatch_version: str = ""
    note: str = ""
    fields: dict[str, tuple[str, ...]] = {}
    """Field names of the positional types, in order."""


class _Line(Struct):
    k: str
    v: msgspec.Raw


class _End(Struct):
    observations: int


def _positional_fields() -> dict[str, tuple[str, ...]]:
    types = {name: cast("type[Struct]", getattr(model, name)) for name in _POSITIONAL}
    return {name: struct.__struct_fields__ for name, struct in types.items()}


class Writer:
    """Writes one recording. Use as a context manager: leaving it writes the ``end`` line.

    Raises CannotCreateError when the file cannot be created or the disk is full.
    """

    def __init__(self, path: Path, created_wall_ns: int, note: str = "") -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._count = 0
        try:
            self._file = gzip.GzipFile(path, "wb", compresslevel=9, mtime=created_wall_ns // 10**9)
            header = Header(FORMAT_VERSION, created_wall_ns, __version__, note, _positional_fields())
            self._file.write(self._encoder.encode(header) + b"\n")
        except OSError as exc:
            raise CannotCreateError(f"cannot write {path}: {exc.strerror or exc}") from None

    @property
    def count(self) -> int:
        """Observations written so far."""
        return self._count

    def write(self, observation: Observation) -> None:
        """Append one observation."""
        value = self._encoder.encode(observation)
        kind = _KIND_OF[type(observation)]
        self._append(b'{"k":"' + kind.encode() + b'","v":' + value + b"}\n")
        self._count += 1

    def flush(self) -> None:
        """Make what was written so far readable, should we be killed."""
        self._guard(self._file.flush)

    def close(self) -> None:
        """Write the end line and close."""
        self._append(b'{"k":"end","v":{"observations":%d}}\n' % self._count)
        self._guard(self._file.close)

    def _append(self, line: bytes) -> None:
        self._guard(lambda: self._file.write(line))

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as exc:
            raise CannotCreateError(f"cannot write {self._path}: {exc.strerror or exc}") from None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_header(path: Path) -> Header:
    """The header. Raises InputNotFoundError, RecordingError."""
    with _open(path) as file:
        return _header(path, file)


def read_observations(path: Path, *, partial: bool = False) -> Iterator[Observation]:
    """Every observation in the order of recording.

    A truncated file raises RecordingError after its last good observation; with ``partial`` it just ends there.
    Unknown kinds are skipped: they come from a newer gpuwatch.
    """
    count = 0
    with _open(path) as file:
        _header(path, file)
        try:
            for raw in file:
                line = msgspec.json.decode(raw, type=_Line)
                if line.k == "end":
                    _check_count(path, msgspec.json.decode(line.v, type=_End).observations, count)
                    return
                kind = _KINDS.get(line.k)
                if kind is None:
                    continue
                yield cast("Observation", msgspec.json.decode(line.v, type=kind))
                count += 1
        except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.DecodeError) as exc:
            if partial and count:
                return
            raise RecordingError(
                f"{path}: damaged after {count} observations ({_reason(exc)}); "
                "read what is there with --partial, or record again"
            ) from None
    if not (partial and count):
        raise RecordingError(
            f"{path}: truncated after {count} observations; read what is there with --partial, or record again"
        )


def _check_count(path: Path, said: int, seen: int) -> None:
    if said < seen:
        raise RecordingError(f"{path}: has {seen} observations but its end line says {said}; record again")


def _reason(exc: Exception) -> str:
    return "file ends early" if isinstance(exc, EOFError) else str(exc)


def _open(path: Path) -> IO[bytes]:
    try:
        return cast("IO[bytes]", gzip.open(path, "rb"))
    except FileNotFoundError:
        raise InputNotFoundError(f"{path}: no such recording; make one with: gpuwatch record FILE{SUFFIX}") from None
    except OSError as exc:
        raise RecordingError(f"cannot read {path}: {exc.strerror or exc}") from None


def _header(path: Path, file: IO[bytes]) -> Header:
    foreign = f"{path}: not a gpuwatch recording; make one with: gpuwatch record FILE{SUFFIX}"
    try:
        first = file.readline(1 << 20)
    except (OSError, EOFError, zlib.error) as exc:
        if isinstance(exc, OSError) and not isinstance(exc, gzip.BadGzipFile):
            raise RecordingError(f"cannot read {path}: {exc.strerror or exc}") from None
        raise RecordingError(foreign) from None
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.DecodeError:
        raise RecordingError(foreign) from None
    if header.gpuwatch_recording != FORMAT_VERSION:
        raise RecordingError(
            f"{path}: recording format {header.gpuwatch_recording} (written by gpuwatch {header.gpuwatch_version}), "
            f"this gpuwatch reads {FORMAT_VERSION}; use the newer gpuwatch"
        )
    return header
