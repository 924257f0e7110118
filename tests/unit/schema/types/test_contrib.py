"""Text types of contrib: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.avro_types import CITEXT, LTREE, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (CITEXT, "CiText", "CiText"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


def test_text_types_of_contrib_are_the_servers_text() -> None:
    assert codec(LTREE).avro == "string"
    assert value_of(LTREE, "Top.Science") == "Top.Science"


def test_citext_sends_its_text() -> None:
    found = codec(CITEXT)
    assert found.binary is not None
    assert found.binary(b"CiText") == found.text(b"CiText")
