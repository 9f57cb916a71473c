"""Title and series: ClearML shows one graph per title, with one curve per series."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from accelbus_sinks._keys import KeyMap

PREFIXES: Final = ("eval_", "test_", "train_")
"""As Accelerate splits names, in this order."""
SPLITS: Final = frozenset({"train", "eval", "test", "val", "valid", "validation"})
"""First parts of a path that compare the same quantity: ``train/loss`` and ``eval/loss`` are curves of one graph."""
DEFAULT_SERIES: Final = "train"
UNNAMED: Final = "-"

_SEPARATOR: Final = "\x1f"
"""Between title and series in the key map. At the end, since the map tells names apart by what it appends."""
_LONGEST: Final = 500
"""Characters of a title. The server indexes it as one term of at most 32,766 bytes; people read less."""


class Curve(NamedTuple):
    """Where the values of a key are shown."""

    title: str
    series: str


def curve_of(key: str) -> Curve:
    """Return the curve of *key*. Several keys may have the same; see `Curves`.

    ``eval_loss`` is (loss, eval) and ``loss`` is (loss, train), as with Accelerate. ``eval/loss`` is (loss, eval), too; other paths are
    split at their last slash, as ClearML splits TensorBoard's tags: ``layer3/norm`` is (layer3, norm).
    """
    for prefix in PREFIXES:
        if key.startswith(prefix) and len(key) > len(prefix):
            return Curve(key[len(prefix) :], prefix[:-1])
    head, _, rest = key.partition("/")
    if head in SPLITS and rest:
        return Curve(rest, head)
    title, _, series = key.rpartition("/")
    return Curve(title, series) if title and series else Curve(key or UNNAMED, DEFAULT_SERIES)


class Curves:
    """{key: curve}: different keys have different curves, the same in every process that delivers the run.

    Args:
        path: of the key map; None: curves last as long as the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._keys = KeyMap(path, _name)
        self._curves: dict[str, Curve] = {}

    def __getitem__(self, key: str) -> Curve:
        """Raises OSError when a new key cannot be written to the map."""
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = _curve(self._keys[key])
        return curve

    def key(self, title: str, series: str) -> str:
        """Return the key of a curve."""
        return self._keys.key(title + _SEPARATOR + series)


def _name(key: str) -> str:
    title, series = curve_of(key)
    return _fit(title) + _SEPARATOR + _fit(series)


def _fit(text: str) -> str:
    """Return *text* on one line; what is lost here, the key map makes up for."""
    return "".join(" " if character < " " or character == "\x7f" else character for character in text[:_LONGEST]).strip() or UNNAMED


def _curve(name: str) -> Curve:
    title, _, series = name.partition(_SEPARATOR)
    return Curve(title, series)
