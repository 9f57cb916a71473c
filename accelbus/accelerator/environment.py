"""What ``accelerate launch`` tells the processes that it starts."""

from __future__ import annotations

import os
from typing import Final

from accelbus.errors import ConfigurationError

ELSEWHERE: Final = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor, pipeline and context parallelism",
    "ACCELERATE_DYNAMO_BACKEND": "torch.compile",
}
"""{variable: what it asks for and is not here}"""
YES: Final = {"y", "yes", "t", "true", "on", "1"}
NO: Final = {"", "n", "no", "f", "false", "off", "0"}


def asked_elsewhere() -> dict[str, str]:
    """Return {variable: what it asks for} of what `Accelerator` does not do; ``accelerate launch`` also sets some that ask for nothing."""
    return {variable: wanted for variable, wanted in ELSEWHERE.items() if os.environ.get(variable, "").lower() not in NO}


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


__all__ = ["accumulation_steps", "asked_elsewhere", "uses_cpu"]
