"""The pages that are made from the code are what the code makes now."""

from __future__ import annotations

import pytest

from tests.docs.made import MADE
from tests.support.pages import ROOT


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_the_codes_own(name: str) -> None:
    """`python -m tests.docs` writes it."""
    assert (ROOT / "docs" / name).read_text() == MADE[name]()


def test_every_option_and_command_is_there() -> None:
    """One of each kind, so that a walk that finds nothing is seen."""
    options, commands = MADE["options.md"](), MADE["cli.md"]()
    assert "| `sink.commit.max_wait_ms` | integer from 0 to 60000 | `0` |" in options
    assert "| `registry.url` | string | required |" in options
    assert "## cdcd config show" in commands
    assert "| `--accept-gap` |" in commands
