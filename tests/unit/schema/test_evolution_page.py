"""docs/evolution.md has the table of the cases that are tested on a real server."""

from __future__ import annotations

from pathlib import Path

from tests.support.evolution import documented

PAGE = Path(__file__).parents[3] / "docs" / "evolution.md"


def test_the_page_has_the_table_of_what_is_tried() -> None:
    assert documented() in PAGE.read_text()
