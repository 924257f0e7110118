"""docs/errors.md has one row for each error class, with its retry class and resolution, and no other rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd import errors
from cdcd.errors import CdcdError, Retry

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ROW = re.compile(
    r"^\| `(?P<code>CDCD-[A-Z-]+)` \| (?P<what>.+?) \| (?P<retry>[a-z]+) \| (?P<resolution>.+) \|$", re.M
)


def tree(root: type[CdcdError] = CdcdError) -> Iterator[type[CdcdError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith(f"{errors.__name__}."):
            yield from tree(child)


CLASSES = {cls.code: cls for cls in tree() if cls is not CdcdError}  # the root is never raised itself
ROWS = {row["code"]: row for row in ROW.finditer(PAGE.read_text())}


@pytest.mark.parametrize("code", CLASSES)
def test_each_class_has_its_row(code: str) -> None:
    assert code in ROWS, f"{code} is missing from {PAGE.name}"
    row = ROWS[code]
    assert row["retry"] == CLASSES[code].retry.value
    assert len(row["what"]) > 10
    assert len(row["resolution"]) > 10


def test_no_row_is_of_another_tree() -> None:
    assert ROWS.keys() <= CLASSES.keys()
    assert len(ROWS) == len(ROW.findall(PAGE.read_text())), "a code has two rows"


def test_each_retry_class_is_explained() -> None:
    text = PAGE.read_text()
    assert [retry.value for retry in Retry if f"- **{retry.value}**:" not in text] == []
