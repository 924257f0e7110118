"""date: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import DATE, codec, raw_of, value_of

D = datetime.date


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (DATE, "1970-01-01", D(1970, 1, 1)),
        (DATE, "0001-01-01", D(1, 1, 1)),
        (DATE, "9999-12-31", D(9999, 12, 31)),
        (DATE, "1900-02-28", D(1900, 2, 28)),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (DATE, -1, "infinity"),
        (DATE, -1, "-infinity"),
        (DATE, -1, "9999999-01-01"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (DATE, "4714-11-24 BC", -2440588),
        (DATE, "0001-12-31 BC", -719163),
        (DATE, "10000-01-01", 2932897),
        (DATE, "5874897-12-31", 2147483493 - 2440588),
    ],
)
def test_dates_beyond_pythons(oid: int, text: str, expected: int) -> None:
    assert raw_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (DATE, "01/02/2024"),
        (DATE, "2024-02-30"),
        (DATE, "1900-02-29"),
        (DATE, "0000-01-01"),
        (DATE, "2024-W01-1"),
        (DATE, ""),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (DATE, -1, "1999-12-31", struct.pack(">i", -1)),
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
        (DATE, b"\x00" * 5),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)
