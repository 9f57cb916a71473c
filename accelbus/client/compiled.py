"""``log`` inside a function that ``torch.compile`` compiles: it cannot be part of the graph, and must not break it in silence."""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import Final, TypeVar

_log = logging.getLogger("accelbus")
_ADVICE: Final = "return the values from the compiled function and log them outside"
_ALWAYS: Final = 64
"""Calls that are looked at each; later ones are looked at ever more rarely."""
_F = TypeVar("_F")
_is_out = False


class Notice(str):
    """The reason that torch's compiler reads where a graph ends at one of our functions: reading it is what warns, once per process.

    This happens while torch compiles, so that calls from anywhere else cost nothing.
    """

    __slots__ = ()
    was_given = False

    @classmethod
    def give(cls) -> None:
        """Warn, the first time."""
        if not Notice.was_given:
            Notice.was_given = True
            _log.warning("log() inside a function compiled with torch.compile breaks its graph at every call; %s", _ADVICE)

    def __format__(self, spec: str) -> str:
        self.give()
        return super().__format__(spec)


_REASON: Final = Notice(f"accelbus cannot log inside a compiled function: {_ADVICE}")


def outside_of_graphs(function: _F) -> _F:
    """Mark *function* as what ``torch.compiler.disable`` would, without importing torch: compiled code calls it, and does not look inside.

    With ``fullgraph=True`` torch raises, and shows the advice; else there is a warning, whatever is logged.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001  torch's own marks
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def keep_out() -> None:
    """Let torch's compiler, if it is loaded, run our functions as they are where compiled code calls them, instead of looking into each."""
    global _is_out  # noqa: PLW0603
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not _is_out:
        _is_out = True
        add = getattr(rules, "add", None)
        if add is not None:
            add("accelbus")


class CompiledCallers:
    """Warns once when tensors are logged from inside a compiled function by a way that the compiler had no reason to read for."""

    def __init__(self) -> None:
        self._calls = 0

    def look(self) -> None:
        """Look whether this call comes from compiled code, now and then."""
        self._calls += 1
        calls = self._calls
        if Notice.was_given or (calls > _ALWAYS and calls & (calls - 1)):
            return
        keep_out()
        if "torch._dynamo.eval_frame" in sys.modules and _is_compiled(sys._getframe(1)):  # noqa: SLF001
            Notice.give()


def _is_compiled(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            return True
        frame = frame.f_back
    return False


__all__ = ["CompiledCallers", "Notice", "keep_out", "outside_of_graphs"]
