"""date -> Avro int, logicalType date.

In: ISO text (DateStyle ISO): `2024-01-01`, `0044-03-15 BC`, `10000-01-01`; or int32 days since 2000-01-01.
Out: a zig-zag varint of days since 1970-01-01.
Invariant: infinities, and days beyond a 32-bit count from 1970, are `Special`. The calendar is proleptic
Gregorian.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from cdcd.schema.calendar import days_of
from cdcd.schema.codec import Builder, Codec, Op, Operation, Special
from cdcd.schema.varint import encode_long

DATE = 1082

INFINITIES = frozenset((b"infinity", b"-infinity"))
"""The text of the infinities in date_out and timestamp_out."""

_POSTGRES_EPOCH_DAYS = 10_957
_MIN_INT, _MAX_INT = -(1 << 31), (1 << 31) - 1

_is_date = re.compile(rb"(\d{4,7})-(\d\d)-(\d\d)( BC)?").fullmatch


@lru_cache(maxsize=4096)
def day_of_text(raw: bytes) -> int:
    """Return days since 1970-01-01 of an ISO date. Raises ValueError."""
    match = _is_date(raw)
    if match is None:
        raise ValueError("not a date")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if year == 0:
        raise ValueError("not a date")
    return days_of(1 - year if match[4] else year, month, day)


def encode_date(raw: bytes) -> bytes:
    """Encode date_out's ISO text."""
    if raw in INFINITIES:
        raise Special(raw)
    days = day_of_text(raw)
    if not _MIN_INT <= days <= _MAX_INT:
        raise Special(raw)
    return encode_long(days)


def encode_binary_date(raw: bytes) -> bytes:
    """Encode date_send's four bytes."""
    (days,) = struct.unpack(">i", raw)
    if days in (_MIN_INT, _MAX_INT):
        raise Special(b"infinity" if days > 0 else b"-infinity")
    return encode_long(days + _POSTGRES_EPOCH_DAYS)


_CODEC = Codec(
    {"type": "int", "logicalType": "date"},
    encode_date,
    encode_binary_date,
    special="infinities, days beyond 32 bits",
    text_op=Operation(Op.DATE_TEXT),
    binary_op=Operation(Op.DATE_BINARY),
)

BUILDERS: dict[int, Builder] = {DATE: lambda typmod, policy: _CODEC}
