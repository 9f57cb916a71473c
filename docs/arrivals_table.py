"""Write ``docs/reference/what-arrives.md`` from what the contract tests read back; ``--check`` says whether it is up to date.

Each tracker's declaration is ``ARRIVALS`` in ``tests/support/arrivals``, read from the source: no tracker is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from accelbus.testing.specimens import GROUPS

DECLARATIONS = Path(__file__).parents[1] / "tests" / "support" / "arrivals"
PAGE = Path(__file__).parent / "reference" / "what-arrives.md"
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio", "clearml", "swanlab", "comet_ml", "aim", "dvclive", "jsonl")
"""In the order of the columns."""

HEADER = """\
# What arrives

Type of value by tracker: where it is found with the tracker's own reader, and in parentheses in what form, if that is not the one in which it was
logged. Each cell is what the contract test of that tracker reads back, and compares with what was logged; this page is generated from
these tests. `log_image` and the like are the same as the values named here.

- **text …** in parentheses: as that word; **text**: as its digits. **1**: ranks are averaged, so a bool counts as a number.
- **flat**: names joined with `/`. **other bins**: all counts, in the tracker's own bins.
- **nothing**: None holds no value; it is counted as filtered.

The rules behind a cell are on the page of [the trackers](trackers.md); what may be logged is on the page of [values](values.md). A tracker of your own
can [declare and prove](../how-to/write-a-tracker.md#prove-it) the same.
"""


def page() -> str:
    """Return the whole page."""
    declared = {tracker: declaration(DECLARATIONS / f"{tracker}.py") for tracker in TRACKERS}
    parts = [HEADER]
    for title, specimens in GROUPS.items():
        parts.append(f"## {title}\n\n{table([specimen.name for specimen in specimens], declared)}")
    return "\n".join(parts)


def declaration(source: Path) -> dict[str, str]:
    """Return ``ARRIVALS`` of the module *source*."""
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "ARRIVALS" and node.value:
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{source} declares no ARRIVALS")


def table(names: Iterable[str], declared: Mapping[str, Mapping[str, str]]) -> str:
    """Return one table; types of which the same arrives everywhere share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        rows.setdefault(tuple(declaration[name] for declaration in declared.values()), []).append(name)
    lines = [["logged", *declared], ["---"] * (len(declared) + 1)]
    lines += [["<br>".join(names), *cells] for cells, names in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Write the page, or with ``--check`` compare it."""
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is out of date; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
