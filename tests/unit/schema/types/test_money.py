"""money: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE
from cdcd.schema.policy import Policy
from cdcd.schema.resolve import resolve
from tests.support.avro_types import MONEY, codec, read, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (MONEY, "$1,234,567.89", Decimal("1234567.89")),
        (MONEY, "-$92,233,720,368,547,758.08", Decimal("-92233720368547758.08")),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (MONEY, "¥1,235"),
        (MONEY, "$1.2"),
        (MONEY, ""),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("text", "unscaled"),
    [("$0.00", 0), ("-$0.05", -5), ("$999.99", 99999), ("$1,000.00", 100000)],
)
@pytest.mark.parametrize("digits", [0, 2, 3])
def test_the_fraction_digits_are_the_databases(text: str, unscaled: int, digits: int) -> None:
    """With lc_monetary C the server prints two fraction digits; the catalog has the real number of digits."""
    types = {MONEY: PgType(MONEY, "pg_catalog", "money", "b", fraction_digits=digits)}
    found = resolve(MONEY, -1, types).codec
    assert found.avro == {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": digits}
    assert read(found.text(text.encode()), found.avro) == Decimal(unscaled).scaleb(-digits)
    as_string = resolve(MONEY, -1, types, Policy(money_as="string")).codec
    assert as_string.avro == "string"
    assert read(as_string.text(text.encode()), "string") == str(Decimal(unscaled).scaleb(-digits))


@pytest.mark.parametrize("choice", ["decimal", "string"])
def test_binary_is_the_stored_number(choice: str) -> None:
    found = codec(MONEY, money_as=choice)
    assert found.binary is not None
    for n, text in ((-5, b"-$0.05"), (2**63 - 1, b"$92,233,720,368,547,758.07"), (0, b"$0.00")):
        assert found.binary(struct.pack(">q", n)) == found.text(text)


@pytest.mark.parametrize("text", ["($0.05)", "1.234,50 €", "$1234.50", "$12,34.50", "-1.00", "$-1.00"])
def test_the_text_of_another_locale_is_unreadable(text: str) -> None:
    """Its digits could mean something else."""
    with pytest.raises(UNREADABLE):
        codec(MONEY).text(text.encode())
