"""Lines of the bus process for whoever sits at the main rank's terminal."""

from __future__ import annotations

import logging
import sys

from accelbus import control
from accelbus.client.unheard import is_listened_to

_log = logging.getLogger("accelbus")


def show(notice: control.Notice) -> None:
    """Show *notice* once: through logging where somebody listens, else on stderr."""
    level = logging.WARNING if notice.level in {"warning", "error"} else logging.INFO
    if level == logging.INFO and not (_log.isEnabledFor(level) and is_listened_to(_log)):
        sys.stderr.write(f"accelbus: {notice.text}\n")
    else:
        _log.log(level, "%s", notice.text)


__all__ = ["show"]
