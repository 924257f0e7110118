"""Arrays: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE, Special
from cdcd.schema.resolve import resolve
from tests.support.avro_types import (
    ADDRESS_ARRAY,
    BOX_ARRAY,
    BYTEA_ARRAY,
    DATE_ARRAY,
    INT4,
    INT4_ARRAY,
    MOOD_ARRAY,
    NUMERIC_ARRAY,
    TEXT,
    TEXT_ARRAY,
    binary_array,
    codec,
    read,
    typmod,
    value_of,
)

D = datetime.date


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (INT4_ARRAY, "{}", []),
        (INT4_ARRAY, "{1,NULL,-3}", [1, None, -3]),
        (
            TEXT_ARRAY,
            '{"a \\"b\\\\",NULL,"NULL","",plain,"{x,y}"}',
            ['a "b\\', None, "NULL", "", "plain", "{x,y}"],
        ),
        (BYTEA_ARRAY, '{"\\\\x01","\\\\x"}', [b"\x01", b""]),
        (DATE_ARRAY, "{2024-02-29}", [D(2024, 2, 29)]),
        (BOX_ARRAY, "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
        (MOOD_ARRAY, '{sad,"so so"}', ["sad", "so so"]),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (INT4_ARRAY, -1, "{{1,2},{3,4}}"),
        (INT4_ARRAY, -1, "[0:1]={1,2}"),
        (NUMERIC_ARRAY, typmod(10, 2), "{1.00,NaN}"),
        (DATE_ARRAY, -1, "{2024-01-01,infinity}"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (INT4_ARRAY, ""),
        (INT4_ARRAY, "{"),
        (INT4_ARRAY, "{1,}"),
        (INT4_ARRAY, "{1,{2}}"),
        (TEXT_ARRAY, '{"a}'),
        (TEXT_ARRAY, '{"a"b}'),
        (TEXT_ARRAY, '{"a",}'),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (INT4_ARRAY, -1, "{1,NULL}", binary_array(INT4, [b"\x00\x00\x00\x01", None])),
        (INT4_ARRAY, -1, "{}", struct.pack(">iiI", 0, 0, INT4)),
        (TEXT_ARRAY, -1, '{"a b",""}', binary_array(TEXT, [b"a b", b""])),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (INT4_ARRAY, binary_array(TEXT, [b"a"])),
        (INT4_ARRAY, struct.pack(">iiI", 2, 0, INT4) + b"\x00" * 16),
        (INT4_ARRAY, binary_array(INT4, [b"\x00\x00\x00\x01"]) + b"\x00"),
        (INT4_ARRAY, struct.pack(">iiIii", 1, 0, INT4, 2**30, 1)),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


def test_an_array_has_an_exact_binary_reading_where_its_element_has_one() -> None:
    types = {1: PgType(1, "public", "_regclass", "b", 2205), 2: PgType(2, "public", "_temperature", "b", 7)}
    assert [resolve(oid, -1, types).codec.binary for oid in types] == [None, None]
    assert codec(BOX_ARRAY).binary is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"(Main,1)",NULL,"(\\"a b\\",)"}', [("Main", 1), None, ("a b", None)]),
        ('{"(\\"\\",2)"}', [("", 2)]),
        ('{"(\\"q\\"\\"\\\\\\\\x\\",3)"}', [('q"\\x', 3)]),
    ],
)
def test_an_array_of_a_composite_type(text: str, expected: list[Any]) -> None:
    wanted = [None if e is None else {"street": e[0], "house_u0020no": e[1]} for e in expected]
    assert value_of(ADDRESS_ARRAY, text) == wanted


def test_with_special_string_the_whole_column_is_the_servers_text() -> None:
    found = codec(INT4_ARRAY, special="string")
    assert found.avro == "string"
    for text in ("{1,2}", "{{1,2},{3,4}}", "[0:1]={1,2}"):
        assert read(found.text(text.encode()), "string") == text
