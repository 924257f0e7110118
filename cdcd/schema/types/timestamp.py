"""timestamp -> Avro long, local-timestamp-micros; timestamptz -> Avro long, timestamp-micros.

In: ISO text (DateStyle ISO, TimeZone UTC): `2024-01-01 00:00:00.123456+00`, `0044-03-15 12:00:00 BC`; or int64
microseconds since 2000-01-01.
Out: a zig-zag varint of microseconds since 1970-01-01.
Invariant: infinities, and values that int64 microseconds of the Unix epoch cannot hold, are `Special`, never wrapped
(PostgreSQL's own epoch is 2000, so its last years do not fit).
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from cdcd.model import POSTGRES_EPOCH_US
from cdcd.schema.calendar import civil_of
from cdcd.schema.codec import Builder, Codec, Op, Operation, Special
from cdcd.schema.types.date import INFINITIES, day_of_text
from cdcd.schema.types.time import DAY_US, clock_text, time_us_of_text
from cdcd.schema.varint import MAX_LONG, MIN_LONG, encode_long

TIMESTAMP, TIMESTAMPTZ = 1114, 1184

_SPECIAL = "infinities, times beyond int64 microseconds since 1970"

_is_offset = re.compile(rb"([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?").fullmatch
_split_timestamp = re.compile(
    rb"(\d{4,7}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-][\d:]+)?( BC)?"
).fullmatch


@lru_cache(maxsize=64)
def _offset_us(raw: bytes) -> int:
    match = _is_offset(raw)
    if match is None:
        raise ValueError("not an offset")
    seconds = int(match[2]) * 3600 + int(match[3] or 0) * 60 + int(match[4] or 0)
    return (-seconds if match[1] == b"-" else seconds) * 1_000_000


def encode_timestamp(raw: bytes) -> bytes:
    """Encode timestamp_out's ISO text."""
    if raw[10:11] == b" " and raw[-1:] != b"C":
        return encode_long(day_of_text(raw[:10]) * DAY_US + time_us_of_text(raw[11:]))
    return _encode_slowly(raw, zoned=False)


def encode_timestamptz(raw: bytes) -> bytes:
    """Encode timestamptz_out's ISO text. The session's time zone is UTC, but any offset is accepted."""
    if raw[10:11] == b" " and raw[-3:] == b"+00":
        return encode_long(day_of_text(raw[:10]) * DAY_US + time_us_of_text(raw[11:-3]))
    return _encode_slowly(raw, zoned=True)


def _encode_slowly(raw: bytes, *, zoned: bool) -> bytes:
    if raw in INFINITIES:
        raise Special(raw)
    match = _split_timestamp(raw)
    if match is None or (match[3] is not None) != zoned:
        raise ValueError("not a timestamp")
    day = day_of_text(match[1] + (match[4] or b""))
    offset_us = _offset_us(match[3]) if zoned else 0
    us = day * DAY_US + time_us_of_text(match[2]) - offset_us
    if MIN_LONG <= us <= MAX_LONG:
        return encode_long(us)
    raise Special(raw)


def _encode_binary(raw: bytes, zone: bytes) -> bytes:
    (us,) = struct.unpack(">q", raw)
    if us in (MIN_LONG, MAX_LONG):
        raise Special(b"infinity" if us > 0 else b"-infinity")
    unix_us = us + POSTGRES_EPOCH_US
    if unix_us > MAX_LONG:
        days, clock_us = divmod(unix_us, DAY_US)
        raise Special(b"%04d-%02d-%02d " % civil_of(days) + clock_text(clock_us) + zone)
    return encode_long(unix_us)


def encode_binary_timestamp(raw: bytes) -> bytes:
    """Encode timestamp_send's eight bytes."""
    return _encode_binary(raw, b"")


def encode_binary_timestamptz(raw: bytes) -> bytes:
    """Encode timestamptz_send's eight bytes."""
    return _encode_binary(raw, b"+00")


_LOCAL = Codec(
    {"type": "long", "logicalType": "local-timestamp-micros"},
    encode_timestamp,
    encode_binary_timestamp,
    special=_SPECIAL,
    text_op=Operation(Op.TIMESTAMP_TEXT),
    binary_op=Operation(Op.TIMESTAMP_BINARY),
)
_INSTANT = Codec(
    {"type": "long", "logicalType": "timestamp-micros"},
    encode_timestamptz,
    encode_binary_timestamptz,
    special=_SPECIAL,
    text_op=Operation(Op.TIMESTAMPTZ_TEXT),
    binary_op=Operation(Op.TIMESTAMP_BINARY),
)

BUILDERS: dict[int, Builder] = {
    TIMESTAMP: lambda typmod, policy: _LOCAL,
    TIMESTAMPTZ: lambda typmod, policy: _INSTANT,
}
