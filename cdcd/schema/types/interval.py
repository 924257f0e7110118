"""interval -> string, ISO 8601, with months, days and time each exact; by policy a record of them, or microseconds.

In: IntervalStyle postgres (`1 year 2 mons -3 days +04:05:06.7`), or interval_send (int64 us, int32 days,
int32 months).
Out: the text of PostgreSQL's own IntervalStyle iso_8601: `P1Y2M-3DT4H5M6.7S`, `PT0S` for an empty interval; or the
three numbers; or one number, in which a month is 365.25/12 days and a day 24 hours, as in Debezium's.
Invariant: the string and the record preserve the three fields. Infinities (PostgreSQL 17), and microseconds beyond
int64, are `Special`.
"""

from __future__ import annotations

import re
import struct

from cdcd.schema.codec import AvroType, Builder, Codec, Special
from cdcd.schema.varint import MAX_LONG, MIN_LONG, encode_long, encode_string

INTERVAL = 1186

_DAY_US = 86_400_000_000
_MONTH_US = _DAY_US * 1461 // 48  # 365.25 / 12 days

_INFINITIES = {b"infinity", b"-infinity"}
_BINARY_INFINITIES = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}
_parse = re.compile(
    rb"(?:([+-]?\d+) years?(?: |$))?(?:([+-]?\d+) mons?(?: |$))?(?:([+-]?\d+) days?(?: |$))?"
    rb"(?:([+-]?)(\d{2,}):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
).fullmatch


def iso_8601(months: int, days: int, us: int) -> bytes:
    """Return the interval in IntervalStyle iso_8601."""
    time_sign, month_sign = (-1 if us < 0 else 1), (-1 if months < 0 else 1)
    years, months = divmod(abs(months), 12)
    seconds, fraction = divmod(abs(us), 1_000_000)
    date = ((month_sign * years, "Y"), (month_sign * months, "M"), (days, "D"))
    clock = ((time_sign * (seconds // 3600), "H"), (time_sign * (seconds // 60 % 60), "M"))
    text = "".join(f"{n}{unit}" for n, unit in date if n)
    time = "".join(f"{n}{unit}" for n, unit in clock if n)
    if seconds % 60 or fraction:
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        time += f"{'-' if us < 0 else ''}{seconds % 60}{tail}S"
    if not text and not time:
        return b"PT0S"
    return f"P{text}{'T' if time else ''}{time}".encode()


def _fields(raw: bytes) -> tuple[int, int, int]:
    """Return (months, days, us) of interval_out's text in IntervalStyle postgres."""
    if raw in _INFINITIES:
        raise Special(raw)
    match = _parse(raw)
    if match is None or not raw or raw.endswith(b" "):
        raise ValueError("not an interval")
    years, months, days, sign, hours, minutes, seconds, fraction = match.groups()
    us = 0
    if hours is not None:
        us = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000
        us += int((fraction or b"0").ljust(6, b"0"))
    return int(years or 0) * 12 + int(months or 0), int(days or 0), -us if sign == b"-" else us


def _sent_fields(raw: bytes) -> tuple[int, int, int]:
    """Return (months, days, us) of interval_send's 16 bytes."""
    us, days, months = struct.unpack(">qii", raw)
    infinity = _BINARY_INFINITIES.get((us, days, months))
    if infinity is not None:
        raise Special(infinity)
    return months, days, us


def encode_interval(raw: bytes) -> bytes:
    """Encode interval_out's text as ISO 8601."""
    return encode_string(iso_8601(*_fields(raw)))


def encode_binary_interval(raw: bytes) -> bytes:
    """Encode interval_send's 16 bytes as ISO 8601."""
    return encode_string(iso_8601(*_sent_fields(raw)))


def encode_fields(raw: bytes) -> bytes:
    """Encode interval_out's text as `FIELDS`."""
    months, days, us = _fields(raw)
    return encode_long(months) + encode_long(days) + encode_long(us)


def encode_binary_fields(raw: bytes) -> bytes:
    """Encode interval_send's 16 bytes as `FIELDS`."""
    months, days, us = _sent_fields(raw)
    return encode_long(months) + encode_long(days) + encode_long(us)


def encode_microseconds(raw: bytes) -> bytes:
    """Encode interval_out's text as one number of microseconds."""
    months, days, us = _fields(raw)
    total_us = months * _MONTH_US + days * _DAY_US + us
    if not MIN_LONG <= total_us <= MAX_LONG:
        raise Special(raw)
    return encode_long(total_us)


FIELDS: AvroType = {
    "type": "record",
    "name": "cdcd.Interval",
    "fields": [
        {"name": "months", "type": "int"},
        {"name": "days", "type": "int"},
        {"name": "us", "type": "long"},
    ],
}
"""An interval in the three fields that PostgreSQL stores."""

_MICROSECONDS: AvroType = {
    "type": "long",
    "connect.version": 1,
    "connect.name": "io.debezium.time.MicroDuration",
}

_CODECS = {
    "iso_8601": Codec(
        "string",
        encode_interval,
        encode_binary_interval,
        special="infinities",
        content="ISO 8601; months, days and time are each exact and not mixed",
    ),
    "fields": Codec(FIELDS, encode_fields, encode_binary_fields, special="infinities"),
    "microseconds": Codec(_MICROSECONDS, encode_microseconds, special="infinities, values out of range"),
}

BUILDERS: dict[int, Builder] = {INTERVAL: lambda typmod, policy: _CODECS[policy.interval_as]}
