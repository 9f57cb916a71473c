"""Measure one subject once and hand the numbers to the parent: the last line of stdout. All other output goes to stderr."""

from __future__ import annotations

import contextlib
import sys

import msgspec

from bench import harness


def main(name: str, subject: str, mode: str) -> None:
    """Print the numbers of *subject* of bench *name* as JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        numbers = harness.load(name).subjects[subject](mode == "quick")
    print(msgspec.json.encode(numbers).decode())


if __name__ == "__main__":
    main(*sys.argv[1:4])
