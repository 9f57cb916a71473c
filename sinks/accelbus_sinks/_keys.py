"""Names for a tracker that does not take every key: reversible, and different for different keys.

A tracker says with a rule what a key becomes; the rule may lose something. `KeyMap` sees to it that two keys never share a name, that
a key has the same name in every process that delivers the run, and that the file which ensures this says which key a name stands for::

    keys = KeyMap(self.run_info.state_dir / "keys.json", rule, longest=250)
    names = keys.names(row.values)  # once per batch, then keys[key]

A name that someone else may have taken first gets eight hex digits of its key's hash, so it hardly depends on the order of keys.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_HASH_DIGITS: Final = 8


class KeyMap:
    """{key: name in the tracker}, kept in a file. One process at a time.

    Args:
        path: one line ``["key","name"]`` for each key ever seen, appended before the name is used; its directory is made. None: names
            last as long as the process.
        rule: what becomes of a key. Must leave alone what it returns, and take names that end in ``-`` and hex digits.
        longest: characters a name may have; longer ones are cut, with the hash of the whole key at their end.
    """

    def __init__(self, path: Path | None, rule: Callable[[str], str], *, longest: int | None = None) -> None:
        self.path = path
        """Of the file."""
        self._rule = rule
        self._longest = longest
        self._names: dict[str, str] = dict(read_keys(path)) if path else {}
        self._keys = {name: key for key, name in self._names.items()}

    def __getitem__(self, key: str) -> str:
        """Return the name of *key*."""
        name = self._names.get(key)
        return self.names((key,))[0] if name is None else name

    def names(self, keys: Iterable[str]) -> list[str]:
        """Return the names of *keys*, in order; new ones are written together.

        Raises:
            OSError: the file cannot be written; the same call may be made again.
        """
        keys = list(keys)
        new = {}
        for key in keys:
            if key not in self._names and key not in new:
                name = self._new_name(key)
                new[key] = name
                self._keys[name] = key
        if new:
            self._keep(new)
        return [self._names[key] for key in keys]

    @property
    def has_renamed(self) -> bool:
        """Whether any key has a name that is not the key."""
        return any(key != name for key, name in self._names.items())

    def key(self, name: str) -> str:
        """Return what *name* stands for; itself if it is none of ours."""
        return self._keys.get(name, name)

    def _new_name(self, key: str) -> str:
        name = self._fitted(key, self._rule(key))
        number = 1
        while self._keys.get(name, key) != key:
            name = self._marked(name, f"{key}\0{number}" if number > 1 else key)
            number += 1
        return name

    def _fitted(self, key: str, name: str) -> str:
        return self._marked(name, key) if self._longest is not None and len(name) > self._longest else name

    def _marked(self, name: str, key: str) -> str:
        digits = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
        if self._longest is not None:
            name = name[: self._longest - _HASH_DIGITS - 1]
        return f"{name}-{digits}"

    def _keep(self, new: dict[str, str]) -> None:
        if self.path:
            # When this fails some of the lines may be there: the names stay reserved, and the next call writes the same ones.
            _append(self.path, b"".join(json.dumps([key, name]).encode() + b"\n" for key, name in new.items()))
        self._names |= new


def read_keys(path: Path) -> dict[str, str]:
    """Return {key: name} as the file at *path* has it, empty when there is none. What cannot be read is left out, with a warning."""
    names: dict[str, str] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return names
    for line in filter(None, lines):
        try:
            key, name = json.loads(line)
        except ValueError:  # torn by a crash or a full disk: its name was not used
            logger.warning("%s: a line cannot be read (%r)", path, line[:80])
        else:
            names.setdefault(key, name)
    return names


def _append(path: Path, lines: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # A torn line must not swallow the next one.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        view = memoryview(lines)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
