"""numeric: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import NUMERIC, binary_numeric, codec, read, typmod, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (NUMERIC, "123456789012345678901234567890.1230", "123456789012345678901234567890.1230"),
        (NUMERIC, "NaN", "NaN"),
        (NUMERIC, "-Infinity", "-Infinity"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (NUMERIC, typmod(10, 2), "NaN"),
        (NUMERIC, typmod(10, 2), "Infinity"),
        (NUMERIC, typmod(10, 2), "-Infinity"),
        (NUMERIC, typmod(4, 2), "100.00"),
        (NUMERIC, typmod(4, 2), "1.001"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (NUMERIC, "1e5"),
        (NUMERIC, ""),
        (NUMERIC, "nan"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (NUMERIC, -1, "12345678.9", binary_numeric([1234, 5678, 9000], 1, 0, 1)),
        (NUMERIC, -1, "-0.00012", binary_numeric([1, 2000], -1, 0x4000, 5)),
        (NUMERIC, -1, "0.00", binary_numeric([], 0, 0, 2)),
        (NUMERIC, -1, "0", binary_numeric([], 0, 0, 0)),
        (NUMERIC, -1, "10000", binary_numeric([1], 1, 0, 0)),
        (NUMERIC, -1, "0.000000001", binary_numeric([1000], -3, 0, 9)),
        (NUMERIC, -1, "NaN", binary_numeric([], 0, 0xC000, 0)),
        (NUMERIC, -1, "-Infinity", binary_numeric([], 0, 0xF000, 0)),
        (NUMERIC, typmod(10, 2), "-1234.50", binary_numeric([1234, 5000], 0, 0x4000, 2)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "binary", "text"),
    [
        (NUMERIC, typmod(5, 2), binary_numeric([], 0, 0xC000, 0), "NaN"),
    ],
)
def test_special_in_binary_has_the_servers_text(oid: int, modifier: int, binary: bytes, text: str) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    with pytest.raises(Special) as caught:
        found.binary(binary)
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (NUMERIC, b"\x00\x02\x00\x00\x00\x00\x00\x00"),
        (NUMERIC, binary_numeric([10000], 0, 0, 0)),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


@pytest.mark.parametrize(
    ("precision", "scale", "text"),
    [
        (10, 2, "0.00"),
        (10, 2, "-0.01"),
        (10, 2, "99999999.99"),
        (38, 0, "9" * 38),
        (38, 38, "-0." + "9" * 38),
        (5, 0, "-128"),
        (5, 0, "127"),
        (5, 0, "128"),
        (5, 0, "-129"),
    ],
)
def test_a_decimal_is_exact_and_as_short_as_javas(precision: int, scale: int, text: str) -> None:
    found = codec(NUMERIC, typmod(precision, scale))
    assert found.avro == {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    encoded = found.text(text.encode())
    assert read(encoded, found.avro) == Decimal(text)
    unscaled = int(text.replace(".", ""))
    minimal = next(n for n in range(1, 20) if -(1 << 8 * n - 1) <= unscaled < 1 << 8 * n - 1)
    assert len(encoded) == 1 + minimal


@pytest.mark.parametrize(("precision", "scale"), [(39, 2), (1000, 500), (5, -2), (2, 5)])
def test_a_numeric_without_a_decimal_that_readers_take_is_its_text(precision: int, scale: int) -> None:
    found = codec(NUMERIC, typmod(precision, scale))
    assert found.avro == "string"
    assert read(found.text(b"-123.4500"), "string") == "-123.4500"


@pytest.mark.parametrize("modifier", [-1, typmod(10, 2), typmod(39, 2)])
def test_as_string_every_numeric_is_its_text(modifier: int) -> None:
    found = codec(NUMERIC, modifier, numeric_as="string")
    assert found.avro == "string"
    for text in ("-1.50", "NaN", "Infinity"):
        assert read(found.text(text.encode()), "string") == text


@pytest.mark.parametrize("modifier", [-1, typmod(10, 2), typmod(39, 2)])
def test_as_double_every_numeric_is_the_nearest_double(modifier: int) -> None:
    found = codec(NUMERIC, modifier, numeric_as="double")
    assert found.avro == "double"
    for text in ("-1.50", "0.1", "Infinity", "-Infinity", "0", "0.000"):
        assert read(found.text(text.encode()), "double") == float(text)
    assert math.isnan(read(found.text(b"NaN"), "double"))
    assert read(found.text(b"0." + b"0" * 323 + b"5"), "double") == 5e-324


@pytest.mark.parametrize("text", ["1" + "0" * 400, "-1" + "0" * 400, "0." + "0" * 400 + "1"])
def test_a_double_that_postgresql_calls_out_of_range_is_special(text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(NUMERIC, numeric_as="double").text(text.encode())
    assert caught.value.text.decode() == text


def test_variable_scale_is_debeziums_record_where_no_decimal_fits() -> None:
    for modifier in (-1, typmod(39, 2), typmod(2, 5)):
        found = codec(NUMERIC, modifier, numeric_as="variable_scale")
        assert found.avro["connect.name"] == "io.debezium.data.VariableScaleDecimal"
        for text, scale, unscaled in (("-1.250", 3, -1250), ("0", 0, 0), ("1" + "0" * 50, 0, 10**50)):
            value = read(found.text(text.encode()), found.avro)
            assert (value["scale"], int.from_bytes(value["value"], "big", signed=True)) == (scale, unscaled)
        with pytest.raises(Special):
            found.text(b"NaN")
    assert codec(NUMERIC, typmod(10, 2), numeric_as="variable_scale").avro["logicalType"] == "decimal"


@pytest.mark.parametrize(
    ("text", "scale", "unscaled"),
    [
        ("9" * 4301, 0, 10**4301 - 1),
        ("-1" + "0" * 7999, 0, -(10**7999)),
        ("12" + "0" * 131_070 + "." + "0" * 16_382 + "7", 16_383, 12 * 10 ** (131_070 + 16_383) + 7),
        ("-0." + "0" * 16_382 + "3", 16_383, -3),
    ],
    ids=["one digit more", "negative", "the most", "next to zero"],
)
def test_variable_scale_holds_every_number_that_postgresql_has(text: str, scale: int, unscaled: int) -> None:
    """Up to 131072 digits before the decimal point and 16383 after it; Python's int() reads only 4300."""
    found = codec(NUMERIC, numeric_as="variable_scale")
    value = read(found.text(text.encode()), found.avro)
    assert value["scale"] == scale
    assert int.from_bytes(value["value"], "big", signed=True) == unscaled


@pytest.mark.parametrize("text", ["9" * 5000, "1." + "0" * 5000, "-0." + "0" * 5000 + "1"], ids=len)
def test_a_number_of_many_digits_is_special_to_a_decimal(text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(NUMERIC, typmod(38, 20)).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize("spoiled", ["_", "e", " ", "-", "+", "", ".1.", "٣"])
@pytest.mark.parametrize("modifier", [-1, typmod(10, 2)])
def test_many_digits_with_something_else_among_them_are_unreadable(spoiled: str, modifier: int) -> None:
    found = codec(NUMERIC, modifier, numeric_as="variable_scale")
    text = "9" * 4000 + spoiled + "9" * 4000 if spoiled else "-"
    with pytest.raises(UNREADABLE):
        found.text(text.encode())


@pytest.mark.parametrize("choice", ["string", "double", "variable_scale"])
def test_binary_gives_the_same_bytes_under_each_policy(choice: str) -> None:
    found = codec(NUMERIC, numeric_as=choice)
    assert found.binary is not None
    assert found.binary(binary_numeric([1234, 5000], 0, 0x4000, 2)) == found.text(b"-1234.50")
