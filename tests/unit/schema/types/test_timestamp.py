"""timestamp and timestamptz: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest

from cdcd.schema.codec import UNREADABLE, Special
from tests.support.avro_types import TIMESTAMP, TIMESTAMPTZ, codec, raw_of, value_of

DT = datetime.datetime
UTC = datetime.UTC


def us_since_2000(moment: datetime.datetime) -> int:
    return (moment - DT(2000, 1, 1)) // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (TIMESTAMP, "2024-01-01 00:00:00.123456", DT(2024, 1, 1, 0, 0, 0, 123456)),
        (TIMESTAMP, "1969-12-31 23:59:59.99", DT(1969, 12, 31, 23, 59, 59, 990000)),
        (TIMESTAMP, "0001-01-01 00:00:00", DT(1, 1, 1)),
        (TIMESTAMPTZ, "2024-01-01 00:00:00.123456+00", DT(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        (TIMESTAMPTZ, "2024-01-01 05:30:00+05:30", DT(2024, 1, 1, tzinfo=UTC)),
        (TIMESTAMPTZ, "1883-11-18 12:03:57-04:56:02", DT(1883, 11, 18, 16, 59, 59, tzinfo=UTC)),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (TIMESTAMP, -1, "infinity"),
        (TIMESTAMP, -1, "294276-12-31 23:59:59.999999"),
        (TIMESTAMPTZ, -1, "-infinity"),
        (TIMESTAMPTZ, -1, "294247-01-10 04:00:54.775808+00"),
    ],
)
def test_special(oid: int, modifier: int, text: str) -> None:
    with pytest.raises(Special) as caught:
        codec(oid, modifier).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (TIMESTAMP, "4714-11-24 00:00:00 BC", -2440588 * 86_400_000_000),
        (TIMESTAMPTZ, "0001-12-31 23:59:59.999999+00 BC", -719162 * 86_400_000_000 - 1),
        (TIMESTAMP, "10000-01-01 00:00:00", 253402300800_000_000),
        (TIMESTAMP, "294247-01-10 04:00:54.775807", 2**63 - 1),
        (TIMESTAMPTZ, "294247-01-10 04:00:54.775807+00", 2**63 - 1),
    ],
)
def test_dates_beyond_pythons(oid: int, text: str, expected: int) -> None:
    assert raw_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (TIMESTAMP, "2024-01-01"),
        (TIMESTAMP, "2024-01-01T00:00:00"),
        (TIMESTAMP, "2024-01-01 00:00:00+00"),
        (TIMESTAMP, "2024-01-01 24:00:00"),
        (TIMESTAMPTZ, "2024-01-01 00:00:00"),
        (TIMESTAMPTZ, "Mon Jan 01 00:00:00 2024 UTC"),
    ],
)
def test_text_that_the_server_does_not_write_is_unreadable(oid: int, text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(oid).text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "binary"),
    [
        (
            TIMESTAMP,
            -1,
            "1984-06-01 02:03:04.000005",
            struct.pack(">q", us_since_2000(DT(1984, 6, 1, 2, 3, 4, 5))),
        ),
        (TIMESTAMPTZ, -1, "2031-01-01 00:00:00+00", struct.pack(">q", us_since_2000(DT(2031, 1, 1)))),
    ],
)
def test_binary_gives_the_bytes_of_its_text(oid: int, modifier: int, text: str, binary: bytes) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    assert found.binary(binary) == found.text(text.encode())


@pytest.mark.parametrize(
    ("oid", "modifier", "binary", "text"),
    [
        (TIMESTAMP, -1, struct.pack(">q", 2**63 - 1), "infinity"),
        (TIMESTAMPTZ, -1, struct.pack(">q", -(2**63)), "-infinity"),
        (TIMESTAMP, -1, struct.pack(">q", 9223371331199999999), "294276-12-31 23:59:59.999999"),
        (TIMESTAMPTZ, -1, struct.pack(">q", 9223371331199000000), "294276-12-31 23:59:59+00"),
    ],
)
def test_special_in_binary_has_the_servers_text(oid: int, modifier: int, binary: bytes, text: str) -> None:
    found = codec(oid, modifier)
    assert found.binary is not None
    with pytest.raises(Special) as caught:
        found.binary(binary)
    assert caught.value.text.decode() == text
