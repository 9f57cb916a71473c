"""What may have been meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the one of *known* that resembles *name*, from 0 to 1, by at least *cutoff*; None if none does."""
    import difflib  # noqa: PLC0415  a rank that mistypes nothing does not pay for it in memory

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the one of *known* that is close to *name*, or nothing."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


__all__ = ["closest", "hint"]
