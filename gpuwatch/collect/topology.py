"""Where a GPU sits: the CPUs near it and the way to each other GPU.

Owns: the names of the levels, CPU masks as text. Refuses: importing pynvml, reading it more than once.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gpuwatch import units
from gpuwatch.collect.nvml_calls import Calls, Query
from gpuwatch.collect.slow_calls import SlowCalls
from gpuwatch.model import Absent, Int, PeerLink, Reason, Text

_LEVELS: Final = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "host bridge",
    40: "same NUMA node",
    50: "across sockets",
}
_P2P_NVLINK: Final = 2
_WORD: Final = 64
_PEER_S: Final = 0.5
"""A GPU that hangs must not take the thread of another one, which only asks how far away it is."""


def peer_links(calls: Calls, handle: Any, index: int) -> tuple[PeerLink, ...]:
    """The way to every other GPU. Raises GoneError."""
    n = calls.n
    count = Query(calls, lambda: int(n.nvmlDeviceGetCount())).read()
    # A MIG instance (its index is beyond the count) has no peers of its own.
    others = [] if isinstance(count, Absent) or index >= count else [o for o in range(count) if o != index]
    return tuple(_link(calls, handle, other) for other in others)


def _link(calls: Calls, handle: Any, other: int) -> PeerLink:
    n = calls.n
    peer = Query(calls, lambda: _opened(n, other)).read()
    if peer is None:
        peer = Absent(Reason.TIMEOUT, "that GPU does not answer")
    if isinstance(peer, Absent):
        return PeerLink(other, peer, peer)
    level = Query(calls, lambda: int(n.nvmlDeviceGetTopologyCommonAncestor(handle, peer))).read()
    status = Query(calls, lambda: int(n.nvmlDeviceGetP2PStatus(handle, peer, _P2P_NVLINK))).read()
    return PeerLink(other, _path(level), status if isinstance(status, Absent) else int(status == 0))


def _opened(n: Any, other: int) -> Any:
    """The handle of another GPU, None when it does not answer in time. Raises what the binding raises."""
    calls = SlowCalls(f"peer{other}", _PEER_S, threads=1)
    try:
        return calls.ask(lambda: n.nvmlDeviceGetHandleByIndex(other), None).value
    finally:
        calls.close()


def _path(level: Int) -> Text:
    if isinstance(level, Absent):
        return level
    return _LEVELS.get(level, Absent(Reason.OUT_OF_RANGE, str(level)))


def cpu_affinity(n: Any, handle: Any) -> str:
    """CPUs near the GPU, such as "0-31,64-95". Raises what the binding raises."""
    words = -(-(os.cpu_count() or 1) // _WORD)
    mask = n.nvmlDeviceGetCpuAffinity(handle, words)
    return units.ranges_text(
        [w * _WORD + bit for w, word in enumerate(mask) for bit in range(_WORD) if word >> bit & 1]
    )
