"""User id to name, asked once each.

Owns: the cache. Refuses: groups and everything else about users. A lookup may go to LDAP and take long or not return,
so each id is asked once in the life of the reader, failures included, and on a thread of its own.
"""

from __future__ import annotations

import pwd

from gpuwatch.collect.slow_calls import Asked, SlowCalls


class UserNames:
    """Names of user ids."""

    def __init__(self, patience_s: float | None = None) -> None:
        # One thread: glibc asks for one name at a time, so a second one would only hang beside the first.
        self._calls = SlowCalls("users", threads=1) if patience_s is None else SlowCalls("users", patience_s, 1)
        self._asked: dict[int, Asked[str]] = {}

    def tick(self) -> None:
        """Another round: names may be waited for again."""
        self._calls.tick()

    def close(self) -> None:
        """End the thread."""
        self._calls.close()

    def name(self, uid: int) -> str | None:
        """The name, or the number as text when nobody here has that id (containers, deleted users).

        None: not answered yet.
        """
        asked = self._asked.get(uid)
        if asked is None:
            asked = self._asked[uid] = self._calls.ask(lambda: _look_up(uid), str(uid))
        return asked.value if asked.done.is_set() else None


def _look_up(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
