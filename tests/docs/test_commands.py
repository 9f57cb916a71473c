"""The commands that the documentation shows are the commands that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support import markdown

COMMAND = re.compile(r"(?:^ {4}|`)accelbus (?P<name>[a-z]+)(?P<rest>[^`\n]*)", re.MULTILINE)
OPTION = re.compile(r"(?<=[ (`])--?[a-z][a-z-]*")


@cache
def help_of(command: str) -> str:
    """Return what ``accelbus COMMAND --help`` prints."""
    environ = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    script = Path(sys.executable).with_name("accelbus")
    result = subprocess.run([script, command, "--help"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, f"accelbus {command}: {result.stderr}"
    return result.stdout


def shown(page: Path) -> set[tuple[str, str]]:
    """Return every (command, option) of *page*; the option is empty where a command stands alone."""
    found = set()
    for match in COMMAND.finditer(page.read_text()):
        rest = match["rest"].partition("#")[0]
        found |= {(match["name"], option) for option in ["", *OPTION.findall(rest)]}
    return found


@pytest.mark.parametrize("page", [page for page in markdown.pages() if shown(page)], ids=markdown.name)
def test_commands_and_options_on_a_page_exist(page: Path):
    """`--help` of each command that a page shows knows each option shown with it."""
    for command, option in sorted(shown(page)):
        assert not option or re.search(rf"(?<![\w-]){option}(?![\w-])", help_of(command)), f"accelbus {command} {option}"
        assert help_of(command)


def test_every_command_is_on_the_reference_page():
    """A command that is not documented does not exist for users."""
    page = (markdown.ROOT / "docs" / "reference" / "cli.md").read_text()
    commands = re.findall(r"^[│|\s]{1,4}([a-z]+)\s{2,}\S", help_of("--help"), re.MULTILINE)
    assert commands
    assert [command for command in commands if f"## `accelbus {command}" not in page] == []
