"""Every type, text and binary, to Avro: values known from elsewhere; fastavro judges the bytes."""

from __future__ import annotations

import datetime
import io
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE, Codec, Special
from cdcd.schema.resolve import resolve

BOOL, INT8, INT2, INT4, OID, XID, XID8 = 16, 20, 21, 23, 26, 28, 5069
FLOAT4, FLOAT8, NUMERIC, MONEY = 700, 701, 1700, 790
TEXT, JSON, JSONB, BYTEA, UUID, BIT, VARBIT = 25, 114, 3802, 17, 2950, 1560, 1562
DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1266, 1114, 1184, 1186
UTC = datetime.UTC

TYPES = {
    oid: PgType(oid, "pg_catalog", name, "b", element)
    for oid, name, element in [
        (INT4, "int4", 0),
        (TEXT, "text", 0),
        (NUMERIC, "numeric", 0),
        (DATE, "date", 0),
        (BYTEA, "bytea", 0),
        (1007, "_int4", INT4),
        (1009, "_text", TEXT),
        (1231, "_numeric", NUMERIC),
        (1182, "_date", DATE),
        (1001, "_bytea", BYTEA),
        (1020, "_box", 603),
        (22, "int2vector", INT2),
    ]
} | {
    603: PgType(603, "pg_catalog", "box", "b", delimiter=";"),
    9001: PgType(9001, "public", "mood", "e"),
    9002: PgType(9002, "public", "_mood", "b", 9001),
    9003: PgType(9003, "public", "price", "d", base_oid=NUMERIC, base_typmod=(10 << 16 | 2) + 4),
    9004: PgType(9004, "public", "net_price", "d", base_oid=9003),
    9005: PgType(9005, "public", "_price", "b", 9003),
    9006: PgType(9006, "public", "tags", "d", base_oid=1009),
    9007: PgType(9007, "public", "citext", "b"),
    9008: PgType(9008, "public", "address", "c"),
}


def typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def codec(oid: int, modifier: int = -1) -> Codec:
    return resolve(oid, modifier, TYPES).codec


def read(encoded: bytes, avro: Any) -> Any:
    buffer = io.BytesIO(encoded)
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(avro), None)
    assert buffer.read() == b""
    return value


def plain(avro: Any) -> Any:
    """The schema without logical types, for values that Python's own types cannot hold."""
    return avro["type"] if isinstance(avro, dict) and "logicalType" in avro else avro


def value_of(oid: int, text: str, modifier: int = -1) -> Any:
    found = codec(oid, modifier)
    return read(found.text(text.encode()), found.avro)


def raw_of(oid: int, text: str) -> Any:
    found = codec(oid)
    return read(found.text(text.encode()), plain(found.avro))


D, DT = datetime.date, datetime.datetime


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (BOOL, "t", True),
        (BOOL, "f", False),
        (INT2, "-32768", -32768),
        (INT4, "2147483647", 2147483647),
        (INT4, "-2147483648", -2147483648),
        (INT4, "0", 0),
        (INT4, "-64", -64),
        (INT4, "64", 64),
        (INT4, "8191", 8191),
        (INT4, "-8193", -8193),
        (INT8, "9223372036854775807", 2**63 - 1),
        (INT8, "-9223372036854775808", -(2**63)),
        (INT8, "36028797018963968", 2**55),
        (OID, "4294967295", 2**32 - 1),
        (XID, "3000000000", 3_000_000_000),
        (XID8, "9223372036854775807", 2**63 - 1),
        (FLOAT8, "0.1", 0.1),
        (FLOAT8, "-1.7976931348623157e+308", -1.7976931348623157e308),
        (FLOAT8, "5e-324", 5e-324),
        (FLOAT8, "Infinity", math.inf),
        (FLOAT4, "-Infinity", -math.inf),
        (FLOAT4, "3.4028235e+38", 3.4028234663852886e38),
        (FLOAT4, "1e-45", 1.401298464324817e-45),
        (FLOAT4, "1.1", struct.unpack("f", struct.pack("f", 1.1))[0]),
        (NUMERIC, "123456789012345678901234567890.1230", "123456789012345678901234567890.1230"),
        (NUMERIC, "NaN", "NaN"),
        (NUMERIC, "-Infinity", "-Infinity"),
        (MONEY, "$1,234,567.89", Decimal("1234567.89")),
        (MONEY, "-$92,233,720,368,547,758.08", Decimal("-92233720368547758.08")),
        (MONEY, "($0.05)", Decimal("-0.05")),
        (MONEY, "1.234,50 €", Decimal("1234.50")),
        (TEXT, "", ""),
        (TEXT, "naïve ☕ 😀", "naïve ☕ 😀"),
        (TEXT, "x" * 70_000, "x" * 70_000),
        (JSON, '{"a":  1}', '{"a":  1}'),
        (JSONB, '{"a": 1}', '{"a": 1}'),
        (BYTEA, "\\x", b""),
        (BYTEA, "\\x00ff7f", b"\x00\xff\x7f"),
        (UUID, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")),
        (VARBIT, "", ""),
        (VARBIT, "0101", "0101"),
        (DATE, "1970-01-01", D(1970, 1, 1)),
        (DATE, "0001-01-01", D(1, 1, 1)),
        (DATE, "9999-12-31", D(9999, 12, 31)),
        (DATE, "1900-02-28", D(1900, 2, 28)),
        (TIME, "00:00:00", datetime.time()),
        (TIME, "23:59:59.999999", datetime.time(23, 59, 59, 999999)),
        (TIME, "12:34:56.7", datetime.time(12, 34, 56, 700000)),
        (TIMETZ, "24:00:00+05:30", "24:00:00+05:30"),
        (TIMESTAMP, "2024-01-01 00:00:00.123456", DT(2024, 1, 1, 0, 0, 0, 123456)),
        (TIMESTAMP, "1969-12-31 23:59:59.99", DT(1969, 12, 31, 23, 59, 59, 990000)),
        (TIMESTAMP, "0001-01-01 00:00:00", DT(1, 1, 1)),
        (TIMESTAMPTZ, "2024-01-01 00:00:00.123456+00", DT(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        (TIMESTAMPTZ, "2024-01-01 05:30:00+05:30", DT(2024, 1, 1, tzinfo=UTC)),
        (TIMESTAMPTZ, "1883-11-18 12:03:57-04:56:02", DT(1883, 11, 18, 16, 59, 59, tzinfo=UTC)),
        (INTERVAL, "00:00:00", "PT0S"),
        (INTERVAL, "1 year 2 mons 3 days 04:05:06.789", "P1Y2M3DT4H5M6.789S"),
        (INTERVAL, "-1 years -2 mons +3 days -04:05:06", "P-1Y-2M3DT-4H-5M-6S"),
        (INTERVAL, "-00:00:00.000001", "PT-0.000001S"),
        (INTERVAL, "1 day", "P1D"),
        (INTERVAL, "-178956970 years -8 mons", "P-178956970Y-8M"),
        (INTERVAL, "2562047788:00:54.775807", "PT2562047788H54.775807S"),
        (1007, "{}", []),
        (1007, "{1,NULL,-3}", [1, None, -3]),
        (1009, '{"a \\"b\\\\",NULL,"NULL","",plain,"{x,y}"}', ['a "b\\', None, "NULL", "", "plain", "{x,y}"]),
        (1001, '{"\\\\x01","\\\\x"}', [b"\x01", b""]),
        (1182, "{2024-02-29}", [D(2024, 2, 29)]),
        (1020, "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
        (9001, "happy", "happy"),
        (9002, '{sad,"so so"}', ["sad", "so so"]),
        (9003, "1.50", Decimal("1.50")),
        (9004, "-99999999.99", Decimal("-99999999.99")),
        (9005, "{1.50,NULL}", [Decimal("1.50"), None]),
        (9006, "{a}", ["a"]),
        (9007, "CiText", "CiText"),
        (9008, "(Main,1)", "(Main,1)"),
        (22, "1 2 3", "1 2 3"),
        (3904, "[1,5)", "[1,5)"),
        (777_777, "anything", "anything"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


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


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (NUMERIC, typmod(10, 2), "NaN"),
        (NUMERIC, typmod(10, 2), "Infinity"),
        (NUMERIC, typmod(10, 2), "-Infinity"),
        (NUMERIC, typmod(4, 2), "100.00"),
        (NUMERIC, typmod(4, 2), "1.001"),
        (DATE, -1, "infinity"),
        (DATE, -1, "-infinity"),
        (DATE, -1, "9999999-01-01"),
        (TIME, -1, "24:00:00"),
        (TIMESTAMP, -1, "infinity"),
        (TIMESTAMP, -1, "294276-12-31 23:59:59.999999"),
        (TIMESTAMPTZ, -1, "-infinity"),
        (TIMESTAMPTZ, -1, "294247-01-10 04:00:54.775808+00"),
        (INTERVAL, -1, "infinity"),
        (XID8, -1, "18446744073709551615"),
        (1007, -1, "{{1,2},{3,4}}"),
        (1007, -1, "[0:1]={1,2}"),
        (1231, typmod(10, 2), "{1.00,NaN}"),
        (1182, -1, "{2024-01-01,infinity}"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (DATE, "4714-11-24 BC", -2440588),  # Julian day 0
        (DATE, "0001-12-31 BC", -719163),
        (DATE, "10000-01-01", 2932897),
        (DATE, "5874897-12-31", 2147483493 - 2440588),  # PostgreSQL's last day: Julian day 2147483493
        (TIMESTAMP, "4714-11-24 00:00:00 BC", -2440588 * 86_400_000_000),
        (TIMESTAMPTZ, "0001-12-31 23:59:59.999999+00 BC", -719162 * 86_400_000_000 - 1),
        (TIMESTAMP, "10000-01-01 00:00:00", 253402300800_000_000),
        (TIMESTAMP, "294247-01-10 04:00:54.775807", 2**63 - 1),
        (TIMESTAMPTZ, "294247-01-10 04:00:54.775807+00", 2**63 - 1),
    ],
)
def test_dates_beyond_pythons(oid: int, text: str, expected: int) -> None:
    assert raw_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (BOOL, "true"),
        (BOOL, ""),
        (INT2, "32768"),
        (INT4, "2147483648"),
        (INT8, "9223372036854775808"),
        (OID, "-1"),
        (INT4, ""),
        (INT4, "-"),
        (INT4, " 1"),
        (INT4, "1_0"),
        (INT4, "+1"),
        (INT4, "1.0"),
        (FLOAT8, "1_0"),
        (FLOAT8, "nan"),
        (FLOAT8, ""),
        (FLOAT8, " 1"),
        (FLOAT4, "1e39"),
        (NUMERIC, "1e5"),
        (NUMERIC, ""),
        (NUMERIC, "nan"),
        (MONEY, "¥1,235"),
        (MONEY, "$1.2"),
        (MONEY, ""),
        (BYTEA, "abc"),
        (BYTEA, "\\x0"),
        (BYTEA, "\\x0 0"),
        (UUID, "0f1e2d3c4b5a69788796a5b4c3d2e1f0"),
        (VARBIT, "012"),
        (DATE, "01/02/2024"),
        (DATE, "2024-02-30"),
        (DATE, "1900-02-29"),
        (DATE, "0000-01-01"),
        (DATE, "2024-W01-1"),
        (DATE, ""),
        (TIME, "23:59:60"),
        (TIME, "12:34"),
        (TIME, "12:34:56."),
        (TIME, "12:34:56.1234567"),
        (TIMETZ, "12:34:56"),
        (TIMESTAMP, "2024-01-01"),
        (TIMESTAMP, "2024-01-01T00:00:00"),
        (TIMESTAMP, "2024-01-01 00:00:00+00"),
        (TIMESTAMP, "2024-01-01 24:00:00"),
        (TIMESTAMPTZ, "2024-01-01 00:00:00"),
        (TIMESTAMPTZ, "Mon Jan 01 00:00:00 2024 UTC"),
        (INTERVAL, ""),
        (INTERVAL, "@ 1 day"),
        (INTERVAL, "P1D"),
        (INTERVAL, "1 day "),
        (1007, ""),
        (1007, "{"),
        (1007, "{1,}"),
        (1007, "{1,{2}}"),
        (1009, '{"a}'),
        (1009, '{"a"b}'),
        (1009, '{"a",}'),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


def test_a_string_that_is_not_utf8_is_unreadable() -> None:
    with pytest.raises(UNREADABLE):
        codec(TEXT).text(b"\xff")


def test_nan_and_negative_zero_keep_their_bits() -> None:
    for oid, size in ((FLOAT4, 4), (FLOAT8, 8)):
        assert math.isnan(value_of(oid, "NaN"))
        assert codec(oid).text(b"-0") == b"\x00" * (size - 1) + b"\x80"
        found = codec(oid)
        assert found.binary is not None
        assert found.binary(b"\xff" * size) == found.text(b"NaN")


def test_a_real_is_rounded_once() -> None:
    """1 + 2^-24 + 2^-60 is above the tie between two reals, but its double is the tie itself."""
    assert value_of(FLOAT4, "1.00000005960464477626") == 1.0000001192092896
    assert value_of(FLOAT4, "1.000000059604644775390625") == 1.0


def test_bit_1_is_a_boolean() -> None:
    found = codec(BIT, 1)
    assert (found.avro, found.text(b"1"), found.text(b"0")) == ("boolean", b"\x01", b"\x00")
    assert codec(BIT, 8).avro == "string"


def test_names_in_the_schema_follow_domains_and_arrays() -> None:
    def names(oid: int) -> tuple[str, str | None]:
        found = resolve(oid, -1, TYPES)
        return found.type_name, found.domain

    assert names(INT4) == ("int4", None)
    assert names(1007) == ("int4[]", None)
    assert names(9001) == ("public.mood", None)
    assert names(9004) == ("numeric", "public.net_price")
    assert names(9005) == ("public.price[]", None)
    assert names(9006) == ("text[]", "public.tags")


def sent_numeric(digits: list[int], weight: int, sign: int, dscale: int) -> bytes:
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, dscale, *digits)


def sent_array(oid: int, items: list[bytes | None], lower: int = 1) -> bytes:
    out = struct.pack(">iiIii", 1, 0, oid, len(items), lower)
    for item in items:
        out += struct.pack(">i", -1) if item is None else struct.pack(">i", len(item)) + item
    return out


PG_EPOCH = DT(2000, 1, 1)


def us_since_2000(moment: datetime.datetime) -> int:
    return (moment - PG_EPOCH) // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (BOOL, -1, "t", b"\x01"),
        (INT2, -1, "-2", b"\xff\xfe"),
        (INT4, -1, "7", b"\x00\x00\x00\x07"),
        (INT8, -1, "-9223372036854775808", b"\x80" + b"\x00" * 7),
        (OID, -1, "4294967295", b"\xff" * 4),
        (XID8, -1, "5", b"\x00" * 7 + b"\x05"),
        (FLOAT4, -1, "-1.5", struct.pack(">f", -1.5)),
        (FLOAT8, -1, "0.1", struct.pack(">d", 0.1)),
        (NUMERIC, -1, "12345678.9", sent_numeric([1234, 5678, 9000], 1, 0, 1)),
        (NUMERIC, -1, "-0.00012", sent_numeric([1, 2000], -1, 0x4000, 5)),
        (NUMERIC, -1, "0.00", sent_numeric([], 0, 0, 2)),
        (NUMERIC, -1, "0", sent_numeric([], 0, 0, 0)),
        (NUMERIC, -1, "10000", sent_numeric([1], 1, 0, 0)),
        (NUMERIC, -1, "0.000000001", sent_numeric([1000], -3, 0, 9)),
        (NUMERIC, -1, "NaN", sent_numeric([], 0, 0xC000, 0)),
        (NUMERIC, -1, "-Infinity", sent_numeric([], 0, 0xF000, 0)),
        (NUMERIC, typmod(10, 2), "-1234.50", sent_numeric([1234, 5000], 0, 0x4000, 2)),
        (TEXT, -1, "é", "é".encode()),
        (JSONB, -1, '{"a": 1}', b'\x01{"a": 1}'),
        (BYTEA, -1, "\\x00ff", b"\x00\xff"),
        (UUID, -1, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")),
        (VARBIT, -1, "0101010101", b"\x00\x00\x00\x0a\x55\x40"),
        (VARBIT, -1, "", b"\x00" * 4),
        (BIT, 1, "1", b"\x00\x00\x00\x01\x80"),
        (DATE, -1, "1999-12-31", struct.pack(">i", -1)),
        (TIME, -1, "00:00:01.5", struct.pack(">q", 1_500_000)),
        (TIMETZ, -1, "12:00:00.5-04:56:02", struct.pack(">qi", 43_200_500_000, 17762)),
        (TIMETZ, -1, "24:00:00+05:30", struct.pack(">qi", 86_400_000_000, -19800)),
        (TIMETZ, -1, "00:00:00+00", struct.pack(">qi", 0, 0)),
        (
            TIMESTAMP,
            -1,
            "1984-06-01 02:03:04.000005",
            struct.pack(">q", us_since_2000(DT(1984, 6, 1, 2, 3, 4, 5))),
        ),
        (TIMESTAMPTZ, -1, "2031-01-01 00:00:00+00", struct.pack(">q", us_since_2000(DT(2031, 1, 1)))),
        (INTERVAL, -1, "-1 years -1 mons +3 days -00:00:01.5", struct.pack(">qii", -1_500_000, 3, -13)),
        (1007, -1, "{1,NULL}", sent_array(INT4, [b"\x00\x00\x00\x01", None])),
        (1007, -1, "{}", struct.pack(">iiI", 0, 0, INT4)),
        (1009, -1, '{"a b",""}', sent_array(TEXT, [b"a b", b""])),
        (9001, -1, "happy", b"happy"),
        (9004, -1, "1.50", sent_numeric([1, 5000], 0, 0, 2)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "binary", "text"),
    [
        (DATE, -1, struct.pack(">i", 2**31 - 1), "infinity"),
        (DATE, -1, struct.pack(">i", -(2**31)), "-infinity"),
        (TIME, -1, struct.pack(">q", 86_400_000_000), "24:00:00"),
        (TIMESTAMP, -1, struct.pack(">q", 2**63 - 1), "infinity"),
        (TIMESTAMPTZ, -1, struct.pack(">q", -(2**63)), "-infinity"),
        (TIMESTAMP, -1, struct.pack(">q", 9223371331199999999), "294276-12-31 23:59:59.999999"),
        (TIMESTAMPTZ, -1, struct.pack(">q", 9223371331199000000), "294276-12-31 23:59:59+00"),
        (INTERVAL, -1, struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1), "infinity"),
        (NUMERIC, typmod(5, 2), sent_numeric([], 0, 0xC000, 0), "NaN"),
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
        (BOOL, b"\x02"),
        (INT4, b"\x00"),
        (FLOAT8, b"\x00" * 7),
        (NUMERIC, b"\x00\x02\x00\x00\x00\x00\x00\x00"),
        (NUMERIC, sent_numeric([10000], 0, 0, 0)),
        (JSONB, b"\x02{}"),
        (UUID, b"\x00" * 15),
        (DATE, b"\x00" * 5),
        (TIME, struct.pack(">q", -1)),
        (VARBIT, b"\x00\x00\x00\x09\xff"),
        (1007, sent_array(TEXT, [b"a"])),
        (1007, struct.pack(">iiI", 2, 0, INT4) + b"\x00" * 16),
        (1007, sent_array(INT4, [b"\x00\x00\x00\x01"]) + b"\x00"),
        (1007, struct.pack(">iiIii", 1, 0, INT4, 2**30, 1)),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


@pytest.mark.parametrize("oid", [MONEY, 2205, 791, 9099])
def test_types_without_an_exact_binary_form_have_no_binary_encoder(oid: int) -> None:
    assert codec(oid).binary is None
