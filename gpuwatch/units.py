"""Quantity to text, and the only place that prints "n/a".

Owns: rounding, prefixes, widths. Refuses: knowing what a quantity means.
Bytes use binary prefixes (GiB), rates too (GiB/s), as nvidia-smi and nvitop do.
"""

from __future__ import annotations

from collections.abc import Iterable

NA = "n/a"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _number(reading: object) -> float | None:
    """The number in a reading, or None for Absent (which this layer must not import)."""
    if isinstance(reading, bool) or not isinstance(reading, (int, float)):
        return None
    return float(reading)


def scaled(value: float) -> tuple[float, str]:
    """Bytes to (number below 1024, binary prefix)."""
    size = float(value)
    for prefix in _BINARY[:-1]:
        if abs(size) < 1023.5:
            return size, prefix
        size /= 1024
    return size, _BINARY[-1]


def bytes_text(reading: object) -> str:
    """Bytes as "13.4 GiB", with three significant digits below 100."""
    value = _number(reading)
    if value is None:
        return NA
    size, prefix = scaled(value)
    digits = 0 if prefix == "B" or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {prefix}"


def rate_text(reading: object) -> str:
    """Bytes per second as "1.2 GiB/s"."""
    text = bytes_text(reading)
    return text if text == NA else f"{text}/s"


def pct_text(reading: object, digits: int = 0) -> str:
    """Percent as "37 %"; a value that is not zero never prints as "0 %"."""
    value = _number(reading)
    if value is None:
        return NA
    if 0 < value < 0.5 * 10**-digits:
        return f"<{10**-digits:g} %"
    return f"{value:.{digits}f} %"


def watts_text(reading: object) -> str:
    """Watts as "412 W"."""
    value = _number(reading)
    return NA if value is None else f"{value:.0f} W"


def celsius_text(reading: object) -> str:
    """Degrees as "61 °C"."""
    value = _number(reading)
    return NA if value is None else f"{value:.0f} °C"


def mhz_text(reading: object) -> str:
    """Clock as "1980 MHz"."""
    value = _number(reading)
    return NA if value is None else f"{value:.0f} MHz"


def count_text(reading: object) -> str:
    """A count."""
    value = _number(reading)
    return NA if value is None else f"{value:.0f}"


def seconds_text(seconds: float) -> str:
    """A duration in the largest two useful units: "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, secs = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {secs} s" if secs else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def short_time_text(seconds: object) -> str:
    """Less than ten seconds with three significant digits: "2.35 ms", "312 ms", "1.25 s"; more as ``seconds_text``."""
    value = _number(seconds)
    if value is None:
        return NA
    if value >= 9.95:
        return seconds_text(value)
    size, unit = (value, "s") if value >= 0.9995 else (1e3 * value, "ms") if value >= 0.9995e-3 else (1e6 * value, "µs")
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def factor_text(factor: float) -> str:
    """A speed-up as "3.4×"; beyond 100 only the order is meant."""
    if factor >= 100:
        return ">100×"
    return f"{factor:.2f}×" if factor < 10 else f"{factor:.0f}×"


def ranges_text(numbers: Iterable[int]) -> str:
    """Ascending whole numbers as the kernel writes CPU lists: "0-3,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
