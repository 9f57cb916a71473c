"""Every exception accelbus raises on purpose.

::

    AccelbusError
    ├── ConfigurationError (ValueError)      a setting is wrong, unknown or contradicts another
    │   ├── UnknownTrackerError              a name in ``log_with`` that nobody registered
    │   ├── RequiredTrackerError             a tracker in ``require`` did not start
    │   └── MissingExtraError (ImportError)  a known tracker whose package is not installed
    ├── NotInitializedError (RuntimeError)   ``accelbus.log`` before ``accelbus.init``
    ├── StrictError (ValueError)             a programming error that ``ACCELBUS_STRICT=1`` makes loud
    ├── CorruptDataError (ValueError)        bytes that are not what they should be
    │   ├── FrameError                       a wire or journal frame
    │   ├── SegmentError                     a journal segment
    │   ├── SpoolError                       a spool file
    │   └── CursorError                      a reader's cursor
    ├── QueueFullError (BufferError)          only with ``on_full="raise"``
    ├── OwnershipError (RuntimeError)        somebody else delivers to this sink
    ├── OutputGoneError (OSError)            what a tracker had made durable is not there any more
    └── RunNotFoundError (LookupError)       no run with this id or path
"""

from __future__ import annotations


class AccelbusError(Exception):
    """Base of everything below."""


class ConfigurationError(AccelbusError, ValueError):
    """A setting is wrong, unknown or contradicts another; says what was expected and what came."""


class UnknownTrackerError(ConfigurationError):
    """A tracker name that no built-in, entry point or registered class carries."""


class MissingExtraError(ConfigurationError, ImportError):
    """A known tracker whose package is not installed; says the install command."""


class RequiredTrackerError(ConfigurationError):
    """A tracker in ``require`` did not start, or the one in ``config_from`` resolved no configuration; every rank raises it."""


class NotInitializedError(AccelbusError, RuntimeError):
    """There is no current run; call ``accelbus.init(project)`` first."""


class StrictError(AccelbusError, ValueError):
    """A programming error in a ``log`` call, raised only under ``ACCELBUS_STRICT=1``."""


class CorruptDataError(AccelbusError, ValueError):
    """Bytes that are not what they should be. ``reason`` is a short label for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class FrameError(CorruptDataError):
    """Bytes that are not a frame of this format."""


class SegmentError(CorruptDataError):
    """A file that is not a journal segment of this format."""


class SpoolError(CorruptDataError):
    """A file that is not a spool of this format."""


class CursorError(CorruptDataError):
    """A cursor file that cannot be read; its reader starts again from the beginning."""


class OwnershipError(AccelbusError, RuntimeError):
    """Another process delivers to this (run, sink)."""


class OutputGoneError(AccelbusError, OSError):
    """What a tracker had made durable is not there any more; it is delivered again, from the beginning of the run."""


class RunNotFoundError(AccelbusError, LookupError):
    """No run directory for this id or path."""


class QueueFullError(AccelbusError, BufferError):
    """The spool is full; raised by ``log`` only with ``on_full="raise"``."""
