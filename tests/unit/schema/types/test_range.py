"""Ranges and multiranges: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.avro_types import INT4RANGE, SPAN, SPANS, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (INT4RANGE, "[1,5)", "[1,5)"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (INT4RANGE, "empty"),
        (SPAN, "[1.50,2.50)"),
        (SPANS, "{[1.50,2.50),[7.00,)}"),
        (SPANS, "{}"),
        (SPAN, "(,)"),
    ],
)
def test_ranges_and_multiranges_of_any_type_are_the_servers_text(oid: int, text: str) -> None:
    assert codec(oid).avro == "string"
    assert value_of(oid, text) == text


def test_no_range_has_a_special_value() -> None:
    assert value_of(SPAN, "[-Infinity,NaN]", special="string") == "[-Infinity,NaN]"
    assert not codec(SPAN).may_be_special
