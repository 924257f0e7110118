"""time and timetz: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import TIME, TIMETZ, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (TIME, "00:00:00", datetime.time()),
        (TIME, "23:59:59.999999", datetime.time(23, 59, 59, 999999)),
        (TIME, "12:34:56.7", datetime.time(12, 34, 56, 700000)),
        (TIMETZ, "24:00:00+05:30", "24:00:00+05:30"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (TIME, -1, "24:00:00"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (TIME, "23:59:60"),
        (TIME, "12:34"),
        (TIME, "12:34:56."),
        (TIME, "12:34:56.1234567"),
        (TIMETZ, "12:34:56"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (TIME, -1, "00:00:01.5", struct.pack(">q", 1_500_000)),
        (TIMETZ, -1, "12:00:00.5-04:56:02", struct.pack(">qi", 43_200_500_000, 17762)),
        (TIMETZ, -1, "24:00:00+05:30", struct.pack(">qi", 86_400_000_000, -19800)),
        (TIMETZ, -1, "00:00:00+00", struct.pack(">qi", 0, 0)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "binary", "text"),
    [
        (TIME, -1, struct.pack(">q", 86_400_000_000), "24:00:00"),
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
        (TIME, struct.pack(">q", -1)),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)
