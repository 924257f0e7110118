"""Geometric types: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import pytest

from tests.support.avro_types import codec, value_of


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (600, "(1.5,-0)"),
        (601, "[(0,0),(1,1)]"),
        (602, "((0,0),(NaN,1))"),
        (603, "(1,1),(0,0)"),
        (604, "((0,0),(1,1),(1e-300,0))"),
        (628, "{1,-1,0}"),
        (718, "<(0,0),Infinity>"),
    ],
)
def test_shapes_are_the_servers_text(oid: int, text: str) -> None:
    assert codec(oid).avro == "string"
    assert value_of(oid, text) == text
