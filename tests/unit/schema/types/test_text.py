"""Strings of the server's text: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import MOOD, TEMPERATURE, TEXT, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (TEXT, "", ""),
        (TEXT, "naïve ☕ 😀", "naïve ☕ 😀"),
        (TEXT, "x" * 70_000, "x" * 70_000),
        (MOOD, "happy", "happy"),
        (777_777, "anything", "anything"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (TEXT, -1, "é", "é".encode()),
        (MOOD, -1, "happy", b"happy"),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


def test_a_string_that_is_not_utf8_is_unreadable() -> None:
    with pytest.raises(UNREADABLE):
        codec(TEXT).text(b"\xff")


def test_an_unknown_type_is_the_servers_text() -> None:
    assert (codec(TEMPERATURE).avro, codec(TEMPERATURE).binary) == ("string", None)
    assert value_of(TEMPERATURE, "21 °C") == "21 °C"
