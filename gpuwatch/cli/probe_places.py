"""Where to measure: the CPU, one GPU, each of several, or several at once.

Owns: what ``--device`` means, which probe goes where, reading who is on a GPU. Refuses: measuring.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpuwatch.model import Device, DeviceSample


class Gpu(NamedTuple):
    """The GPU to measure, and a way to read who is on it and what it does."""

    device: Device
    read: Callable[[], DeviceSample]


class Together(NamedTuple):
    """Several GPUs for one run."""

    gpus: tuple[Gpu, ...]


class Missing(NamedTuple):
    """A device that cannot be had."""

    device: str
    message: str


Place = Gpu | Together | Missing | None
"""None is the CPU."""


def device_index(text: str) -> int | None:
    """N of "cuda:N" (0 for "cuda"), None for "cpu". Raises UsageError."""
    from gpuwatch.errors import UsageError

    if text == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", text)
    if match is None:
        raise UsageError(f"--device {text}: expected cpu, all or cuda:N, such as cuda:0 or cuda:0,cuda:1")
    return int(match[1] or 0)


def places(device: str) -> list[Place]:
    """The devices that ``--device`` names. Raises UsageError for a wrong name or number."""
    from gpuwatch.errors import UsageError

    if device == "all":
        return list(find_gpus(None))
    indices = list(dict.fromkeys(device_index(part) for part in device.split(",")))
    if len(indices) > 1 and None in indices:
        raise UsageError(f"--device {device}: the CPU is measured alone")
    return [place for index in indices for place in ([None] if index is None else find_gpus(index))]


def turns(probes: Sequence[str], where: Sequence[Place], named: Sequence[str] = ()) -> list[tuple[str, Place]]:
    """Each probe on each device; one that needs several GPUs once, last, over all that there are in ``where``.

    With one GPU there it is left out unless it was ``named``: a baseline of the whole node can be used for one card.
    """
    from gpuwatch.verdict.catalogue import SEVERAL_GPUS

    gpus = tuple(place for place in where if isinstance(place, Gpu))
    together = [probe for probe in probes if gpus and probe in SEVERAL_GPUS]
    found: list[tuple[str, Place]] = [(probe, place) for place in where for probe in probes if probe not in together]
    if len(gpus) > 1:
        found += [(probe, Together(gpus)) for probe in together]
    elif gpus:
        found += [(probe, gpus[0]) for probe in together if probe in named]
    return found


def find_gpus(index: int | None) -> list[Gpu | Missing]:
    """The GPU with NVML's number ``index``, or all; a ``Missing`` where there is none to be had.

    Raises UsageError for a wrong number.
    """
    from gpuwatch.collect.nvml import Nvml
    from gpuwatch.errors import UsageError
    from gpuwatch.model import DriverState

    label = "cuda" if index is None else f"cuda:{index}"
    nvml = Nvml()
    state, hint = nvml.open()
    if state is not DriverState.OK:
        return [Missing(label, f"{(hint or state.value).rstrip('.')}; without a GPU use --device cpu")]
    devices = nvml.devices()
    wanted = [device for device in devices if index is None or device.index == index]
    if not wanted:
        raise UsageError(f"--device {label}: this machine has cuda:0 to cuda:{len(devices) - 1}")

    def reading(number: int) -> Callable[[], DeviceSample]:
        reader = nvml.reader(number)
        return lambda: reader.read(time.monotonic_ns())

    return [Gpu(device, reading(device.index)) for device in wanted]
