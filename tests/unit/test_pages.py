"""README is short, and every relative link of the pages has an existing target and anchor."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, ambiguous_anchors, anchors, links, prose, slug

MOST_WORDS = 900
SITE = ROOT / "mkdocs.yml"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_of_the_site() -> set[Path]:
    left_out = re.findall(r"^not_in_nav: (.+)$", SITE.read_text(), re.M)
    return {page for page in ROOT.glob("docs/**/*.md") if page.name not in left_out}


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS
    assert text.index("\nmake demo") < text.index("\nmake test") < text.index("\npip install")


def test_the_readme_leads_to_every_page() -> None:
    """The pages of a folder, such as docs/spark/, are linked by the page of its name, docs/spark.md."""
    entries = [ROOT / "README.md", *(page.with_suffix(".md") for page in ROOT.glob("docs/*/"))]
    linked = {(entry.parent / link.partition("#")[0]).resolve() for entry in entries for link in links(entry)}
    assert pages_of_the_site() - linked == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target) - ambiguous_anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_list_or_table_begins_behind_an_empty_line(page: Path) -> None:
    """GitHub needs no empty line; without one the site shows a paragraph."""
    lines = prose(page).splitlines()
    marks = ("- ", "1. ", "|")
    wrong = [
        line
        for before, line in pairwise(lines)
        if line.startswith(marks) and before.strip() and not before.startswith((*marks, " ", "#"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What is kept", "what-is-kept"),
        ("`/status`", "status"),
        ("With `origin: none`", "with-origin-none"),
        ("A table's record", "a-tables-record"),
        ("[0.1.0] - 2026", "010---2026"),
    ],
)
def test_an_anchor_is_made_as_github_makes_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_the_site_has_every_page() -> None:
    """`make docs` refuses a page that is not in its navigation."""
    nav = SITE.read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.M)
    made = {"index.md", "contributing.md", "security.md", "changelog.md", "deploy.md", "spark-cluster.md"}
    assert sorted(listed) == sorted(
        made | {str(page.relative_to(ROOT / "docs")) for page in pages_of_the_site()}
    )
