"""What workers died of: the row that each was trying, or somebody else."""

from __future__ import annotations

import signal
from collections import Counter

from accelbus.config import Tuning


class Blame:
    """Deaths of workers by the row, or statement, that was being tried.

    A crash, an exit and a hang are the doing of the call they happen in. A SIGKILL that is not the supervisor's is somebody else's: an
    operator, or the kernel when memory is short, which may be because of the row or of anything else on the machine. It takes
    ``kills_of_row`` of them to say as much about a row as ``retries_alone`` of the others.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._deaths: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()

    def add(self, row: str, code: int, killed_for: str) -> None:
        """A worker that was trying *row* ended with *code*; *killed_for* says which deadline the supervisor ended it for, if it did."""
        if code == -signal.SIGKILL and not killed_for:
            self._kills[row] += 1
        else:
            self._deaths[row] += 1

    def deaths(self) -> dict[str, int]:
        """Return {row: deaths that are its doing, as far as one can tell}."""
        tuning = self._tuning
        weighed = {row: kills * tuning.retries_alone // tuning.kills_of_row for row, kills in self._kills.items()}
        return {row: deaths for row in {**self._deaths, **weighed} if (deaths := self._deaths[row] + weighed.get(row, 0))}

    def clear(self) -> None:
        """Nobody is to blame: the tracker was at fault, or all went well in the end."""
        self._deaths.clear()
        self._kills.clear()


__all__ = ["Blame"]
