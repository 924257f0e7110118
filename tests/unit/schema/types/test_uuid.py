"""uuid: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import UUID, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (UUID, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (UUID, "0f1e2d3c4b5a69788796a5b4c3d2e1f0"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (UUID, -1, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (UUID, b"\x00" * 15),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)
