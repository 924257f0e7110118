"""date, time, timetz, timestamp, timestamptz -> Avro's date, time-micros and (local-)timestamp-micros.

In: ISO text (DateStyle ISO, TimeZone UTC): `2024-01-01 00:00:00.123456+00`, `0044-03-15 BC`, `10000-01-01`;
or the send format: int32 days, int64 microseconds, since 2000-01-01.
Out: zig-zag varints of days or microseconds since 1970-01-01; timetz is a string of the server's text.
Invariant: infinities, 24:00:00 and what int64 microseconds of the Unix epoch cannot hold are `Special`, never
wrapped (PostgreSQL's own epoch is 2000, so its last years do not fit). The calendar is proleptic Gregorian.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from cdcd.model import POSTGRES_EPOCH_US
from cdcd.schema.calendar import civil_of, days_of
from cdcd.schema.codec import Builder, Codec, Special
from cdcd.schema.varint import MAX_LONG, MIN_LONG, encode_long, encode_string

DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ = 1082, 1083, 1114, 1184, 1266

DAY_US = 86_400_000_000
_POSTGRES_EPOCH_DAYS = 10_957
_MIN_INT, _MAX_INT = -(1 << 31), (1 << 31) - 1
_INFINITIES = {b"infinity", b"-infinity"}
_MIDNIGHT = b"24:00:00"

_is_date = re.compile(rb"(\d{4,7})-(\d\d)-(\d\d)( BC)?").fullmatch
_is_clock = re.compile(rb"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)").fullmatch
_is_offset = re.compile(rb"([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?").fullmatch
_is_timetz = re.compile(rb"\d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d(?::\d\d){0,2}").fullmatch
_split_timestamp = re.compile(
    rb"(\d{4,7}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-][\d:]+)?( BC)?"
).fullmatch


@lru_cache(maxsize=4096)
def _day(raw: bytes) -> int:
    match = _is_date(raw)
    if match is None:
        raise ValueError("not a date")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if year == 0:
        raise ValueError("not a date")
    return days_of(1 - year if match[4] else year, month, day)


@lru_cache(maxsize=4096)
def _second(raw: bytes) -> int:
    match = _is_clock(raw)
    if match is None:
        raise ValueError("not a time of day")
    return (int(match[1]) * 60 + int(match[2])) * 60 + int(match[3])


def _time_us(raw: bytes) -> int:
    us = _second(raw[:8]) * 1_000_000
    if len(raw) == 8:
        return us
    fraction = raw[9:]
    if raw[8] != 46 or not fraction.isdigit() or len(fraction) > 6:
        raise ValueError("not a time of day")
    return us + int(fraction.ljust(6, b"0"))


@lru_cache(maxsize=64)
def _offset_us(raw: bytes) -> int:
    match = _is_offset(raw)
    if match is None:
        raise ValueError("not an offset")
    seconds = int(match[2]) * 3600 + int(match[3] or 0) * 60 + int(match[4] or 0)
    return (-seconds if match[1] == b"-" else seconds) * 1_000_000


def _encode_unix_us(us: int, raw: bytes) -> bytes:
    if MIN_LONG <= us <= MAX_LONG:
        return encode_long(us)
    raise Special(raw)


def encode_date(raw: bytes) -> bytes:
    """Encode date_out's ISO text."""
    if raw in _INFINITIES:
        raise Special(raw)
    days = _day(raw)
    if not _MIN_INT <= days <= _MAX_INT:
        raise Special(raw)
    return encode_long(days)


def encode_time(raw: bytes) -> bytes:
    """Encode time_out's text; 24:00:00, which time-micros does not know, is `Special`."""
    if raw == _MIDNIGHT:
        raise Special(raw)
    return encode_long(_time_us(raw))


def encode_timetz(raw: bytes) -> bytes:
    """Encode timetz_out's text as it is."""
    if not _is_timetz(raw):
        raise ValueError("not a time with zone")
    return encode_string(raw)


def encode_timestamp(raw: bytes) -> bytes:
    """Encode timestamp_out's ISO text."""
    if raw[10:11] == b" " and raw[-1:] != b"C":
        return encode_long(_day(raw[:10]) * DAY_US + _time_us(raw[11:]))
    return _encode_timestamp_slowly(raw, zoned=False)


def encode_timestamptz(raw: bytes) -> bytes:
    """Encode timestamptz_out's ISO text. The session's zone is UTC, but any offset is understood."""
    if raw[10:11] == b" " and raw[-3:] == b"+00":
        return encode_long(_day(raw[:10]) * DAY_US + _time_us(raw[11:-3]))
    return _encode_timestamp_slowly(raw, zoned=True)


def _encode_timestamp_slowly(raw: bytes, *, zoned: bool) -> bytes:
    if raw in _INFINITIES:
        raise Special(raw)
    match = _split_timestamp(raw)
    if match is None or (match[3] is not None) != zoned:
        raise ValueError("not a timestamp")
    day = _day(match[1] + (match[4] or b""))
    offset_us = _offset_us(match[3]) if zoned else 0
    return _encode_unix_us(day * DAY_US + _time_us(match[2]) - offset_us, raw)


# --- the send formats ---------------------------------------------------------------------------------------


def _clock_text(us: int) -> bytes:
    seconds, fraction = divmod(us, 1_000_000)
    text = b"%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    return text + (b".%06d" % fraction).rstrip(b"0") if fraction else text


def encode_sent_date(raw: bytes) -> bytes:
    """Encode date_send's four bytes."""
    (days,) = struct.unpack(">i", raw)
    if days in (_MIN_INT, _MAX_INT):
        raise Special(b"infinity" if days > 0 else b"-infinity")
    return encode_long(days + _POSTGRES_EPOCH_DAYS)


def encode_sent_time(raw: bytes) -> bytes:
    """Encode time_send's eight bytes."""
    (us,) = struct.unpack(">q", raw)
    if us == DAY_US:
        raise Special(_MIDNIGHT)
    if not 0 <= us < DAY_US:
        raise ValueError("not a time of day")
    return encode_long(us)


def encode_sent_timetz(raw: bytes) -> bytes:
    """Encode timetz_send's int64 microseconds and int32 seconds west of UTC, as timetz_out writes them."""
    us, west_s = struct.unpack(">qi", raw)
    if not 0 <= us <= DAY_US:
        raise ValueError("not a time of day")
    minutes, seconds = divmod(abs(west_s), 60)
    text = _clock_text(us) + b"%c%02d" % (b"-" if west_s > 0 else b"+", minutes // 60)
    if minutes % 60 or seconds:
        text += b":%02d" % (minutes % 60)
    return encode_string(text + b":%02d" % seconds if seconds else text)


def _encode_sent(raw: bytes, zone: bytes) -> bytes:
    (us,) = struct.unpack(">q", raw)
    if us in (MIN_LONG, MAX_LONG):
        raise Special(b"infinity" if us > 0 else b"-infinity")
    unix_us = us + POSTGRES_EPOCH_US
    if unix_us > MAX_LONG:
        days, clock_us = divmod(unix_us, DAY_US)
        raise Special(b"%04d-%02d-%02d " % civil_of(days) + _clock_text(clock_us) + zone)
    return encode_long(unix_us)


def encode_sent_timestamp(raw: bytes) -> bytes:
    """Encode timestamp_send's eight bytes."""
    return _encode_sent(raw, b"")


def encode_sent_timestamptz(raw: bytes) -> bytes:
    """Encode timestamptz_send's eight bytes."""
    return _encode_sent(raw, b"+00")


def _codec(codec: Codec) -> Builder:
    return lambda typmod, policy: codec


_LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
_INSTANT = {"type": "long", "logicalType": "timestamp-micros"}

BUILDERS: dict[int, Builder] = {
    DATE: _codec(Codec({"type": "int", "logicalType": "date"}, encode_date, encode_sent_date)),
    TIME: _codec(Codec({"type": "long", "logicalType": "time-micros"}, encode_time, encode_sent_time)),
    TIMETZ: _codec(Codec("string", encode_timetz, encode_sent_timetz)),
    TIMESTAMP: _codec(Codec(_LOCAL, encode_timestamp, encode_sent_timestamp)),
    TIMESTAMPTZ: _codec(Codec(_INSTANT, encode_timestamptz, encode_sent_timestamptz)),
}
