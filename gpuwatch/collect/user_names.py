"""User id to name, asked once each.

Owns: the cache. Refuses: groups and everything else about users. A lookup may go to LDAP and take long, so each id
is asked once in the life of the reader, failures included.
"""

from __future__ import annotations

import pwd


class UserNames:
    """Names of user ids."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """The name, or the number as text when nobody here has that id (containers, deleted users)."""
        known = self._names.get(uid)
        if known is None:
            try:
                known = pwd.getpwuid(uid).pw_name
            except (KeyError, OverflowError):
                known = str(uid)
            self._names[uid] = known
        return known
