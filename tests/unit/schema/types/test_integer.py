"""Integers, oids and transaction ids: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import INT2, INT4, INT8, OID, XID, XID8, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
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
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (XID8, -1, "18446744073709551615"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text"),
    [
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
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (INT2, -1, "-2", b"\xff\xfe"),
        (INT4, -1, "7", b"\x00\x00\x00\x07"),
        (INT8, -1, "-9223372036854775808", b"\x80" + b"\x00" * 7),
        (OID, -1, "4294967295", b"\xff" * 4),
        (XID8, -1, "5", b"\x00" * 7 + b"\x05"),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (INT4, b"\x00"),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)
