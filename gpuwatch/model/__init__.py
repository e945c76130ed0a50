"""The frozen types that everything else speaks.

Owns: what a device, a sample, a process, a stack and a finding are, with units in the field names.
Refuses: I/O, formatting, opinions.

Conventions
-----------
* A reading is a value or ``Absent(reason)``. Zero is a measurement; absence is not.
* ``mono_ns`` is CLOCK_MONOTONIC of the machine that read the value: differences only. ``wall_ns`` is for people.
* Devices are keyed by UUID and referred to by index inside one inventory.
* ``*_pct`` is 0..100, ``*_share`` is 0..1, ``*_bytes_per_s`` is bytes (not MiB).
* Samples travel every tick, so they are positional (``array_like``): new fields are appended with a default,
  nothing is ever reordered or retyped (msgspec's schema evolution rules).
"""

from __future__ import annotations

from gpuwatch.model.device import (
    Burst,
    BurstSummary,
    ClocksEvent,
    DeviceProcess,
    DeviceSample,
    EventKind,
    EventOrigin,
    EventRecord,
    SampleSeries,
)
from gpuwatch.model.finding import (
    AccountShare,
    CodeLocation,
    Confidence,
    Diagnosis,
    EvidenceRow,
    Finding,
    FindingSpan,
    Severity,
    Standing,
    StepTimes,
)
from gpuwatch.model.health import CounterGrowth, DeviceHealth, PeerLink, ProcessUtil
from gpuwatch.model.host import CoreGroup, HostSample, Pressure
from gpuwatch.model.node import Device, DriverState, Inventory, NodeInfo, Source, SourceKind, Unwatched
from gpuwatch.model.probe import ProbeResult, ProbeStatus, ProbeValue
from gpuwatch.model.process import (
    CgroupSample,
    FileSystem,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    RankPlace,
    Role,
    StepReport,
    Storage,
)
from gpuwatch.model.reading import NOT_READ, NOT_SUPPORTED, Absent, Int, Num, Reason, Text, value_or
from gpuwatch.model.stack import Frame, SourceLine, StackSample, ThreadStack

Observation = (
    Inventory
    | DeviceSample
    | HostSample
    | ProcessTick
    | StackSample
    | SourceLine
    | DeviceHealth
    | Burst
    | EventRecord
    | StepReport
)
"""What collectors emit and recordings hold: everything above them is a function of these."""

__all__ = [
    "NOT_READ", "NOT_SUPPORTED", "Absent", "AccountShare", "Burst", "BurstSummary", "CgroupSample", "ClocksEvent",
    "CodeLocation", "Confidence", "CoreGroup", "CounterGrowth", "Device", "DeviceHealth", "DeviceProcess",
    "DeviceSample", "Diagnosis",
    "DriverState", "EventKind", "EventOrigin", "EventRecord", "EvidenceRow", "FileSystem", "Finding", "FindingSpan",
    "Frame", "HostSample", "Int", "Inventory", "NodeInfo", "Num", "Observation", "PeerLink", "Pressure",
    "ProbeResult", "ProbeStatus", "ProbeValue", "ProcessInfo", "ProcessSample", "ProcessTick", "ProcessUtil",
    "RankPlace", "Reason", "Role", "SampleSeries", "Severity", "Source", "SourceKind", "SourceLine", "StackSample",
    "Standing", "StepReport", "StepTimes", "Storage", "Text", "ThreadStack", "Unwatched", "value_or",
]  # fmt: skip
