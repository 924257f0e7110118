"""time -> Avro long, logicalType time-micros; timetz -> string of the server's text.

In: `12:34:56.789`, `12:34:56-04:56:02`; or int64 microseconds, and for timetz int32 seconds west of UTC.
Out: a zig-zag varint of microseconds since midnight, or an Avro string.
Invariant: 24:00:00, which time-micros does not allow, is `Special`.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from cdcd.schema.codec import Builder, Codec, Op, Operation, Special
from cdcd.schema.varint import encode_long, encode_string

TIME, TIMETZ = 1083, 1266

DAY_US = 86_400_000_000
_MIDNIGHT = b"24:00:00"

_is_clock = re.compile(rb"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)").fullmatch
_is_timetz = re.compile(rb"\d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d(?::\d\d){0,2}").fullmatch


@lru_cache(maxsize=4096)
def _second(raw: bytes) -> int:
    match = _is_clock(raw)
    if match is None:
        raise ValueError("not a time of day")
    return (int(match[1]) * 60 + int(match[2])) * 60 + int(match[3])


def time_us_of_text(raw: bytes) -> int:
    """Return microseconds since midnight of `HH:MM:SS` with up to six fractional digits. Raises ValueError."""
    us = _second(raw[:8]) * 1_000_000
    if len(raw) == 8:
        return us
    fraction = raw[9:]
    if raw[8] != 46 or not fraction.isdigit() or len(fraction) > 6:
        raise ValueError("not a time of day")
    return us + int(fraction.ljust(6, b"0"))


def clock_text(us: int) -> bytes:
    """Return the text of time_out for microseconds since midnight."""
    seconds, fraction = divmod(us, 1_000_000)
    text = b"%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    return text + (b".%06d" % fraction).rstrip(b"0") if fraction else text


def encode_time(raw: bytes) -> bytes:
    """Encode time_out's text."""
    if raw == _MIDNIGHT:
        raise Special(raw)
    return encode_long(time_us_of_text(raw))


def encode_timetz(raw: bytes) -> bytes:
    """Encode timetz_out's text unchanged."""
    if not _is_timetz(raw):
        raise ValueError("not a time with zone")
    return encode_string(raw)


def encode_binary_time(raw: bytes) -> bytes:
    """Encode time_send's eight bytes."""
    (us,) = struct.unpack(">q", raw)
    if us == DAY_US:
        raise Special(_MIDNIGHT)
    if not 0 <= us < DAY_US:
        raise ValueError("not a time of day")
    return encode_long(us)


def encode_binary_timetz(raw: bytes) -> bytes:
    """Encode timetz_send's int64 microseconds and int32 seconds west of UTC as timetz_out's text."""
    us, west_s = struct.unpack(">qi", raw)
    if not 0 <= us <= DAY_US:
        raise ValueError("not a time of day")
    minutes, seconds = divmod(abs(west_s), 60)
    text = clock_text(us) + b"%c%02d" % (b"-" if west_s > 0 else b"+", minutes // 60)
    if minutes % 60 or seconds:
        text += b":%02d" % (minutes % 60)
    return encode_string(text + b":%02d" % seconds if seconds else text)


_TIME = Codec(
    {"type": "long", "logicalType": "time-micros"},
    encode_time,
    encode_binary_time,
    special="24:00:00",
    text_op=Operation(Op.TIME_TEXT),
    binary_op=Operation(Op.TIME_BINARY),
)
_TIMETZ = Codec("string", encode_timetz, encode_binary_timetz, content="the server's text")

BUILDERS: dict[int, Builder] = {
    TIME: lambda typmod, policy: _TIME,
    TIMETZ: lambda typmod, policy: _TIMETZ,
}
