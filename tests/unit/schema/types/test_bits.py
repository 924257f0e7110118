"""Bit strings: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import BIT, VARBIT, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (VARBIT, "", ""),
        (VARBIT, "0101", "0101"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (VARBIT, "012"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (VARBIT, -1, "0101010101", b"\x00\x00\x00\x0a\x55\x40"),
        (VARBIT, -1, "", b"\x00" * 4),
        (BIT, 1, "1", b"\x00\x00\x00\x01\x80"),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (VARBIT, b"\x00\x00\x00\x09\xff"),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


def test_bit_1_is_a_boolean() -> None:
    found = codec(BIT, 1)
    assert (found.avro, found.text(b"1"), found.text(b"0")) == ("boolean", b"\x01", b"\x00")
    assert codec(BIT, 8).avro == "string"
