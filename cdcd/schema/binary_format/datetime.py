"""Dates, times, timestamps and intervals.

In: the send formats: int32 days and int64 microseconds since 2000-01-01, seconds west of UTC.
Out: ISO text in time zone UTC, intervals in IntervalStyle postgres.
Invariant: the minimum and maximum numbers are the infinities; a time of day beyond 24:00:00 is unreadable.
"""

from __future__ import annotations

import struct

from cdcd.model import POSTGRES_EPOCH_US
from cdcd.schema.binary_format.cut import TextOfBinary
from cdcd.schema.calendar import civil_of

_DAY_US = 86_400_000_000
_EPOCH_DAYS = POSTGRES_EPOCH_US // _DAY_US
_INFINITE_DAYS = {-(1 << 31): b"-infinity", (1 << 31) - 1: b"infinity"}
_INFINITE_US = {-(1 << 63): b"-infinity", (1 << 63) - 1: b"infinity"}
_INFINITE_INTERVALS = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}
_unpack_days = struct.Struct(">i").unpack
_unpack_us = struct.Struct(">q").unpack
_unpack_timetz = struct.Struct(">qi").unpack
_unpack_interval = struct.Struct(">qii").unpack


def _day(days: int) -> tuple[bytes, bytes]:
    """Return a date's text and its suffix, " BC" or empty, which follows the time of a timestamp."""
    year, month, day = civil_of(days + _EPOCH_DAYS)
    if year > 0:
        return b"%04d-%02d-%02d" % (year, month, day), b""
    return b"%04d-%02d-%02d" % (1 - year, month, day), b" BC"


def _clock(us: int) -> bytes:
    seconds, fraction = divmod(us, 1_000_000)
    text = b"%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    return text + (b".%06d" % fraction).rstrip(b"0") if fraction else text


def date(raw: bytes) -> bytes:
    """Convert date_send's days."""
    (days,) = _unpack_days(raw)
    return _INFINITE_DAYS.get(days) or b"".join(_day(days))


def _timestamp(zone: bytes) -> TextOfBinary:
    def text(raw: bytes) -> bytes:
        (us,) = _unpack_us(raw)
        if us in _INFINITE_US:
            return _INFINITE_US[us]
        days, of_day_us = divmod(us, _DAY_US)
        day, era = _day(days)
        return day + b" " + _clock(of_day_us) + zone + era

    return text


timestamp = _timestamp(b"")
"""timestamp_send's microseconds."""

timestamptz = _timestamp(b"+00")
"""timestamptz_send's microseconds, in UTC."""


def _checked_clock(us: int) -> bytes:
    if not 0 <= us <= _DAY_US:
        raise ValueError("not a time of day")
    return _clock(us)


def time(raw: bytes) -> bytes:
    """Convert time_send's microseconds."""
    return _checked_clock(*_unpack_us(raw))


def timetz(raw: bytes) -> bytes:
    """Convert timetz_send's microseconds and seconds west of UTC."""
    us, west_s = _unpack_timetz(raw)
    minutes, seconds = divmod(abs(west_s), 60)
    text = _checked_clock(us) + b"%c%02d" % (b"-" if west_s > 0 else b"+", minutes // 60)
    if minutes % 60 or seconds:
        text += b":%02d" % (minutes % 60)
    return text + b":%02d" % seconds if seconds else text


def interval(raw: bytes) -> bytes:
    """Convert interval_send's microseconds, days and months."""
    us, days, months = _unpack_interval(raw)
    infinity = _INFINITE_INTERVALS.get((us, days, months))
    if infinity is not None:
        return infinity
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    text, is_before = b"", False
    for number, unit in ((years, b"year"), (months, b"mon"), (days, b"day")):
        if number:
            # A field has a plus sign only where the previous one is negative (EncodeInterval).
            plus = b"+" if is_before and number > 0 else b""
            text += b" " * bool(text) + b"%s%d %s%s" % (plus, number, unit, b"s" * (number != 1))
            is_before = number < 0
    if us or not text:
        plus = b"-" if us < 0 else b"+" * is_before
        text += b" " * bool(text) + plus + _clock(abs(us))
    return text
