"""json and jsonb: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import JSON, JSONB, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (JSON, '{"a":  1}', '{"a":  1}'),
        (JSONB, '{"a": 1}', '{"a": 1}'),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (JSONB, -1, '{"a": 1}', b'\x01{"a": 1}'),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (JSONB, b"\x02{}"),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


@pytest.mark.parametrize("oid", [JSON, JSONB])
def test_a_plain_string_by_policy(oid: int) -> None:
    assert codec(oid).avro == {
        "type": "string",
        "connect.version": 1,
        "connect.name": "io.debezium.data.Json",
    }
    assert codec(oid, json_as="string").avro == "string"
    assert value_of(oid, '{"a":  1}', json_as="string") == '{"a":  1}'
