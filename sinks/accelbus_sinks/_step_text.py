"""What a tracker cannot store as value, as a line of its console: ``step 12: {"note": "ok", "loss": NaN}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def step_text(step: int, values: Mapping[str, Any]) -> str:
    """Return the line for *values* at *step*.

    Raises:
        TypeError: a value is neither number, text, None nor a list or mapping of those.
    """
    return f"step {step}: {json.dumps(values, ensure_ascii=False)}"


def read_step_text(line: str) -> tuple[int, dict[str, Any]] | None:
    """Return step and values of a line of `step_text`; None for other lines."""
    head, _, values = line.partition(": ")
    word, _, step = head.partition(" ")
    if word != "step" or not step.lstrip("-").isdigit() or not values.startswith("{"):
        return None
    return int(step), json.loads(values)
