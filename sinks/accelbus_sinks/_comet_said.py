"""What Comet says of an error: its calls log it and return nothing, so an exception of ours must quote it."""

from __future__ import annotations

import logging
import threading
from typing import Final

LOGGER: Final = "comet_ml"
_LONGEST: Final = 500


class Said(logging.Handler):
    """The newest warning or error of Comet's in this process, until it is quoted."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._newest = ""
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Begin to; once is enough."""
        logging.getLogger(LOGGER).addHandler(self)

    def leave(self) -> None:
        logging.getLogger(LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        with self._lock:
            self._newest = " ".join(record.getMessage().split())[:_LONGEST]

    def why(self) -> str:
        """Return it, to be put behind what went wrong; each once. Where Comet said nothing, where more may be found."""
        with self._lock:
            newest, self._newest = self._newest, ""
        return f": {newest}" if newest else "; there may be more in logs/comet_ml.log of the run's directory"


__all__ = ["Said"]
