"""interval -> string, ISO 8601, with months, days and time each exact and never mixed.

In: IntervalStyle postgres (`1 year 2 mons -3 days +04:05:06.7`), or interval_send (int64 us, int32 days,
int32 months).
Out: what PostgreSQL's own IntervalStyle iso_8601 writes: `P1Y2M-3DT4H5M6.7S`, `PT0S` for nothing.
Invariant: reading the string back gives the same three fields. Infinities (PostgreSQL 17) are `Special`.
"""

from __future__ import annotations

import re
import struct

from cdcd.schema.codec import Builder, Codec, Special
from cdcd.schema.varint import encode_string

INTERVAL = 1186

_INFINITIES = {b"infinity", b"-infinity"}
_SENT_INFINITIES = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}
_parse = re.compile(
    rb"(?:([+-]?\d+) years?(?: |$))?(?:([+-]?\d+) mons?(?: |$))?(?:([+-]?\d+) days?(?: |$))?"
    rb"(?:([+-]?)(\d{2,}):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
).fullmatch


def iso_8601(months: int, days: int, us: int) -> bytes:
    """Return the interval as IntervalStyle iso_8601 writes it."""
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


def encode_interval(raw: bytes) -> bytes:
    """Encode interval_out's text in IntervalStyle postgres."""
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
    return encode_string(
        iso_8601(int(years or 0) * 12 + int(months or 0), int(days or 0), -us if sign == b"-" else us)
    )


def encode_sent_interval(raw: bytes) -> bytes:
    """Encode interval_send's 16 bytes."""
    us, days, months = struct.unpack(">qii", raw)
    infinity = _SENT_INFINITIES.get((us, days, months))
    if infinity is not None:
        raise Special(infinity)
    return encode_string(iso_8601(months, days, us))


BUILDERS: dict[int, Builder] = {
    INTERVAL: lambda typmod, policy: Codec("string", encode_interval, encode_sent_interval)
}
