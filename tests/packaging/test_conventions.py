"""What CONTRIBUTING.md asks of tests and code, where a machine can see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def behaviours_in(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the test functions of *path*, methods included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_every_test_says_what_behaviour_it_is_about():
    """Each test has a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}:{test.lineno} {test.name}"
        for path in TESTS
        for test in behaviours_in(path)
        if not ast.get_docstring(test)
    ]
    assert silent == []


def test_no_test_sleeps():
    """Tests wait for a condition with a bound; a sleep is too long on a fast machine and too short on a slow one."""
    sleeps = [
        f"{path.relative_to(ROOT)}:{node.lineno} in {test.name}"
        for path in TESTS
        for test in behaviours_in(path)
        for node in ast.walk(test)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep", "asyncio.sleep", "anyio.sleep"}
    ]
    assert sleeps == []


def test_only_the_command_line_prints():
    """What is printed belongs to the user's program: no module outside ``accelbus.cli`` calls ``print``."""
    printing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "accelbus").rglob("*.py"))
        if "cli" not in path.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert printing == []


def test_every_folder_with_modules_is_a_package():
    """The import rules are checked for packages only; a folder without ``__init__.py`` would escape them."""
    folders = {path.parent for tree in ("accelbus", "sinks/accelbus_sinks") for path in (ROOT / tree).rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
