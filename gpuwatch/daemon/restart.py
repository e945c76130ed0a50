"""The daemon replaces itself by a fresh process: same pid, same arguments, same endpoint.

Owns: how often that may happen, and the exec. Refuses: knowing why (``wanted`` is passed in).

After an upgrade of the driver the library that this process has mapped does not fit the kernel module any more, and
``nvmlShutdown`` does not unmap it. A new process loads the new one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final, NoReturn

MIN_INTERVAL_NS: Final = 60_000_000_000
"""A library that still does not fit must not make the daemon spin."""
_VARIABLE: Final = "GPUWATCH_RESTARTED_NS"
"""CLOCK_MONOTONIC of the last time, which goes on over an exec."""


class Restart:
    """When to replace this process. ``due`` is cheap: it is asked in every round of the service."""

    def __init__(
        self,
        wanted: Callable[[], bool],
        env: MutableMapping[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wanted = wanted
        self._env = os.environ if env is None else env
        self._clock = clock
        last = self._env.get(_VARIABLE, "")
        self._last_ns = int(last) if last.isdigit() else None

    def due(self) -> bool:
        """It is wanted, and the last time was a minute ago or more."""
        if not self._wanted():
            return False
        return self._last_ns is None or self._clock() - self._last_ns >= MIN_INTERVAL_NS

    def replace_process(self) -> NoReturn:
        """Run our own command line again in this process. Descriptors other than the standard ones are closed."""
        self._env[_VARIABLE] = str(self._clock())
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the folder changes while it is read
            if int(name) > 2 and Path(f"/proc/self/fd/{name}").exists():
                os.set_inheritable(int(name), False)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line
