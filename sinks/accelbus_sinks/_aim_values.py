"""Parameters as Aim can keep and show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST: Final = 2**63
"""Integers from here on are text."""


def plain(value: Any) -> Any:
    """Return *value* without what Aim cannot store: empty names, which it reads back as numbers, huge integers, lone surrogates."""
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not -_MOST <= value < _MOST:
        return str(value)
    return value if isinstance(value, int | float | None) else str(value)


def _mapping(items: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in items.items():
        name = plain(str(key)) or "unnamed"
        while name in found:
            name += "_"
        found[name] = plain(value)
    return found


def system_params(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run record in the shape in which Aim shows it."""
    git = facts.get("git") or {}
    return {
        "packages": facts.get("packages") or {},
        "env_variables": facts.get("environment") or {},
        "git_info": {"branch": git.get("branch"), "remote_origin_url": git.get("remote"), "commit": {"hash": git.get("commit")}},
        "executable": facts.get("executable"),
        "arguments": facts.get("argv") or [],
    }
