"""real and double precision: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import FLOAT4, FLOAT8, codec, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (FLOAT8, "0.1", 0.1),
        (FLOAT8, "-1.7976931348623157e+308", -1.7976931348623157e308),
        (FLOAT8, "5e-324", 5e-324),
        (FLOAT8, "Infinity", math.inf),
        (FLOAT4, "-Infinity", -math.inf),
        (FLOAT4, "3.4028235e+38", 3.4028234663852886e38),
        (FLOAT4, "1e-45", 1.401298464324817e-45),
        (FLOAT4, "1.1", struct.unpack("f", struct.pack("f", 1.1))[0]),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (FLOAT8, "1_0"),
        (FLOAT8, "nan"),
        (FLOAT8, ""),
        (FLOAT8, " 1"),
        (FLOAT4, "1e39"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (FLOAT4, -1, "-1.5", struct.pack(">f", -1.5)),
        (FLOAT8, -1, "0.1", struct.pack(">d", 0.1)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (FLOAT8, b"\x00" * 7),
    ],
)
def test_binary_that_the_server_does_not_send_is_unreadable(oid: int, binary: bytes) -> None:
    found = codec(oid)
    assert found.binary is not None
    with pytest.raises(UNREADABLE):
        found.binary(binary)


def test_nan_and_negative_zero_keep_their_bits() -> None:
    for oid, size in ((FLOAT4, 4), (FLOAT8, 8)):
        assert math.isnan(value_of(oid, "NaN"))
        assert codec(oid).text(b"-0") == b"\x00" * (size - 1) + b"\x80"
        found = codec(oid)
        assert found.binary is not None
        assert found.binary(b"\xff" * size) == found.text(b"NaN")


def test_a_real_is_rounded_once() -> None:
    """1 + 2^-24 + 2^-60 is above the midpoint of two reals, but its nearest double is exactly the midpoint."""
    assert value_of(FLOAT4, "1.00000005960464477626") == 1.0000001192092896
    assert value_of(FLOAT4, "1.000000059604644775390625") == 1.0
