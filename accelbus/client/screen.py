"""Printed text as a terminal would leave it: progress bars that redraw themselves become the line they end as."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

_CONTROL: Final = re.compile(r"(\r?\n|\r|\x08|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_])")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*|\][^\x07\x1b]*)?\Z|\r\Z")
"""A sequence that the next write goes on with, perhaps."""
_MOST_ROWS_UP: Final = 64
_MEMORY: Final = 4
"""Calls of `take` after which a cursor that did not go up again is believed to stay down."""
_ELLIPSIS: Final = "…"


class Screen:
    """The last lines of one stream, where a cursor may still move. Colours are left out.

    Args:
        longest: characters of a line; what is beyond is cut.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rows = [""]
        self._row = self._column = 0
        self._unfinished = ""
        self._heights = deque([0], maxlen=_MEMORY)
        """How far the cursor went up before each of the last `take`: so many rows above the last may be written again."""

    def write(self, text: str) -> None:
        """Print *text*."""
        text = self._unfinished + text
        self._unfinished = ""
        if "\r" not in text and "\x1b" not in text and "\b" not in text:
            self._write_plain(text)
            return
        if unfinished := _UNFINISHED.search(text):
            self._unfinished = unfinished[0][-self._longest :]
            text = text[: unfinished.start()]
        for index, part in enumerate(_CONTROL.split(text)):
            if index % 2:
                self._obey(part)
            elif part:
                self._write_plain(part)

    def take(self, *, everything: bool = False) -> list[str]:
        """Return the lines that nothing will change any more; with *everything* also those that something might."""
        bottom = len(self._rows) - 1 - max(self._heights)
        count = len(self._rows) if everything else max(0, min(self._row, bottom))
        lines = [self._shown(row) for row in self._rows[:count]]
        if everything and lines and not lines[-1]:
            lines.pop()
        del self._rows[:count]
        self._row -= count
        self._heights.append(0)
        if not self._rows:
            self._rows, self._row, self._column = [""], 0, 0
        return lines

    def _write_plain(self, text: str) -> None:
        first, *others = text.split("\n")
        self._put(first)
        for line in others:
            self._new_line()
            self._put(line)

    def _put(self, text: str) -> None:
        row = self._rows[self._row]
        if len(row) <= self._column:
            # One character more than is shown says that something was cut.
            self._rows[self._row] = f"{row:<{self._column}}{text}"[: self._longest + 1]
        else:
            self._rows[self._row] = (row[: self._column] + text + row[self._column + len(text) :])[: self._longest + 1]
        self._column = min(self._column + len(text), self._longest + 1)

    def _new_line(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append("")

    def _obey(self, control: str) -> None:
        if control in {"\n", "\r\n"}:
            self._new_line()
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, self._column - 1)
        elif control.startswith("\x1b["):
            self._obey_sequence(control[-1], control[2:-1])

    def _obey_sequence(self, command: str, argument: str) -> None:
        number = int(argument) if argument.isdecimal() and len(argument) < 5 else None
        if command == "A":
            up = min(number or 1, self._row, _MOST_ROWS_UP)
            self._row -= up
            self._heights[-1] = max(self._heights[-1], min(len(self._rows) - 1 - self._row, _MOST_ROWS_UP))
        elif command == "B":
            for _ in range(min(number or 1, _MOST_ROWS_UP)):
                column = self._column
                self._new_line()
                self._column = column
        elif command == "G":
            self._column = min(max(0, (number or 1) - 1), self._longest)
        elif command == "K":
            row = self._rows[self._row]
            self._rows[self._row] = "" if number == 2 else row[: self._column]

    def _shown(self, row: str) -> str:
        # Bars blot out what was longer with spaces.
        row = row.rstrip()
        return row if len(row) <= self._longest else row[: self._longest - 1] + _ELLIPSIS


__all__ = ["Screen"]
