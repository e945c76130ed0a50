"""Utilization of each process of one GPU.

Owns: the last stamp seen, the newer call and the older one, what an absent pid means. Refuses: importing pynvml.

The driver tells only processes that were active since the stamp that it is given, so a listed process that it does not
name was at 0 %, and NOT_FOUND means that all were. Asked from stamp 0 it averages over ten seconds of the past (93 %
against 100 % on an H200), so the first answer only teaches the stamp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from gpuwatch.collect.nvml_calls import MAX_PCT, Calls
from gpuwatch.collect.nvml_fields import (
    INSUFFICIENT_SIZE,
    NOT_FOUND,
    NOT_SUPPORTED,
    PERMANENT_CODES,
    VERSION_MISMATCH,
    absent_for,
)
from gpuwatch.model import NOT_READ, Absent, Int, ProcessUtil, Reason

_INFO_VERSION: Final = 0x01000018
_LENGTH: Final = 128
"""Older drivers answer with up to 100 entries, most of them junk."""
_MAX_LENGTH: Final = 4096
_START_US: Final = 1_000_000
_TRIES: Final = 3


class _Entry(NamedTuple):
    stamp_us: int
    pid: int
    sm: int
    memory: int
    encoder: int
    decoder: int


Utils = tuple[tuple[ProcessUtil, ...], Absent | None]
"""One for each listed process, and why there is none."""


class ProcessUtilReader:
    """Not thread-safe: its sampler owns it."""

    def __init__(self, calls: Calls, handle: Any) -> None:
        self._calls = calls
        self._handle = handle
        self._seen_us = 0
        self._ways: list[Callable[[int], int]] = [self._ask_newer, self._ask_older]
        self._era = calls.era
        self._length = _LENGTH
        self._entries: list[_Entry] = []

    def forget(self) -> None:
        """The driver's clock was set: old stamps say nothing any more."""
        self._seen_us = 0

    def read(self, pids: Collection[int], newest_us: int = 0) -> Utils:
        """Utilization of ``pids`` since the previous read. Raises GoneError when the GPU no longer answers.

        ``newest_us``: a recent stamp of the same clock, where one is known, so that the first read counts too.
        """
        if not self._seen_us and newest_us > _START_US:
            self._seen_us = newest_us - _START_US
        began_us = self._seen_us
        code = self._ask(began_us)
        if code not in (0, NOT_FOUND):
            return (), absent_for(code)
        newest = _newest(self._entries if code == 0 else [], began_us)
        self._seen_us = max((e.stamp_us for e in newest.values()), default=began_us)
        if not began_us and newest:
            return (), NOT_READ
        return tuple(_util(pid, newest.get(pid)) for pid in pids), None

    def _ask(self, since_us: int) -> int:
        """The return code; the entries are kept."""
        if self._era != self._calls.era:
            self._era, self._ways = self._calls.era, [self._ask_newer, self._ask_older]
        while self._ways:
            code = self._asked(self._ways[0], since_us)
            if code not in (*PERMANENT_CODES, VERSION_MISMATCH):
                return code
            # Blackwell answers only the newer call, drivers before 550 only the older one.
            del self._ways[0]
        return NOT_SUPPORTED

    def _asked(self, way: Callable[[int], int], since_us: int) -> int:
        try:
            return way(since_us)
        except AttributeError as exc:
            # The binding is older than the call and has no struct for it.
            code = self._calls.code_of(exc)
            if code == 0:
                raise
            return code

    def _ask_newer(self, since_us: int) -> int:
        n = self._calls.n
        request = n.c_nvmlProcessesUtilizationInfo_v1_t()
        for _ in range(_TRIES):
            array = (n.c_nvmlProcessUtilizationInfo_v1_t * self._length)()
            request.version, request.processSamplesCount = _INFO_VERSION, self._length
            request.lastSeenTimeStamp, request.procUtilArray = since_us, array
            code = self._calls.code("nvmlDeviceGetProcessesUtilizationInfo", self._handle, ctypes.byref(request))
            count = int(request.processSamplesCount)
            if code != INSUFFICIENT_SIZE:
                break
            self._length = min(_MAX_LENGTH, max(count, self._length) * 2)
        self._entries = [_entry(e) for e in array[: min(count, len(array))]] if code == 0 else []
        return code

    def _ask_older(self, since_us: int) -> int:
        n = self._calls.n
        for _ in range(_TRIES):
            array = (n.c_nvmlProcessUtilizationSample_t * self._length)()
            count = ctypes.c_uint(self._length)
            arguments = (self._handle, array, ctypes.byref(count), ctypes.c_ulonglong(since_us))
            code = self._calls.code("nvmlDeviceGetProcessUtilization", *arguments)
            if code != INSUFFICIENT_SIZE:
                break
            self._length = min(_MAX_LENGTH, max(count.value, self._length) * 2)
        self._entries = [_entry(e) for e in array[: min(count.value, len(array))]] if code == 0 else []
        return code


def _entry(raw: Any) -> _Entry:
    return _Entry(
        int(raw.timeStamp), int(raw.pid), int(raw.smUtil), int(raw.memUtil), int(raw.encUtil), int(raw.decUtil)
    )


def _newest(entries: list[_Entry], since_us: int) -> dict[int, _Entry]:
    """Of each pid the newest entry; over a longer window the driver gives several, and old ones that were asked for
    before."""
    found: dict[int, _Entry] = {}
    for entry in entries:
        known = found.get(entry.pid)
        if entry.stamp_us > since_us and (known is None or entry.stamp_us > known.stamp_us):
            found[entry.pid] = entry
    return found


def _util(pid: int, entry: _Entry | None) -> ProcessUtil:
    if entry is None:
        return ProcessUtil(pid, 0, 0, 0, 0)
    return ProcessUtil(pid, *(_pct(value) for value in (entry.sm, entry.memory, entry.encoder, entry.decoder)))


def _pct(value: int) -> Int:
    return value if value <= MAX_PCT else Absent(Reason.OUT_OF_RANGE, str(value))
