"""What ends a process, observed: normal exit, exception, ``sys.exit``, SIGTERM, fork.

Everything is chained: whatever was installed before still runs, and the process ends as it would have ended without us. In a
forked child nothing of this does anything, until it attaches or starts a run of its own.

Not seen: the code of a bare ``raise SystemExit(3)``. Python offers no hook for it, so it counts as a normal end; ``sys.exit(3)``,
``exit(3)`` and a ``with`` block around the training are seen.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Protocol

_STOPPED: Final = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes by which a program says that a signal ended it."""
_LAST_OF_ALL: Final = -1000
"""Priority of a finalizer of multiprocessing: after the process's own children were waited for."""


class Ending(NamedTuple):
    """How the process is ending, as far as it is known."""

    status: str
    reason: str


_NORMAL: Final = Ending("finished", "")


def ending_by(error: BaseException | None) -> Ending:
    """Return how a process ends that *error* leaves, None: that nothing stops."""
    if error is None:
        return _NORMAL
    if isinstance(error, SystemExit):
        return _ending_with(error.code)
    return Ending("preempted" if isinstance(error, KeyboardInterrupt) else "failed", type(error).__name__)


def _ending_with(code: object) -> Ending:
    """Return what an exit code says; anything but a number is a message on stderr and the code 1."""
    if code is None or (isinstance(code, int) and code == 0):
        return _NORMAL
    return Ending("preempted" if isinstance(code, int) and code in _STOPPED else "failed", f"sys.exit({code!r})"[:200])


class Watched(Protocol):
    """A run that wants to know."""

    def finish_at_exit(self, ending: Ending) -> None: ...
    def after_fork_in_child(self) -> None: ...


class ProcessHooks:
    """One per process, installed with the first run and kept: removing a chained hook would break those chained after it."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._pid: int | None = None
        self._ending = _NORMAL
        self._previous_excepthook: Callable[..., Any] = sys.excepthook
        self._previous_exit: Callable[..., Any] = sys.exit
        self._previous_quit: Callable[..., Any] | None = None
        self._previous_sigterm: Any = None
        self._observes_sigterm = False
        """Also in a forked child, which inherits the handler."""

    def watch(self, run: Watched, *, signals: bool = True) -> None:
        """Tell *run* when the process ends or forks.

        Args:
            run: until `forget`.
            signals: whether SIGTERM is observed too. Not in a process that only attached: a data loader's worker may have a handler
                of torch's, which Python does not know of and could not chain, and a SIGTERM loses nothing.
        """
        if self._pid != os.getpid():
            self._install()
        if signals:
            self._observe_sigterm()
        self._watched.append(run)

    def forget(self, run: Watched) -> None:
        if run in self._watched:
            self._watched.remove(run)

    def _install(self) -> None:
        first = self._pid is None
        self._pid = os.getpid()
        self._ending = _NORMAL
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        self._join_multiprocessing()
        if not first:
            return
        os.register_at_fork(after_in_child=self._after_fork)
        self._previous_excepthook, sys.excepthook = sys.excepthook, self._excepthook
        self._previous_exit, sys.exit = sys.exit, self._exit  # type: ignore[assignment]  # observed, then passed on
        quitter = type(getattr(builtins, "exit", None))
        if quitter.__name__ == "Quitter":
            self._previous_quit = quitter.__call__
            quitter.__call__ = self._chained_quit()  # type: ignore[method-assign]  # observed, then passed on

    def _chained_quit(self) -> Callable[..., Any]:
        def __call__(quitter: Any, code: Any = None) -> None:  # noqa: N807  shown in tracebacks
            self._quit(quitter, code)

        return __call__

    def _join_multiprocessing(self) -> None:
        """A child of multiprocessing ends with ``os._exit``, without ``atexit``; it runs finalizers of its own before."""
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing import util

            util.Finalize(None, self._at_multiprocessing_exit, exitpriority=_LAST_OF_ALL)

    def _observe_sigterm(self) -> None:
        # Once: a handler that the job has put over ours since may call it, and must not become the one that ours calls. Python allows
        # handlers in the main thread only.
        if self._observes_sigterm or threading.current_thread() is not threading.main_thread():
            return
        installed = signal.getsignal(signal.SIGTERM)
        # None: a handler that is not Python's, which could not be chained. Ignored: it stays so, for the processes started here too.
        if installed not in (None, signal.SIG_IGN):
            self._previous_sigterm = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._observes_sigterm = True

    @property
    def _is_ours(self) -> bool:
        return self._pid == os.getpid()

    def _at_exit(self) -> None:
        if self._is_ours:
            self._finish_all()

    def _at_multiprocessing_exit(self) -> None:
        """Runs while whatever ends the process is still on its way."""
        error = sys.exc_info()[1]
        if error is not None:
            self._ending = ending_by(error)
        self._at_exit()

    def _finish_all(self) -> None:
        for run in list(self._watched):
            run.finish_at_exit(self._ending)

    def _excepthook(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if self._is_ours:
            self._ending = ending_by(value)
        self._previous_excepthook(kind, value, trace)

    def _exit(self, code: Any = None, /) -> None:
        with self._exiting():
            self._previous_exit(code)

    def _quit(self, quitter: Any, code: Any) -> None:
        assert self._previous_quit is not None
        with self._exiting():
            self._previous_quit(quitter, code)

    @contextlib.contextmanager
    def _exiting(self) -> Iterator[None]:
        """Note how the process ends, unless somebody catches the SystemExit."""
        try:
            yield
        except SystemExit as error:
            ending = ending_by(error)
            if self._is_ours and ending != _NORMAL and threading.current_thread() is threading.main_thread():
                former, self._ending = self._ending, ending
                error._accelbus = _Caught(self._restore, ending, former)  # type: ignore[attr-defined]  # noqa: SLF001  ours
            raise

    def _restore(self, ending: Ending, former: Ending) -> None:
        if self._ending is ending:
            self._ending = former

    def _on_sigterm(self, number: int, stack: FrameType | None) -> None:
        previous = self._previous_sigterm
        if self._is_ours:
            self._ending = Ending("preempted", "SIGTERM")
        if callable(previous):
            # The job's own handler decides what happens next; training may go on for a last checkpoint.
            previous(number, stack)
            return
        if self._is_ours:
            self._finish_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _after_fork(self) -> None:
        watched, self._watched = self._watched, []
        for run in watched:
            run.after_fork_in_child()


class _Caught:
    """Goes with a SystemExit and notices what becomes of it.

    One that ends the process is freed by the interpreter itself, under no Python frame at all; one that was caught, by whoever did.
    """

    def __init__(self, then: Callable[[Ending, Ending], None], ending: Ending, former: Ending) -> None:
        self._then = then
        self._ending = ending
        self._former = former

    def __del__(self) -> None:
        try:
            sys._getframe(1)  # noqa: SLF001  the public inspect.currentframe() only wraps it
        except ValueError:
            return
        self._then(self._ending, self._former)


HOOKS = ProcessHooks()
"""The process's only instance."""
