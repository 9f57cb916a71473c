"""What the main rank prints, as events.

Each of the two streams gets a ``write`` of its own that passes the text on first and then remembers it. The stream stays the same
object with the same descriptor, so ``isatty``, encodings, buffers, handlers of logging and progress bars that hold it notice nothing.
Not seen, because nothing of it goes through Python's streams: what C libraries and child processes print, and ``os.write``.

What is remembered becomes events in a thread of its own, about once a second. What our own threads print is not remembered.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from accelbus.client.pump import Wake
from accelbus.client.screen import Screen
from accelbus.config import Tuning
from accelbus.values.repair import encodable

STREAMS: Final = ("stdout", "stderr")


class Console:
    """Remembers what is printed from `open` to `close`.

    Args:
        put: takes (stream, lines); False when there was no room for them.
        tuning: interval and bounds.
    """

    def __init__(self, put: Callable[[str, list[str]], bool], tuning: Tuning) -> None:
        self._put = put
        self._tuning = tuning
        self._taps: list[_Tap] = []
        self._texts: deque[tuple[str, str]] = deque()
        self._waiting = 0
        """Characters in `_texts`. Not locked: a signal handler may print, and a bound needs no exact number."""
        self._cut: dict[str, bool] = {}
        """{stream that is being cut: whether what was cut off ended with a whole line}"""
        self._screens = {stream: Screen(tuning.console_line) for stream in STREAMS}
        self._allowance = _Allowance(tuning)
        self._missing = 0
        """Lines left out that no event has told of yet."""
        self.lines_left_out = 0
        self._wake = Wake()
        self._closing = threading.Event()
        self._is_open = False
        self._own_threads: set[int | None] = set()
        self._thread = threading.Thread(target=self._run, name="accelbus-console", daemon=True)

    def open(self, *own_threads: int | None) -> None:
        """Begin; what *own_threads* print is not remembered."""
        self._is_open = True
        try:
            self._thread.start()
        except RuntimeError:  # no room for another thread
            self._is_open = False
            return
        self._own_threads.update(own_threads, (self._thread.ident,))
        for name in STREAMS:
            stream = getattr(sys, name)
            if stream is not None and all(tap.stream is not stream for tap in self._taps):
                self._taps.append(_Tap(name, stream, self._remember))

    def close(self) -> None:
        """Let go of the streams and hand over the rest."""
        if not self._is_open:
            return
        for tap in self._taps:
            tap.close()
        self._is_open = False
        self._closing.set()
        self._wake.set()
        self._thread.join(self._tuning.console_interval)
        if not self._thread.is_alive():
            self._hand_over(everything=True)

    def abandon_in_child(self) -> None:
        """Pass everything on and remember nothing: this is a forked child, what it prints is not the main rank's."""
        self._is_open = False
        for tap in self._taps:
            tap.close()

    def _remember(self, stream: str, text: str) -> None:
        """Called with all that is printed: waits for nothing, raises nothing."""
        if threading.get_ident() in self._own_threads:
            return
        if kept := self._fitting(stream, text):
            self._texts.append((stream, kept))
            self._waiting += len(kept)
        self._wake.set()

    def _fitting(self, stream: str, text: str) -> str:
        """Return the lines of *text* for which there is room; what is cut off is counted, to the end of its last line."""
        room = max(0, self._tuning.console_waiting - self._waiting)
        if self._cut.get(stream, True) and (len(text) <= room or (text == "\n" and stream not in self._cut)):
            self._cut.pop(stream, None)
            return text
        end = 0 if stream in self._cut else text.rfind("\n", 0, room) + 1
        self._leave_out(text.count("\n", end))
        self._cut[stream] = text.endswith("\n")
        return text[:end]

    def _leave_out(self, lines: int) -> None:
        self._missing += lines
        self.lines_left_out += lines

    def _run(self) -> None:
        while self._is_open:
            # Without a bound: nothing is to be done while nothing is printed, and `close` ends the wait.
            self._wake.wait(-1)
            self._closing.wait(self._tuning.console_interval)
            with contextlib.suppress(Exception):  # isolation: the run may just be ending, and the user has seen the lines
                self._hand_over()

    def _hand_over(self, *, everything: bool = False) -> None:
        self._waiting = 0
        for _ in range(len(self._texts)):
            stream, text = self._texts.popleft()
            self._screens[stream].write(text)
        for stream, screen in self._screens.items():
            self._send(stream, screen.take(everything=everything))

    def _send(self, stream: str, lines: list[str]) -> None:
        kept = self._allowance.of([encodable(line) for line in lines])
        self._leave_out(len(lines) - len(kept))
        missing, self._missing = self._missing, 0
        note = [f"[accelbus: {missing} lines are not recorded]"] if missing else []
        for part in _parts([*kept, *note], self._tuning.event_bytes):
            if not self._put(stream, part):
                self._leave_out(len(part))


class _Allowance:
    """How much may be recorded: so many characters a second, some at once, and not more than a run may have."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._burst = float(tuning.console_waiting)
        self._left = float(tuning.console_bytes)
        self._at = time.monotonic()

    def of(self, lines: list[str]) -> list[str]:
        """Return those of *lines* that are within it."""
        now = time.monotonic()
        self._burst = min(self._tuning.console_waiting, self._burst + (now - self._at) * self._tuning.console_rate)
        self._at = now
        for count, line in enumerate(lines):
            size = len(line) + 1
            if size > min(self._burst, self._left):
                return lines[:count]
            self._burst -= size
            self._left -= size
        return lines


class _Tap:
    """A ``write`` in front of a stream's own. The stream is not replaced: others hold it."""

    def __init__(self, name: str, stream: Any, remember: Callable[[str, str], None]) -> None:
        self.stream = stream
        self._name = name
        self._remember: Callable[[str, str], None] | None = remember
        self._original = stream.write
        self._had_own = "write" in getattr(stream, "__dict__", ())
        self._write = self._make_write()
        with contextlib.suppress(AttributeError, TypeError):  # a stream that takes no attributes is left alone
            stream.write = self._write

    def close(self) -> None:
        """Take the ``write`` away again; where somebody has put another one in front of it, it only passes on."""
        self._remember = None
        if getattr(self.stream, "__dict__", {}).get("write") is self._write:
            if self._had_own:
                self.stream.write = self._original
            else:
                del self.stream.write

    def _make_write(self) -> Callable[[Any], Any]:
        original, name = self._original, self._name

        def write(text: Any, /) -> Any:
            written = original(text)
            if (remember := self._remember) is not None and isinstance(text, str) and text:
                remember(name, text)
            return written

        return write


def _parts(lines: list[str], limit: int) -> list[list[str]]:
    """Cut *lines* into events of at most *limit* bytes."""
    parts: list[list[str]] = []
    left = 0
    for line in lines:
        size = 4 * len(line) + 8  # of a line in UTF-8, at most
        if size > left:
            parts.append([])
            left = limit // 2
        parts[-1].append(line)
        left -= size
    return parts


__all__ = ["Console"]
