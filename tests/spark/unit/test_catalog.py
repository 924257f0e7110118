"""What of a target a catalog of Spark may have."""

from __future__ import annotations

import pytest

from cdcd.spark.reading.catalog import _has_credentials


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://user:hunter2@proxy", True),
        ("https://token@host/x", True),
        ("http://proxy:3128", False),
        ("http://host/a@b", False),
        ("file:/run/secret@x", False),
    ],
)
def test_credentials_in_a_url_are_found(value: str, expected: bool) -> None:
    """Everybody who may describe a table would read them."""
    assert _has_credentials(value) is expected
