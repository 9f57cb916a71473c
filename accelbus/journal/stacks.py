"""Who is in the middle of a call: further down this stack, where a signal handler or finaliser interrupted it, or in any thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from types import CodeType, FrameType


def is_below(owner: object, codes: Container[CodeType]) -> bool:
    """Whether a method of *owner* with one of *codes* was interrupted by the code that led here; the call itself does not count."""
    stack: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while stack is not None and stack.f_code in codes:
        stack = stack.f_back
    while stack is not None:
        if stack.f_code in codes and stack.f_locals.get("self") is owner:
            return True
        stack = stack.f_back
    return False


def is_anywhere(owner: object, is_meant: Callable[[CodeType, CodeType | None], bool]) -> bool:
    """Whether some thread is in a method of *owner* for whose code, and that of the call it makes if it makes one, *is_meant* holds."""
    for top in sys._current_frames().values():  # noqa: SLF001
        called: CodeType | None = None
        stack: FrameType | None = top
        while stack is not None:
            if is_meant(stack.f_code, called) and stack.f_locals.get("self") is owner:
                return True
            called, stack = stack.f_code, stack.f_back
    return False
