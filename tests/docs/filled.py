"""Fill a template of a page with the tables that are generated from the code.

In: a template, whose line `{name}` stands for a table or list; the tables by name.  Out: Markdown.
Invariant: every line `{name}` of the template is replaced, and every table is used.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(?<![`\w.])[a-z]+(?:[._][a-z]+)+\b(?!`)")
"""Options and names of PostgreSQL in a text."""
_TAG = re.compile(r"<(?=[a-z/])")
_PLACE = re.compile(r"^\{(\w+)\}\n", re.M)


def filled(template: Path, **tables: str) -> str:
    """Return the page of the template; a table ends with a line end."""
    text = template.read_text()
    places = _PLACE.findall(text)
    if sorted(places) != sorted(tables):
        raise ValueError(f"{template.name} has places for {places}, and there are {sorted(tables)}")
    return _PLACE.sub(lambda place: tables[place[1]], text)


def cell(words: str) -> str:
    """Return the words as a cell of a table, with names in code."""
    return _NAME.sub(r"`\g<0>`", _TAG.sub("&lt;", words.replace("|", "\\|")))
