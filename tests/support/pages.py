"""Parse the project's Markdown pages: links, anchors, fenced blocks.

In: a path.  Out: the parts of the page, by the rules that GitHub and the site share.
Must not: depend on the site's generator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.M)
_NOT_CDCD = re.compile(r"<!-- not cdcd: [^>]+ -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    is_of_cdcd: bool
    """False after a comment `<!-- not cdcd: FORMAT -->`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the page's fenced blocks, without their indentation."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            re.sub(f"^{match['indent']}", "", match["text"], flags=re.M),
            not _NOT_CDCD.search(text[: match.start()]),
        )
        for match in _FENCE.finditer(text)
    ]


def python_blocks(name: str) -> list[str]:
    """Return the Python blocks of the page, `name` below the project's folder."""
    return [block.text for block in blocks(ROOT / name) if block.language == "python"]


def prose(page: Path) -> str:
    """Return the page without fenced and indented blocks and without inline code."""
    text = _FENCE.sub("", page.read_text())
    text = re.sub(r"(?m)(?<=\n\n)(?: {4}.*\n)+", "", text)
    return re.sub(r"`[^`\n]*`", "`", text)


def links(page: Path) -> list[str]:
    """Return the page's link targets, without external URLs."""
    found = _LINK.findall(prose(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings."""
    return set(map(slug, _headings(page)))


def ambiguous_anchors(page: Path) -> set[str]:
    """Return anchors that several headings have; GitHub and the site number them differently."""
    slugs = [slug(heading) for heading in _headings(page)]
    return {one for one in slugs if slugs.count(one) > 1}


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words).lower().strip().replace(" ", "-")


def _headings(page: Path) -> list[str]:
    return _HEADING.findall(_FENCE.sub("", page.read_text()))
