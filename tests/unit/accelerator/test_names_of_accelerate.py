"""What the page on switching from Accelerate says can be imported: there and here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "from-accelerate.md"
IMPORT = re.compile(r"`from ([\w.]+) import ([^`]+)`")


def pairs() -> list[tuple[str, str, str]]:
    """Return (Accelerate's module, ours, name) of each name whose import changes and nothing else."""
    found = []
    for row in PAGE.read_text().partition("## What a script imports")[2].splitlines():
        theirs, _, ours = row.strip("| ").partition(" | ")
        there, here = IMPORT.match(theirs), IMPORT.match(ours)
        if there and here:
            found += [(there[1], here[1], name.strip()) for name in there[2].split(",")]
    return found


@pytest.mark.parametrize("theirs, ours, name", pairs())
def test_a_name_that_is_said_to_be_the_same_is_there_in_both(theirs, ours, name):
    """A script can import it from either."""
    assert hasattr(importlib.import_module(theirs), name)
    assert hasattr(importlib.import_module(ours), name)


def test_nothing_that_has_the_same_name_is_left_out():
    """Whatever is public here and in accelerate.utils is on the page."""
    import accelerate.utils

    import accelbus.accelerator
    import accelbus.handlers

    public = {*accelbus.accelerator.__all__, *accelbus.handlers.__all__} & set(dir(accelerate.utils))
    assert public <= {name for _, _, name in pairs()}
