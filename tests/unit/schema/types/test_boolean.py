"""boolean: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import BOOL, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (BOOL, "t", True),
        (BOOL, "f", False),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (BOOL, "true"),
        (BOOL, ""),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (BOOL, -1, "t", b"\x01"),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (BOOL, b"\x02"),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)
