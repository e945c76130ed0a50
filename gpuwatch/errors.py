"""Errors that are a user's or a machine's, and the exit code of each.

::

    GpuwatchError
    ├── UsageError            64  wrong argument
    ├── RecordingError        65  unreadable, truncated or foreign recording
    ├── InputNotFoundError    66  file or process that is not there
    ├── UnavailableError      69  no daemon at the endpoint, no driver, no torch
    ├── CannotCreateError     73  output file that cannot be written
    ├── EndpointInUseError    75  another daemon holds the endpoint; GPU busy
    ├── ProtocolError         76  daemon of another major protocol version
    ├── PermissionDeniedError 77
    └── ConfigError           78  unknown key, wrong type

The numbers are those of sysexits.h: 0..3 are taken by verdicts (0 healthy, 1 warning, 2 critical, 3 could not tell).
Every message names the thing, its place and the remedy, in one line.
"""

from __future__ import annotations

EXIT_HEALTHY = 0
EXIT_WARNING = 1
EXIT_CRITICAL = 2
EXIT_UNKNOWN = 3
EXIT_TIMED_OUT = 124
"""As timeout(1) does: the time limit of the whole command has passed."""


class GpuwatchError(Exception):
    """Root of the expected errors: printed as one line on stderr, never as a traceback."""

    exit_code = 70


class UsageError(GpuwatchError):
    """Wrong argument."""

    exit_code = 64


class RecordingError(GpuwatchError):
    """A recording that cannot be read."""

    exit_code = 65


class InputNotFoundError(GpuwatchError):
    """A file or process that is not there."""

    exit_code = 66


class UnavailableError(GpuwatchError):
    """Something that must run or be installed is not."""

    exit_code = 69


class CannotCreateError(GpuwatchError):
    """An output that cannot be written."""

    exit_code = 73


class EndpointInUseError(GpuwatchError):
    """Somebody else holds the resource; trying later may work."""

    exit_code = 75


class ProtocolError(GpuwatchError):
    """The other side speaks another protocol."""

    exit_code = 76


class PermissionDeniedError(GpuwatchError):
    """Not allowed."""

    exit_code = 77


class ConfigError(GpuwatchError):
    """A configuration value that is wrong."""

    exit_code = 78
