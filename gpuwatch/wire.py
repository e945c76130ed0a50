"""Model to bytes and back: topics, protocol version, messages.

Owns: what travels. Refuses: sockets, clocks, files.

Stream (XPUB): frames ``[topic, payload]``. Requests (ROUTER/DEALER): one frame ``payload`` each way.
A payload is msgpack of one tagged message. Topics end in ``/`` because ZeroMQ subscribes by prefix ("gpu.1" would
also match "gpu.10").

A subscriber subscribes first, then asks for a :class:`Snapshot`, which carries the ``seq`` of the last message that
it includes: messages up to it are dropped, the next must be ``seq + 1``, anything else is a gap and the snapshot is
asked for again. ``epoch`` changes when the daemon restarts.

Evolution: new fields have defaults, are appended and old decoders skip them; a tag or field name is never reused;
an unknown tag is counted and ignored. A changed *major* means that old clients must not try.
"""

from __future__ import annotations

from msgspec import DecodeError, Struct
from msgspec import msgpack as _msgpack

from gpuwatch.errors import ProtocolError
from gpuwatch.model import (
    BurstSummary,
    CgroupSample,
    DeviceHealth,
    DeviceSample,
    Diagnosis,
    EventRecord,
    FindingSpan,
    HostSample,
    Inventory,
    ProbeResult,
    ProcessInfo,
    ProcessSample,
    StepReport,
)

PROTOCOL = (1, 0)
MAX_REQUEST_BYTES = 64 * 1024
KEEP_ACCOUNTS = 60
"""Diagnoses of one job whose accounts are remembered, by the daemon and by its clients."""

TOPIC_STREAM = b"stream/"
TOPIC_WELCOME = b"welcome/"
"""Sent by the socket itself to each new subscriber: it proves that the subscription has arrived."""


class Tick(Struct, frozen=True, tag="tick"):
    """The latest reading of everything. A hung GPU keeps its old ``mono_ns``: age is visible, never hidden."""

    epoch: int
    seq: int
    mono_ns: int
    wall_ns: int
    devices: tuple[DeviceSample, ...]
    host: HostSample | None = None
    processes: tuple[ProcessSample, ...] = ()
    cgroups: tuple[CgroupSample, ...] = ()


class InventoryMessage(Struct, frozen=True, tag="inventory"):
    """The inventory changed."""

    epoch: int
    seq: int
    inventory: Inventory


class ProcessesMessage(Struct, frozen=True, tag="processes"):
    """Static facts of processes that appeared, and pids that went."""

    epoch: int
    seq: int
    infos: tuple[ProcessInfo, ...]
    gone: tuple[int, ...] = ()


class DiagnosisMessage(Struct, frozen=True, tag="diagnosis"):
    """A finished diagnosis."""

    epoch: int
    seq: int
    diagnosis: Diagnosis


class DiagnosisProgress(Struct, frozen=True, tag="diagnosing"):
    """A diagnosis is under way: so many of so many seconds. ``done_s`` < 0: it was given up, ``message`` says why."""

    epoch: int
    seq: int
    pid: int
    device_indices: tuple[int, ...]
    done_s: float
    total_s: float
    message: str = ""


class ProbeMessage(Struct, frozen=True, tag="probe"):
    """A finished probe."""

    epoch: int
    seq: int
    result: ProbeResult


class ProbeProgress(Struct, frozen=True, tag="probing"):
    """A probe is under way: told at its start and about once a second, until its ``probe`` message comes."""

    epoch: int
    seq: int
    probe: str
    device_index: int
    message: str
    """What the probe last said of itself, one line."""
    done_s: float
    total_s: float = 0.0
    """How long such a run takes, roughly; 0 when that is not known."""


class ValueVerdict(Struct, frozen=True, array_like=True):
    """One figure of a probe against the baseline. Words are those of ``gpuwatch probe check``."""

    value: str
    """Empty: the whole probe has one verdict."""
    verdict: str
    level: str
    """ok, warn, critical, unknown, skip or note."""
    unit: str = ""
    before: float | None = None
    """The baseline's figure."""
    after: float | None = None
    improvement: float | None = None
    """A share: 0.05 is 5 % better, whichever direction is better."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval of ``improvement``."""
    reason: str = ""


class ProbeVerdict(Struct, frozen=True):
    """One result against the baseline."""

    probe: str
    device_uuid: str
    started_wall_ns: int
    """Of the result that was judged."""
    level: str
    """The worst of its values."""
    values: tuple[ValueVerdict, ...]


class ProbeVerdictMessage(Struct, frozen=True, tag="probe_verdict"):
    """Results against the baseline of the daemon's configuration: when a probe has finished, when the baseline
    changed, and after a snapshot that somebody asked for. Never sent by a daemon that never had one."""

    epoch: int
    seq: int
    baseline: str
    """The file; empty when the configuration names none any more."""
    note: str = ""
    """Why the file is of no use, one line."""
    verdicts: tuple[ProbeVerdict, ...] = ()
    complete: bool = False
    """All that there are: others that a client remembers are void."""


class Heartbeat(Struct, frozen=True, tag="heartbeat"):
    """Nothing new, still here."""

    epoch: int
    seq: int
    mono_ns: int


class Goodbye(Struct, frozen=True, tag="goodbye"):
    """The daemon is stopping on purpose."""

    epoch: int
    seq: int


class ReplayPosition(Struct, frozen=True, tag="replay"):
    """How a recording is being played: published when somebody asks for it or changes it."""

    epoch: int
    seq: int
    start_mono_ns: int
    """The recorder's clock at the first reading: a tick's ``mono_ns`` less this is its place in the recording."""
    position_s: float
    duration_s: float
    speed: float
    paused: bool = False


class Telemetry(Struct, frozen=True, tag="telemetry"):
    """What has come up beside the ticks. Slow readings of a GPU come whole, those of one GPU a message as a rule."""

    epoch: int
    seq: int
    health: tuple[DeviceHealth, ...] = ()
    bursts: tuple[BurstSummary, ...] = ()
    events: tuple[EventRecord, ...] = ()
    complete: bool = False
    """Follows a snapshot that somebody asked for: all there is of ``health``, and ``events`` that may be known."""


class FindingsMessage(Struct, frozen=True, tag="findings"):
    """Findings in time, all that the daemon remembers: published when one opens or is resolved, and after a snapshot
    that somebody asked for."""

    epoch: int
    seq: int
    spans: tuple[FindingSpan, ...]


class AccountPoint(Struct, frozen=True, array_like=True):
    """What one diagnosis said of where the wall time went."""

    wall_ns: int
    cause: str
    """Of its verdict."""
    permille: dict[str, int] = {}
    """Activity to its share of the window, in thousandths: a screen has fewer cells, and a job sends sixty of these."""


class AccountsMessage(Struct, frozen=True, tag="accounts"):
    """The accounts of the last diagnoses of one job, oldest first, at most ``KEEP_ACCOUNTS``: published after a
    snapshot that somebody asked for. A later one is in its DiagnosisMessage."""

    epoch: int
    seq: int
    pid: int
    device_indices: tuple[int, ...]
    points: tuple[AccountPoint, ...]


class StepsMessage(Struct, frozen=True, tag="steps"):
    """What jobs said of their own loops since the tick before; only from jobs that use ``gpuwatch.hook``."""

    epoch: int
    seq: int
    reports: tuple[StepReport, ...]


StreamMessage = (
    Tick
    | InventoryMessage
    | ProcessesMessage
    | DiagnosisMessage
    | DiagnosisProgress
    | ProbeMessage
    | Heartbeat
    | Goodbye
    | ReplayPosition
    | Telemetry
    | FindingsMessage
    | AccountsMessage
    | ProbeProgress
    | ProbeVerdictMessage
    | StepsMessage
)


class GetSnapshot(Struct, frozen=True, tag="get_snapshot"):
    """Everything a new subscriber needs."""

    request_id: int
    protocol: tuple[int, int] = PROTOCOL


class StartDiagnosis(Struct, frozen=True, tag="start_diagnosis"):
    """Diagnose this process, or whatever runs on this device, now. Answered by Accepted, result by the stream."""

    request_id: int
    pid: int = 0
    device_index: int = -1
    seconds: float = 0.0
    """0 means the daemon's default."""


class StartProbe(Struct, frozen=True, tag="start_probe"):
    """Run a probe if the device is idle. Answered by Accepted, result by the stream."""

    request_id: int
    probe: str
    device_index: int = 0


class GetHistory(Struct, frozen=True, tag="get_history"):
    """The past of one GPU, in at most ``points`` buckets. Answered by History."""

    request_id: int
    device_index: int
    seconds: float
    points: int = 300


class ReplayControl(Struct, frozen=True, tag="replay_control"):
    """Change how a recording is played. Answered by Accepted; a ReplayPosition follows in the stream."""

    request_id: int
    action: str
    """``pause``, ``resume``, ``step`` (on by ``value`` seconds, then pause), ``seek`` (to ``value`` seconds from the
    start), ``speed`` (``value`` times real time, 0 as fast as possible), ``status`` (only tell)."""
    value: float = 0.0


Request = GetSnapshot | StartDiagnosis | StartProbe | GetHistory | ReplayControl


class Snapshot(Struct, frozen=True, tag="snapshot"):
    """Full state as of ``seq``."""

    request_id: int
    epoch: int
    seq: int
    protocol: tuple[int, int]
    inventory: Inventory
    tick: Tick | None
    infos: tuple[ProcessInfo, ...]
    diagnoses: tuple[Diagnosis, ...]
    probes: tuple[ProbeResult, ...]
    history: tuple[Tick, ...] = ()
    """Recent ticks, oldest first, devices only: charts start full."""
    period_s: float = 1.0


class Accepted(Struct, frozen=True, tag="accepted"):
    """The request was taken."""

    request_id: int
    message: str = ""


class Refused(Struct, frozen=True, tag="refused"):
    """The request was not taken; one line for a person."""

    request_id: int
    message: str


class HistorySeries(Struct, frozen=True, array_like=True):
    """One reading over time: integers, to be multiplied by ``scale``; None where there was no value."""

    name: str
    """A field of DeviceSample; its unit is in its name."""
    scale: float
    mean: tuple[int | None, ...]
    low: tuple[int | None, ...] = ()
    high: tuple[int | None, ...] = ()
    """Both empty: one reading a bucket, which is its own extreme."""


class History(Struct, frozen=True, tag="history"):
    """The past of one GPU in buckets of ``step_ns``, oldest first; bucket k begins at a multiple of ``step_ns``."""

    request_id: int
    device_index: int
    seconds: float
    """As asked for."""
    start_mono_ns: int
    step_ns: int
    series: tuple[HistorySeries, ...]
    reasons: tuple[int, ...] = ()
    """Every bit of ``clocks_event_reasons`` that was set in the bucket."""


Reply = Snapshot | Accepted | Refused | History


def with_account(points: tuple[AccountPoint, ...], diagnosis: Diagnosis) -> tuple[AccountPoint, ...]:
    """``points`` with that of a newer diagnosis. One without an account, or that is there already, adds nothing."""
    if not diagnosis.account or (points and points[-1].wall_ns >= diagnosis.end_wall_ns):
        return points
    permille = {part.activity: round(1000 * part.share) for part in diagnosis.account}
    new = AccountPoint(diagnosis.end_wall_ns, diagnosis.verdict.cause, permille)
    return (*points, new)[-KEEP_ACCOUNTS:]


_encoder = _msgpack.Encoder()
_stream_decoder: _msgpack.Decoder[StreamMessage] = _msgpack.Decoder(StreamMessage)
_request_decoder: _msgpack.Decoder[Request] = _msgpack.Decoder(Request)
_reply_decoder: _msgpack.Decoder[Reply] = _msgpack.Decoder(Reply)


def encode(message: StreamMessage | Request | Reply) -> bytes:
    """One message as msgpack."""
    return _encoder.encode(message)


def decode_stream(payload: bytes) -> StreamMessage:
    """A stream message. Raises ProtocolError for anything that is not one, unknown tags included."""
    try:
        return _stream_decoder.decode(payload)
    except DecodeError as exc:
        raise ProtocolError(f"not a gpuwatch stream message: {exc}") from None


def decode_request(payload: bytes) -> Request:
    """A request. Raises ProtocolError."""
    try:
        return _request_decoder.decode(payload)
    except DecodeError as exc:
        raise ProtocolError(f"not a gpuwatch request: {exc}") from None


def decode_reply(payload: bytes) -> Reply:
    """A reply. Raises ProtocolError."""
    try:
        return _reply_decoder.decode(payload)
    except DecodeError as exc:
        raise ProtocolError(f"not a gpuwatch reply: {exc}") from None
