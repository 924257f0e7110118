"""Generate the page of schema evolution from the kinds of DDL that are tested on a real server.

In: the cases of `tests.support.evolution`; evolution.template, the page's text.  Out: Markdown.
"""

from __future__ import annotations

from pathlib import Path

from tests.docs.filled import filled
from tests.support.evolution import documented

TEMPLATE = Path(__file__).with_suffix(".template")


def evolution_page() -> str:
    """Return the page of schema evolution."""
    return filled(TEMPLATE, cases=documented())
