"""PostgreSQL's text of values as topics have them; tests/integration/test_verify_types.py asks PostgreSQL itself."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cdcd.model import Attribute, PgType
from cdcd.verify.float_text import double_text, real_text
from cdcd.verify.texts import DecimalText, interval_text, named_records, text_of, variable_scale_text

DATE = {"type": "int", "logicalType": "date"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
UTC = {"type": "long", "logicalType": "timestamp-micros"}
TYPES = {
    1007: PgType(1007, "pg_catalog", "_int4", "b", element_oid=23),
    1009: PgType(1009, "pg_catalog", "_text", "b", element_oid=25),
    23: PgType(23, "pg_catalog", "int4", "b"),
    25: PgType(25, "pg_catalog", "text", "b"),
    9000: PgType(9000, "public", "pair", "c", attributes=(Attribute("a", 23, -1), Attribute("b", 25, -1))),
    9001: PgType(9001, "public", "shop_id", "d", base_oid=23),
    9002: PgType(9002, "public", "hstore", "b", extension="hstore"),
    9003: PgType(9003, "public", "vector", "b", extension="vector"),
    9004: PgType(9004, "public", "other", "b", extension="other"),
    9005: PgType(9005, "public", "geometry", "b", extension="postgis"),
    1020: PgType(1020, "pg_catalog", "_box", "b", element_oid=603),
    603: PgType(603, "pg_catalog", "box", "b", delimiter=";"),
}
PAIR = {
    "type": "record",
    "name": "s.t.Value.public.pair",
    "fields": [
        {"name": "a", "type": ["null", "int"], "pg.name": "a"},
        {"name": "b", "type": ["null", "string"], "pg.name": "b"},
    ],
}


@pytest.mark.parametrize(
    ("avro", "oid", "value", "expected"),
    [
        ("boolean", 16, True, b"t"),
        ("boolean", 1560, False, b"0"),
        ("int", 23, -5, b"-5"),
        ("int", 9001, 7, b"7"),
        ("string", 25, "é", "é".encode()),
        ("bytes", 17, b"\x00\xff", b"\\x00ff"),
        ("bytes", 9005, b"\x01\xab", b"01AB"),
        (DATE, 1082, -1, b"1969-12-31"),
        (DATE, 1082, -719_529, b"0002-12-31 BC"),
        (DATE, 1082, -719_529 - 365, b"0003-12-31 BC"),
        ({"type": "long", "logicalType": "time-micros"}, 1083, 3_661_500_000, b"01:01:01.5"),
        (LOCAL, 1114, 0, b"1970-01-01 00:00:00"),
        (UTC, 1184, -1, b"1969-12-31 23:59:59.999999+00"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            1700,
            b"\xff",
            b"-0.01",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 3},
            790,
            (-123_456_789).to_bytes(5, "big", signed=True),
            b"-$1,234,567.89",
        ),
        ("string", 790, "12345.678", b"$123,456.78"),
        ("string", 1186, "P1Y-2M3DT-4H-5M-6.5S", b"10 mons 3 days -04:05:06.5"),
        ({"type": "array", "items": ["null", "int"]}, 1007, [1, None, 3], b"{1,NULL,3}"),
        (
            {"type": "array", "items": ["null", "string"]},
            1009,
            ["a b", "", "null", 'x"\\', "y"],
            b'{"a b","","null","x\\"\\\\",y}',
        ),
        ({"type": "array", "items": ["null", "string"]}, 1020, ["(1,1),(0,0)", None], b"{(1,1),(0,0);NULL}"),
        (PAIR, 9000, {"a": None, "b": 'q"(\\'}, b'(,"q""(\\\\")'),
        (
            {"type": "map", "values": ["null", "string"]},
            9002,
            {"k": 'v"', "n": None},
            b'"k"=>"v\\"", "n"=>NULL',
        ),
        ({"type": "array", "items": "float"}, 9003, [1.0, 2.5], b"[1,2.5]"),
    ],
)
def test_the_text_is_the_server_s(avro: Any, oid: int, value: Any, expected: bytes) -> None:
    text = text_of(avro, oid, TYPES, named_records(avro))
    assert text is not None
    assert text(value) == expected


@pytest.mark.parametrize(
    ("avro", "oid"),
    [
        ("double", 1700),
        ({"type": "long", "connect.name": "io.debezium.time.MicroDuration"}, 1186),
        ("bytes", 9004),
    ],
)
def test_a_form_that_does_not_determine_the_text_has_none(avro: Any, oid: int) -> None:
    assert text_of(avro, oid, TYPES, {}) is None


def test_a_composite_value_of_other_attributes_has_no_text() -> None:
    fields = [PAIR["fields"][0], {**PAIR["fields"][1], "pg.name": "c"}]  # type: ignore[index]
    assert text_of({**PAIR, "fields": fields}, 9000, TYPES, {}) is None


@pytest.mark.parametrize(
    ("months", "days", "us", "expected"),
    [
        (0, 0, 0, b"00:00:00"),
        (14, 3, 0, b"1 year 2 mons 3 days"),
        (-14, 3, -1, b"-1 years -2 mons +3 days -00:00:00.000001"),
        (0, -1, 3_600_000_000, b"-1 days +01:00:00"),
    ],
)
def test_intervals(months: int, days: int, us: int, expected: bytes) -> None:
    assert interval_text(months, days, us) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, b"0"), (-0.0, b"-0"), (1.0, b"1"), (0.1, b"0.1"), (1e15, b"1e+15"),
        (123456789012345.0, b"123456789012345"),
        (0.0001, b"0.0001"), (0.00001, b"1e-05"), (-1.5e300, b"-1.5e+300"), (float("nan"), b"NaN"),
        (float("-inf"), b"-Infinity"), (100.0, b"100"),
    ],
)  # fmt: skip
def test_doubles(value: float, expected: bytes) -> None:
    assert double_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e6, b"1e+06"), (123456.0, b"123456"), (0.1, b"0.1"), (3.4028234663852886e38, b"3.4028235e+38"),
        (16777216.0, b"1.6777216e+07"),
    ],
)  # fmt: skip
def test_reals(value: float, expected: bytes) -> None:
    (real,) = struct.unpack("<f", struct.pack("<f", value))
    assert real_text(real) == expected


def test_the_texts_of_both_zeros() -> None:
    assert [real_text(one) for one in (0.0, -0.0, 0.0)] == [b"0", b"-0", b"0"]


@pytest.mark.parametrize(
    "digits", ["1" + 3999 * "0", "9" * 4000, "1" + 4000 * "0", "12" + 9000 * "0" + "34", "7" * 9001]
)
@pytest.mark.parametrize("sign", ["", "-"])
def test_numbers_with_more_digits_than_str_makes(digits: str, sign: str) -> None:
    """PostgreSQL's numeric has up to 131,072 digits before its point; `sys.set_int_max_str_digits` allows 4300."""
    number = 0
    for digit in digits:
        number = number * 10 + int(digit)
    number = -number if sign else number
    value = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    expected = f"{sign}{digits[:-2]}.{digits[-2:]}".encode()
    assert variable_scale_text({"scale": 2, "value": value}) == DecimalText(2)(value) == expected
