"""What a probe run means: who may start, whether the answer is one.

Owns: the busy rule, reading a probe's JSON, the exit codes of a probe process. Refuses: processes, clocks, comparing
runs. Pure functions of samples and bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from gpuwatch.errors import UsageError
from gpuwatch.model import Absent, Device, DeviceSample, ProbeResult, ProbeStatus, Reason, value_or
from gpuwatch.units import bytes_text, pct_text
from gpuwatch.verdict import catalogue

EXIT_CODES = {
    ProbeStatus.OK: 0,
    ProbeStatus.INVALID: 1,
    ProbeStatus.FAILED: 3,
    ProbeStatus.UNAVAILABLE: 3,
    ProbeStatus.BUSY: 75,
}
"""Of one probe process. Those of ``gpuwatch probe`` follow from verdicts."""

IDLE_UTIL_PCT = 2
"""NVML's utilization of a GPU at rest, with the driver's own housekeeping."""
IDLE_MEM_BYTES = 1024**3
"""More than this on a GPU that lists no process belongs to somebody whom we cannot see (a container next door)."""


PROBES = catalogue.load()
"""Everything in the catalogue of the installed probes."""
QUICK = tuple(spec.name for spec in catalogue.members("quick", PROBES))
"""What runs by itself on an idle GPU when the configuration asks for it without naming probes."""


def find_probe(name: str) -> catalogue.ProbeSpec:
    """The probe called ``name``. Raises UsageError with the nearest name."""
    names = [spec.name for spec in PROBES]
    if not names:
        raise UsageError("the probes are not installed beside gpuwatch: install the whole package again")
    if name in names:
        return PROBES[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
    raise UsageError(f"no probe {name!r}; {hint}")


def timeout_s(spec: catalogue.ProbeSpec, on_gpu: bool, seconds: float | None) -> float:
    """When a run counts as hung: two minutes for start and library trials, four times what it usually takes, and forty
    times the seconds of one case where those are given."""
    return 120.0 + 4.0 * (spec.gpu_s if on_gpu else spec.cpu_s) + 40.0 * (seconds or 0.0)


# --------------------------------------------------------------------------- who may run


def compute_pids(sample: DeviceSample) -> tuple[int, ...]:
    """Pids of the processes that compute on the GPU; a desktop's graphics processes do not."""
    return tuple(process.pid for process in sample.processes if "C" in process.kind)


def unreadable(sample: DeviceSample) -> bool:
    """Whether the GPU itself does not answer: a fault, and not somebody's job that ends."""
    absent = sample.processes_absent
    return absent is not None and absent.reason in (Reason.LOST, Reason.TIMEOUT, Reason.DRIVER)


def busy_reason(sample: DeviceSample, describe: Callable[[int], str], after_own_load: bool = False) -> str:
    """Why nothing may be measured on this GPU now, in words for a person, or "".

    ``after_own_load``: our own probe has just ended, so that utilization, an average over the last second, is ours.
    """
    gpu = f"GPU {sample.device_index}"
    absent = sample.processes_absent
    if absent is not None and absent.reason in (Reason.LOST, Reason.TIMEOUT, Reason.DRIVER, Reason.NOT_READ):
        return f"{gpu} cannot be read ({absent.reason.name.lower()}): whether it is free is not known"
    pids = compute_pids(sample)
    if pids:
        more = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
        return f"{gpu} is in use by {describe(pids[0])}{more}: wait until it ends"
    # A GPU that drives a screen holds memory and is a little busy by right, and its process is listed.
    if sample.processes:
        return ""
    used = value_or(sample.mem_used_bytes, 0.0)
    if used > IDLE_MEM_BYTES:
        return f"{gpu} holds {bytes_text(used)} for a process that cannot be seen from here: wait until it ends"
    util = value_or(sample.gpu_util_pct, 0.0)
    if util > IDLE_UTIL_PCT and not after_own_load:
        return f"{gpu} is {pct_text(util)} busy with a process that cannot be seen from here: wait until it ends"
    return ""


def blind_note(sample: DeviceSample) -> str:
    """What a result measured beside unseen neighbours has to say, or ""."""
    absent = sample.processes_absent
    if absent is None:
        return ""
    return f"the GPU's process list could not be read ({absent.reason.name.lower()}): a neighbour would go unnoticed"


def intruder(pids: Iterable[int], own: Collection[int], invisible: Collection[int], allowed: int = 1) -> int | None:
    """The first pid on the GPU that is not ours.

    In a container NVML may list pids of the host: our own probe then shows as one pid that does not exist here. So
    ``allowed`` ``invisible`` pids are taken for ours as long as none of ours is listed under its own number.
    """
    allowance = 0 if any(pid in own for pid in pids) else allowed
    for pid in pids:
        if pid in own:
            continue
        if pid in invisible and allowance:
            allowance -= 1
            continue
        return pid
    return None


# --------------------------------------------------------------------------- what came back


def printable(text: str, limit: int = 200) -> str:
    """One line without control characters, at most ``limit`` long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def read_result(probe: str, stdout: bytes, returncode: int, last_stderr_line: str) -> ProbeResult:
    """The probe's answer; FAILED, with what it last said on stderr, for anything that is not exactly one."""
    try:
        result = msgspec.json.decode(stdout, type=ProbeResult)
    except msgspec.DecodeError as exc:
        said = printable(last_stderr_line) or f"its output is no result: {exc}"
        return failed(probe, f"the probe ended with {_ending(returncode)} and no result: {said}")
    if result.probe != probe:
        return failed(probe, f"the answer is that of another probe: {printable(result.probe)!r}")
    if EXIT_CODES[result.status] != returncode:
        return failed(probe, f"the probe says {result.status.value} and ended with {_ending(returncode)}")
    return msgspec.structs.replace(
        result, message=printable(result.message, 500), notes=tuple(printable(note) for note in result.notes)
    )


def failed(probe: str, message: str, status: ProbeStatus = ProbeStatus.FAILED) -> ProbeResult:
    """A result that says only what went wrong."""
    return ProbeResult(probe=probe, status=status, device="", message=message)


def on_device(result: ProbeResult, device: Device) -> ProbeResult:
    """The result under the device's index here: the child saw only this GPU and called it cuda:0.

    A UUID that is not the one we asked for is a failure: the figures are another GPU's.
    """
    return placed(result, [device])


def placed(result: ProbeResult, devices: Sequence[Device]) -> ProbeResult:
    """The result under the devices' indices here; "cpu" without any. Of several, all UUIDs are the place, so that a
    node that lost a GPU is another place. A UUID that is none of theirs is a failure."""
    if not devices:
        return result if result.device else msgspec.structs.replace(result, device="cpu")
    asked = [device.uuid for device in devices]
    if result.device_uuid and result.device_uuid.lower() not in [uuid.lower() for uuid in asked]:
        message = f"measured {printable(result.device_uuid)} instead of {', '.join(asked)}: check CUDA_VISIBLE_DEVICES"
        result = msgspec.structs.replace(failed(result.probe, message), settings=result.settings)
    conditions = [_conditions(device) for device in devices]
    common = {key: text for key, text in conditions[0].items() if all(c.get(key) == text for c in conditions)}
    name = result.device_name or devices[0].name
    return msgspec.structs.replace(
        result,
        device=",".join(f"cuda:{device.index}" for device in devices),
        device_uuid=",".join(asked),
        device_name=name if len(devices) == 1 else f"{len(devices)} × {name}",
        settings={**common, **result.settings},
    )


def label(devices: Sequence[Device]) -> str:
    """ "GPU 1", "GPUs 0, 1" or "the CPU", for a person."""
    indices = ", ".join(str(device.index) for device in devices)
    return f"GPU{'s' if len(devices) > 1 else ''} {indices}" if devices else "the CPU"


def _conditions(device: Device) -> dict[str, str]:
    """What the probe's process cannot see and a comparison must know: the power limit, the MIG slice."""
    limit = device.power_limit_w
    told = {} if isinstance(limit, Absent) else {"power_limit_w": f"{limit:g}"}
    return told | ({"mig_profile": device.mig_profile} if device.mig_profile else {})


def _ending(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
