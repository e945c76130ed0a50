"""Several samples of one GPU to one: what is published once a second from readings taken ten times a second.

Owns: how readings combine, what of the driver's own samples goes into the stream. Refuses: clocks, threads, keeping
anything. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpuwatch.collect.nvml_fields import GPM_METRICS, READING_FIELDS
from gpuwatch.model import NOT_READ, Absent, Burst, BurstSummary, DeviceSample, Int, Num, Reason


def _getter(name: str) -> Callable[[DeviceSample], Num]:
    def get(sample: DeviceSample) -> Num:
        value: Num = getattr(sample, name)
        return value

    return get


_GPM: Final = {name: _getter(name) for name in GPM_METRICS}
_READINGS: Final = {name: _getter(name) for name in READING_FIELDS}


def fold_samples(samples: Sequence[DeviceSample]) -> DeviceSample:
    """One sample for consecutive samples of one device, oldest first. Raises ValueError when there is none.

    GPM averages are weighted by the windows that they cover and the windows add up, so nothing between two
    publishes is lost. Everything else is from the newest sample; what a cheap reading left out (NOT_READ) is from
    the newest that has it.
    """
    if not samples:
        raise ValueError("no samples to fold")
    newest = samples[-1]
    if len(samples) == 1:
        return newest
    changes: dict[str, object] = {name: _averaged(samples, get) for name, get in _GPM.items()}
    changes |= {name: _newest(samples, get) for name, get in _READINGS.items()}
    return msgspec.structs.replace(
        newest,
        **changes,
        gpm_window_ns=sum(sample.gpm_window_ns for sample in samples),
        nvml_ns=sum(sample.nvml_ns for sample in samples),
    )


def _averaged(samples: Sequence[DeviceSample], get: Callable[[DeviceSample], Num]) -> Num:
    """Mean over the windows in which the counter was read; else the newest reason that says more than NOT_READ.

    A GPU that has been lost since is lost: what it did before does not stand for the whole window.
    """
    last = get(samples[-1])
    if isinstance(last, Absent) and last.reason in (Reason.LOST, Reason.DRIVER):
        return last
    total, window_ns = 0.0, 0
    for sample in samples:
        value = get(sample)
        if not isinstance(value, Absent):
            total += value * sample.gpm_window_ns
            window_ns += sample.gpm_window_ns
    return total / window_ns if window_ns else _newest(samples, get)


def _newest(samples: Sequence[DeviceSample], get: Callable[[DeviceSample], Num]) -> Num:
    for sample in reversed(samples):
        value = get(sample)
        if not (isinstance(value, Absent) and value.reason is Reason.NOT_READ):
            return value
    return NOT_READ


SUMMARY_SAMPLES: Final = 16
"""Utilization samples of one GPU in one message: three seconds of an H200."""


def summarise(bursts: Sequence[Burst]) -> BurstSummary:
    """What the stream carries of consecutive bursts of one device. Raises ValueError when there is none."""
    if not bursts:
        raise ValueError("no bursts to summarise")
    newest = bursts[-1]
    util = [value for burst in bursts for value in burst.util_pct.values]
    watts = [value / 1000 for burst in bursts for value in burst.power_mw.values]
    absent: Int = newest.power_mw.absent or NOT_READ
    return BurstSummary(
        newest.device_index,
        tuple(util[-SUMMARY_SAMPLES:]),
        round(min(watts)) if watts else absent,
        round(sum(watts) / len(watts)) if watts else absent,
        round(max(watts)) if watts else absent,
    )
