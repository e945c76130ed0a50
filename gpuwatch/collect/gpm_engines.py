"""Decoders, encoders, JPEG and optical flow units by GPM: under MIG nothing else tells their utilization.

Owns: which metrics they are, a request of their own. Refuses: samples and windows (gpm.py).

They are asked for between two samples that are there anyway, only when somebody wants them, and apart from the other
metrics: a driver that does not know one of these numbers must not cost the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from gpuwatch.collect.nvml_fields import GPM_ENGINES, absent_for
from gpuwatch.model import NOT_READ, Absent, Num

_MAX_PCT: Final = 101.0
_IDS: Final = tuple((name, number) for name, numbers in GPM_ENGINES.items() for number in numbers)


class GpmEngines:
    """The last answer for one GPU. ``wanted`` is set by whoever reads ``values``, and served once."""

    def __init__(self, binding: Any) -> None:
        self._n = binding
        self._request: Any = None
        self.wanted = False
        self.values: Mapping[str, Num] = dict.fromkeys(GPM_ENGINES, NOT_READ)

    def take(self, older: Any, current: Any) -> None:
        """Ask, if it is wanted, for the time between two samples. Raises nothing but what ends a program."""
        if not self.wanted:
            return
        self.wanted = False
        if self._request is None:
            self._request = self._n.c_nvmlGpmMetricsGet_t()
            self._request.version = 1
            self._request.numMetrics = len(_IDS)
            for place, (_, number) in enumerate(_IDS):
                self._request.metrics[place].metricId = number
        self._request.sample1, self._request.sample2 = older, current
        try:
            self._n.nvmlGpmMetricsGet(self._request)
        except self._n.NVMLError as error:
            self.values = dict.fromkeys(GPM_ENGINES, absent_for(int(error.value)))
            return
        self.values = {name: self._busiest(name) for name in GPM_ENGINES}

    def _busiest(self, name: str) -> Num:
        """Of the units of one kind. Not their mean: a unit that the card lacks answers 0 as an idle one does (an
        H200 has no encoder and 7 decoders, and all of 166 to 169 and 30 to 37 answer)."""
        metrics = [self._request.metrics[place] for place, (kind, _) in enumerate(_IDS) if kind == name]
        known = [
            float(m.value) for m in metrics if m.nvmlReturn == 0 and math.isfinite(m.value) and 0 <= m.value <= _MAX_PCT
        ]
        return min(100.0, max(known)) if known else self._why(metrics)

    def _why(self, metrics: list[Any]) -> Absent:
        return absent_for(next((int(m.nvmlReturn) for m in metrics if m.nvmlReturn), 3))
