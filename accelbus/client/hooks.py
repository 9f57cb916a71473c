"""What ends a process, observed: normal exit, exception, ``sys.exit``, SIGTERM, fork.

Everything is chained: whatever was installed before still runs, and the process ends as it would have ended without us. In a
forked child nothing of this does anything.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol


class Ending(NamedTuple):
    """How the process is ending, as far as it is known."""

    status: str
    reason: str


class Watched(Protocol):
    """A run that wants to know."""

    def finish_at_exit(self, ending: Ending) -> None: ...
    def after_fork_in_child(self) -> None: ...


class ProcessHooks:
    """One per process, installed with the first run and kept: removing a chained hook would break those chained after it."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._pid: int | None = None
        self._ending = Ending("finished", "")
        self._previous_excepthook: Callable[..., Any] = sys.excepthook
        self._previous_exit: Callable[..., Any] = sys.exit
        self._previous_sigterm: Any = None

    def watch(self, run: Watched) -> None:
        """Tell *run* when the process ends or forks."""
        if self._pid != os.getpid():
            self._install()
        self._watched.append(run)

    def forget(self, run: Watched) -> None:
        if run in self._watched:
            self._watched.remove(run)

    def _install(self) -> None:
        first = self._pid is None
        self._pid = os.getpid()
        if first:
            os.register_at_fork(after_in_child=self._after_fork)
        else:
            self._ending = Ending("finished", "")
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        if first:
            self._previous_excepthook, sys.excepthook = sys.excepthook, self._excepthook
            self._previous_exit, sys.exit = sys.exit, self._exit  # type: ignore[assignment]  # observed, then passed on
        installed = signal.getsignal(signal.SIGTERM)
        # None: a handler that is not Python's, which could not be chained. Python allows handlers in the main thread only.
        if installed is not None and installed != self._on_sigterm and threading.current_thread() is threading.main_thread():
            self._previous_sigterm = signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def _is_ours(self) -> bool:
        return self._pid == os.getpid()

    def _at_exit(self) -> None:
        if self._is_ours:
            self._finish_all()

    def _finish_all(self) -> None:
        for run in list(self._watched):
            run.finish_at_exit(self._ending)

    def _excepthook(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if self._is_ours:
            stopped = issubclass(kind, KeyboardInterrupt)
            self._ending = Ending("preempted" if stopped else "failed", kind.__name__)
        self._previous_excepthook(kind, value, trace)

    def _exit(self, code: Any = None, /) -> None:
        if self._is_ours and code not in (None, 0) and code is not False and threading.current_thread() is threading.main_thread():
            self._ending = Ending("failed", f"sys.exit({code!r})")
        self._previous_exit(code)

    def _on_sigterm(self, number: int, stack: FrameType | None) -> None:
        previous = self._previous_sigterm
        if callable(previous):
            # The job's own handler decides what happens next; training may go on for a last checkpoint.
            if self._is_ours:
                self._ending = Ending("preempted", "SIGTERM")
            previous(number, stack)
            return
        if previous is signal.SIG_IGN:
            return
        if self._is_ours:
            self._ending = Ending("preempted", "SIGTERM")
            self._finish_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _after_fork(self) -> None:
        watched, self._watched = self._watched, []
        for run in watched:
            run.after_fork_in_child()


HOOKS = ProcessHooks()
"""The process's only instance."""
