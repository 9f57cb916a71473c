"""Names of SwanLab's metrics: one per key, kind of value and revision.

SwanLab takes one value per name and step, and one kind of value per name. What comes again, or in another kind, needs another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 512
"""Characters of a name."""
SYSTEM_PREFIX: Final = "__swanlab__"
"""Of SwanLab's own metrics; it leaves out those of others."""

_SEPARATOR: Final = "\0\0"
"""In keys of the key map that stand for more than a key."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_EDGES: Final = " \t\n\r./"
"""What SwanLab cuts off at both ends."""


def virtual_key(key: str, kind: str = "", revision: str = "") -> str:
    """Return what stands in the key map for values of *key* of a *kind* that is no number, or of a *revision*."""
    return f"{key}{_SEPARATOR}{kind}{_SEPARATOR}{revision}" if kind or revision else key


def key_of(virtual: str) -> str:
    """Return the key in what `virtual_key` returned."""
    parts = virtual.rsplit(_SEPARATOR, 2)
    return parts[0] if len(parts) == 3 else virtual


def name_of(virtual: str) -> str:
    """Return the name for what `virtual_key` returned; the key map tells names apart that fall together."""
    parts = virtual.rsplit(_SEPARATOR, 2)
    key, revision = (parts[0], parts[2]) if len(parts) == 3 else (virtual, "")
    name = _CONTROL.sub("_", key.strip(_EDGES)).strip(_EDGES) or "unnamed"
    if name.startswith(SYSTEM_PREFIX):
        name = f"user/{name}"
    return f"{revision}/{name}" if revision else name


def revisions(attempt: int) -> Iterator[str]:
    """Yield, without end, what a value may be a revision of: nothing, this attempt, what came before."""
    yield ""
    if attempt:
        yield f"attempt-{attempt}"
    yield "revised"
    number = 2
    while True:
        yield f"revised-{number}"
        number += 1
