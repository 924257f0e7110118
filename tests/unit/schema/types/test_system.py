"""The system catalogs' types: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.avro_types import INT2VECTOR, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (INT2VECTOR, "1 2 3", "1 2 3"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (30, "1 2"),
        (2205, "public.t"),
        (3220, "16/B374D848"),
        (27, "(0,1)"),
        (5038, "10:20:10,14"),
        (1033, "a=r/b"),
    ],
)
def test_the_catalogs_own_types_are_the_servers_text(oid: int, text: str) -> None:
    assert codec(oid).avro == "string"
    assert value_of(oid, text) == text
