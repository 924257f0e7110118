"""Domains: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cdcd.schema.codec import Special
from cdcd.schema.resolve import resolve
from tests.support.avro_types import (
    INT4,
    INT4_ARRAY,
    MOOD,
    NET_PRICE,
    PRICE,
    PRICE_ARRAY,
    TAGS,
    TYPES,
    binary_numeric,
    codec,
    value_of,
)


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (PRICE, "1.50", Decimal("1.50")),
        (NET_PRICE, "-99999999.99", Decimal("-99999999.99")),
        (PRICE_ARRAY, "{1.50,NULL}", [Decimal("1.50"), None]),
        (TAGS, "{a}", ["a"]),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (NET_PRICE, -1, "1.50", binary_numeric([1, 5000], 0, 0, 2)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


def test_names_in_the_schema_follow_domains_and_arrays() -> None:
    def names(oid: int) -> tuple[str, str | None]:
        found = resolve(oid, -1, TYPES)
        return found.type_name, found.domain

    assert names(INT4) == ("int4", None)
    assert names(INT4_ARRAY) == ("int4[]", None)
    assert names(MOOD) == ("public.mood", None)
    assert names(NET_PRICE) == ("numeric", "public.net_price")
    assert names(PRICE_ARRAY) == ("public.price[]", None)
    assert names(TAGS) == ("text[]", "public.tags")


def test_a_policy_reaches_the_base_type() -> None:
    assert codec(NET_PRICE, numeric_as="double").avro == "double"
    assert codec(PRICE_ARRAY, numeric_as="string").avro == {"type": "array", "items": ["null", "string"]}
    assert codec(NET_PRICE, special="string").avro == "string"


def test_a_special_value_of_a_domain_is_its_base_types() -> None:
    with pytest.raises(Special):
        codec(NET_PRICE).text(b"NaN")
