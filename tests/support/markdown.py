"""Read the project's Markdown pages: code blocks, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<text>.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: ``info`` is what stands behind the fence."""

    info: str
    code: str


def pages() -> list[Path]:
    """Return every Markdown page of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name(page: Path) -> str:
    """Return *page* as people call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[Block]:
    """Return the fenced blocks of *page* in *language*."""
    found = (Block(match["info"].strip(), match["code"]) for match in FENCE.finditer(page.read_text()))
    return [block for block in found if block.info.split(" ")[0] == language]


def links(page: Path) -> Iterator[str]:
    """Yield the targets of all links outside code."""
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        yield match["target"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of *page*, made as code hosts make them."""
    titles = (match["text"].strip().lower() for match in HEADING.finditer(FENCE.sub("", page.read_text())))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
