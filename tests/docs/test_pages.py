"""Pages hang together: links lead somewhere, nothing is orphaned, generated pages are up to date."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import markdown


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_links_within_the_project_lead_somewhere(page: Path):
    """The file behind each relative link is there, and so is the heading behind ``#``."""
    for target in markdown.links(page):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in markdown.anchors(linked), f"{target}: no such heading (there: {markdown.anchors(linked)})"


def test_every_page_can_be_reached_from_the_readme():
    """Following links from README.md visits every page of the documentation."""
    seen: set[Path] = set()
    waiting = [markdown.ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for target in markdown.links(page):
            linked = (page.parent / target.partition("#")[0]).resolve()
            if linked.suffix == ".md" and "://" not in target and linked not in seen:
                waiting.append(linked)
    assert set(markdown.pages()) - seen == set()


@pytest.mark.parametrize("script", ["settings_table", "arrivals_table"])
def test_generated_pages_are_up_to_date(script: str):
    """A generated page is what its generator writes now."""
    script = markdown.ROOT / "docs" / f"{script}.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_every_setting_stands_on_the_settings_page():
    """Each field of both tables has a line of its own."""
    import msgspec

    from accelbus.config import Settings, Tuning

    page = (markdown.ROOT / "docs" / "reference" / "settings.md").read_text()
    fields = [field.name for table in (Settings, Tuning) for field in msgspec.structs.fields(table)]
    assert [name for name in fields if f"| `{name}` |" not in page] == []


def test_every_cell_of_the_table_of_what_arrives_is_read_back():
    """Each built-in tracker has a column, each type of value a cell in it, and the tracker's contract test reads it back."""
    from accelbus.testing import SPECIMENS
    from accelbus.tracking import BUILT_IN

    generator = runpy.run_path(str(markdown.ROOT / "docs" / "arrivals_table.py"))
    assert set(generator["TRACKERS"]) == set(BUILT_IN)
    tests = "".join(path.read_text() for path in (markdown.ROOT / "tests" / "contract").glob("test_*.py"))
    for tracker in generator["TRACKERS"]:
        declared = generator["declaration"](generator["DECLARATIONS"] / f"{tracker}.py")
        assert set(declared) == {specimen.name for specimen in SPECIMENS}, tracker
        assert f"from tests.support.arrivals import {tracker} as found\n" in tests, tracker
    assert tests.count("    arrivals = found.ARRIVALS\n") == len(BUILT_IN)
