"""What each NVLink of a GPU says for itself: whether it runs, and its errors.

Owns: asking each link and adding up. Refuses: traffic (GPM and the fields of all links), judging.

Hopper and Blackwell answer the error counters by link only, each its own. A field of a link takes about 0.1 ms, and a
GPU has 18 links: so each counter is a group of its own, 2 ms long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuwatch.collect.field_batch import FieldBatch
from gpuwatch.collect.field_ids import LINK_STATE, Version, link_field
from gpuwatch.collect.nvml_calls import Calls, Query
from gpuwatch.model import NOT_SUPPORTED, Absent, Int

LINKS_MAX: Final = 72
"""Links that a driver is believed to have; 18 on Hopper and Blackwell."""


class Nvlink:
    """Not thread-safe: its health reader owns it."""

    def __init__(self, calls: Calls, handle: Any, driver: Version) -> None:
        self._calls = calls
        self._handle = handle
        self._driver = driver
        self._batches: dict[int, FieldBatch] = {}
        self._states: list[Query[int]] = []
        self._links = 0

    def down(self, links: Int) -> Int:
        """How many do not run."""
        if isinstance(links, Absent) or not links:
            return links if isinstance(links, Absent) else NOT_SUPPORTED
        states: list[Int] = list(self._ask(LINK_STATE, links).values())
        if all(isinstance(state, Absent) for state in states):
            # Before Hopper, and before driver 525.
            states = [query.read() for query in self._states]
        known = [state for state in states if not isinstance(state, Absent)]
        return sum(state == 0 for state in known) if known else next(iter(states), NOT_SUPPORTED)

    def total(self, fields: Sequence[int], links: Int) -> Int:
        """A counter, over all links that have it, by the first of its ids that is answered."""
        if isinstance(links, Absent) or not links:
            return links if isinstance(links, Absent) else NOT_SUPPORTED
        totals = (self._total(field, links) for field in fields)
        # Without any, the reason of the first: generators run only as far as they must.
        first = next(totals)
        return first if not isinstance(first, Absent) else next((t for t in totals if not isinstance(t, Absent)), first)

    def _total(self, field: int, links: int) -> Int:
        values = list(self._ask(field, links).values())
        known = [value for value in values if not isinstance(value, Absent)]
        return sum(known) if known else next(iter(values), NOT_SUPPORTED)

    def _ask(self, field: int, links: int) -> Mapping[str, Int]:
        if links != self._links:
            self._links, self._batches = links, {}
            self._states = [self._state(link) for link in range(min(links, LINKS_MAX))]
        if field not in self._batches:
            fields = [link_field(link, field) for link in range(min(links, LINKS_MAX))]
            self._batches[field] = FieldBatch(self._calls, self._handle, fields, self._driver)
        return self._batches[field].read()

    def _state(self, link: int) -> Query[int]:
        n, handle = self._calls.n, self._handle
        return Query(self._calls, lambda: int(n.nvmlDeviceGetNvLinkState(handle, link)))
