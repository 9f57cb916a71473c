"""Write ``docs/reference/settings.md`` from ``accelbus/config.py``; ``--check`` says whether it is up to date.

The reasons stand below the fields in the source, so that is where they are read from.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from accelbus import config

PAGE = Path(__file__).parent / "reference" / "settings.md"
PLAIN = {
    "EventBytes": "int",
    "FrameBytes": "int",
    "Number": "int",
    "Pause": "float",
    "Positive": "int",
    "RingBytes": "int",
    "Seconds": "float",
    "Word": "str",
}
GROUP = re.compile(r"# --- (.+)")

HEADER = """\
# Settings

Every setting is an argument of `accelbus.init` or an environment variable `ACCELBUS_<NAME IN CAPITALS>`. An argument beats the
environment, the environment beats the default. In a variable, lists are separated by commas and mappings are JSON. A value that does
not fit is an error at `init` that names the argument or variable.

This page is generated from `accelbus/config.py`.
"""

TUNING = """\
## Tuning

Sizes are in bytes, intervals and deadlines in seconds. Environment variables only: nobody should have to touch them.
"""


class Field(NamedTuple):
    """One line of a table."""

    group: str
    name: str
    kind: str
    default: str
    reason: str


def page() -> str:
    """Return the whole page."""
    parts = [HEADER, "## Arguments of `init`\n", _table(_fields("Settings"))]
    parts.append(TUNING)
    groups: dict[str, list[Field]] = {}
    for field in _fields("Tuning"):
        groups.setdefault(field.group, []).append(field)
    for group, fields in groups.items():
        parts += [f"### {group[0].upper()}{group[1:]}\n", _table(fields)]
    return "\n".join(parts)


def _table(fields: Iterator[Field] | list[Field]) -> str:
    lines = ["| setting | type | default | what it is for |", "|---|---|---|---|"]
    lines += [f"| `{field.name}` | {_cell(field.kind)} | {_cell(field.default)} | {field.reason} |" for field in fields]
    return "\n".join(lines) + "\n"


def _cell(code: str) -> str:
    return "`" + code.replace("|", r"\|") + "`"


def _fields(table: str) -> Iterator[Field]:
    source = Path(config.__file__).read_text()
    tree = ast.parse(source)
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == table)
    groups = {number: found.group(1) for number, line in enumerate(source.splitlines(), 1) if (found := GROUP.search(line))}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            group = max((number for number in groups if number < node.lineno), default=0)
            kind = re.sub(r"\w+", lambda word: PLAIN.get(word[0], word[0]), ast.unparse(node.annotation))
            yield Field(groups.get(group, ""), node.target.id, kind, _size(ast.unparse(node.value)), _reason(after))


def _reason(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.replace("``", "`").replace("|", r"\|").split())
    return ""


def _size(default: str) -> str:
    return re.sub(r"(\d+) \* (K|M|G)IB", r"\1 \2iB", default)


def main() -> int:
    """Write the page, or with ``--check`` compare it."""
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is out of date; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
