"""interval: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import INTERVAL, codec, read, value_of


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (INTERVAL, "00:00:00", "PT0S"),
        (INTERVAL, "1 year 2 mons 3 days 04:05:06.789", "P1Y2M3DT4H5M6.789S"),
        (INTERVAL, "-1 years -2 mons +3 days -04:05:06", "P-1Y-2M3DT-4H-5M-6S"),
        (INTERVAL, "-00:00:00.000001", "PT-0.000001S"),
        (INTERVAL, "1 day", "P1D"),
        (INTERVAL, "-178956970 years -8 mons", "P-178956970Y-8M"),
        (INTERVAL, "2562047788:00:54.775807", "PT2562047788H54.775807S"),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (INTERVAL, -1, "infinity"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (INTERVAL, ""),
        (INTERVAL, "@ 1 day"),
        (INTERVAL, "P1D"),
        (INTERVAL, "1 day "),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (INTERVAL, -1, "-1 years -1 mons +3 days -00:00:01.5", struct.pack(">qii", -1_500_000, 3, -13)),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "binary", "text"),
    [
        (INTERVAL, -1, struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1), "infinity"),
    ],
)
def test_special_in_binary_has_the_servers_text(oid: int, modifier: int, binary: bytes, text: str) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    with pytest.raises(Special) as caught:
        found.binary(binary)
    assert caught.value.text.decode() == text


EXAMPLES = [
    ("00:00:00", (0, 0, 0)),
    ("1 year 2 mons 3 days 04:05:06.789", (14, 3, 14706_789000)),
    ("-1 years -2 mons +3 days -04:05:06", (-14, 3, -14706_000000)),
    ("1 day -00:00:00.000001", (0, 1, -1)),
    ("-178956970 years -8 mons", (-(2**31), 0, 0)),
    ("2562047788:00:54.775807", (0, 0, 2**63 - 1)),
]


@pytest.mark.parametrize(("text", "fields"), EXAMPLES)
def test_as_fields_an_interval_is_its_three_numbers(text: str, fields: tuple[int, int, int]) -> None:
    found = codec(INTERVAL, interval_as="fields")
    months, days, us = fields
    assert read(found.text(text.encode()), found.avro) == {"months": months, "days": days, "us": us}
    assert found.binary is not None
    assert found.binary(struct.pack(">qii", us, days, months)) == found.text(text.encode())


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1 mon", 2_629_800_000_000),
        ("-1 mons +1 day", -2_629_800_000_000 + 86_400_000_000),
        ("1 year", 31_557_600_000_000),
        ("1 day 00:00:00.000001", 86_400_000_001),
        ("2562047788:00:54.775807", 2**63 - 1),
    ],
)
def test_as_microseconds_a_month_is_a_twelfth_of_a_julian_year(text: str, us: int) -> None:
    found = codec(INTERVAL, interval_as="microseconds")
    assert found.avro["connect.name"] == "io.debezium.time.MicroDuration"
    assert read(found.text(text.encode()), found.avro) == us


@pytest.mark.parametrize("text", ["1 day 2562047788:00:54.775807", "178956970 years 7 mons 2562047788:00:00"])
def test_more_microseconds_than_a_long_has_are_special(text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(INTERVAL, interval_as="microseconds").text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize("choice", ["iso_8601", "fields", "microseconds"])
def test_infinity_is_special_in_every_form(choice: str) -> None:
    for text in (b"infinity", b"-infinity"):
        with pytest.raises(Special) as caught:
            codec(INTERVAL, interval_as=choice).text(text)
        assert caught.value.text == text
