"""The generated pages are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.filled import filled
from tests.docs.made import MADE
from tests.support.pages import ROOT


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_the_codes_own(name: str) -> None:
    """`python -m tests.docs` writes the page."""
    assert (ROOT / "docs" / name).read_text() == MADE[name]()


def test_each_page_has_the_rows_of_its_subject() -> None:
    """One example of each kind, so that a generator that finds nothing fails."""
    names = ("options.md", "cli.md", "errors.md", "evolution.md", "metrics.md", "types.md")
    options, commands, errors, evolution, metrics, types = (MADE[name]() for name in names)
    assert (
        "\n| `CDCD-PROTOCOL` | The server sent bytes that the protocol does not allow | limited | nothing"
        in errors
    )
    assert "| `sink.commit.max_wait_ms` | integer from 0 to 60000 | `0` |" in options
    assert "| `registry.url` | string | required |" in options
    assert "## cdcd config show" in commands
    assert "| `--accept-gap` |" in commands
    assert "\n| widen an integer | a new version | a wider field |\n" in evolution
    assert "\n| change of scale | incompatible | the same bytes" in evolution
    assert (
        "\n| `cdcd_events_total` | counter | `table`, `op` | Events encoded, by table and operation. "
        "| before the table is known |\n" in metrics
    )
    assert "\n| `timetz` | string: the server's text |  |\n" in types
    assert "\n| `money_as` | `decimal` (default) | as in the table above |\n" in types


def test_a_place_of_a_template_without_a_table_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "x.template"
    template.write_text("# X\n\n{rows}\n")
    assert filled(template, rows="| a |\n") == "# X\n\n| a |\n"
    for tables in ({}, {"rows": "", "more": ""}):
        with pytest.raises(ValueError, match="has places for"):
            filled(template, **tables)
