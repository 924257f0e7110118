"""The generated pages are up to date."""

from __future__ import annotations

import pytest

from tests.docs.made import MADE
from tests.support.pages import ROOT


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_the_codes_own(name: str) -> None:
    """`python -m tests.docs` writes the page."""
    assert (ROOT / "docs" / name).read_text() == MADE[name]()


def test_every_option_command_and_error_is_there() -> None:
    """One example of each kind, so that a generator that finds nothing fails."""
    options, commands, errors = (MADE[page]() for page in ("options.md", "cli.md", "errors.md"))
    assert (
        "\n| `CDCD-PROTOCOL` | The server sent bytes that the protocol does not allow | limited | nothing"
        in errors
    )
    assert "| `sink.commit.max_wait_ms` | integer from 0 to 60000 | `0` |" in options
    assert "| `registry.url` | string | required |" in options
    assert "## cdcd config show" in commands
    assert "| `--accept-gap` |" in commands
