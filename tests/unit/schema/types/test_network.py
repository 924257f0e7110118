"""Network addresses: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import pytest

from tests.support.avro_types import codec, value_of


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (869, "10.0.0.0/8"),
        (869, "::1"),
        (650, "192.168.0.0/16"),
        (829, "08:00:2b:01:02:03"),
        (774, "08:00:2b:01:02:03:04:05"),
    ],
)
def test_addresses_are_the_servers_text(oid: int, text: str) -> None:
    assert codec(oid).avro == "string"
    assert value_of(oid, text) == text
