"""What ``accelerate launch`` tells the processes that it starts."""

from __future__ import annotations

import os
from typing import Final

from accelbus.errors import ConfigurationError

YES: Final = {"y", "yes", "t", "true", "on", "1"}
NO: Final = {"", "n", "no", "f", "false", "off", "0"}


def uses_cpu() -> bool:
    """Return whether ``ACCELERATE_USE_CPU`` says that accelerators are left alone.

    Raises:
        ConfigurationError: it is neither yes nor no.
    """
    text = os.environ.get("ACCELERATE_USE_CPU", "")
    if text.lower() not in YES | NO:
        raise ConfigurationError(f"ACCELERATE_USE_CPU={text!r}: expected true or false")
    return text.lower() in YES


def accumulation_steps() -> int | None:
    """Return ``ACCELERATE_GRADIENT_ACCUMULATION_STEPS``; None when it is not set.

    Raises:
        ConfigurationError: it is no number of at least 1.
    """
    text = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={text!r}: expected an integer of at least 1")
    return int(text)


__all__ = ["accumulation_steps", "uses_cpu"]
