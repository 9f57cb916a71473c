"""Warnings of a script that has not set up logging: they say whose they are."""

from __future__ import annotations

import logging
import sys
from typing import Final

_NAME: Final = "accelbus"


class Unheard(logging.Handler):
    """Shows on stderr what no other handler takes, as ``logging`` itself would, after our name. Where somebody listens it is silent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(f"{_NAME}: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Show *record* if nobody else does."""
        stream = sys.stderr  # as it is now; a daemon has none
        if stream is None or is_listened_to(logging.getLogger(record.name)):
            return
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:  # noqa: BLE001  as every handler of logging: a message that cannot be shown must not end the training
            self.handleError(record)


_handler: Final = Unheard()


def speak_up() -> None:
    """Show warnings of accelbus with its name from here on, unless logging is set up, now or later."""
    logging.getLogger(_NAME).addHandler(_handler)


def is_listened_to(logger: logging.Logger) -> bool:
    """Whether *logger* has a handler beside ours."""
    current: logging.Logger | None = logger
    while current is not None:
        if any(handler is not _handler for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


__all__ = ["is_listened_to", "speak_up"]
